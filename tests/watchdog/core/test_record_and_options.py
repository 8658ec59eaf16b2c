"""The two documents that the launcher writes for the watchdog: everything in them is looked at before it is used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kite_watchdog.core.options import OptionsError, decode_options
from kite_watchdog.core.record import Identity, Launch, Unusable, decode_launch, environment

LAUNCH: dict[str, Any] = {
    "schema": 1,
    "argv": ["/usr/bin/python3", "-P", "-m", "kite_launcher", "up", "-d", "--config", "/x/k\udcff.toml"],
    "cwd": "/x",
    "env_names": ["PATH", "HOME"],
    "launcher": {"pid": 7, "start_ticks": 99, "boot_id": "b0"},
    "config": "/x/kite.toml",
    "state_dir": "/s",
    "since": "2026-03-14T12:00:00+00:00",
}


def written(**changes: Any) -> bytes:
    document = {k: v for k, v in {**LAUNCH, **changes}.items() if v is not ...}
    return json.dumps(document).encode("ascii")


def test_a_good_record_is_read_bytes_that_are_no_utf8_included() -> None:
    launch = decode_launch(written())
    assert isinstance(launch, Launch)
    assert launch.argv[-1] == "/x/k\udcff.toml"
    assert launch.launcher == Identity(7, 99, "b0")


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"argv": []},
        {"argv": [""]},
        {"argv": "rm -rf /"},
        {"argv": ["a", 7]},
        {"argv": ["a\0b"]},
        {"argv": ...},
        {"cwd": "relative"},
        {"cwd": 7},
        {"env_names": "PATH"},
        {"launcher": ...},
        {"launcher": {"pid": -1, "start_ticks": 1, "boot_id": "b"}},
        {"launcher": {"pid": True, "start_ticks": 1, "boot_id": "b"}},
        {"launcher": {"pid": "7", "start_ticks": 1, "boot_id": "b"}},
    ],
)
def test_a_forged_record_is_refused_with_words(changes: dict[str, Any]) -> None:
    refused = decode_launch(written(**changes))
    assert isinstance(refused, Unusable)
    assert refused.why


@pytest.mark.parametrize("raw", [b"", b"garbage", b"[" * 100_000, b"7", b" " * 5_000_000])
def test_garbage_is_refused_with_words(raw: bytes) -> None:
    assert isinstance(decode_launch(raw), Unusable)


def test_a_fresh_launcher_sees_nothing_that_belongs_to_this_instance() -> None:
    own = {"PATH": "/bin", "KITE_INSTANCE": "mark", "KITE_TOKEN_FD": "3", "NOTIFY_SOCKET": "/n", "LISTEN_FDS": "1"}
    assert environment(tuple(own), own) == {"PATH": "/bin"}


def test_names_that_were_not_recorded_are_not_passed_on() -> None:
    assert environment(("PATH", "NOPE"), {"PATH": "/bin", "EXTRA": "x"}) == {"PATH": "/bin"}


def test_options_have_the_users_numbers_as_defaults() -> None:
    options = decode_options(b"")
    assert (options.restarts, options.within_s, options.interval_of("x")) == (5, 600.0, 15.0)


def test_intervals_are_by_module_and_replicas_go_by_their_name() -> None:
    options = decode_options(b'{"scale":0.1,"health":{"a":3,"b":false}}')
    intervals = [options.interval_of(n) for n in ("a", "a@2", "b", "b@1", "c")]
    assert intervals == [3.0, 3.0, None, None, pytest.approx(1.5)]
    assert [options.knows(n) for n in ("a@9", "b", "c")] == [True, True, False]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b'{"restarts":-1}', "restarts"),
        (b'{"restarts":true}', "restarts"),
        (b'{"scale":0}', "scale"),
        (b'{"scale":"1"}', "scale"),
        (b'{"within_s":-1}', "within_s"),
        (b'{"health":[]}', "health"),
        (b'{"health":{"a":-1}}', "a"),
        (b'{"health":{"a":"15s"}}', "a"),
        (b'{"debounce_s":null}', "debounce_s"),
        (b'{"log_format":"xml"}', "log_format"),
        (b"[]", "object"),
        (b"nope", "JSON"),
    ],
)
def test_wrong_options_are_refused_by_name(raw: bytes, name: str) -> None:
    with pytest.raises(OptionsError, match=name):
        decode_options(raw)


def test_true_or_null_is_the_users_own_interval() -> None:
    options = decode_options(b'{"scale":0.1,"health":{"a":true,"b":null}}')
    assert [options.interval_of(n) for n in ("a", "b")] == [pytest.approx(1.5)] * 2
