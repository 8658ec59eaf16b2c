"""The module `logs`: a bounded ring of the last lines, and the same lines over the wire of a real instance."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.lab import Lab

from kite_modules.logs.ring import Ring, wanted

PRINTER = "import time\nfor n in range(100000): print('number', n, flush=True); time.sleep(0.05)\n"


def line(module: str, text: str) -> dict[str, Any]:
    return {"module": module, "line": text}


def test_a_reader_goes_on_after_its_number_and_is_told_what_it_missed() -> None:
    ring = Ring(lines_max=5)
    for number in range(1, 9):
        ring.add(line("x", f"n{number}"))
    assert (ring.first, ring.last) == (4, 8)
    found, after, missed = ring.after(0, wanted(None, None), 3)
    assert ([row["line"] for row in found], after, missed) == (["n4", "n5", "n6"], 6, 3)
    found, after, missed = ring.after(after, wanted(None, None), 10)
    assert ([row["line"] for row in found], after, missed) == (["n7", "n8"], 8, 0)
    assert ring.after(8, wanted(None, None), 10) == ([], 8, 0)
    assert ring.after(99, wanted(None, None), 10) == ([], 99, 0)


def test_memory_is_bounded_by_characters_too() -> None:
    ring = Ring(chars_max=100)
    for _ in range(50):
        ring.add(line("x", "y" * 30))
    assert ring.last - ring.first + 1 == 3


def test_a_name_stands_for_its_replicas_and_a_text_is_no_pattern() -> None:
    ring = Ring()
    for name, text in (("web@1", "GET /a(b"), ("web@2", "get /c"), ("db", "GET /a(b")):
        ring.add(line(name, text))
    assert [row["module"] for row in ring.newest(wanted(["web"], "get /"), 10)] == ["web@1", "web@2"]
    assert [row["module"] for row in ring.newest(wanted(None, "a(b"), 1)] == ["db"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("logs") / "lab"
    config = f'[logs]\n[module.x]\ncommand = [{json.dumps(sys.executable)}, "x.py"]\nready = {{ delay = "50ms" }}\n'
    with Lab(folder, config, files={"x.py": PRINTER}) as made:
        made.up()
        yield made


def call(lab: Lab, method: str, **params: Any) -> Any:
    words = [sys.executable, "-P", "-m", "kite_modules.cli.main", "call", method, json.dumps(params)]
    done = subprocess.run([*words, "--state-dir", lab.state], capture_output=True, text=True, timeout=60, env=lab.env())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def numbers(answer: dict[str, Any]) -> list[int]:
    return [int(row["line"].split()[1]) for row in answer["lines"]]


def test_lines_are_followed_without_gap_or_twin_and_searched(lab: Lab) -> None:
    lab.until(lambda: call(lab, "logs.query", modules=["x"])["lines"], "the first lines")
    answer = call(lab, "logs.query", modules=["x"], limit=5000)
    seen = numbers(answer)
    while len(seen) < 60:
        answer = call(lab, "logs.query", modules=["x"], after=answer["after"])
        assert answer["missed"] == 0
        seen += numbers(answer)
    assert seen == list(range(len(seen)))
    found = call(lab, "logs.query", modules=["x"], grep="NUMBER 7", limit=1)
    assert found["lines"][0]["line"].startswith("number 7")
    past = call(lab, "logs.query", modules=["x"], since="1h", limit=3)
    assert len(numbers(past)) == 3
    rows = {row["module"]: row for row in call(lab, "logs.modules")["modules"]}
    assert {"x", "kernel", "launcher", "logs"} <= rows.keys()
    assert rows["x"]["bytes"] > 0


def test_bad_questions_are_refused_by_name(lab: Lab) -> None:
    words = [sys.executable, "-P", "-m", "kite_modules.cli.main", "call", "logs.query"]
    for params, said in (({"limit": 0}, "limit"), ({"since": "the day"}, "since"), ({"modules": "x"}, "modules")):
        done = subprocess.run(
            [*words, json.dumps(params), "--state-dir", lab.state],
            capture_output=True, text=True, timeout=60, env=lab.env(),
        )  # fmt: skip
        assert done.returncode == 1
        assert said in done.stderr
