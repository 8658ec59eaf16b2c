"""The auth exchange on one fresh wire: the first frame and its answer, bounded.

Source: spec 10-wire §2, 05-surface §9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from kite_modules.sdk import frames
from kite_modules.sdk.frames import Frame
from kite_modules.sdk.transport import Lost, Wire, WireLost

AUTH_S: Final = 10.0
"""The kernel gives itself 5 s for the first frame and 2 s for the token: after this it has forgotten us."""
_LAST_WORDS_S: Final = 2.0  # after an auth error: how long the close frame may take
_FRAMES_MAX: Final = 16  # what a kernel may say before its answer: a `bye` at most


class Greeting:
    """One auth exchange; `notice` hears what else comes (a `bye`)."""

    def __init__(self, wire: Wire, notice: Callable[[Frame], object]) -> None:
        self._wire = wire
        self._notice = notice

    async def authenticate(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the auth result. Raises: WireLost with the code that the refusal or the close frame gave."""
        answer: Frame | None = None
        with trio.move_on_after(AUTH_S):
            await self._wire.send(frames.request("auth", "auth", frames.encode(params)))
            answer = await self._answer()
        if answer is None:
            raise WireLost(Lost(None, f"no answer to auth within {AUTH_S:g} s"))
        if isinstance(answer.error, frames.WireError):
            raise WireLost(await self._refused(answer.error))
        return frames.object_of(answer.result)

    async def _answer(self) -> Frame:
        for _ in range(_FRAMES_MAX):
            text = await self._wire.receive()
            message = None if text is None else frames.read_frame(text)
            if isinstance(message, Frame):
                if message.kind == "answer" and message.id in ("auth", None):
                    return message
                self._notice(message)
        raise WireLost(Lost(None, "the other side talks, but does not answer auth"))

    async def _refused(self, error: frames.WireError) -> Lost:
        """Wait for the close frame that follows; the error's own `close` stands in for it."""
        said = frames.object_of(error.data).get("close")
        lost = Lost(None, error.message)
        with trio.move_on_after(_LAST_WORDS_S):
            try:
                await self._answer()
            except WireLost as end:
                lost = end.lost
        if lost.code in (None, 1006) and isinstance(said, int) and not isinstance(said, bool):
            return Lost(said, error.message, lost.retry_after_s)
        return lost
