"""A real `kite-kernel` process for tests that need one: on a free port, killed and started again on the same."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

START_S = 30.0
STOP_S = 20.0


class KernelProcess:
    """`with KernelProcess(folder, {"page": "module"}) as kernel: … kernel.url, kernel.tokens["page"]`."""

    def __init__(
        self,
        folder: Path,
        roles: dict[str, str],
        *,
        config: str = "",
        scale: float = 1.0,
        standalone: bool = True,
    ) -> None:
        self.folder = folder
        self._standalone: list[str] = ["--standalone"] if standalone else []  # else the launcher rule holds
        self.tokens = {name: f"{name}-{os.urandom(12).hex()}" for name in roles}
        rows = [f'["{name}"]\ntoken = "{self.tokens[name]}"\nrole = "{role}"\n' for name, role in roles.items()]
        self._tokens_file = folder / "tokens.toml"
        self._tokens_file.touch(mode=0o600)
        self._tokens_file.write_text("\n".join(rows), "utf-8")
        self._config_file = folder / "kite.toml"
        self._config_file.write_text(f"[timing]\nscale = {scale}\n{config}", "utf-8")
        self._port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "kernel.err"

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        reading, writing = os.pipe()
        command: list[str | Path] = [sys.executable, "-P", "-m", "kite_kernel.main", *self._standalone]
        command += ["--config", self._config_file]
        command += ["--state-dir", self.folder / "state", "--tokens", self._tokens_file, "--port", str(self._port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--ready-fd", str(writing)], pass_fds=[writing], stderr=log, stdin=subprocess.DEVNULL
            )
        os.close(writing)
        try:
            ready, _, _ = select.select([reading], [], [], START_S)
            line = os.read(reading, 4096) if ready else b""
        finally:
            os.close(reading)
        if not line:
            self.kill()
            raise AssertionError(f"the kernel did not come up: {self.log.read_text('utf-8')[-2000:]}")
        self.ready: dict[str, Any] = json.loads(line)
        self._port = self.ready["port"]
        self.url: str = self.ready["url"]

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait(STOP_S)

    def stop(self) -> int:
        """Ask it to end; return its exit code."""
        if self.process is None:
            return 0
        self.process.terminate()
        return self.process.wait(STOP_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
