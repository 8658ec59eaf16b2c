"""`init`: other tools' files become a kite.toml that runs the same programs; nothing is guessed or overwritten."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kite_launcher.core.adopted import Adopted, NotAdopted, Program, command_of, render
from kite_launcher.edge.config_file import Unreadable, load_file

from .conftest import Launch

PROCFILE = """# web and friends
web: gunicorn app:app --bind 0.0.0.0:$PORT
worker: python worker.py "a b"
release: ./migrate && ./seed
"""
COMPOSE = """
version: "0.5"
environment:
  - "ALL=1"
processes:
  migrate:
    command: "./migrate"
    availability: { restart: "no" }
  db:
    command: "postgres -D data | tee log"
    environment: ["PGPORT=5432", "PRICE=5$"]
    readiness_probe: { http_get: { host: 127.0.0.1, scheme: http, path: /health, port: 8080 } }
    shutdown: { signal: 2, timeout_seconds: 7 }
    availability: { restart: always, backoff_seconds: 3, max_restarts: 0 }
  api:
    command: "node api.js"
    working_dir: "./api"
    replicas: 2
    disabled: true
    ready_log_line: "listening on (all)"
    availability: { restart: exit_on_failure, max_restarts: 4 }
    depends_on:
      db: { condition: process_healthy }
      migrate: { condition: process_completed_successfully }
    liveness_probe: { exec: { command: "true" } }
"""
SUPERVISORD = """[supervisord]
environment = ALL="1"
[program:web]
command = /usr/bin/python -m http.server --title "a b" %(program_name)s 100%% ; a comment
directory = %(here)s/web
autorestart = true
startsecs = 2
startretries = 7
stopsignal = QUIT
stopwaitsecs = 4
environment = LEVEL="info, loud",HOME_OF=%(ENV_HOME)s
umask = 022
numprocs = 2
process_name = %(program_name)s_%(process_num)02d
priority = 20
stdout_logfile = /tmp/x
[program:cat]
command = /bin/cat "%(ENV_HOME)s/a b"
autostart = false
priority = 10
[group:all]
programs = web,cat
[eventlistener:memmon]
command = memmon
"""
PM2 = {
    "apps": [
        {
            "name": "api",
            "script": "./api.js",
            "args": ["--port", 80],
            "node_args": "--max-old-space-size=200",
            "instances": "max",
            "env": {"NODE_ENV": "production", "PRICE": "5$"},
            "env_staging": {"A": "1"},
            "max_memory_restart": "200M",
            "kill_timeout": 3000,
            "max_restarts": 3,
            "restart_delay": 250,
            "cron_restart": "0 0 * * *",
        },
        {"script": "worker.py", "autorestart": False, "cwd": "/srv"},
        {"name": "tool", "script": "/usr/bin/tool", "args": "-v 'a b'"},
    ]
}


def adopt(launch: Launch, lab: Path, name: str, text: str) -> dict[str, Any]:
    (lab / "kite.toml").unlink(missing_ok=True)
    (lab / name).write_text(text, encoding="utf-8")
    said = launch("init", name)
    assert said.code == 0, said.err
    found = load_file(str(lab / "kite.toml"))
    assert not isinstance(found, Unreadable)
    assert found.spec is not None, found.mistakes
    return tomllib.loads((lab / "kite.toml").read_text(encoding="utf-8"))


def test_a_procfile_runs_the_same_lines(launch: Launch, lab: Path) -> None:
    (lab / ".env").write_text("A=1\n", encoding="utf-8")
    modules = adopt(launch, lab, "Procfile", PROCFILE)["module"]
    assert modules["web"]["command"] == ["sh", "-c", "gunicorn app:app --bind 0.0.0.0:$PORT"]
    assert modules["web"]["env"] == {"PORT": "5000"}
    assert modules["worker"]["command"] == ["python", "worker.py", "a b"]
    assert modules["release"]["ready"] == {"exit": 0}
    assert modules["release"]["restart"] == "never"
    assert all(module["env_file"] == ".env" for module in modules.values())
    assert all("ready" in module for module in modules.values())


def test_process_compose_keeps_order_probes_and_policies(launch: Launch, lab: Path) -> None:
    modules = adopt(launch, lab, "process-compose.yaml", COMPOSE)["module"]
    assert modules["migrate"]["ready"] == {"exit": 0}
    assert modules["migrate"]["restart"] == "never"
    db = modules["db"]
    assert db["command"] == ["bash", "-c", "postgres -D data | tee log"]
    assert db["env"] == {"ALL": "1", "PGPORT": "5432", "PRICE": "5$$"}
    assert (db["ready"], db["stop_signal"], db["stop_timeout"]) == (
        {"http": "http://127.0.0.1:8080/health"},
        "INT",
        "7s",
    )
    assert (db["restart"], db["backoff"], db["max_restarts"]) == ("always", "3s", 1_000_000)
    api = modules["api"]
    assert api["requires"] == ["db", "migrate"]
    assert api["ready"] == {"log": r"listening\ on\ \(all\)"}
    assert (api["cwd"], api["replicas"], api["enabled"], api["essential"]) == ("./api", 2, False, True)
    assert (api["restart"], api["max_restarts"]) == ("on-failure", 4)
    assert "liveness_probe" in (lab / "kite.toml").read_text(encoding="utf-8")


def test_what_process_compose_can_say_otherwise_is_said_or_noted(launch: Launch, lab: Path) -> None:
    (lab / "one.env").write_text("A=1\n", encoding="utf-8")
    text = """
shell: { shell_command: zsh }
processes:
  a:
    entrypoint: ["/bin/a", "-x", 1]
    env_file: [one.env, two.env]
    environment: { A: 1, B: null }
    readiness_probe: { exec: { command: "true" } }
    shutdown: { command: "bye", signal: 99 }
    depends_on: { gone: { condition: process_started } }
  b:
    command: "x | y"
    depends_on: { a: { condition: process_started } }
"""
    modules = adopt(launch, lab, "process-compose.yml", text)["module"]
    assert modules["a"]["command"] == ["/bin/a", "-x", "1"]
    assert (modules["a"]["env_file"], modules["a"]["env"]) == ("one.env", {"A": "1", "B": ""})
    assert modules["b"]["command"] == ["zsh", "-c", "x | y"]
    assert modules["b"]["after"] == ["a"]
    notes = (lab / "kite.toml").read_text(encoding="utf-8")
    assert all(word in notes for word in ("two.env", "readiness_probe", "shutdown.command", "gone"))


def test_a_pm2_app_alone_and_its_odd_keys(launch: Launch, lab: Path) -> None:
    app = {
        "script": "a.sh",
        "user": "root",
        "kill_timeout": "4s",
        "restart_delay": "700",
        "wait_ready": True,
        "exec_mode": "cluster",
        "strange": 1,
        "instances": -100,
        "interpreter": "dash",
    }
    modules = adopt(launch, lab, "one.json", json.dumps(app))["module"]
    assert modules["a"]["command"] == ["dash", "a.sh"]
    assert (modules["a"]["user"], modules["a"]["stop_timeout"], modules["a"]["backoff"]) == ("root", "4s", "700ms")
    notes = (lab / "kite.toml").read_text(encoding="utf-8")
    assert all(word in notes for word in ("wait_ready", "cluster", "strange"))


def test_supervisord_keeps_its_words_and_its_times(launch: Launch, lab: Path) -> None:
    document = adopt(launch, lab, "supervisord.conf", SUPERVISORD)
    web, cat = document["module"]["web"], document["module"]["cat"]
    assert web["command"] == ["/usr/bin/python", "-m", "http.server", "--title", "a b", "web", "100%"]
    assert web["cwd"] == str(lab / "web")
    assert web["env"] == {"ALL": "1", "LEVEL": "info, loud", "HOME_OF": "${HOME}"}
    assert (web["restart"], web["ready"], web["max_restarts"]) == ("always", {"delay": "2s"}, 7)
    assert (web["stop_signal"], web["stop_timeout"], web["umask"], web["replicas"]) == ("QUIT", "4s", "022", 2)
    assert cat["command"] == ["sh", "-c", "exec /bin/cat \"${HOME}\"'/a b'"]
    assert (cat["enabled"], cat["restart"], web["after"], web["group"]) == (False, "on-failure", ["cat"], "all")
    assert "memmon" in (lab / "kite.toml").read_text(encoding="utf-8")


def check_pm2(modules: dict[str, Any]) -> None:
    api = modules["api"]
    assert api["command"] == ["node", "--max-old-space-size=200", "./api.js", "--port", "80"]
    assert api["env"] == {"NODE_ENV": "production", "PRICE": "5$$"}
    assert (api["memory_max"], api["stop_timeout"], api["stop_signal"]) == ("200MiB", "3000ms", "INT")
    assert (api["max_restarts"], api["backoff"]) == (3, "250ms")
    assert modules["worker"]["command"] == ["python3", "worker.py"]
    assert (modules["worker"]["restart"], modules["worker"]["cwd"]) == ("never", "/srv")
    assert modules["tool"]["command"] == ["/usr/bin/tool", "-v", "a b"]


def test_pm2s_json_keeps_its_numbers(launch: Launch, lab: Path) -> None:
    check_pm2(adopt(launch, lab, "ecosystem.json", json.dumps(PM2))["module"])
    text = (lab / "kite.toml").read_text(encoding="utf-8")
    assert "cron_restart" in text
    assert "env_staging" in text


@pytest.mark.skipif(shutil.which("node") is None, reason="an ecosystem file is a program for node")
def test_pm2s_javascript_says_itself_what_it_exports(launch: Launch, lab: Path) -> None:
    script = f"const all = {json.dumps(PM2)};\nmodule.exports = {{ apps: all.apps.map((app) => app) }};\n"
    check_pm2(adopt(launch, lab, "ecosystem.config.js", script)["module"])
    (lab / "ecosystem.config.js").write_text("module.exports = {", encoding="utf-8")
    said = launch("init", "ecosystem.config.js", "--stdout")
    assert (said.code, said.out) == (78, "")
    assert "SyntaxError" in said.err


def test_without_node_an_ecosystem_file_is_69(launch: Launch, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (lab / "ecosystem.config.js").write_text("module.exports = {}", encoding="utf-8")
    said = launch("init", "ecosystem.config.js", "--stdout")
    assert said.code == 69
    assert "node" in said.err


def test_an_existing_file_is_never_overwritten(launch: Launch, lab: Path) -> None:
    (lab / "Procfile").write_text("a: b\n", encoding="utf-8")
    before = (lab / "kite.toml").read_bytes()
    assert launch("init", "Procfile").code == 1
    assert (lab / "kite.toml").read_bytes() == before
    assert "[module.a]" in launch("init", "--stdout").out


def test_without_any_file_the_first_kite_toml_is_a_good_one(launch: Launch, lab: Path) -> None:
    (lab / "kite.toml").unlink()
    assert launch("init").code == 0
    assert launch("check").code == 0


def test_paths_go_on_counting_from_where_the_file_lay(launch: Launch, lab: Path) -> None:
    (lab / "app").mkdir()
    (lab / "app" / "Procfile").write_text("a: ./run\n", encoding="utf-8")
    (lab / "app" / ".env").write_text("A=1\n", encoding="utf-8")
    assert launch("init", "app/Procfile", "-o", "other.toml").code == 0
    module = tomllib.loads((lab / "other.toml").read_text(encoding="utf-8"))["module"]["a"]
    assert (module["cwd"], module["env_file"]) == ("app", "app/.env")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Procfile", "no colon here\n"),
        ("Procfile", ""),
        ("Procfile", "a: b\na: c\n"),
        ("x.yaml", "processes: ["),
        ("x.yaml", "processes: 7"),
        ("x.yaml", "a: 1"),
        ("x.yaml", "processes: { a: { description: x } }"),
        ("x.yaml", "processes: { a: 7 }"),
        ("x.json", "[7]"),
        ("x.json", '{"apps": [{"name": "a"}]}'),
        ("x.conf", "[program:a\n"),
        ("x.conf", "[program:a]\n"),
        ("x.conf", "[supervisord]\n"),
        ("x.conf", "[program:a]\ncommand = %(nope)s\n"),
        ("x.conf", "[program:a]\ncommand = 'open\n"),
        ("x.conf", "[program:a]\ncommand = a\nenvironment = A\n"),
        ("x.conf", "[program:a]\ncommand = a\nenvironment = A,B,C\n"),
        ("x.unknown", "a: b"),
        ("missing.yaml", None),
    ],
)
def test_what_can_not_be_read_is_78_and_one_line(launch: Launch, lab: Path, name: str, text: str | None) -> None:
    if text is not None:
        (lab / name).write_text(text, encoding="utf-8")
    said = launch("init", name, "--stdout")
    assert (said.code, said.out) == (78, "")
    assert len(said.err.splitlines()) == 1


def test_names_become_valid_and_stay_different() -> None:
    names = ["a.b", "a b", "A-B", "kernel", "logs", "…", "x" * 200, "备份"]
    text = render(Adopted([Program(name, ["x"]) for name in names]), "x\ny")
    found = list(tomllib.loads(text)["module"])
    assert found == ["a-b", "a-b-2", "A-B-3", "kernel-app", "logs-app", "module", "x" * 55, "备份"]


def test_only_what_needs_a_shell_gets_one() -> None:
    assert command_of("a 'b c' d") == ["a", "b c", "d"]
    assert command_of("A=1 b") == ["sh", "-c", "A=1 b"]
    assert command_of("a > b", "bash") == ["bash", "-c", "a > b"]
    assert command_of("a 'b") == ["sh", "-c", "a 'b"]
    assert isinstance(NotAdopted("x").why, str)
