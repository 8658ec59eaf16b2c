"""A changed file as a plan: cases S-61, S-62 and the promise that only what changed is touched."""

from __future__ import annotations

import pytest

from kite_launcher.core.check_rows import Facts, FileFault
from kite_launcher.core.load import load_text
from kite_launcher.core.reload import Plan, plan_reload
from kite_launcher.core.spec import InstanceSpec

BASE = """
[module.x]
command = ["x"]
env = { LEVEL = "info", B = "1" }
stop_timeout = "10s"
[module.y]
command = ["y"]
[module.z]
command = ["z"]
ready = { delay = "50ms" }
"""


def load(text: str) -> InstanceSpec:
    known = Facts({}, lambda path: FileFault("no such file"), lambda user: True)
    loaded = load_text(text, path="/lab/kite.toml", facts=known)
    assert loaded.spec is not None, loaded.mistakes
    return loaded.spec


def plan(old: str, new: str) -> Plan:
    return plan_reload(load(old), load(new))


def rows(found: Plan, *, kept: bool = False) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(row.name, row.action, row.keys) for row in found.changes if kept or row.action != "keep"]


def test_order_comments_and_spelling_are_no_change() -> None:
    other = """# a comment
[module.z]
ready = { delay = "0.05s" }
command = ["z"]
[module.y]
command = ["y"]
[module.x]
stop_timeout = "10000ms"
env = { B = "1", LEVEL = "info" }
command = ["x"]
"""
    assert plan(BASE, other).empty


def test_the_plan_names_what_starts_what_stops_and_the_key_that_changed() -> None:
    new = BASE.replace("info", "debug").replace('[module.y]\ncommand = ["y"]', '[module.w]\ncommand = ["w"]')
    assert plan(BASE, new).to_json() == {
        "schema": 1,
        "changes": [
            {"name": "x", "action": "restart", "keys": ["env.LEVEL"]},
            {"name": "w", "action": "start", "keys": []},
            {"name": "z", "action": "keep", "keys": []},
            {"name": "y", "action": "stop", "keys": []},
        ],
    }


def test_a_value_of_a_variable_is_never_named() -> None:
    assert "debug" not in str(plan(BASE, BASE.replace("info", "debug")).to_json())


@pytest.mark.parametrize(
    "key", ["stop_timeout = '3s'", "max_restarts = 9", "health = false", "after = ['z']", "essential = true"]
)
def test_what_only_the_launcher_reads_is_applied_in_place(key: str) -> None:
    found = plan(BASE, BASE.replace('command = ["y"]', f'command = ["y"]\n{key}'))
    assert ("y", "apply", (key.split(" ")[0],)) in rows(found)


@pytest.mark.parametrize(
    "key", ["cwd = 'sub'", "nice = 5", "umask = '077'", "inherit_env = false", "ready = { exit = 0 }"]
)
def test_what_a_process_was_started_with_needs_a_new_process(key: str) -> None:
    found = plan(BASE, BASE.replace('command = ["y"]', f'command = ["y"]\n{key}'))
    assert rows(found) == [("y", "restart", (key.split(" ")[0],))]


def test_options_and_limits_name_the_inner_key() -> None:
    old = BASE + "[module.z.options]\na = 1\nb = 2\n[module.z.limits]\nnofile = 9\n"
    assert rows(plan(old, old.replace("b = 2", "c = 2"))) == [("z", "restart", ("options.c", "options.b"))]
    assert rows(plan(old, old.replace("nofile = 9", "nofile = 8"))) == [("z", "restart", ("limits.nofile",))]
    assert rows(plan(BASE, old)) == [("z", "restart", ("limits.nofile", "options"))]


def test_replicas_grow_and_shrink_without_touching_the_others() -> None:
    two, four = (BASE.replace('command = ["y"]', f'command = ["y"]\nreplicas = {count}') for count in (2, 4))
    assert rows(plan(two, four)) == [("y@3", "start", ("replicas",)), ("y@4", "start", ("replicas",))]
    assert rows(plan(four, two)) == [("y@3", "stop", ("replicas",)), ("y@4", "stop", ("replicas",))]


def test_enabled_is_a_start_or_a_stop() -> None:
    off = BASE.replace('command = ["y"]', 'command = ["y"]\nenabled = false')
    assert rows(plan(BASE, off)) == [("y", "stop", ("enabled",))]
    assert rows(plan(off, BASE)) == [("y", "start", ("enabled",))]
    assert plan(off, off).empty
    assert plan(off, BASE.replace('[module.y]\ncommand = ["y"]\n', "")).empty


def test_the_kernels_limits_apply_live_and_the_rest_needs_a_new_kernel() -> None:
    assert rows(plan(BASE, BASE + "[kernel]\nqueue_messages = 5\n")) == [
        ("kernel", "apply", ("kernel.queue_messages",))
    ]
    assert rows(plan(BASE, BASE + "[permissions.x]\ncall = []\n")) == [("kernel", "apply", ("permissions.x",))]
    assert rows(plan(BASE, BASE + "[streams.ticks]\n")) == [("kernel", "restart", ("streams.ticks",))]
    assert rows(plan(BASE, BASE + "[ownership]\nattempts = 9\n")) == [("kernel", "restart", ("ownership.attempts",))]


def test_a_new_address_restarts_everyone_who_was_told_the_old_one() -> None:
    found = rows(plan(BASE, BASE + "[kernel]\nport = 1\n"))
    assert found == [
        ("kernel", "restart", ("kernel.port",)),
        ("watchdog", "restart", ("kernel.port",)),
        ("x", "restart", ("kernel.port",)),
        ("y", "restart", ("kernel.port",)),
    ]


def test_scale_is_the_kernels_and_the_watchdogs_and_no_modules() -> None:
    found = rows(plan(BASE, BASE + "[timing]\nscale = 0.1\n"))
    assert found == [("kernel", "restart", ("timing.scale",)), ("watchdog", "restart", ("timing.scale",))]


def test_the_watchdog_is_told_of_health_that_is_not_the_default() -> None:
    found = rows(plan(BASE, BASE.replace('command = ["y"]', 'command = ["y"]\nhealth = "3s"')))
    assert ("watchdog", "restart", ("module.y.health",)) in found
    assert rows(plan(BASE, BASE + "[watchdog]\nenabled = false\n")) == [("watchdog", "stop", ("watchdog.enabled",))]
    assert rows(plan(BASE, BASE + "[watchdog]\nrestarts = 2\n")) == [("watchdog", "restart", ("watchdog.restarts",))]


def test_the_form_of_logs_is_the_kernels_and_a_watchdog_that_is_off_needs_nothing() -> None:
    assert rows(plan(BASE, BASE + "[logging]\nformat = 'json'\n")) == [("kernel", "restart", ("logging.format",))]
    off = BASE + "[watchdog]\nenabled = false\n"
    assert rows(plan(off, off + "restarts = 2\n")) == []


def test_logs_alarms_and_groups_are_the_launchers() -> None:
    new = BASE + '[logging]\nfiles = 2\n[notify]\ncommand = ["n"]\n[group.g]\n'
    assert rows(plan(BASE, new)) == [("launcher", "apply", ("logging.files", "notify.command", "group.g"))]
