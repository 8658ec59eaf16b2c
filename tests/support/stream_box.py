"""The kernel in a box with its stream plane, over memory streams.

    async with StreamBox(folder, {"disk": {"durable": True}}) as box:
        pub = await box.pub("disk", ack=1)
        sub = await box.sub("disk", last=0)

No token is asked for unless `open_access=False`. A second box on the same folder is a restart; one on
`box.crashed_folder()` is a restart after a kill.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from tests.support.kernel_box import PIPE_BYTES, KernelBox, Peer
from tests.support.raw_peer import UPGRADE, head_of
from trio_websocket import wrap_client_stream

from kite_kernel.edge.stream_plane import StreamPlane

if TYPE_CHECKING:
    from kite_kernel.store.files import Files

PAUSE_S = 0.05
"""Long enough for the kernel to have said all that it wanted (of virtual time where the test runs on that)."""


class StreamBox(KernelBox):
    """See the module's docstring."""

    def __init__(
        self,
        folder: Path,
        streams: dict[str, Any] | None = None,
        *,
        open_access: bool = True,
        config: dict[str, Any] | None = None,
        pipe_bytes: int = PIPE_BYTES,
        files: Files | None = None,
    ) -> None:
        super().__init__(
            config={**(config or {}), "streams": {**(streams or {}), "open": open_access}}, pipe_bytes=pipe_bytes
        )
        self.folder = folder
        self.plane: StreamPlane
        self._files = files

    async def __aenter__(self) -> StreamBox:
        await super().__aenter__()
        self.plane = StreamPlane(self.kernel, self.folder, files=self._files)
        await self.plane.start()
        return self

    async def path(self, path: str, *, token: str | None = None, subprotocols: list[str] | None = None) -> Peer:
        """Open a wire of the plane."""
        stream = self.open_pipe()
        headers = [] if token is None else [(b"Authorization", b"Bearer " + token.encode())]
        ws = await wrap_client_stream(
            self._clients,
            stream,
            "127.0.0.1",
            path,
            extra_headers=headers,
            subprotocols=subprotocols,
            message_queue_size=100_000,
            max_message_size=1 << 26,
        )
        return Peer(ws, stream)

    async def pub(self, stream: str = "", **query: Any) -> Peer:
        """Open a publisher."""
        return await self.path(_path("pub", stream, query))

    async def sub(self, stream: str = "", **query: Any) -> Peer:
        """Open a subscriber."""
        return await self.path(_path("sub", stream, query))

    async def stats(self, stream: str = "") -> dict[str, Any]:
        """Ask `/stats`."""
        peer = await self.path(_path("stats", stream, {}))
        answer: dict[str, Any] = json.loads(await peer.raw())
        assert await peer.close_code() == (1000, "")
        return answer

    async def status_of(self, path: str, *, token: str | None = None) -> int:
        """Return the HTTP status that an upgrade of this path gets."""
        stream = self.open_pipe()
        fields = dict(UPGRADE) if token is None else UPGRADE | {"Authorization": f"Bearer {token}"}
        await stream.send_all(head_of(path, fields.items()))
        with trio.fail_after(30):
            answer = await stream.receive_some()
        await stream.aclose()
        return int(answer.split(b" ", 2)[1])

    def plane_metrics(self) -> list[str]:
        """Return the plane's lines of /metrics."""
        return [line for more in self.kernel.pages.lines for line in more()]

    def crashed_folder(self) -> Path:
        """Return a copy of the folder as it is now: what a kill would leave."""
        copy = Path(tempfile.mkdtemp(dir=self.folder.parent)) / "state"
        shutil.copytree(self.folder, copy)
        return copy


def _path(plane: str, stream: str, query: dict[str, Any]) -> str:
    fields = "&".join(f"{key}={value}" for key, value in query.items())
    return f"/{plane}" + (f"/{stream}" if stream else "") + (f"?{fields}" if fields else "")


async def heard(peer: Peer, count: int | None = None) -> list[Any]:
    """Read `count` messages, or all that come within a pause."""
    found: list[Any] = []
    with trio.move_on_after(PAUSE_S if count is None else 30) as scope:
        while count is None or len(found) < count:
            found.append(json.loads(await peer.raw()))
    assert count is None or not scope.cancelled_caught, f"{len(found)} of {count} messages came"
    return found


async def publish(peer: Peer, *texts: str) -> list[int]:
    """Publish on a wire with `ack=1` and return the numbers."""
    for text in texts:
        await peer.send(text)
    return [answer["seq"] for answer in await heard(peer, len(texts))]
