"""`kite stream pub|sub|stats|consume`: publish into streams, read them, measure them, record them.

Source: spec 05-surface §3, 30-clients §5, 40-streams.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from kite_modules._contract import STREAM_ID_BYTES
from kite_modules.cli.connection import failure_of, run_connected
from kite_modules.cli.fail import NO, OK, USAGE, Failure, complain, say, say_json
from kite_modules.cli.instance import find_target, read_token
from kite_modules.cli.numbers import count, seconds
from kite_modules.sdk.client import Kite
from kite_modules.sdk.errors import CallError
from kite_modules.sdk.stream import StreamClosed, StreamReset, consume
from kite_modules.sdk.stream_publisher import Receipt

_EXAMPLES: Final = {
    "pub": "kite stream pub ticks 'one' 'two'    or    tail -f file | kite stream pub ticks",
    "sub": "kite stream sub ticks --last 0 --count 10",
    "stats": "kite stream stats ticks --json",
    "consume": "kite stream consume ws://127.0.0.1:7390/sub/ticks --out seqs.txt --stop-after 1000",
}
_WINDOW: Final = 256


def add_parser(subparsers: Any) -> None:
    """Declare the command and its own commands."""
    parser = subparsers.add_parser(
        "stream",
        description="publish to, read, measure and record streams",
        epilog="example: " + _EXAMPLES["sub"],
        allow_abbrev=False,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="pub|sub|stats|consume", required=True)
    pub = _verb(verbs, "pub", "publish each TEXT, or each line of stdin; print the numbers")
    pub.add_argument("stream", metavar="STREAM")
    pub.add_argument("texts", nargs="*", metavar="TEXT", help="one message each; none or - reads stdin, a line each")
    pub.add_argument("--id", metavar="ID", help="id of the one message: a repeat is stored once")
    sub = _verb(verbs, "sub", "print messages as they come, with their numbers")
    sub.add_argument("stream", metavar="STREAM")
    sub.add_argument("--last", type=_last, metavar="N", help="begin with what follows number N (0: all that is kept)")
    sub.add_argument("--epoch", metavar="E", help="the epoch that N belongs to")
    sub.add_argument("--cursor", metavar="FILE", help="keep the place in FILE and go on there")
    sub.add_argument("--count", "-n", type=count, metavar="N", help="end after N messages")
    sub.add_argument("--timeout", type=seconds, metavar="S", help="end after S seconds (exit 1 if --count is not met)")
    stats = _verb(verbs, "stats", "rate, subscribers, the lag of each, dropped, bytes, oldest kept")
    stats.add_argument("stream", nargs="?", metavar="STREAM", help="none: all of them")
    record = _verb(verbs, "consume", "append each message's number to a file, exactly once, through any cuts")
    record.add_argument("url", metavar="STREAM|URL", help="a stream of this instance, or any /sub address")
    record.add_argument("--out", required=True, metavar="FILE")
    record.add_argument("--stop-after", required=True, type=count, metavar="N")
    record.add_argument("--base", type=seconds, default=0.1, metavar="S", help="first back-off (0.1)")
    record.add_argument("--cap", type=seconds, default=1.0, metavar="S", help="largest back-off (1.0)")
    record.add_argument("--token-file", metavar="FILE", help="a token, mode 0600; a found instance's own needs none")


def _verb(verbs: Any, name: str, says: str) -> argparse.ArgumentParser:
    """Declare one command below `stream`; what every command takes may stand behind it, too."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, description=says, help=says, epilog=f"example: {_EXAMPLES[name]}", allow_abbrev=False
    )
    for option, metavar in (("--state-dir", "DIR"), ("--config", "FILE")):
        parser.add_argument(option, metavar=metavar, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help='with "schema": 1')
    return parser


def _last(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise argparse.ArgumentTypeError("expected a whole number from 0 on")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    match args.verb:
        case "pub":
            return _run_pub(args)
        case "sub":
            return run_connected(args, lambda kite: _subscribe(kite, args))
        case "stats":
            return run_connected(args, lambda kite: _stats(kite, args))
        case _:
            return _run_consume(args)


# ---- pub


def _run_pub(args: argparse.Namespace) -> int:
    if args.id is not None and (len(args.texts) != 1 or args.texts == ["-"]):
        raise Failure(USAGE, "stream pub: --id belongs to exactly one TEXT", "see `kite stream pub --help`")
    if args.id is not None and len(args.id.encode()) > STREAM_ID_BYTES:
        raise Failure(USAGE, f"stream pub: --id must have at most {STREAM_ID_BYTES} bytes", "a shorter one")
    return run_connected(args, lambda kite: _publish(kite, args))


async def _publish(kite: Kite, args: argparse.Namespace) -> int:
    def show(seq: int) -> None:
        if args.json:
            say_json({"stream": args.stream, "seq": seq})
        else:
            say(str(seq))

    if args.id is not None:
        show(await kite.stream(args.stream).publish(args.texts[0], id=args.id))
        return OK
    try:
        async with kite.stream(args.stream).publisher(window=_WINDOW) as publisher, trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[Receipt](_WINDOW)

            async def show_all() -> None:
                async for receipt in receive:
                    show(await receipt.wait())

            nursery.start_soon(show_all)
            async with send:
                async for text in _texts(args.texts):
                    await send.send(await publisher.send(text))
    except* StreamClosed as group:
        raise _closed(group) from None
    except* CallError as group:
        raise failure_of(_first(group)) from None  # type: ignore[arg-type]
    return OK


async def _texts(words: list[str]) -> AsyncIterator[str]:
    """Give each word, or each line of stdin where there is none."""
    if words and words != ["-"]:
        for word in words:
            yield word
        return
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield line.removesuffix("\n")


# ---- sub


async def _subscribe(kite: Kite, args: argparse.Namespace) -> int:
    seen = 0
    try:
        records = kite.stream(args.stream).subscribe(last=args.last, epoch=args.epoch, cursor_file=args.cursor)
    except ValueError as error:
        raise Failure(NO, f"stream sub: {error}", "name another --cursor, or remove it to begin anew") from None
    with trio.move_on_after(args.timeout if args.timeout is not None else float("inf")):
        async with records:
            while True:
                try:
                    record = await anext(records)
                except StreamReset as reset:
                    complain(f"kite: {reset}: what lies between is lost")
                    continue
                except StreamClosed as closed:
                    raise Failure(NO, f"the stream was closed: {closed}") from None
                except StopAsyncIteration:
                    break
                if args.json:
                    say_json({"stream": args.stream, "seq": record.seq, "data": record.data})
                else:
                    say(f"{record.seq} {record.data}")
                seen += 1
                if args.count is not None and seen >= args.count:
                    return OK
    return OK if args.count is None else NO


# ---- stats


async def _stats(kite: Kite, args: argparse.Namespace) -> int:
    if args.stream is None:
        answer = await kite.call("stream.list", {})
        if args.json:
            say_json(answer)
        else:
            _table(answer["streams"])
        return OK
    answer = await kite.call("stream.stats", {"stream": args.stream})
    if args.json:
        say_json(answer)
        return OK
    _table([answer])
    for row in answer["lags"]:
        who = row["module_id"] or row["address"]
        say(f"  {who} is {row['lag']} behind, here for {row['since_s']:.0f} s")
    return OK


_COLUMNS: Final = (
    "stream",
    "seq",
    "rate",
    "subscribers",
    "lag_max",
    "dropped",
    "first",
    "bytes",
    "disk_bytes",
    "epoch",
)


def _table(rows: list[dict[str, Any]]) -> None:
    """Print a table whose columns are as wide as their widest value."""
    cells = [[name.replace("_", " ") for name in _COLUMNS]]
    for row in rows:
        state = row.get("state", "ok")
        shown = [str(row.get(name, "-") if row.get(name) is not None else "-") for name in _COLUMNS]
        cells.append([shown[0] if state == "ok" else f"{shown[0]} ({state})", *shown[1:]])
    widths = [max(len(line[at]) for line in cells) for at in range(len(_COLUMNS))]
    for line in cells:
        first, *rest = (text.rjust(width) for text, width in zip(line, widths, strict=True))
        say("  ".join([first.strip().ljust(widths[0]), *rest]))


# ---- consume


def _run_consume(args: argparse.Namespace) -> int:
    if "://" not in args.url:
        target = find_target(args.state_dir, args.config, os.environ, os.getcwd())
        args.url = f"{target.url}/sub/{args.url}"
    elif urlsplit(args.url).scheme not in ("ws", "wss"):
        raise Failure(USAGE, "consume: an address begins with ws:// or wss://", "or name a stream of this instance")
    try:
        trio.run(
            lambda: consume(args.url, args.out, args.stop_after, args.base, args.cap, token=_token(args)),
        )
    except* StreamClosed as group:
        raise _closed(group) from None
    except* StreamReset as group:
        raise Failure(NO, str(_first(group)), "what lies between is no longer kept; begin another file") from None
    except* ValueError as group:
        raise Failure(NO, str(_first(group))) from None
    except* OSError as group:
        error = _first(group)
        assert isinstance(error, OSError)
        raise Failure(NO, str(error.strerror or error) + (f": {error.filename}" if error.filename else "")) from None
    return OK


def _token(args: argparse.Namespace) -> str | None:
    """Return the token to show: the given file's, else the one of the instance that listens at this very URL."""
    path = args.token_file or os.environ.get("KITE_TOKEN_FILE")
    if path:
        return read_token(path)
    try:
        target = find_target(args.state_dir, args.config, os.environ, os.getcwd())
    except (Failure, OSError):
        return None
    return target.token if urlsplit(target.url).netloc == urlsplit(args.url).netloc else None


def _closed(group: BaseExceptionGroup[StreamClosed]) -> Failure:
    return Failure(NO, f"the stream was closed: {_first(group)}")


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
