"""When an instance is abandoned: nobody lives who could look after what still runs.

Law: while a launcher is connected, or the kernel or the watchdog lives, the log keeper ends nothing: the kernel
has its own rule for a lost launcher, the watchdog may be about to start a new one.

Source: spec 00 §28a, 50 §3; case S-71.
"""

import attrs


@attrs.frozen
class Abandonment:
    """What is known: `alone_since` is when the last of launcher, kernel and watchdog went; None while one lives.

    `launcher_lost_at` is when the launcher's connection ended; None while there is one.
    """

    launcher_lost_at: float | None = None
    alone_since: float | None = None


def note(before: Abandonment, *, connected: bool, caretakers: int, now: float) -> Abandonment:
    """Take in the state of now. `caretakers` counts living kernels and watchdogs."""
    if connected:
        return Abandonment()
    lost_at = before.launcher_lost_at if before.launcher_lost_at is not None else now
    if caretakers:
        return Abandonment(lost_at, None)
    return Abandonment(lost_at, before.alone_since if before.alone_since is not None else now)


def ends_at(state: Abandonment, *, abandoned_s: float) -> float | None:
    """Give the instant at which what is left shall end; None as long as nobody knows that it is abandoned.

    It is never before launcher grace + shutdown have passed since the launcher was lost: a new one may come.
    """
    if state.alone_since is None or state.launcher_lost_at is None:
        return None
    return max(state.alone_since, state.launcher_lost_at + abandoned_s)
