"""How the watchdog begins: what it is given is read with suspicion, what is missing is said in one line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kite_watchdog.edge.log import make_log
from kite_watchdog.main import Refused, read_settings

URL = "ws://127.0.0.1:1"


def _given(tmp_path: Path, **changes: str) -> dict[str, str]:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(" t0ken \n", "utf-8")
    environ = {"KITE_URL": URL, "KITE_TOKEN_FILE": str(token), "KITE_INSTANCE": "mark", **changes}
    return {k: v for k, v in environ.items() if v}


def test_everything_that_it_is_given_is_read(tmp_path: Path) -> None:
    options = tmp_path / "options.json"
    options.touch(mode=0o600)
    options.write_text('{"restarts":2,"scale":0.1}', "utf-8")
    settings = read_settings(["--state-dir", str(tmp_path)], _given(tmp_path, KITE_OPTIONS_FILE=str(options)))
    assert (settings.url, settings.token, settings.options.restarts) == (URL, "t0ken", 2)
    assert "t0ken" not in repr(settings)


def test_a_token_by_descriptor_is_read_to_its_end_and_closed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"by-descriptor")
    os.close(writing)
    environ = _given(tmp_path, KITE_TOKEN_FD=str(reading))
    assert read_settings(["--state-dir", str(tmp_path)], environ).token == "by-descriptor"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


@pytest.mark.parametrize(
    ("argv", "changes", "code"),
    [
        ([], {}, 64),
        (["--state-dir"], {}, 64),
        (["--state"], {}, 64),
        (["--state-dir", "/nowhere"], {}, 78),
        (None, {"KITE_URL": ""}, 78),
        (None, {"KITE_URL": "http://x"}, 78),
        (None, {"KITE_TOKEN_FILE": ""}, 78),
        (None, {"KITE_TOKEN_FILE": "/nowhere"}, 77),
        (None, {"KITE_TOKEN_FD": "77"}, 78),
        (None, {"KITE_TOKEN_FD": "x"}, 78),
        (None, {"KITE_OPTIONS_FILE": "/nowhere"}, 77),
    ],
)
def test_what_is_missing_is_refused_in_one_line(
    tmp_path: Path, argv: list[str] | None, changes: dict[str, str], code: int
) -> None:
    with pytest.raises(Refused) as refused:
        read_settings(["--state-dir", str(tmp_path)] if argv is None else argv, _given(tmp_path, **changes))
    assert refused.value.code == code
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "code"), [("nope", 78), ('{"scale":0}', 78), ("[" * 100_000, 78)])
def test_wrong_options_are_refused_with_their_file(tmp_path: Path, text: str, code: int) -> None:
    options = tmp_path / "options.json"
    options.touch(mode=0o600)
    options.write_text(text, "utf-8")
    with pytest.raises(Refused, match=r"options\.json") as refused:
        read_settings(["--state-dir", str(tmp_path)], _given(tmp_path, KITE_OPTIONS_FILE=str(options)))
    assert refused.value.code == code


def test_an_empty_token_is_refused(tmp_path: Path) -> None:
    environ = _given(tmp_path)
    Path(environ["KITE_TOKEN_FILE"]).write_text("\n", "utf-8")
    with pytest.raises(Refused, match="empty"):
        read_settings(["--state-dir", str(tmp_path)], environ)


def test_the_command_refuses_without_a_traceback() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("KITE_")}
    argv = [sys.executable, "-P", "-m", "kite_watchdog"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == "watchdog: usage: python -P -m kite_watchdog --state-dir DIR\n"


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_log_line_is_one_line(style: str) -> None:
    stream = io.StringIO()
    make_log("json" if style == "json" else "console", stream=stream).warning("module", module_id="x", why="a\nb")
    assert stream.getvalue().count("\n") == 1
    assert "module_id" in stream.getvalue()
