"""The state directory, held by a descriptor: what comes to stand at its path later is not ours.

All files of the keeper are reached through the descriptor, so that a directory that is moved is followed, one that
is removed is not filled again behind another instance's back, and no path is too long for a socket.
"""

import os
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MARK_BYTES_MAX: Final = 256


class StateDir:
    """`path` is its name for people, `way` the path to use. `mark` is the instance's, once it is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = ""
        self._fd = os.open(path, _FLAGS)
        self.way = Path(f"/proc/self/fd/{self._fd}")

    def follow(self) -> None:
        """Where the directory was removed and one of this very instance stands in its place, go on in that one."""
        if os.fstat(self._fd).st_nlink or not self.mark:
            return
        try:
            with open(self.path / "instance.id", "rb") as file:
                if file.read(_MARK_BYTES_MAX).strip() != self.mark.encode():
                    return
            fd = os.open(self.path, _FLAGS)
        except OSError:
            return
        os.dup2(fd, self._fd, inheritable=False)
        os.close(fd)
