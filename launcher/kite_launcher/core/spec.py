"""What one kite.toml asks for, as values: every default filled in, every path absolute, every time in seconds.

Nothing here reads a file or a clock. `core.load.load_text` makes these values; the supervisor, the command line
and `core.reload` only read them. Two specs that would run the same processes compare equal, so that a reload can
tell a change from a comment. Values that may hold secrets never stand in a `repr`.
Source: spec 05 §3, §6; spec 50 §2, §5.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import attrs

RestartPolicy = Literal["always", "on-failure", "never"]
ReadyKind = Literal["log", "tcp", "http", "exit", "notify", "delay"]
TokenWay = Literal["fd", "file"]
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})

# Kite's own processes are started again 5 times in 60 s (spec 05 §6); what happens then differs by process.
OWN_RESTARTS: Final = 5
OWN_WITHIN_S: Final = 60.0


@attrs.frozen
class Place:
    """A place in kite.toml: line and column, both counted from 1, the column in characters."""

    line: int
    column: int


@attrs.frozen
class Mistake:
    """One thing wrong with kite.toml: where, what was expected, and the nearest valid name if there is one.

    `fault` is "config" for what the file says (exit 78) and "permission" for a file that may not be read (exit 77).
    """

    place: Place
    text: str
    nearest: str | None = None
    fault: Literal["config", "permission"] = "config"

    def line(self, file: str) -> str:
        """Return the one line a person reads, `FILE:LINE:COLUMN: text`; what a terminal would obey stands escaped."""
        hint = f"; did you mean {self.nearest!r}?" if self.nearest is not None else ""
        line = f"{file}:{self.place.line}:{self.place.column}: {self.text}{hint}"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


@attrs.frozen
class Timing:
    """The section [timing], `scale` already multiplied into every `_s` value."""

    scale: float
    debounce_s: float
    launcher_grace_s: float
    shutdown_s: float
    auth_s: float
    verify_s: float
    ping_active_s: float
    ping_idle_s: float
    pong_s: float
    ping_misses: int
    rate_window_s: float
    rate_max: int
    critical_s: float
    healthy_reset_s: float
    call_s: float


@attrs.frozen
class TlsSpec:
    """Certificate and key of the kernel's listener: absolute paths of PEM files."""

    cert: str
    key: str


@attrs.frozen
class KernelSpec:
    """The section [kernel]: where to listen and the limits of one connection."""

    host: str
    port: int
    max_message_bytes: int
    queue_messages: int
    queue_bytes: int
    allow_remote: bool
    tls: TlsSpec | None
    origins: tuple[str, ...]
    hosts: tuple[str, ...]


@attrs.frozen
class Ready:
    """When a program that does not speak Kite counts as ready.

    `value` by `kind`: log → regular expression, tcp → port, http → URL, exit → exit status, notify → True,
    delay → seconds (a module's own key: not scaled).
    """

    kind: ReadyKind
    value: str | int | float | bool

    def words(self) -> str:
        """Return the rule as it stands in the file, for `why` and for messages."""
        value = f'"{self.value:g}s"' if self.kind == "delay" else _toml(self.value)
        return f"ready = {{ {self.kind} = {value} }}"


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


@attrs.frozen
class ModuleSpec:
    """One [module.NAME] (or a stock module's own section), ready to be run.

    `command` holds argv byte for byte (no shell); with `package` instead the launcher's interpreter runs it, see
    `argv`. `program` is the absolute path of the file to start when command[0] holds a slash, else None: looked up in
    the child's PATH. `script` is the absolute path of a Python file that `module` named instead of a package. `env` is
    env_file with `env` over it, already expanded; it may hold secrets. Paths are absolute.
    `health_s` is scaled by [timing], the module's other times are not. `place` does not count in a comparison.
    """

    name: str
    command: tuple[str, ...] | None
    program: str | None
    package: str | None
    after: tuple[str, ...]
    requires: tuple[str, ...]
    restart: RestartPolicy
    max_restarts: int
    within_s: float
    backoff_s: float
    backoff_max_s: float
    retry_slowly_s: float | None
    stop_signal: str
    stop_timeout_s: float
    ready: Ready | None
    ready_timeout_s: float
    health_s: float | None
    memory_max_bytes: int | None
    replicas: int
    essential: bool
    env: Mapping[str, str] = attrs.field(repr=False)
    secret_env: frozenset[str]
    inherit_env: bool
    cwd: str
    user: str | None
    umask: int | None
    nice: int
    limits: Mapping[str, int]
    enabled: bool
    token: TokenWay
    token_asked: bool
    stdin: Literal["null", "pipe"]
    group: str | None
    notify_watchdog_s: float | None
    options: Mapping[str, Any] | None = attrs.field(repr=False)
    stock: bool
    place: Place = attrs.field(eq=False)
    script: str | None = None

    @property
    def speaks_kite(self) -> bool:
        """True when the module is one of Kite's: it gets a token and its `module.ready` is waited for.

        A module with a `ready` rule is a program that knows nothing of Kite, unless `token` is set beside it.
        """
        return self.ready is None or self.token_asked

    @property
    def wants(self) -> tuple[str, ...]:
        """Every name that must be started before, `after` and `requires` together, in file order, once each."""
        return tuple(dict.fromkeys((*self.after, *self.requires)))

    def argv(self, python: str) -> tuple[str, ...]:
        """Return the argv to start; `python` is the launcher's own interpreter (absolute path).

        `-P` keeps files beside kite.toml from being imported instead of the library's; a script has its own folder's
        files at hand, as everywhere in Python.
        """
        if self.command is not None:
            return self.command
        if self.script is not None:
            return (python, self.script)
        return (python, "-P", "-m", self.package or "")

    def instances(self) -> tuple[str, ...]:
        """Return the names of the processes: the module's own, or NAME@1 … NAME@n with `replicas` ≠ 1."""
        if self.replicas == 1:
            return (self.name,)
        return tuple(f"{self.name}@{index}" for index in range(1, self.replicas + 1))


@attrs.frozen
class GroupSpec:
    """One [group.NAME]: what the end of one member means for the others."""

    name: str
    strategy: Strategy


@attrs.frozen
class WatchdogSpec:
    """The section [watchdog]: fresh instances it may start (`restarts` in `within_s`, not scaled)."""

    enabled: bool
    restarts: int
    within_s: float


@attrs.frozen
class LoggingSpec:
    """The section [logging]: `files` includes the live one; None means no limit of that kind."""

    format: Literal["console", "json"]
    max_bytes: int
    files: int
    max_age_s: float | None
    total_bytes: int | None


@attrs.frozen
class NotifySpec:
    """The section [notify]: where alarms go, at most `limit` of them in `limit_within_s`."""

    command: tuple[str, ...] | None
    webhook: str | None = attrs.field(repr=False)
    limit: int
    limit_within_s: float


@attrs.frozen
class Permissions:
    """One [permissions.NAME]; a list that is absent (None) allows all but the administrative."""

    name: str
    call: tuple[str, ...] | None
    publish: tuple[str, ...] | None
    subscribe: tuple[str, ...] | None


@attrs.frozen
class InstanceSpec:
    """A whole kite.toml that has no mistake.

    `path` is the file's real absolute path, `folder` the directory that relative paths count from. `modules` stands
    in file order and holds the stock modules that the file enables. `kernel_sections` are the checked plain values
    that the kernel reads for itself, "section" → key → value, kept here so that a reload can name changed keys.
    """

    path: str
    folder: str
    name: str
    kernel: KernelSpec
    timing: Timing
    modules: Mapping[str, ModuleSpec]
    groups: Mapping[str, GroupSpec]
    watchdog: WatchdogSpec
    logging: LoggingSpec
    notify: NotifySpec
    permissions: Mapping[str, Permissions]
    kernel_sections: Mapping[str, Mapping[str, Any]]


@attrs.frozen
class Loaded:
    """What became of one kite.toml: a spec, or every mistake in file order, never both."""

    spec: InstanceSpec | None
    mistakes: tuple[Mistake, ...]
