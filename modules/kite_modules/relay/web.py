"""The relay as an ASGI app: pages, /healthz, /session, and /ws. Source: spec 80 §1, cases X-01 … X-04, X-34."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import trio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kite_modules import _contract
from kite_modules.relay import guard
from kite_modules.relay.accounts import hash_of
from kite_modules.relay.browser import Browser
from kite_modules.relay.wire import Wire
from kite_modules.sdk.blame import where_it_failed

if TYPE_CHECKING:
    from kite_modules.relay.house import House
    from kite_modules.relay.shelf import Page

BODY_BYTES_MAX: Final = 4096
BODY_S: Final = 5.0
BROWSERS_MAX: Final = 600
BROWSERS_OF_ADDRESS_MAX: Final = 300  # a whole office may come from one address; one address may not take it all
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # so that the answer to others is 405
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Web:
    """The app. `secure` = TLS is spoken."""

    def __init__(self, house: House, pages: dict[str, Page], *, secure: bool) -> None:
        self.house = house
        self.pages = pages
        self.secure = secure
        self._open: dict[str, int] = {}
        origins = (origin.lower().rstrip("/") for origin in house.options.origins)
        self.origins = tuple(origins)
        self._http = Starlette(
            routes=[
                Route("/healthz", self._healthz, methods=["GET"]),
                Route("/session", self._session, methods=METHODS),
                Route("/ws", self._only_websocket, methods=["GET"]),
                Route("/{path:path}", self._page, methods=["GET"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
        client, local = scope["client"][0], scope["server"][0]
        refused = guard.judge(
            method=scope.get("method", "GET"),
            path=scope["raw_path"].decode("latin-1"),
            headers=headers,
            local=local,
            secure=self.secure,
            origins=self.origins,
        )
        if refused is not None and refused.alarm:
            self.house.alarm(refused.alarm, client, refused.text)
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send, headers, refused)
        elif refused is not None:
            await _answer(send, refused.status, refused.text)
        else:
            await self._http(scope, receive, _with_headers(send))

    # ---------------------------------------------------------------- the wire

    async def _websocket(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[str, list[str]], refused: guard.Refused | None
    ) -> None:
        client = scope["client"][0]
        if refused is None:
            refused = self._judge_upgrade(scope, client)
        if refused is not None:
            more = [(b"retry-after", b"1")] if refused.status == 503 else []
            await _answer(send, refused.status, refused.text, more, kind="websocket.http.response")
            return
        await receive()
        await send({"type": "websocket.accept", "headers": []})
        self._open[client] = self._open.get(client, 0) + 1
        try:
            await Browser(self.house, Wire(receive, send), client, guard.cookie_of(headers)).run()
        except Exception as error:  # a fault in handling ends this page's wire alone
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            self.house.note(
                "a page's wire ended by a fault", client, fault=type(error).__name__, at=where_it_failed(error)
            )
            await send({"type": "websocket.close", "code": _contract.CLOSE_INTERNAL_ERROR, "reason": ""})
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _judge_upgrade(self, scope: Scope, client: str) -> guard.Refused | None:
        if scope["path"] != "/ws":
            return guard.Refused(404, "there is no such path")
        if scope["query_string"]:
            return guard.Refused(400, "a secret does not belong into a URL; log in over the wire")
        if not self.house.connected:
            return guard.Refused(503, "the kernel is away; it comes back")
        if sum(self._open.values()) >= BROWSERS_MAX or self._open.get(client, 0) >= BROWSERS_OF_ADDRESS_MAX:
            self.house.note("too many browsers", client)
            return guard.Refused(503, "too many browsers")
        return None

    # ---------------------------------------------------------------- pages

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _only_websocket(self, request: Request) -> Response:
        return PlainTextResponse("WebSocket only\n", 426, {"upgrade": "websocket", "connection": "upgrade"})

    async def _page(self, request: Request) -> Response:
        page = self.pages.get(request.scope["raw_path"].decode("latin-1"))
        if page is None:
            return PlainTextResponse("there is no such page\n", 404)
        headers = {"etag": page.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == page.tag:
            return Response(None, 304, headers)
        body = page.body
        if page.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["content-encoding"] = page.packed, "gzip"
        return Response(body, 200, headers, media_type=page.type)

    # ---------------------------------------------------------------- the cookie

    async def _session(self, request: Request) -> Response:
        """POST {session}: trade it for a cookie that no script can read. DELETE: log out."""
        if request.method not in ("POST", "DELETE"):
            return PlainTextResponse("POST or DELETE\n", 405, {"allow": "POST, DELETE"})
        if request.method == "DELETE":
            held = request.cookies.get(guard.COOKIE)
            if held is not None:
                self.house.accounts.end_session(hash_of(held))
            return Response(None, 204, {"set-cookie": guard.set_cookie("", 0)})
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return PlainTextResponse("JSON only\n", 403)
        body = await _body(request)
        if body is None:
            return PlainTextResponse("too much\n", 413, {"connection": "close"})
        try:
            session = json.loads(body)["session"]
        except (ValueError, KeyError, TypeError, RecursionError):
            session = None
        if not isinstance(session, str):
            return PlainTextResponse("a session is needed\n", 400)
        options = self.house.options
        address = request.client.host if request.client is not None else ""
        found = self.house.accounts.use_session(
            hash_of(session), idle_s=options.session_idle, max_s=options.session_max
        )
        if found is None:
            late = self.house.window.take(f"resume from {address}", now=trio.current_time())
            return PlainTextResponse("this session has ended\n", 403 if late is None else 429)
        return Response(None, 204, {"set-cookie": guard.set_cookie(session, options.session_max)})


async def _body(request: Request) -> bytes | None:
    """Return a small body; None when it is large, slow or cut off."""
    if int(request.headers.get("content-length") or 0) > BODY_BYTES_MAX:
        return None
    body = b""
    try:
        with trio.fail_after(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    return None
    except (trio.TooSlowError, ClientDisconnect):
        return None
    return body


async def _answer(
    send: Send, status: int, text: str, more: list[tuple[bytes, bytes]] | None = None, *, kind: str = "http.response"
) -> None:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close"), *(more or []), *guard.HEADERS]
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *guard.HEADERS]}
        await send(message)

    return wrapped
