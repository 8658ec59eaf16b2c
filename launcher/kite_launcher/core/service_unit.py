"""The text of a systemd unit or launchd agent that runs one instance. Pure: the same instance gives the same bytes.

Every word is quoted, so that a path may hold blanks, quotes, line ends and bytes that are no UTF-8.
Source: systemd.service(5), systemd.syntax(7), launchd.plist(5); spec 05 §3; case S-91.
"""

from __future__ import annotations

import plistlib
import re
from collections.abc import Sequence

import attrs

# systemd pings by WATCHDOG=1 at half of it; a launcher that says nothing so long hangs and is started anew.
WATCHDOG_S = 30
# The launcher bounds its own start and stop by the modules' timeouts; systemd only steps in far beyond.
START_S = 600
STOP_S = 300


@attrs.frozen
class Service:
    """One instance as a service: its name, 8 hex digits that tell it apart, its argv, and the PATH it was made with."""

    name: str
    digits: str
    argv: tuple[str, ...]
    path: str

    @property
    def unit(self) -> str:
        """The unit's file name, of the characters that systemd allows."""
        return f"kite-{_plain(self.name)}-{self.digits}.service"

    @property
    def label(self) -> str:
        """The launchd label."""
        return f"kite.{_plain(self.name)}.{self.digits}"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:80] or "instance"


def quote_word(word: str, *, dollar: bool = True) -> str:
    """Return one word for a unit file: quoted, C escapes for what is not printable, `%` (and `$`) doubled."""
    out = []
    for char in word:
        if char in '"\\':
            out.append("\\" + char)
        elif char == "%":
            out.append("%%")
        elif char == "$" and dollar:
            out.append("$$")
        elif "\udc80" <= char <= "\udcff":  # a byte that was no UTF-8
            out.append(f"\\x{ord(char) - 0xDC00:02x}")
        elif char.isprintable():
            out.append(char)
        else:
            out.append("".join(f"\\x{byte:02x}" for byte in char.encode()))
    return '"' + "".join(out) + '"'


def systemd_unit(service: Service, *, system: bool) -> str:
    """Return the unit's text; `system` for /etc/systemd/system instead of the user's own manager."""
    argv = " ".join(quote_word(word) for word in service.argv)
    name = "".join(char for char in service.name if char.isprintable()).replace("%", "%%")
    return f"""# Written by `kite-launch service install`; `kite-launch service uninstall` removes it.
[Unit]
Description=Kite instance {name}
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
Environment={quote_word(f"PATH={service.path}", dollar=False)}
ExecStart={argv}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=64 75 77 78
WatchdogSec={WATCHDOG_S}
TimeoutStartSec={START_S}
TimeoutStopSec={STOP_S}
KillMode=mixed
UMask=0077

[Install]
WantedBy={"multi-user.target" if system else "default.target"}
"""


def launchd_plist(service: Service) -> bytes:
    """Return the launchd agent's property list."""
    argv: Sequence[str] = service.argv
    return plistlib.dumps(
        {
            "Label": service.label,
            "ProgramArguments": list(argv),
            "EnvironmentVariables": {"PATH": service.path},
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_S,
            "Umask": 0o077,
        },
        sort_keys=True,
    )
