"""One module of kite.toml, from its checked table to a `ModuleSpec`.

What a table of rows can't say stands here: names, `command` against `module`, environment from files and
references, paths that count from the file, rules of readiness. Source: spec 05 §4, §6; spec 50 §2.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs

from kite_launcher._contract import CONFIG
from kite_launcher.core.check_rows import Facts, FileFault, RowChecker, shown
from kite_launcher.core.env_file import parse_env
from kite_launcher.core.names import STOCK, module_name_fault, nearest, same_name
from kite_launcher.core.spec import EMPTY, ModuleSpec, Ready, ReadyKind
from kite_launcher.core.toml_places import Path

ROWS: Final = CONFIG["module.*"]
# What the launcher itself sets in every child (spec 05 §4); a value of the file's would be a lie about the instance.
_OWN_VARIABLES: Final = frozenset(
    {
        "KITE_URL",
        "KITE_MODULE_ID",
        "KITE_INSTANCE",
        "KITE_STATE_DIR",
        "KITE_TOKEN_FD",
        "KITE_TOKEN_FILE",
        "KITE_OPTIONS_FILE",
        "NOTIFY_SOCKET",
    }
)


@attrs.frozen
class Draft:
    """A module's tables as the file holds them: [module.NAME], and the own section of a stock module."""

    name: str
    path: Path
    table: Any
    stock_path: Path | None = None
    stock_options: Any = None


def gather(checker: RowChecker, values: Mapping[str, Any]) -> list[Draft]:
    """Return a draft for every module of the file, in file order, names already checked."""
    drafts: dict[str, Draft] = {}
    tables = values.get("module", {})
    if not isinstance(tables, dict):
        checker.wrong(("module",), f"expected tables [module.NAME], not {shown(tables)}")
        tables = {}
    taken: dict[str, str] = {}
    for name, table in tables.items():
        path: Path = ("module", name)
        if (fault := module_name_fault(name)) is not None:
            checker.wrong_name(path, fault)
            continue
        twin = taken.setdefault(same_name(name), name)
        if twin != name:
            checker.wrong_name(path, f"expected another name: {name!r} is {twin!r} without case")
            continue
        if not isinstance(table, dict):
            checker.wrong(path, f"expected a table [module.{name}], not {shown(table)}")
            continue
        drafts[name] = Draft(name, path, table)
    for name in STOCK:
        if name not in values:
            continue
        run = drafts.get(name)
        if run is None and same_name(name) in taken:
            checker.wrong_name((name,), f"expected no module {taken[same_name(name)]!r} beside [{name}]")
        path = run.path if run is not None else (name,)
        drafts[name] = Draft(name, path, run.table if run is not None else {}, (name,), values[name])
    order = {name: checker.places.name(draft.path) for name, draft in drafts.items()}
    return sorted(drafts.values(), key=lambda draft: (order[draft.name].line, order[draft.name].column))


class ModuleReader:
    """Makes `ModuleSpec`s; `folder` is the directory that relative paths count from, `scale` that of [timing]."""

    def __init__(self, checker: RowChecker, *, folder: str, scale: float) -> None:
        self._checker = checker
        self._facts: Facts = checker.facts
        self._folder = folder
        self._scale = scale

    def read(self, draft: Draft) -> ModuleSpec:
        """Return the module; its mistakes are in the checker and then the result is good for nothing but names."""
        row = self._checker.table(draft.path, draft.table, ROWS)
        given = draft.table
        stock = draft.stock_path is not None
        package: str | None = row["module"]
        script: str | None = None
        if package is not None and package.endswith(".py"):
            script = self._absolute(package)
            package = None
        if stock and script is None and row["command"] is None and package is None:
            package = f"kite_modules.{draft.name}"
        self._check_command(draft, row, stock=stock)
        cwd = self._absolute(row["cwd"])
        env = self._environment(draft.path, row)
        spec = ModuleSpec(
            name=draft.name,
            command=row["command"],
            program=self._program(row["command"]),
            package=package,
            after=row["after"],
            requires=row["requires"],
            restart=row["restart"],
            max_restarts=row["max_restarts"],
            within_s=row["within"],
            backoff_s=row["backoff"],
            backoff_max_s=row["backoff_max"],
            retry_slowly_s=row["retry_slowly"],
            stop_signal=row["stop_signal"],
            stop_timeout_s=row["stop_timeout"],
            ready=self._ready((*draft.path, "ready"), row["ready"]),
            ready_timeout_s=row["ready_timeout"],
            health_s=None if row["health"] is False else row["health"] * self._scale,
            memory_max_bytes=row["memory_max"],
            replicas=row["replicas"],
            essential=row["essential"],
            env=env,
            secret_env=frozenset(row["secret_env"]) | _secret_names(row["env"]),
            inherit_env=row["inherit_env"],
            cwd=cwd,
            user=self._user((*draft.path, "user"), row["user"]),
            umask=self._umask((*draft.path, "umask"), row["umask"]),
            nice=row["nice"],
            limits=dict(sorted((row["limits"] or EMPTY).items())),
            enabled=row["enabled"],
            token=row["token"] or "fd",
            token_asked=row["token"] is not None,
            stdin=row["stdin"],
            group=row["group"],
            notify_watchdog_s=row["notify_watchdog"],
            options=self._options(draft, row["options"], package),
            stock=stock,
            place=self._checker.places.name(draft.path),
            script=script,
        )
        if row["backoff"] > row["backoff_max"] and isinstance(given, dict) and ("backoff" in given):
            self._checker.wrong((*draft.path, "backoff"), "expected backoff to be at most backoff_max")
        self._check_program(draft.path, spec)
        return spec

    def _check_command(self, draft: Draft, row: Mapping[str, Any], *, stock: bool) -> None:
        name = row["module"]
        if row["command"] is not None and name is not None:
            self._checker.wrong_name((*draft.path, "module"), "expected either command or module, not both")
        elif not stock and "command" not in draft.table and "module" not in draft.table:
            text = f'expected command = ["…"] or module = "…" in [module.{draft.name}]'
            self._checker.wrong_name(draft.path, text)
        if name is not None and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*|.*\.py", name) is None:
            text = f"expected a Python package or a .py file, not {shown(name)}"
            self._checker.wrong((*draft.path, "module"), text)

    def _program(self, command: tuple[str, ...] | None) -> str | None:
        return self._absolute(command[0]) if command and "/" in command[0] else None

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._folder, path))

    def _check_program(self, path: Path, spec: ModuleSpec) -> None:
        """Ask whether the program is there; only a check does, see `Facts`."""
        if spec.command and self._facts.program is not None:
            search = spec.env.get("PATH", self._facts.environ.get("PATH") if spec.inherit_env else None)
            fault = self._facts.program(spec.program or spec.command[0], spec.cwd, search)
            if fault is not None:
                self._checker.wrong((*path, "command", 0), f"module {spec.name}: {fault}")
        elif spec.script and self._facts.file is not None:
            fault = self._facts.file(spec.script)
            if fault is not None:
                self._checker.wrong((*path, "module"), f"module {spec.name}: {fault}")
        elif spec.package and self._facts.package is not None:
            fault = self._facts.package(spec.package)
            if fault is not None:
                self._checker.wrong((*path, "module"), f"module {spec.name}: {fault}")

    def _ready(self, path: Path, table: Mapping[str, Any] | None) -> Ready | None:
        if not table:
            return None
        ((kind, value),) = table.items()
        at: Path = (*path, kind)
        match kind:
            case "log":
                try:
                    re.compile(value)
                except (re.error, OverflowError, RecursionError) as error:
                    self._checker.wrong(at, f"expected a regular expression: {error}")
            case "http":
                value = self._checker.expanded(at, value)
                if re.match(r"https?://[^/\s]", value) is None:
                    self._checker.wrong(at, f'expected a URL such as "http://127.0.0.1:8000/", not {shown(value)}')
            case "notify" if value is not True:
                self._checker.wrong(at, "expected notify = true; leave it out when the program doesn't notify")
            case _:
                pass
        return Ready(cast(ReadyKind, kind), value)

    def _user(self, path: Path, user: str | None) -> str | None:
        if user is not None and not self._facts.user(user):
            self._checker.wrong(path, f"expected an account of this machine, {shown(user)} is none")
        return user

    def _umask(self, path: Path, umask: str | None) -> int | None:
        if umask is None:
            return None
        if re.fullmatch(r"0?[0-7]{1,3}", umask) is None:
            self._checker.wrong(path, f'expected an octal umask such as "077", not {shown(umask)}')
            return None
        return int(umask, 8)

    def _environment(self, path: Path, row: Mapping[str, Any]) -> dict[str, str]:
        env = self._env_file((*path, "env_file"), row["env_file"])
        for name, value in row["env"].items():
            at: Path = (*path, "env", name)
            if not name or "=" in name or "\0" in name:
                self._checker.wrong_name(at, f"expected the name of a variable, not {name!r}")
            elif name in _OWN_VARIABLES:
                self._checker.wrong_name(at, f"expected another variable: Kite itself sets {name}")
            elif isinstance(value, dict):
                env[name] = self._secret(at, value)
            elif not isinstance(value, str):
                self._checker.wrong(at, f'expected a string or {{ file = "…" }}, not {shown(value)}')
            elif "\0" in value:
                self._checker.wrong(at, "expected a string without NUL characters")
            else:
                env[name] = self._checker.expanded(at, value)
        return dict(sorted(env.items()))

    def _env_file(self, path: Path, file: str | None) -> dict[str, str]:
        if file is None:
            return {}
        text = self._text(path, file)
        if text is None:
            return {}
        values, faults = parse_env(text)
        for fault in faults:
            self._checker.wrong(path, f"{file}, line {fault.line}: {fault.why}")
        for name in values.keys() & _OWN_VARIABLES:
            self._checker.wrong(path, f"{file}: expected no {name}, Kite itself sets it")
        return values

    def _secret(self, path: Path, table: Mapping[str, Any]) -> str:
        file = table.get("file")
        if set(table) != {"file"} or not isinstance(file, str):
            self._checker.wrong(path, 'expected { file = "…" } and nothing else in it')
            return ""
        text = self._text((*path, "file"), self._checker.expanded((*path, "file"), file))
        if text is not None and "\0" in text:
            self._checker.wrong((*path, "file"), "expected a file without NUL characters")
            return ""
        return (text or "").removesuffix("\n").removesuffix("\r")

    def _text(self, path: Path, file: str) -> str | None:
        found = self._facts.read(self._absolute(file))
        if isinstance(found, FileFault):
            self._checker.wrong(path, f"can't read {shown(file)}: {found.why}", permission=found.permission)
            return None
        return found

    def _options(self, draft: Draft, options: Any, package: str | None) -> dict[str, Any] | None:
        """Return the options with references followed; a stock module's are checked against its rows."""
        path: Path = (*draft.path, "options")
        if draft.stock_path is not None:
            if options is not None:
                self._checker.wrong_name(path, f"expected the options of {draft.name} in [{draft.name}]")
            path, options = draft.stock_path, draft.stock_options
        name = (package or "").removeprefix("kite_modules.")
        checked: dict[str, Any] = {}
        if options is not None and name in STOCK and package != name:
            rows = CONFIG[name]
            checked = self._checker.table(path, options, rows)
            # a stock module gets durations in seconds and sizes in bytes; texts stand as the file has them
            told = options if isinstance(options, dict) else {}
            checked = {key: checked[key] for key in told if rows.get(key, {}).get("type") in ("duration", "size")}
        plain = None if options is None else self._plain(path, options)
        return {**plain, **checked} if isinstance(plain, dict) else plain

    def _plain(self, path: Path, value: Any) -> Any:
        match value:
            case dict():
                return {key: self._plain((*path, key), item) for key, item in value.items()}
            case list():
                return [self._plain((*path, index), item) for index, item in enumerate(value)]
            case str():
                return self._checker.expanded(path, value)
            case bool() | int():
                return value
            case float() if math.isfinite(value):
                return value
            case _:
                self._checker.wrong(path, f"expected a value that JSON can hold, not {shown(value)}")
                return None


def _secret_names(env: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, value in env.items() if isinstance(value, dict))


def check_names(checker: RowChecker, drafts: list[Draft], modules: Mapping[str, ModuleSpec], groups: Any) -> None:
    """Note every name in `after`, `requires` and `group` that names nothing."""
    for draft in drafts:
        spec = modules[draft.name]
        for key, names in (("after", spec.after), ("requires", spec.requires)):
            for index, name in enumerate(names):
                # A stock module that the file does not enable is nothing to wait for; needing it would wait for ever.
                if name in modules or (key == "after" and name in STOCK):
                    continue
                checker.wrong((*draft.path, key, index), f"{key}: no module {name!r}", near=nearest(name, modules))
        if spec.group is not None and spec.group not in groups:
            text = f"expected the name of a [group.NAME], not {shown(spec.group)}"
            checker.wrong((*draft.path, "group"), text, near=nearest(spec.group, groups))
