"""A command's connection to the kernel: one operator client for the time of the command, every wait bounded.

Source: spec 05-surface §3.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import trio

from kite_modules.cli.fail import NO, NOTHING, OK, PERMISSION, UNAVAILABLE, Failure
from kite_modules.cli.instance import Target, find_target, is_alive
from kite_modules.sdk.client import Kite
from kite_modules.sdk.errors import CallError, NotConnected
from kite_modules.sdk.reconnect import INTERNAL
from kite_modules.sdk.runtime import Runtime
from kite_modules.sdk.settings import Settings

CONNECT_S = 5.0
"""How long a command waits for a kernel: one that restarts is back within it."""


def target_of(args: argparse.Namespace) -> Target:
    """Return the kernel that a command line means. Raises: Failure."""
    return find_target(args.state_dir, args.config, os.environ, _here())


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


@asynccontextmanager
async def connected(target: Target, *, name: str = "") -> AsyncGenerator[Kite, None]:
    """Connect for the time of the block. Raises: Failure 3, 69, 77."""
    logging.getLogger("kite").setLevel(logging.CRITICAL)  # a command has its own words for what goes wrong
    if _is_over(target):
        _nobody(target, "")
    settings = Settings(
        url=target.url,
        token=target.token,
        module_id=target.module_id or f"kite-{name or os.getpid()}",
    )
    runtime = Runtime(settings, policy=INTERNAL, chance=random.random)
    opened = False
    limit = trio.CancelScope(deadline=trio.current_time() + CONNECT_S)
    try:
        with limit:
            async with runtime.running() as kite:
                limit.deadline = float("inf")
                opened = True
                yield kite
    except NotConnected as error:
        _refused(target, error)
    if not opened:
        _nobody(target, runtime.kite.last_failure or f"nothing within {CONNECT_S:g} s")


def _refused(target: Target, error: NotConnected) -> NoReturn:
    if error.close_code == 4001:
        where = f"{target.state_dir}/tokens" if target.state_dir else "KITE_TOKEN_FILE"
        raise Failure(PERMISSION, "the kernel does not know this token", f"is {where} of this very instance?") from None
    raise Failure(UNAVAILABLE, f"the kernel refuses: {error.reason}") from None


def _nobody(target: Target, reason: str) -> NoReturn:
    """Say that no kernel answered: nothing runs, or it runs and does not answer."""
    if _is_over(target):
        raise Failure(NOTHING, f"nothing is running in {target.state_dir}", "start it with `kite up -d`")
    raise Failure(UNAVAILABLE, f"the kernel at {target.url} does not answer ({reason})", "see `kite status`")


def _is_over(target: Target) -> bool:
    """Say whether neither the kernel of a state directory lives nor a launcher that could start another."""
    return bool(target.state_dir and not is_alive(target.pid) and not _launcher_lives(target.state_dir))


def _launcher_lives(state_dir: str) -> bool:
    """Say whether somebody holds the instance's lock; looked up, never taken: a launcher may be about to."""
    try:
        status = os.stat(os.path.join(state_dir, "instance.lock"))
        with open("/proc/locks", encoding="ascii") as file:
            held = {line.split()[5] for line in file if " FLOCK " in line}
    except (OSError, IndexError, ValueError):
        return False
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}" in held


def failure_of(error: CallError) -> Failure:
    """Return a failed call as a command's failure: exit 1, with code, reason and outcome in one line."""
    hint = ""
    if error.retry_after_s is not None:
        hint = f"try again in {error.retry_after_s:g} s"
    elif isinstance(error.data, dict) and error.data.get("nearest"):
        hint = "near: " + ", ".join(str(name) for name in error.data["nearest"][:5])
    failure = Failure(NO, str(error), hint)
    failure.more = {
        "code": error.code,
        "reason": error.reason,
        "outcome": error.outcome,
        "data": error.data,
    }
    return failure


def run_connected(args: argparse.Namespace, command: Callable[[Kite], Awaitable[int]], *, name: str = "") -> int:
    """Run one command on a connection. Raises: Failure, BrokenPipeError."""
    target = target_of(args)
    outcome: list[int | Exception] = []

    async def main() -> None:
        async with connected(target, name=name) as kite:
            try:
                outcome.append(await command(kite))
            except CallError as error:
                outcome.append(failure_of(error))
            except (Failure, BrokenPipeError) as error:
                outcome.append(error)

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        raise _one_of(group) from None
    except NotConnected as error:
        raise Failure(UNAVAILABLE, str(error)) from None
    ended = outcome[0] if outcome else OK
    if isinstance(ended, Exception):
        raise ended
    return ended


def _one_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one exception of a group that the command ends with: Ctrl+C first, then a refusal, then a bug."""
    leaves: list[BaseException] = []
    rest: list[BaseException] = [group]
    while rest:
        error = rest.pop()
        if isinstance(error, BaseExceptionGroup):
            rest.extend(error.exceptions)
        else:
            leaves.append(error)
    for kind in (KeyboardInterrupt, Failure, BrokenPipeError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return group
