"""anycorn's WebSocket, strict where it is lenient: a message over the limit or a broken frame ends the connection.

The stock class says 1009 and goes on collecting what arrives; a broken frame it ends without a word.
Source: spec 80 §1, cases X-22, X-39, X-43.
"""

from __future__ import annotations

from typing import Final

import trio
from anycorn.protocol.events import EndData, StreamClosed
from anycorn.protocol.ws_stream import ASGIWebsocketState, FrameTooLargeError, WSStream
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

LINGER_S: Final = 3.0  # a client that is still sending hears our close before the wire ends
_FAULTS: Final = (CloseReason.PROTOCOL_ERROR, CloseReason.INVALID_FRAME_PAYLOAD_DATA, CloseReason.MESSAGE_TOO_BIG)


class StrictSocket(WSStream):
    """One WebSocket of the server."""

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, Message):
                try:
                    self.buffer.extend(event)
                except FrameTooLargeError:
                    self.buffer.clear()
                    await self._end(CloseReason.MESSAGE_TOO_BIG)
                    return
                if event.message_finished:
                    assert self.app_put is not None
                    message = self.buffer.to_message()
                    self.buffer.clear()
                    await self.app_put(message)
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                if self.connection.state is ConnectionState.OPEN and event.code in _FAULTS:
                    await self._end(CloseReason(event.code))
                    return
                self.close_code = event.code
                if self.connection.state is ConnectionState.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                await self.send(StreamClosed(stream_id=self.stream_id))
                return

    async def _end(self, code: CloseReason) -> None:
        """Say why, tell the app, and throw away whatever still comes."""
        await self._send_wsproto_event(CloseConnection(code=code))
        self.state = ASGIWebsocketState.CLOSED
        self.closed = True
        if self.app_put is not None:
            await self.app_put({"type": "websocket.disconnect", "code": int(code)})
        await self.send(EndData(stream_id=self.stream_id))
        self.task_group.spawn(self._linger)

    async def _linger(self) -> None:
        await trio.sleep(LINGER_S)
        await self.send(StreamClosed(stream_id=self.stream_id))
