"""A replica that owns one key and appends a numbered item every 50 ms; recoveries are gone on with. Argument: key."""

import sys

import trio

from kite_modules.sdk import Module
from kite_modules.sdk.own import Replica, Session

module = Module("writer")


async def work(session: Session) -> None:
    items = session.data.get("items", [])
    number = len(items)
    while number < 400:
        number += 1
        await session.write(append=[{"id": f"m{number}"}], checkpoint={"at": number})
        await trio.sleep(0.05)
    session.finish("done")


async def recover(replica: Replica) -> None:
    async with replica.recoveries(every_s=0.2) as offers:
        async for offer in offers:
            async with replica.recover(offer) as session:
                await work(session)


async def main(kite) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    async with kite.replica() as replica:
        if len(sys.argv) > 1:
            async with replica.own(sys.argv[1]) as session:
                await work(session)
        await recover(replica)


module.run(main)
