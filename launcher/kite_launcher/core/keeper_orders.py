"""What the launcher asks of the log keeper and what it hears back, as values with one wire form each.

Both sides import this room and nothing else of each other: the keeper stays small (no trio), the launcher's
link stays thin. The wire form is plain JSON data; texts that came from the file system or from a command line
may hold lone surrogates (bytes that are no UTF-8), which JSON escapes keep exactly.

Source: spec 00 §28, §28a; 50 §1, §2.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

KEEPER_PROTOCOL = 1

Json = dict[str, Any]


def _known(cls: type[attrs.AttrsInstance], data: Any) -> Json:
    """Give the members that `cls` has; those of a newer sender are passed over.

    Errors: TypeError for what is no object or a member of another type (a forged or damaged file).
    """
    if not isinstance(data, dict):
        raise TypeError("no object")
    fields = {field.name: field for field in attrs.fields(cls)}
    for key, value in data.items():
        kind = fields[key].type if key in fields else None
        if kind in (int, str) and type(value) is not kind:
            raise TypeError(f"{key} is no {kind.__name__}")
    return {key: value for key, value in data.items() if key in fields}


@attrs.frozen(kw_only=True)
class SpawnOrder:
    """One program to start, complete: the keeper adds nothing of its own.

    `run` counts the starts of one name; 0 lets the keeper go on from the last run that stands in the log.
    `env` is the whole environment of the child. `fds` maps the number in the child to an open descriptor of
    ours; 0, 1 and 2 are the keeper's business and refused here. `rlimits` maps a name of the `resource`
    module without its RLIMIT_ (lower case) to (soft, hard). `ready_log` is a regular expression that is armed
    before the first byte of the child can arrive. `stop_signal` and `stop_timeout_s` are for the keeper's own
    last duty: ending what is left when nobody else lives.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    role: str = "module"
    run: int = 0
    fds: Mapping[int, int] = attrs.field(factory=dict[int, int])
    stdin: Literal["null", "pipe"] = "null"
    umask: int | None = None
    nice: int | None = None
    rlimits: Mapping[str, tuple[int, int]] = attrs.field(factory=dict[str, tuple[int, int]])
    user: str | None = None
    ready_log: str | None = None
    stop_signal: int = 15
    stop_timeout_s: float = 10.0

    def to_wire(self) -> Json:
        """Give the order as JSON data; descriptors travel beside it, in the order of `targets`."""
        data = attrs.asdict(self, recurse=False)
        del data["fds"]
        data["argv"] = list(self.argv)
        data["env"] = dict(self.env)
        data["rlimits"] = {name: list(pair) for name, pair in self.rlimits.items()}
        data["targets"] = sorted(self.fds)
        return data

    @classmethod
    def from_wire(cls, data: Json, fds: list[int]) -> "SpawnOrder":
        """Read an order. Errors: TypeError, ValueError or KeyError for what no launcher of ours sends."""
        fields = {key: value for key, value in data.items() if key != "targets"}
        fields["argv"] = tuple(fields["argv"])
        fields["rlimits"] = {name: (soft, hard) for name, (soft, hard) in fields["rlimits"].items()}
        fields["fds"] = dict(zip(data["targets"], fds, strict=True))
        return cls(**fields)


@attrs.frozen
class Forked:
    """The process exists, holds its pid and waits: nothing of the program has run. Write the record now."""

    name: str
    run: int
    pid: int
    start_ticks: int


@attrs.frozen
class Spawned:
    """The program runs: `exec` took place."""

    name: str
    run: int
    pid: int
    start_ticks: int


@attrs.frozen
class SpawnFailed:
    """The program could not be started; nothing is left of the try. `errno` is 0 where no call failed."""

    name: str
    errno: int
    why: str


@attrs.frozen
class Exited:
    """A child ended. `status` is the raw wait status (`os.waitstatus_to_exitcode` reads it).

    `seq` counts the exits of one keeper's life; `at` is ISO 8601 UTC. All output that the process wrote itself
    stands in the log before this is told. `status` is None when the end was seen but another had collected it.
    """

    name: str
    run: int
    pid: int
    start_ticks: int
    status: int | None
    at: str
    role: str = "module"
    seq: int = 0

    def to_wire(self) -> Json:
        """Give the same as JSON data, one line of `exits.jsonl`."""
        return attrs.asdict(self)

    @classmethod
    def from_wire(cls, data: Json) -> "Exited":
        """Read it back. Errors: TypeError for a missing or wrong member."""
        return cls(**_known(cls, data))


@attrs.frozen(kw_only=True)
class KeptRecord:
    """One process as the keeper knows it: the copy of `processes.json` that survives a full disk.

    `out` and `err` are the inodes of its pipes, by which a new keeper finds them again.
    """

    name: str
    role: str
    run: int
    pid: int
    start_ticks: int
    argv: tuple[str, ...]
    started_at: str
    out: int = 0
    err: int = 0
    stop_signal: int = 15
    stop_timeout_s: float = 10.0

    def to_wire(self) -> Json:
        """Give the record as JSON data."""
        return {**attrs.asdict(self), "argv": list(self.argv)}

    @classmethod
    def from_wire(cls, data: Json) -> "KeptRecord":
        """Read it back. Errors: TypeError or KeyError for a missing or wrong member."""
        fields = _known(cls, data)
        return cls(**{**fields, "argv": tuple(fields["argv"])})


@attrs.frozen(kw_only=True)
class KeeperSettings:
    """How logs are kept, and when the keeper becomes the housekeeper. Seconds are scaled already.

    `files` includes the live one. `abandoned_s` is launcher grace + shutdown: so long after launcher and kernel
    are gone the keeper ends what still runs. `mark` is the value of KITE_INSTANCE of this instance's processes.
    """

    max_bytes: int = 10 * 1024 * 1024
    files: int = 5
    max_age_s: float | None = None
    total_bytes: int | None = None
    abandoned_s: float = 45.0
    mark: str = ""

    def to_wire(self) -> Json:
        """Give the settings as JSON data."""
        return attrs.asdict(self)

    @classmethod
    def from_wire(cls, data: Json) -> "KeeperSettings":
        """Read them back. Errors: TypeError for a wrong member."""
        return cls(**_known(cls, data))


@attrs.frozen(kw_only=True)
class LogTrouble:
    """One log that can't be written just now, or lost lines since the keeper started."""

    name: str
    failing: bool
    errno: int
    why: str
    path: str
    dropped_lines: int
    dropped_bytes: int


@attrs.frozen(kw_only=True)
class LogState:
    """Whether every line finds its place. `ok` is False as long as one log can't be written.

    `troubles` lists failing logs and such that lost lines; `exits_lost` counts exits that no launcher fetched
    and that the bound pushed out.
    """

    ok: bool = True
    troubles: tuple[LogTrouble, ...] = ()
    exits_lost: int = 0
    lines: int = 0
    bytes: int = 0

    def to_wire(self) -> Json:
        """Give the state as JSON data."""
        return attrs.asdict(self)

    @classmethod
    def from_wire(cls, data: Json) -> "LogState":
        """Read it back. Errors: TypeError for what no keeper of ours sends."""
        troubles = tuple(LogTrouble(**item) for item in data.get("troubles", ()))
        return cls(**{**data, "troubles": troubles})
