"""Modules that only sit there: a process of their own that connects them and answers the hub's pings."""

from __future__ import annotations

import multiprocessing
import select
from typing import TYPE_CHECKING

from wire import PING, PONG, READ_BYTES, Client, auth_params

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

CONNECT_S = 180.0


class Crowd:
    """`with Crowd(port, tokens, names, events):` has them all connected and subscribed inside the block."""

    def __init__(self, port: int, tokens: dict[str, str], names: list[str], events: list[str] | None = None) -> None:
        self._arguments = (port, tokens, names, events or [])
        self._process: BaseProcess | None = None

    def __enter__(self) -> None:
        here, there = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=_sit, args=(there, *self._arguments))
        self._process.start()
        there.close()
        if not here.poll(CONNECT_S) or here.recv() != "connected":
            raise SystemExit("the idle modules could not connect")

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.join()


def _sit(told: Connection, port: int, tokens: dict[str, str], names: list[str], events: list[str]) -> None:
    poll = select.epoll()
    clients = {}
    for name in names:
        client = Client(port)
        client.call("auth", auth_params(tokens, name))
        if events:
            client.call("event.subscribe", {"events": events})
        clients[client.fileno()] = client
        poll.register(client.fileno(), select.EPOLLIN)
    told.send("connected")
    while True:
        for number, _ in poll.poll():
            data = clients[number].sock.recv(READ_BYTES)
            if not data:
                poll.unregister(number)
            elif PING in data:
                clients[number].sock.sendall(PONG)
