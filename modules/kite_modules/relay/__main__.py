"""`python -m kite_modules.relay`: the way in for people. Source: spec 80 §1.

What can be wrong with settings, files and the port is found before the kernel is asked for anything.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import trio

from kite_modules import _contract
from kite_modules.relay import shelf, tls
from kite_modules.relay.accounts import FILE, Accounts
from kite_modules.relay.engine import Server
from kite_modules.relay.fanout import Fanout
from kite_modules.relay.house import House
from kite_modules.relay.options import Options
from kite_modules.relay.screen import Screen
from kite_modules.relay.web import Web
from kite_modules.sdk import Kite, Module, log

SESSIONS_EVERY_S: Final = 0.4  # a session that was ended is gone within a second
QUEUE_MAX: Final = 10_000  # events on their way to the consoles
WIRE_BYTES_MAX: Final = 1 << 20
MARGIN_BYTES: Final = 1024  # what the relay's own frame adds to a browser's
module = Module("relay", options=Options)


def folder() -> Path:
    """Return this module's own directory."""
    return Path(os.environ.get("KITE_STATE_DIR") or "relay-state")


def read_options() -> Options:
    """Read the options before anything else is done. Raises: StartError."""
    path = os.environ.get("KITE_OPTIONS_FILE")
    if not path:
        return Options()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Options)
    except OSError as error:
        raise tls.StartError(f"{path}: {error.strerror}", tls.EX_CONFIG) from None
    except msgspec.MsgspecError as error:
        raise tls.StartError(f"[relay] {error}", tls.EX_CONFIG) from None


class Relay:
    """The relay, ready to serve: everything that may be refused was found good."""

    def __init__(self, options: Options, state: Path) -> None:
        host, port = tls.split_listen(options.listen)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.state = state
        self.options = options
        self.identity = tls.identity(options.tls, host, state / "tls")
        self.bound = tls.bind(host, port)
        self.accounts = Accounts(state / FILE, clock=time.time)
        self.pages = shelf.load()
        self.url = self._url(host)

    def _url(self, host: str) -> str:
        port = self.bound.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self.identity is None else 'https'}://{shown}:{port}/"

    def say_where(self) -> None:
        """Tell where it is, in the log and in relay.json."""
        fingerprint = None if self.identity is None else self.identity.fingerprint
        told = {"url": self.url, "fingerprint_sha256": fingerprint, "pid": os.getpid()}
        tls.write_private(self.state / "relay.json", json.dumps(told).encode())
        log.say(logging.INFO, f"listening on {self.url}", fingerprint_sha256=fingerprint or "none, plain HTTP")
        if not self.accounts.users():
            log.say(logging.INFO, "nobody may log in yet: kite relay user add NAME --role admin")

    async def main(self, kite: Kite) -> None:
        """Serve until the module is told to end."""
        fanout, screen = Fanout(), Screen(kite)
        house = House(kite, self.accounts, self.options, fanout, screen)
        web = Web(house, self.pages, secure=self.identity is not None)
        context = None if self.identity is None else self.identity.context
        server = Server(web, self.bound, context, message_bytes_max=WIRE_BYTES_MAX)
        await _learn_limits(house)
        async with (
            kite.subscribe(">", policy="drop_oldest", queue_max=QUEUE_MAX) as events,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(server.run)
            nursery.start_soon(screen.run)
            nursery.start_soon(screen.tell_events)
            nursery.start_soon(_end_sessions, house)
            nursery.start_soon(_follow_kernel, house)
            nursery.start_soon(_say_goodbye, house)
            self.say_where()
            async for event in events:
                if event.name == "system.ping":
                    continue
                screen.heard(event)
                told = {"event": event.name, "data": event.raw, "source": event.source, "time": event.time}
                fanout.send(told)


async def _learn_limits(house: House) -> None:
    """A frame that the kernel would refuse with 1009 must be refused here: it would cost everybody the connection."""
    info = await house.kite.call("kernel.info")
    limit = info.get("limits", {}).get("max_message_bytes", WIRE_BYTES_MAX)
    house.frame_bytes_max = max(4096, min(WIRE_BYTES_MAX, int(limit)) - MARGIN_BYTES)


async def _end_sessions(house: House) -> None:
    """Close the wires whose session was ended: by hand, by another process, by time."""
    while True:
        await trio.sleep(SESSIONS_EVERY_S)
        if not house.browsers:
            continue
        living = house.sessions_living()
        for browser in list(house.browsers):
            if browser.desk is not None and browser.desk.session not in living:
                browser.wire.close(_contract.CLOSE_AUTH_FAILED, "this session has ended; log in again")


async def _follow_kernel(house: House) -> None:
    """Say it to every page at once when the kernel is away; and be the first to be back, so that no event is missed.

    The listening socket outlives the kernel: who knocks first is let in first, and hears what the others kept.
    """
    was_open = True
    async for _ in house.kite.states():
        is_open = house.connected
        if was_open and not is_open:
            for browser in list(house.browsers):
                browser.wire.close(_contract.CLOSE_SERVICE_RESTART, "the kernel is away; it comes back")
            house.kite.retry_now()
        if is_open and not was_open:
            await _learn_limits(house)
        was_open = is_open


async def _say_goodbye(house: House) -> None:
    """Close every page's wire in order when the relay ends; it comes back by itself."""
    await house.kite.stopping.wait()
    for browser in list(house.browsers):
        browser.wire.close(_contract.CLOSE_GOING_AWAY, "the relay is ending")


def main() -> NoReturn:
    """Run the module."""
    log.install()
    try:
        relay = Relay(read_options(), folder())
    except tls.StartError as error:
        log.say(logging.ERROR, str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        log.say(logging.ERROR, f"{error.filename or 'the state directory'}: {error.strerror}")
        sys.exit(tls.EX_NOPERM)
    module.run(relay.main)


if __name__ == "__main__":
    main()
