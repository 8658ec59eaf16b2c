"""The text of a kite.toml in, an `InstanceSpec` or all of its mistakes out. Pure: the world answers through `Facts`.

Source: spec 05 §6; spec 50 §1, §5; cases S-39 … S-45.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

from kite_launcher._contract import CONFIG
from kite_launcher.core.check_rows import Facts, FileFault, Row, RowChecker, shown
from kite_launcher.core.load_module import ModuleReader, check_names, gather
from kite_launcher.core.names import module_name_fault, nearest, pattern_fault, stream_name_fault
from kite_launcher.core.order import circles
from kite_launcher.core.spec import (
    GroupSpec,
    InstanceSpec,
    KernelSpec,
    Loaded,
    LoggingSpec,
    Mistake,
    ModuleSpec,
    NotifySpec,
    Permissions,
    Place,
    Timing,
    TlsSpec,
    WatchdogSpec,
)
from kite_launcher.core.toml_places import Path, read

_SECTIONS: Final = tuple(dict.fromkeys(name.partition(".")[0] for name in CONFIG))
_NAMED: Final = ("module", "group", "permissions")


def load_text(text: str, *, path: str, facts: Facts) -> Loaded:
    """Check the whole of one kite.toml.

    Args: `path` is the file's real absolute path; relative paths in the file count from its folder.
    Returns: a spec without mistakes, or every mistake in file order (one only when the text is no TOML).
    """
    document = read(text)
    if isinstance(document, Mistake):
        return Loaded(None, (document,))
    checker = RowChecker(document.places, facts)
    spec = _Loader(checker, document.values, path).load()
    if checker.mistakes:
        return Loaded(None, in_order(checker.mistakes))
    return Loaded(spec, ())


def in_order(mistakes: list[Mistake]) -> tuple[Mistake, ...]:
    """Return the mistakes in file order, each once."""
    return tuple(sorted(dict.fromkeys(mistakes), key=lambda mistake: (mistake.place.line, mistake.place.column)))


def decode(content: bytes) -> str | Mistake:
    """Return the file's text, or where it stops being UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        return Mistake(Place(line, column), f"expected UTF-8, not the byte 0x{content[error.start]:02x}")


class _Loader:
    """One pass over the sections of one document."""

    def __init__(self, checker: RowChecker, values: Mapping[str, Any], path: str) -> None:
        self._checker = checker
        self._values = values
        self._path = path
        self._folder = posixpath.dirname(path)
        self._kernel_sections: dict[str, Mapping[str, Any]] = {}

    def load(self) -> InstanceSpec:
        for name in self._values:
            if name not in _SECTIONS:
                self._checker.wrong_name((name,), f"unknown section [{name}]", near=nearest(name, _SECTIONS))
        instance = self._section("instance")
        timing = self._timing(self._kernel_section("timing"))
        kernel = self._kernel(self._kernel_section("kernel"))
        self._kernel_section("ownership")
        self._kernel_section("cluster")
        self._streams()
        permissions = self._permissions()
        groups = self._groups()
        modules = self._modules(timing.scale, groups)
        watchdog = self._section("watchdog")
        return InstanceSpec(
            path=self._path,
            folder=self._folder,
            name=self._name(instance["name"]),
            kernel=kernel,
            timing=timing,
            modules=modules,
            groups=groups,
            watchdog=WatchdogSpec(watchdog["enabled"], watchdog["restarts"], watchdog["within"]),
            logging=self._logging(self._section("logging")),
            notify=self._notify(self._section("notify")),
            permissions=permissions,
            kernel_sections=self._kernel_sections,
        )

    def _section(self, name: str, *, known: tuple[str, ...] = ()) -> dict[str, Any]:
        return self._checker.table((name,), self._values.get(name), CONFIG[name], known=known)

    def _kernel_section(self, name: str) -> dict[str, Any]:
        section = self._section(name)
        self._kernel_sections[name] = section
        return section

    def _name(self, name: str | None) -> str:
        """Return the instance's name: part of a directory's name, so neither empty, long nor with a slash."""
        if name is None:
            return posixpath.basename(self._folder) or "kite"
        if not name.strip() or name in (".", "..") or "/" in name or len(name.encode()) > 100 or not name.isprintable():
            self._checker.wrong(("instance", "name"), f"expected a short name without slashes, not {shown(name)}")
        return name

    def _timing(self, section: Mapping[str, Any]) -> Timing:
        scale = section["scale"]
        scaled = {
            f"{name}_s": section[name] * scale for name, row in CONFIG["timing"].items() if row["type"] == "duration"
        }
        whole = {name: section[name] for name, row in CONFIG["timing"].items() if row["type"] == "int"}
        return Timing(scale=scale, **scaled, **whole)

    def _kernel(self, section: Mapping[str, Any]) -> KernelSpec:
        tls = section["tls"]
        if tls is not None:
            tls = TlsSpec(*(self._readable(("kernel", "tls", key), tls[key]) for key in ("cert", "key")))
        self._kernel_sections["kernel"] = {
            **section,
            "tls": None if tls is None else {"cert": tls.cert, "key": tls.key},
        }
        host = section["host"]
        if not is_loopback(host) and not (section["allow_remote"] and tls is not None):
            needs = "that needs both allow_remote = true and tls = { cert, key }"
            text = f"expected an address of this machine alone, not {host!r}: {needs}"
            self._checker.wrong(("kernel", "host"), text)
        if section["max_message"] > section["queue_bytes"]:
            self._checker.wrong(
                ("kernel", "max_message" if "max_message" in self._values.get("kernel", {}) else "queue_bytes"),
                "expected max_message to be at most queue_bytes, else its answer could never be queued",
            )
        return KernelSpec(
            host=host,
            port=section["port"],
            max_message_bytes=section["max_message"],
            queue_messages=section["queue_messages"],
            queue_bytes=section["queue_bytes"],
            allow_remote=section["allow_remote"],
            tls=tls,
            origins=section["origins"],
            hosts=section["hosts"],
        )

    def _readable(self, path: Path, file: str) -> str:
        file = posixpath.normpath(posixpath.join(self._folder, self._checker.expanded(path, file)))
        found = self._checker.facts.read(file)
        if isinstance(found, FileFault):
            self._checker.wrong(path, f"can't read {shown(file)}: {found.why}", permission=found.permission)
        return file

    def _named(self, section: str) -> dict[str, Any]:
        """Return the tables [section.NAME] by name; what is no table becomes a mistake."""
        tables = self._values.get(section, {})
        if not isinstance(tables, dict):
            self._checker.wrong((section,), f"expected tables [{section}.NAME], not {shown(tables)}")
            return {}
        out = {}
        for name, table in tables.items():
            if isinstance(table, dict):
                out[name] = table
            else:
                self._checker.wrong((section, name), f"expected a table [{section}.{name}], not {shown(table)}")
        return out

    def _streams(self) -> None:
        tables = self._values.get("streams", {})
        rows: Mapping[str, Row] = CONFIG["streams"]
        names = [name for name, item in tables.items() if isinstance(item, dict)] if isinstance(tables, dict) else []
        streams = [name for name in names if name not in rows]
        self._kernel_sections["streams"] = self._checker.table(
            ("streams",), self._values.get("streams"), rows, known=streams
        )
        for name in streams:
            if (fault := stream_name_fault(name)) is not None:
                self._checker.wrong_name(("streams", name), fault)
            table = self._checker.table(("streams", name), tables[name], CONFIG["streams.*"])
            self._kernel_sections[f"streams.{name}"] = table

    def _permissions(self) -> dict[str, Permissions]:
        out = {}
        for name, table in self._named("permissions").items():
            if (fault := module_name_fault(name)) is not None:
                self._checker.wrong_name(("permissions", name), fault)
            row = self._checker.table(("permissions", name), table, CONFIG["permissions.*"])
            for key, patterns in row.items():
                for index, pattern in enumerate(patterns or ()):
                    if (fault := pattern_fault(pattern)) is not None:
                        self._checker.wrong(("permissions", name, key, index), fault)
            out[name] = Permissions(name, row["call"], row["publish"], row["subscribe"])
            self._kernel_sections[f"permissions.{name}"] = row
        return out

    def _groups(self) -> dict[str, GroupSpec]:
        rows = CONFIG["group.*"]
        tables = self._named("group")
        return {
            name: GroupSpec(name, self._checker.table(("group", name), table, rows)["strategy"])
            for name, table in tables.items()
        }

    def _modules(self, scale: float, groups: Mapping[str, GroupSpec]) -> dict[str, ModuleSpec]:
        drafts = gather(self._checker, self._values)
        reader = ModuleReader(self._checker, folder=self._folder, scale=scale)
        modules = {draft.name: reader.read(draft) for draft in drafts}
        check_names(self._checker, drafts, modules, groups)
        for circle in circles({name: spec.wants for name, spec in modules.items()}):
            spec = modules[circle[0]]
            key = "after" if circle[1] in spec.after else "requires"
            names = spec.after if key == "after" else spec.requires
            at: Path = ("module", spec.name, key, names.index(circle[1]))
            self._checker.wrong(at, f"a circle, nothing of it could ever start: {' → '.join(circle)}")
        return modules

    def _logging(self, section: Mapping[str, Any]) -> LoggingSpec:
        return LoggingSpec(
            format=section["format"],
            max_bytes=section["max_bytes"],
            files=section["files"],
            max_age_s=section["max_age"],
            total_bytes=section["total"],
        )

    def _notify(self, section: Mapping[str, Any]) -> NotifySpec:
        webhook = section["webhook"]
        if webhook is not None and re.match(r"https?://[^/\s]", webhook) is None:
            self._checker.wrong(("notify", "webhook"), 'expected a URL such as "https://example.org/hook"')
        if webhook is not None and section["command"] is not None:
            self._checker.wrong_name(("notify", "webhook"), "expected either command or webhook, not both")
        count, within_s = section["limit"]
        return NotifySpec(command=section["command"], webhook=webhook, limit=count, limit_within_s=within_s)


def is_loopback(host: str) -> bool:
    """True when only this machine can reach a listener on `host`; a name other than localhost never counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
