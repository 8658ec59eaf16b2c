"""kite.toml to a spec: cases S-39 … S-45 and every rule of spec 05 §6 about the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from kite_launcher._contract import CONFIG
from kite_launcher.core.check_rows import Facts, FileFault, RowChecker
from kite_launcher.core.load import decode, load_text
from kite_launcher.core.spec import InstanceSpec, Mistake, Place, Ready
from kite_launcher.core.toml_places import Places
from kite_launcher.core.units import parse_duration, parse_rate, parse_size, words_duration, words_size

FILES = {
    "/home/lab/.env": "A=1\n# c\nexport B='two words'\nC=\"x\\ny\" # z\nD=q # r\n",
    "/home/lab/secret.txt": "S3CRET\n",
    "/home/lab/bad.env": "A=1\nnothing\nB='open\n",
    "/certs/c.pem": "c",
    "/certs/k.pem": "k",
}


def facts(environ: Mapping[str, str] | None = None, **more: Any) -> Facts:
    def files(path: str) -> str | FileFault:
        if path == "/home/lab/locked":
            return FileFault("permission denied", True)
        return FILES.get(path, FileFault("no such file or directory"))

    known = {"HOME": "/home/me", "PORT": "7000", "YES": "true"} if environ is None else environ
    return Facts(known, files, lambda user: user in ("nobody", "root"), **more)


def mistakes(text: str, **more: Any) -> list[str]:
    loaded = load_text(text, path="/home/lab/kite.toml", facts=facts(**more))
    assert (loaded.spec is None) == bool(loaded.mistakes)
    return [mistake.line("kite.toml") for mistake in loaded.mistakes]


def spec(text: str, **more: Any) -> InstanceSpec:
    loaded = load_text(text, path="/home/lab/kite.toml", facts=facts(**more))
    assert loaded.spec is not None, loaded.mistakes
    return loaded.spec


def module(keys: str) -> str:
    return f'[module.x]\ncommand = ["x"]\n{keys}\n'


def test_an_empty_file_is_an_instance_with_the_users_numbers() -> None:
    found = spec("")
    assert (found.name, found.folder, found.kernel.port) == ("lab", "/home/lab", 7390)
    assert (found.timing.debounce_s, found.timing.launcher_grace_s, found.timing.ping_misses) == (5.0, 35.0, 3)
    assert (found.watchdog.restarts, found.watchdog.within_s) == (5, 600.0)
    assert (found.logging.max_bytes, found.logging.files) == (10 << 20, 5)
    assert (found.notify.limit, found.notify.limit_within_s) == (10, 3600.0)


def test_seven_mistakes_are_seven_lines_in_file_order() -> None:
    text = """[kernle]
[kernel]
port = "80a"
[module.logs]
command = ["x"]
[module.x]
command = ["x"]
restrat = "always"
stop_timeout = "-1s"
max_restarts = true
health = 15
after = ["lgos"]
"""
    lines = mistakes(text)
    assert [line.split(" ")[0] for line in lines] == [
        "kite.toml:1:2:",
        "kite.toml:3:8:",
        "kite.toml:8:1:",
        "kite.toml:9:16:",
        "kite.toml:10:16:",
        "kite.toml:11:10:",
        "kite.toml:12:10:",
    ]
    assert "'kernel'" in lines[0]
    assert "whole number from 0 to 65535" in lines[1]
    assert "'restart'" in lines[2]
    assert "duration" in lines[3]
    assert "whole number" in lines[4]
    assert "duration" in lines[5]
    assert "or false" in lines[5]
    assert "'logs'" in lines[6]


def test_a_file_with_windows_lines_is_a_good_file() -> None:
    assert spec("[kernel]\r\nport = 0\r\n[module.x]\r\ncommand = ['x']\r\n").kernel.port == 0


def test_a_name_that_toml_wants_quoted_says_so() -> None:
    (line,) = mistakes('[module.备份]\ncommand = ["x"]\n')
    assert line.startswith("kite.toml:1:9: ")
    assert "quotes" in line


def test_each_circle_is_printed_as_its_path() -> None:
    text = """[module]
a = { command = ["x"], after = ["b"] }
b = { command = ["x"], requires = ["c"] }
c = { command = ["x"], after = ["a"] }
d = { command = ["x"], after = ["d"] }
"""
    lines = mistakes(text)
    assert [line.rpartition(": ")[2] for line in lines] == ["a → b → c → a", "d → d"]
    assert [line.split(":")[1] for line in lines] == ["2", "5"]


def test_what_the_outside_lacks_is_said_with_its_place() -> None:
    text = module('env = { A = "${HOME}/x", B = "${NOPE}" }\nenv_file = ".nope"\nuser = "nosuchuser"')
    lines = mistakes(text)
    assert [line.split(" ")[0] for line in lines] == ["kite.toml:3:30:", "kite.toml:4:12:", "kite.toml:5:8:"]
    assert "NOPE" in lines[0]
    assert ".nope" in lines[1]
    assert "nosuchuser" in lines[2]


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "a/b", "", ".", "a b", "a.b", "x@1", "é" * 40, "l" * 300, "e\u0301", "\u0301x", "a\u200bb", "x\n"),
        *("kernel", "Kernel", "launcher", "watchdog", "logkeeper", "operator"),
    ],
)
def test_a_bad_module_name_is_refused_with_its_place(name: str) -> None:
    quoted = name.replace("\n", "\\n")
    lines = mistakes(f'\n[module."{quoted}"]\ncommand = ["x"]\n')
    assert len(lines) == 1
    assert lines[0].startswith("kite.toml:2:9: ")


@pytest.mark.parametrize("name", ["x", "X-1_b", "备份", "กำลัง", "é", "l" * 63, "数据-2", "-"])
def test_letters_of_any_script_make_a_name(name: str) -> None:
    assert list(spec(f'[module."{name}"]\ncommand = ["x"]\n').modules) == [name]


def test_two_names_that_differ_only_by_case_are_refused() -> None:
    assert mistakes('[module."Straße"]\ncommand=["x"]\n[module.STRASSE]\ncommand=["x"]\n')[0].startswith(
        "kite.toml:3:9:"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_another_host_names_both_settings_that_it_needs(host: str) -> None:
    (line,) = mistakes(f'[kernel]\nhost = "{host}"\n')
    assert "allow_remote" in line
    assert "tls" in line
    good = f'[kernel]\nhost = "{host}"\nallow_remote = true\ntls = {{ cert = "/certs/c.pem", key = "/certs/k.pem" }}\n'
    assert spec(good).kernel.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    assert spec(f'[kernel]\nhost = "{host}"\n').kernel.host == host


def test_a_message_that_could_never_be_queued_is_impossible() -> None:
    assert len(mistakes('[kernel]\nmax_message = "8MiB"\nqueue_bytes = "4MiB"\n')) == 1


@pytest.mark.parametrize(
    "line",
    [
        "[kernel]\nport = 70000",
        "[kernel]\nport = -1",
        "[kernel]\nport = 1.0",
        "[kernel]\nport = true",
        "[kernel]\nallow_remote = 1",
        "[kernel]\nmax_message = 65536",
        '[kernel]\nmax_message = "1MB"',
        '[kernel]\nmax_message = "1KiB"',
        "[timing]\nscale = 0",
        "[timing]\nscale = nan",
        '[timing]\nscale = "1"',
        "[timing]\nping_misses = 0",
        '[timing]\ncall = "0s"',
        '[timing]\ndebounce = "5 s"',
        '[timing]\ndebounce = "99999d"',
        "[streams.ticks]\nring = 0",
        "[streams.Ticks]\nring = 1",
        '[streams."a..b"]\nring = 1',
        "[streams]\nopen = 1",
        "[streams]\nticks = 1",
        '[logging]\nformat = "xml"',
        "[logging]\nfiles = 0",
        '[notify]\nlimit = "10"',
        '[notify]\nlimit = "0/1h"',
        '[notify]\nwebhook = "ftp://x"',
        '[notify]\ncommand = "notify-send"',
        "[watchdog]\nenabled = 0",
        "kernel = 1",
        "module = 1",
        "[permissions]\nbackup = 1",
        '[permissions."a/b"]\ncall = []',
        "[permissions.backup]\ncall = [1]",
        "[permissions.backup]\ncall = ['a..b']",
        "[permissions.backup]\npublish = ['>.a']",
        "[permissions.backup]\nsubscribe = ['a*']",
        '[instance]\nname = "a/b"',
        '[instance]\nname = ""',
        '[group.g]\nstrategy = "all"',
        "[instance]\nname = 2024-01-01",
        "[relay]\nlisen = '127.0.0.1:1'",
        "[kernel]\norigins = 'x'",
        "[kernel]\norigins = [1]",
        '[kernel]\norigins = ["a\\u0000b"]',
        '[instance]\nname = "a\\u0000b"',
        "[kernel]\nport = [1]",
        "[kernel]\nport = { a = 1 }",
        "group = 1",
        "[module]\nx = 1",
        "[kernel]\ntls = { cert = '/certs/c.pem', key = '/certs/gone.pem' }",
        "[notify]\ncommand = ['n']\nwebhook = 'https://x.example/'",
        "[module.Relay]\ncommand = ['x']\n[relay]",
    ],
)
def test_an_impossible_value_is_one_mistake(line: str) -> None:
    assert len(mistakes(line)) == 1


@pytest.mark.parametrize(
    "keys",
    [
        "module = 'pkg'",
        "restart = 'sometimes'",
        "max_restarts = -1",
        "within = '0s'",
        "backoff = '1m'\nbackoff_max = '1s'",
        "stop_signal = 'SIGTERM'",
        "ready = { log = '(' }",
        "ready = { log = 'a', tcp = 1 }",
        "ready = {}",
        "ready = { tcp = 0 }",
        "ready = { tcp = '80' }",
        "ready = { http = 'localhost:80' }",
        "ready = { exit = 256 }",
        "ready = { notify = false }",
        "ready = { delay = 1 }",
        "ready = { logs = 'a' }",
        "ready = 'log'",
        "health = true",
        "health = '0s'",
        "memory_max = '1KiB'",
        "replicas = -1",
        "env = { 'A=B' = 'x' }",
        "env = { A = 1 }",
        "env = { A = { file = 'nope' } }",
        "env = { A = { fiel = 'secret.txt' } }",
        "env = { KITE_INSTANCE = 'x' }",
        'env = { A = "a\\u0000b" }',
        "env = { A = '${' }",
        "env = { A = '${A-B}' }",
        "env_file = 'bad'",
        "umask = 77",
        "umask = '088'",
        "nice = 20",
        "limits = { nofile = -1 }",
        "limits = { nofiles = 1 }",
        "token = 'env'",
        "stdin = 'file'",
        "group = 'nowhere'",
        "requires = ['logs']",
        "after = 'logs'",
        "after = [1]",
        "options = 1",
        "options = { when = 2024-01-01 }",
        "options = { much = inf }",
        "cwd = 1",
        "secret_env = 'A'",
    ],
)
def test_an_impossible_key_of_a_module_is_one_mistake(keys: str) -> None:
    assert len(mistakes(module(keys))) == 1


def test_each_bad_line_of_an_env_file_is_told() -> None:
    lines = mistakes(module("env_file = 'bad.env'"))
    assert ["line 2" in lines[0], "line 3" in lines[1], len(lines)] == [True, True, 2]


@pytest.mark.parametrize("text", ["command = []", "command = ['']", "command = 'x'", "command = [1]", ""])
def test_a_module_needs_a_program(text: str) -> None:
    assert len(mistakes(f"[module.x]\n{text}\n")) == 1


def test_what_kite_sets_itself_and_nul_are_refused_in_files_too() -> None:
    FILES["/home/lab/own.env"] = "KITE_INSTANCE=x\n"
    FILES["/home/lab/nul.env"] = "A=a\0b\nB='a' x\n"
    FILES["/home/lab/nul.txt"] = "a\0b"
    assert "KITE_INSTANCE" in mistakes(module("env_file = 'own.env'"))[0]
    assert len(mistakes(module("env_file = 'nul.env'"))) == 2
    assert len(mistakes(module("env = { A = { file = 'nul.txt' } }"))) == 1


def test_a_bound_of_one_side_is_said_as_such() -> None:
    known = RowChecker(Places({}), facts())
    for row, word in (({"type": "int", "min": 3}, "at least 3"), ({"type": "int", "max": 3}, "at most 3")):
        known.table(("a",), {"b": 5 if "max" in row else 1}, {"b": row})
        assert word in known.mistakes[-1].text
    assert known.table(("a",), {"b": [1]}, {"b": {"type": "any"}}) == {"b": [1]}


def test_a_name_of_ones_own_is_kept() -> None:
    assert spec("[instance]\nname = '实验室 1'\n").name == "实验室 1"


def test_only_files_that_may_not_be_read_are_a_matter_of_permission() -> None:
    loaded = load_text(module("env_file = 'locked'"), path="/home/lab/kite.toml", facts=facts())
    assert [mistake.fault for mistake in loaded.mistakes] == ["permission"]


def test_arguments_pass_byte_for_byte() -> None:
    argv = ["a b", "%d", "$HOME", "${HOME}", "$$", "*", '"', "'", "é\n"]
    text = "[module.x]\ncommand = [" + ", ".join('"' + _toml(word) + '"' for word in ["prog", *argv]) + "]\n"
    assert spec(text).modules["x"].argv("/py") == ("prog", *argv)


def _toml(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def test_environment_is_the_file_with_env_over_it_and_references_followed() -> None:
    keys = (
        'env_file = ".env"\nenv = { A = "${HOME}/x", E = "a$$b $c", KEY = { file = "secret.txt" } }\nsecret_env = ["A"]'
    )
    found = spec(module(keys)).modules["x"]
    assert found.env == {"A": "/home/me/x", "B": "two words", "C": "x\ny", "D": "q", "E": "a$b $c", "KEY": "S3CRET"}
    assert found.secret_env == {"A", "KEY"}


def test_no_secret_stands_in_a_repr() -> None:
    text = (
        module('env = { KEY = { file = "secret.txt" } }\noptions = { key = "S3CRET" }')
        + '[notify]\nwebhook="https://S3CRET"'
    )
    assert "S3CRET" not in repr(spec(text))


def test_a_number_may_come_from_the_environment_by_name_alone() -> None:
    found = spec('[kernel]\nport = "${PORT}"\nallow_remote = "${YES}"\n')
    assert (found.kernel.port, found.kernel.allow_remote) == (7000, True)
    assert len(mistakes('[kernel]\nport = "1${PORT}"\n')) == 1
    assert len(mistakes('[kernel]\nport = "${HOME}"\n')) == 1
    assert "NOPE" in mistakes('[kernel]\nport = "${NOPE}"\n')[0]


def test_paths_count_from_the_file() -> None:
    found = spec('[module.x]\ncommand = ["./bin/x", "./y"]\ncwd = "../sub"\n').modules["x"]
    assert (found.program, found.cwd, found.argv("/py")) == ("/home/lab/bin/x", "/home/sub", ("./bin/x", "./y"))


def test_a_package_runs_with_the_launchers_python_shielded_from_the_folder() -> None:
    assert spec("[module.x]\nmodule = 'pkg.sub'\n").modules["x"].argv("/py") == ("/py", "-P", "-m", "pkg.sub")


def test_a_script_runs_with_the_launchers_python_too() -> None:
    assert spec("[module.x]\nmodule = 'my mod/x.py'\n").modules["x"].argv("/py") == ("/py", "/home/lab/my mod/x.py")
    (line,) = mistakes_of("[module.x]\nmodule='x.py'", facts(file=lambda path: f"no file {path!r}"))
    assert line == "kite.toml:2:8: module x: no file '/home/lab/x.py'"
    assert len(mistakes("[module.x]\nmodule = 'a b'\n")) == 1


@pytest.mark.parametrize(
    ("toml", "ready"),
    [
        ("{ log = 'listening$$' }", Ready("log", "listening$$")),
        ("{ tcp = 80 }", Ready("tcp", 80)),
        ("{ http = 'http://127.0.0.1:${PORT}/' }", Ready("http", "http://127.0.0.1:7000/")),
        ("{ exit = 0 }", Ready("exit", 0)),
        ("{ notify = true }", Ready("notify", True)),
        ("{ delay = '50ms' }", Ready("delay", 0.05)),
    ],
)
def test_each_rule_of_readiness_is_read(toml: str, ready: Ready) -> None:
    found = spec(module(f"ready = {toml}")).modules["x"]
    assert found.ready == ready
    assert not found.speaks_kite
    assert toml.split("'")[0].split("=")[0].strip("{ ") in ready.words()


def test_a_module_speaks_kite_unless_it_has_a_rule_and_no_token() -> None:
    assert spec(module("")).modules["x"].speaks_kite
    assert spec(module("ready = { notify = true }\ntoken = 'file'")).modules["x"].speaks_kite


def test_replicas_are_numbered_from_one() -> None:
    assert spec(module("")).modules["x"].instances() == ("x",)
    assert spec(module("replicas = 3")).modules["x"].instances() == ("x@1", "x@2", "x@3")
    assert spec(module("replicas = 0")).modules["x"].instances() == ()


def test_scale_multiplies_the_times_of_timing_and_health_and_nothing_of_a_modules_own() -> None:
    found = spec("[timing]\nscale = 0.1\n" + module("stop_timeout = '1s'"))
    assert (found.timing.debounce_s, found.timing.launcher_grace_s) == (0.5, 3.5)
    assert found.modules["x"].health_s == pytest.approx(1.5)
    assert found.modules["x"].stop_timeout_s == 1.0
    assert spec(module("health = false")).modules["x"].health_s is None


def test_a_stock_section_enables_its_module_with_options() -> None:
    found = spec("[relay]\nlisten = '127.0.0.1:${PORT}'\n[module.relay]\nstop_timeout = '3s'\n")
    relay = found.modules["relay"]
    assert relay.argv("/py") == ("/py", "-P", "-m", "kite_modules.relay")
    assert (relay.options, relay.stop_timeout_s, relay.stock) == ({"listen": "127.0.0.1:7000"}, 3.0, True)


def test_a_stock_modules_durations_reach_it_in_seconds() -> None:
    found = spec("[backup]\nevery = '2h'\nkeep = 3\n[relay]\nsession_idle = '90s'\n").modules
    assert found["backup"].options == {"every": 7200.0, "keep": 3}
    assert found["relay"].options == {"session_idle": 90.0}


@pytest.mark.parametrize("value", ["3", "'x'", "['a']", "true"])
def test_a_stock_section_that_is_no_table_is_a_mistake_and_no_fault(value: str) -> None:
    assert mistakes(f"backup = {value}\n")


def test_a_stock_modules_options_are_checked_wherever_they_stand() -> None:
    (line,) = mistakes("[module.relay]\nmodule = 'kite_modules.relay'\noptions = { lisen = 'x' }\n")
    assert line.startswith("kite.toml:3:13: ")
    assert "'listen'" in line
    assert len(mistakes("[relay]\n[module.relay.options]\nlisten = '127.0.0.1:1'\n")) == 1


@pytest.mark.parametrize("value", ["'off'", "'auto'", "{ cert = 'a', key = 'b' }"])
def test_an_option_may_be_a_word_or_a_table(value: str) -> None:
    assert spec(f"[relay]\ntls = {value}\nlisten = '[::1]:0'\n").modules["relay"].options is not None


@pytest.mark.parametrize(
    "line", ["tls = 'on'", "tls = { cert = 'a' }", "tls = true", "listen = '7391'", "listen = 7391"]
)
def test_an_option_of_the_wrong_form_is_one_mistake(line: str) -> None:
    assert len(mistakes(f"[relay]\n{line}\n")) == 1


def test_other_modules_have_options_of_their_own() -> None:
    found = spec(module("[module.x.options]\nanything = { a = [1, 2.5, true, '${HOME}'] }"))
    assert found.modules["x"].options == {"anything": {"a": [1, 2.5, True, "/home/me"]}}


def test_a_program_is_looked_for_only_by_a_check() -> None:
    text = module("")
    assert spec(text).modules["x"].command == ("x",)
    (line,) = mistakes_of(text, facts(program=lambda program, cwd, path: f"no program {program!r} in PATH"))
    assert line.startswith("kite.toml:2:12: module x: no program")
    (line,) = mistakes_of("[module.x]\nmodule='nope'", facts(package=lambda name: f"no package {name!r}"))
    assert line.startswith("kite.toml:2:8: module x: no package")


def mistakes_of(text: str, known: Facts) -> list[str]:
    return [m.line("kite.toml") for m in load_text(text, path="/home/lab/kite.toml", facts=known).mistakes]


def test_the_example_of_the_surface_is_read_to_its_last_key() -> None:
    keys = """after = ["logs"]
restart = "always"
max_restarts = 5
within = "60s"
backoff = "500ms"
backoff_max = "30s"
stop_signal = "TERM"
stop_timeout = "10s"
ready = { log = "listening" }
ready_timeout = "30s"
health = "15s"
memory_max = "512MiB"
replicas = 1
essential = false
env = { LEVEL = "info", KEY = { file = "secret.txt" } }
env_file = ".env"
cwd = "."
user = "nobody"
umask = "077"
nice = 0
limits = { nofile = 4096 }
enabled = true
token = "fd"
stdin = "null"
group = "workers"
[group.workers]
strategy = "rest_for_one"
"""
    found = spec(module(keys)).modules["x"]
    assert (found.umask, found.limits, found.group, found.user) == (0o77, {"nofile": 4096}, "workers", "nobody")
    assert {key.split(" ")[0] for key in keys.splitlines() if "=" in key} - {"strategy"} <= set(CONFIG["module.*"])


def test_every_default_of_the_contract_is_a_value_of_its_own_kind() -> None:
    for section, rows in CONFIG.items():
        for key, row in rows.items():
            default = row.get("default")
            if default is None:
                continue
            parsers = {"duration": parse_duration, "size": parse_size, "rate": parse_rate}
            if row["type"] in parsers:
                assert parsers[row["type"]](default) is not None, (section, key)
            if "choices" in row:
                assert default in row["choices"], (section, key)


def test_two_spellings_of_one_file_are_equal() -> None:
    one = spec(module("stop_timeout = '10s'\nenv = { A = '1', B = '2' }"))
    two = spec("# c\n[module.x]\nenv = { B = '2', A = '1' }\nstop_timeout='10000ms'\ncommand=['x']")
    assert attrs.evolve(one, path="") == attrs.evolve(two, path="")


def test_nothing_in_a_mistake_is_obeyed_by_a_terminal() -> None:
    text = '["a\\u001b[31m\\nb"]\n[kernel]\n"x\\ny" = 1\nhost = "\\u001b[0m"\n'
    text += '[module.x]\ncommand = ["x"]\nafter = ["\\n"]\n'
    lines = mistakes(text)
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_bytes_that_are_no_utf8_are_a_mistake_where_they_stand() -> None:
    assert decode("é".encode()) == "é"
    found = decode("a = 1\né = '".encode() + b"\xff'\n")
    assert isinstance(found, Mistake)
    assert found.place == Place(2, 6)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), ("7d", 604800.0), ("1h30m", 5400.0)],
)
def test_durations_have_one_meaning(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5S", "1h 30m", "５s", "1e3s", "inf", ".5s", "5s\n"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize("text", ["", "5", "5KB", "5kib", "-1KiB", "1 KiB", "KiB"])
def test_what_is_no_size_is_none(text: str) -> None:
    assert parse_size(text) is None


def test_numbers_are_written_as_people_write_them() -> None:
    assert [words_duration(s) for s in (0.5, 5, 90, 120, 7200, 86400)] == ["500ms", "5s", "90s", "2m", "2h", "1d"]
    assert [words_size(s) for s in (0, 1000, 65536, 1 << 30)] == ["0B", "1000B", "64KiB", "1GiB"]
