"""Guarded writes of the fact store, 64 in flight, with few and many records; beside SQLite and a file with fsync."""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disk import plain_file, plain_sqlite
from servers import running
from wire import IDS, READ_BYTES, Client, frame, module, split

if TYPE_CHECKING:
    from suites import Plan, Row

IN_FLIGHT = 64
MANY = 100_000
ITEM = {"id": "m1", "text": "x" * 200}


class Writers:
    """One module whose 64 keys are written in turn, one write in flight for each."""

    def __init__(self, client: Client) -> None:
        self._client = client
        made = client.call("replica.register", {})
        bearer = {"replica_id": made["replica_id"], "replica_token": made["token"]}
        self._texts: list[bytes] = []
        for number in range(IN_FLIGHT):
            key = f"bench/{made['replica_id']}/{number}"
            client.call("ownership.create", {"key": key})
            guard = client.call("ownership.claim", {"key": key, **bearer})["guard"]
            params = {"key": key, "guard": guard, "append": [ITEM]}
            request = {"jsonrpc": "2.0", "id": number, "method": "ownership.write", "params": params}
            self._texts.append(frame(json.dumps(request).encode()))

    def rate(self, seconds: float) -> float:
        """Return guarded writes per second, each answered after it was safe."""
        client, done = self._client, 0
        client.sock.sendall(b"".join(self._texts))
        began = time.perf_counter()
        waiting = IN_FLIGHT
        while waiting:
            payloads, client.rest = split(client.rest)
            again = []
            for payload in payloads:
                found = IDS.search(payload)
                if found is None:
                    continue
                if b'"error"' in payload:
                    raise ConnectionError(payload[:300])
                done += 1
                if time.perf_counter() - began < seconds:
                    again.append(self._texts[int(found[1])])
                else:
                    waiting -= 1
            if again:
                client.sock.sendall(b"".join(again))
            if waiting:
                client.rest += client.sock.recv(READ_BYTES)
        return done / (time.perf_counter() - began)


def _fill(client: Client, count: int) -> None:
    """Make many idle keys, a thousand in flight."""
    for first in range(0, count, 1000):
        texts = []
        for number in range(first, min(first + 1000, count)):
            request = {
                "jsonrpc": "2.0",
                "id": number,
                "method": "ownership.create",
                "params": {"key": f"idle/{number}"},
            }
            texts.append(frame(json.dumps(request).encode()))
        client.sock.sendall(b"".join(texts))
        waiting = len(texts)
        while waiting:
            payloads, client.rest = split(client.rest)
            waiting -= sum(IDS.search(payload) is not None for payload in payloads)
            if waiting:
                client.rest += client.sock.recv(READ_BYTES)


def facts(plan: Plan) -> list[Row]:
    """Guarded writes per second, and how flat they stay."""
    many = MANY // 10 if plan.quick else MANY
    rates: dict[str, list[float]] = {"few": [], "many": [], "sqlite": [], "file": []}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kite-bench-")))
        writers = {}
        for name in ("few", "many"):
            hub = stack.enter_context(running("kite", folder / name, plan.tokens))
            client = module(hub.port, plan.tokens, "bench-caller")
            stack.callback(client.close)
            if name == "many":
                _fill(client, many)
            writers[name] = Writers(client)
        for number in range(plan.rounds):
            for name, load in writers.items():
                rates[name].append(load.rate(plan.seconds))
            place = folder / f"plain-{number}"
            place.mkdir()
            rates["sqlite"].append(plain_sqlite(place, plan.seconds / 2))
            rates["file"].append(plain_file(place, plan.seconds / 2))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"\nguarded writes, {IN_FLIGHT} in flight, each safe before its answer")
    print(f"  100 records        {medians['few']:>10,.0f} writes/s")
    print(f"  {many:>7,} records    {medians['many']:>10,.0f} writes/s")
    print(f"  plain SQLite       {medians['sqlite']:>10,.0f} writes/s (one writer, a transaction each)")
    print(f"  plain file         {medians['file']:>10,.0f} writes/s (one writer, an fsync each)")
    flat = medians["many"] / medians["few"]
    print(f"  many/few = {flat:.2f}  (needed 0.7: {'met' if flat >= 0.7 else 'MISSED'})")
    rows: list[dict[str, Any]] = [
        {"load": "guarded writes", "hub": name, "median": value, "unit": "writes/s"} for name, value in medians.items()
    ]
    return [*rows, {"load": "guarded writes", "ratio": "many/few", "value": flat, "needed": 0.7}]
