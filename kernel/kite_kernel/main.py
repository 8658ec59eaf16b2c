"""`kite-kernel`: flags → configuration → files and sockets → one nursery. The only place where all is joined.

Source: spec 05-surface §2-3, 20-kernel §7.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import structlog
import trio

from kite_kernel import config as configuration
from kite_kernel.edge import files, kernel, logs, sockets, tokens_file
from kite_kernel.edge.fact_plane import FactPlane
from kite_kernel.edge.stream_plane import StreamPlane
from kite_kernel.errors import EXIT_BUG, EXIT_CONFIG, EXIT_PERMISSION, EXIT_USAGE, StartError
from kite_kernel.report import write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kite_kernel.core.auth import Tokens

_log = structlog.get_logger()
_COLLECTOR: Final = (50_000, 20, 50)  # allocations before a pass over the young, young passes before an older one
_DESCRIPTORS_OWN: Final = 24  # stores, logs, spare, epoll: what a kernel needs beside its connections


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit 64 with one clear line (argparse itself would say 2)."""
        self.exit(EXIT_USAGE, f"kite-kernel: {message}; try kite-kernel --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kite-kernel", description="The kernel of a Kite instance.", allow_abbrev=False)
    parser.add_argument("--config", type=Path, metavar="FILE", help="kite.toml")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="0 picks a free one (default)")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where kernel.json and the stores live")
    parser.add_argument("--standalone", action="store_true", help="run without a launcher")
    parser.add_argument("--tokens", type=Path, metavar="FILE", help="TOML file of tokens, mode 0600")
    parser.add_argument("--tokens-fd", type=int, metavar="N", help="inherited descriptor that holds the tokens file")
    parser.add_argument("--ready-fd", type=int, metavar="N", help="one line of JSON is written here once it accepts")
    parser.add_argument("--log-format", choices=("console", "json"), default="console")
    parser.add_argument("--version", action="version", version=f"kite-kernel {version()}")
    return parser


def version() -> str:
    """Return the installed version."""
    try:
        return metadata.version("kite-kernel")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `kite-kernel`. Returns: an exit code (05 §3)."""
    args = _parser().parse_args(argv)
    logs.set_up(args.log_format)
    try:
        return _Start(args).run()
    except StartError as error:
        for line in error.lines:
            print(f"kite-kernel: {line}", file=sys.stderr)  # noqa: T201 — one clear line is the whole report
        return error.code
    except KeyboardInterrupt:
        return 0
    except BaseException as error:
        if isinstance(error, BaseExceptionGroup) and error.split(KeyboardInterrupt)[1] is None:
            return 0  # Ctrl+C while the kernel was still starting
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        refused = _start_error(error)
        if refused is not None:
            for line in refused.lines:
                print(f"kite-kernel: {line}", file=sys.stderr)  # noqa: T201
            return refused.code
        place = _where(error)
        report = write_report(error, args.state_dir, version())
        told = f"; report: {report}" if report is not None else ""
        print(f"kite-kernel: a bug: {type(error).__name__} at {place}{told}", file=sys.stderr)  # noqa: T201
        return EXIT_BUG


def tune_collector() -> None:
    """Make the cycle collector rare: what was made so far stays, and little of what comes is in a cycle.

    Measured: at its defaults it took a third of the time of a storm of connections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)


def _start_error(error: BaseException) -> StartError | None:
    """Find the refusal of a start that a nursery wrapped; None for a bug."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, StartError) else None


def _where(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    trace, where = error.__traceback__, "?"
    while trace is not None:
        where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where


class _Start:
    """One start: everything that can be refused is refused before anything listens."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        standalone = args.standalone or (args.tokens_fd is None and args.tokens is None)
        self.config = configuration.load(args.config, standalone=standalone)
        if args.host is not None or args.port is not None:
            self.config = self._override(args)
        self.state_dir = args.state_dir or default_state_dir()
        self.epoch = secrets.token_hex(8)

    def _override(self, args: argparse.Namespace) -> configuration.Config:
        host = args.host if args.host is not None else self.config.host
        port = args.port if args.port is not None else self.config.port
        if not 0 <= port <= 65535:
            raise StartError(EXIT_USAGE, f"--port {port}: must be from 0 to 65535")
        if not configuration.is_loopback(host) and not (self.config.allow_remote and self.config.tls):
            raise StartError(EXIT_CONFIG, f"--host {host}: needs [kernel] allow_remote = true and tls")
        return attrs.evolve(self.config, host=host, port=port)

    def tokens(self) -> Tokens:
        """Read the tokens from where they were given."""
        if self.args.tokens_fd is not None:
            return tokens_file.read_fd(self.args.tokens_fd)
        return tokens_file.read_path(self.tokens_path())

    def tokens_path(self) -> Path:
        """Return the tokens file: the given one, or our own in the state directory."""
        return self.args.tokens if self.args.tokens is not None else self.state_dir / "tokens.toml"

    def run(self) -> int:
        """Start, run, end."""
        if self.args.tokens is not None:
            self.tokens()  # a wrong file is refused before anything is made
        files.open_state_dir(self.state_dir)
        files.refuse_strangers_file(self.state_dir / "kernel.json")
        lock = files.StateLock(self.state_dir)
        lock.take()
        if self.args.tokens is None and self.args.tokens_fd is None and not self.tokens_path().exists():
            tokens_file.make_operator_tokens(self.tokens_path())
        tokens = self.tokens()
        tls = self._tls()
        listeners = sockets.inherited(os.environ) or [sockets.bind_tcp(self.config.host, self.config.port)]  # type: ignore[arg-type]
        everything = list(listeners)
        try:
            unix = sockets.bind_unix(self.state_dir / "kernel.sock")
            everything += [unix] if unix else []
            trio.run(self._serve, tokens, everything, listeners[0], tls)
        finally:
            for sock in everything:
                sock.close()
            for name in ("kernel.json", "kernel.sock"):  # the next holder of the port must get nobody's token
                with contextlib.suppress(OSError):
                    (self.state_dir / name).unlink()
            lock.release()
        return 0

    def _tls(self) -> ssl.SSLContext | None:
        if self.config.tls is None:
            return None
        cert, key = self.config.tls
        mode = os.stat(key).st_mode if os.path.exists(key) else 0
        if mode & 0o077:
            raise StartError(EXIT_PERMISSION, f"{key}: others can read it; chmod 600 {key}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise StartError(EXIT_CONFIG, f"tls: {cert} and {key}: {error.strerror or 'no valid pair'}") from None
        return context

    async def _serve(
        self, tokens: Tokens, everything: list[socket.socket], first: socket.socket, tls: ssl.SSLContext | None
    ) -> None:
        async with trio.open_nursery() as nursery:
            running = kernel.build(
                self.config,
                tokens,
                nursery,
                version=version(),
                epoch=self.epoch,
                tls=tls,
                max_connections=max_connections(),
            )
            await FactPlane(running, self.state_dir).start()
            await StreamPlane(running, self.state_dir).start()
            await nursery.start(self._watch_signals, running)
            for sock in everything:
                running.listen(sock)
            tune_collector()
            if self.args.tokens_fd is not None:  # only a launcher gives tokens this way
                running.expect_launcher()
            self._say_ready(first, tls is not None)
            await kernel.run(running)

    def _say_ready(self, first: socket.socket, secure: bool) -> None:
        address = first.getsockname()
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        ready: dict[str, Any] = {
            "url": f"{'wss' if secure else 'ws'}://{host}:{address[1]}",
            "port": address[1],
            "pid": os.getpid(),
        }
        started_at = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="milliseconds")
        try:
            files.write_json(
                self.state_dir / "kernel.json",
                {**ready, "version": version(), "started_at": started_at, "epoch": self.epoch},
            )
        except OSError as error:
            text = f"{self.state_dir / 'kernel.json'}: {error.strerror}"
            if self.args.ready_fd is None:
                raise StartError(EXIT_PERMISSION, text) from None
            # Whoever started us is told by descriptor: a full disk is no reason to leave an instance without a kernel.
            _log.error(f"[kernel] {text}", key="kernel_json", path=str(self.state_dir / "kernel.json"))
        _log.info(f"[kernel] listening on {ready['url']}", key="listening", url=ready["url"], epoch=self.epoch)
        if self.args.tokens is None and self.args.tokens_fd is None:
            _log.info(
                f"[kernel] connect with the operator token in {self.tokens_path()}",
                key="tokens",
                file=str(self.tokens_path()),
            )
        if self.args.ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(self.args.ready_fd, json.dumps(ready).encode() + b"\n")
                os.close(self.args.ready_fd)
        notify(f"READY=1\nSTATUS=listening on {ready['url']}")

    async def _watch_signals(
        self, running: kernel.Kernel, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            stopping = False
            async for number in signals:
                if number == signal.SIGHUP:
                    self._reread(running)
                elif stopping:
                    running.nursery.cancel_scope.cancel()
                else:
                    stopping = True
                    notify("STOPPING=1")
                    running.stop("instance_stop" if running.hub.members.launcher_leaves else "kernel_stop")

    def _reread(self, running: kernel.Kernel) -> None:
        """SIGHUP: other tokens, permissions and limits, nobody dropped. A broken file changes nothing."""
        try:
            tokens = self.tokens()
            fresh = configuration.load(self.args.config, standalone=self.config.settings.standalone)
        except StartError as error:
            for line in error.lines:
                _log.error(f"[kernel] reload refused: {line}", key="reload_refused")
            return
        running.use_tokens(tokens)
        running.hub.use_config(fresh.settings, fresh.permissions)
        _log.info("[kernel] tokens, permissions and limits read again", key="reloaded")


def notify(text: str) -> None:
    """Tell NOTIFY_SOCKET (sd_notify), where there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(text.encode(), address)


def max_connections() -> int:
    """Return how many connections the descriptor limit allows; the soft limit is raised to the hard one first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return max(8, (soft if soft != resource.RLIM_INFINITY else 1 << 20) - _DESCRIPTORS_OWN)


def default_state_dir() -> Path:
    """Return the state directory of a kernel that was given none."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "kite" / "kernel"


if __name__ == "__main__":
    sys.exit(main())
