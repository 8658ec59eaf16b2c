"""Command lines: what is understood, and that what is not is refused by 64 without repeating a secret (S-46, S-48)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from kite_launcher.cli.commands import COMMANDS, parse
from kite_launcher.cli.fail import Failure

from .conftest import Launch


def test_no_command_is_up() -> None:
    assert parse([]).command == "up"
    line = parse(["-d", "--config", "status", "--wait", "5"])
    assert (line.command, line.args.detach, line.asked.config, line.args.wait) == ("up", True, "status", 5.0)


def test_options_may_stand_before_and_after_the_command() -> None:
    for argv in (["--state-dir", "/s", "status", "--json"], ["status", "--json", "--state-dir=/s"]):
        line = parse(argv)
        assert (line.command, line.asked.state_dir, line.as_json) == ("status", "/s", True)
    assert parse(["ps"]).command == "status"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["up", "--prot", "1"], "--prot"),
        (["up", "--detahc"], "--detach"),
        (["--confg", "x"], "--confg"),
        (["wait"], "NAME"),
        (["start"], "NAME"),
        (["sttaus"], "status"),
        (["wait", "x", "--timeout", "soon"], "seconds"),
        (["wait", "x", "--timeout", "-1"], "seconds"),
        (["wait", "x", "--timeout", "nan"], "seconds"),
        (["down", "now"], "one argument too many"),
        (["up", "--config"], "--config"),
        (["service", "instal"], "instal"),
        (["completion", "csh"], "csh"),
        (["why", "x", "y"], "one argument too many"),
        (["status", "--jso"], "--json"),
    ],
)
def test_what_is_not_understood_is_one_line_and_64(launch: Launch, argv: list[str], words: str) -> None:
    said = launch(*argv)
    assert said.code == 64
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert words in said.err


@pytest.mark.parametrize("argv", [["up", "--token=S3CRET"], ["status", "--token", "S3CRET"], ["down", "S3CRET"]])
def test_a_value_in_the_wrong_place_is_not_repeated(launch: Launch, argv: list[str]) -> None:
    said = launch(*argv)
    assert said.code == 64
    assert "S3CRET" not in said.out + said.err


def test_refusals_in_json_are_one_object_on_stderr(launch: Launch) -> None:
    for argv in (["why", "--json"], ["status", "--json", "--nope"], ["check", "--json", "--config", "/no/where"]):
        said = launch(*argv)
        assert said.out == ""
        error = json.loads(said.err)
        assert error["schema"] == 1
        assert set(error["error"]) == {"code", "message", "hint"}
        assert error["error"]["code"] == said.code


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse([name, "--help"])
    assert left.value.code == 0
    assert f"example: {COMMANDS[name].example}" in " ".join(capsys.readouterr().out.split())
    example = COMMANDS[name].example.split()
    assert parse(example[1:]).command == name


def test_the_overview_names_every_command(launch: Launch) -> None:
    for argv in (["--help"], ["-h"], ["help"]):
        said = launch(*argv)
        assert said.code == 0
        assert all(f"  {name} " in said.out for name in COMMANDS)


def test_version_is_told(launch: Launch) -> None:
    assert json.loads(launch("version", "--json").out)["schema"] == 1
    assert launch("--version").out.startswith("kite-launch ")


def test_an_option_without_a_command_of_its_own_is_ups() -> None:
    with pytest.raises(Failure) as caught:
        parse(["--json"])
    assert caught.value.code == 64


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EMFILE, 69), (errno.ENOSPC, 69), (errno.E2BIG, 69), (errno.EROFS, 77)]
)
def test_what_the_machine_lacks_or_forbids_is_one_line_and_no_bug(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    def broken(line: object, instance: object) -> int:
        raise OSError(number, os.strerror(number), "/some/where")

    monkeypatch.setattr("kite_launcher.cli.status.run", broken)
    said = launch("status")
    assert said.code == code
    assert "/some/where" in said.err
    assert len(said.err.splitlines()) == 1


def test_a_bug_leaves_a_report_in_a_file_and_no_traceback(
    launch: Launch, lab: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(line: object, instance: object) -> int:
        raise ZeroDivisionError("S3CRET of a bug")

    monkeypatch.setattr("kite_launcher.cli.status.run", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said = launch("status")
    assert said.code == 70
    (report,) = tmp_path.glob("kite-bug-*.txt")
    assert str(report) in said.err
    assert "ZeroDivisionError" in report.read_text(encoding="utf-8")
    assert report.stat().st_mode & 0o777 == 0o600
