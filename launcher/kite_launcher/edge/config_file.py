"""Reads kite.toml and what it names from the disk and gives the pure check its facts.

Never blocks: only plain files are opened, so a FIFO in the place of a file is a mistake, not a wait. Nothing is
imported or started to answer a question. Source: spec 05 §3, cases S-38, S-42, S-45.
"""

from __future__ import annotations

import errno
import importlib.machinery
import os
import pwd
import shutil
import stat
import sys
from pathlib import Path

import attrs

from kite_launcher.core.check_rows import Facts, FileFault
from kite_launcher.core.load import decode, load_text
from kite_launcher.core.spec import Loaded, Mistake

# A kite.toml of 10,000 modules has about 2 MB; env files and secrets are far below. More is another file by mistake.
FILE_BYTES_MAX = 16 * 1024 * 1024


@attrs.frozen
class Unreadable:
    """The configuration can't be read at all: why, for a person, and the exit code (77 mode or owner, else 78)."""

    why: str
    exit_code: int


def read_plain(path: str) -> bytes | FileFault:
    """Return a plain file's bytes, or why not."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return _fault(error)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            return FileFault("it is a directory")
        if not stat.S_ISREG(status.st_mode):
            return FileFault("it is no plain file")
        with open(fd, "rb", closefd=False) as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        return _fault(error)
    finally:
        os.close(fd)
    return content if len(content) <= FILE_BYTES_MAX else FileFault(f"it is larger than {FILE_BYTES_MAX >> 20} MiB")


def _fault(error: OSError) -> FileFault:
    permission = error.errno in (errno.EACCES, errno.EPERM)
    return FileFault((os.strerror(error.errno) if error.errno else str(error)).lower(), permission)


def facts(*, check: bool) -> Facts:
    """Return what the file's check may know of this machine; with `check` also whether programs can be started."""
    return Facts(
        environ={name: value for name, value in os.environ.items() if _is_text(value)},
        read=_read_text,
        user=_has_user,
        program=_program_fault if check else None,
        package=_package_fault if check else None,
        file=_script_fault if check else None,
    )


def load_file(path: str, *, check: bool = False) -> Loaded | Unreadable:
    """Load the kite.toml at `path`; `check` asks about programs too, which a start leaves to the modules."""
    content = read_plain(path)
    if isinstance(content, FileFault):
        code = 77 if content.permission else 78
        return Unreadable(f"can't read {path}: {content.why}", code)
    text = decode(content)
    if isinstance(text, Mistake):
        return Loaded(None, (text,))
    return load_text(text, path=os.path.realpath(path), facts=facts(check=check))


def _is_text(value: str) -> bool:
    """True when the value of a variable is UTF-8; others can be passed on but not put into a string."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_text(path: str) -> str | FileFault:
    content = read_plain(path)
    if isinstance(content, FileFault):
        return content
    text = decode(content)
    return FileFault(f"line {text.place.line}: {text.text}") if isinstance(text, Mistake) else text


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


def _program_fault(program: str, cwd: str, search: str | None) -> str | None:
    if not Path(cwd).is_dir():
        return f"no directory {cwd!r} to start in"
    found = program if "/" in program else shutil.which(program, path=search if search is not None else os.defpath)
    if found is None:
        return f"no program {program!r} in PATH"
    path = Path(cwd, found)
    if not path.exists():
        return f"no program {program!r}"
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"{program!r} is not executable"
    return None


def _script_fault(path: str) -> str | None:
    return None if os.path.isfile(path) else f"no file {path!r}"


def _package_fault(package: str) -> str | None:
    """Look the package up without importing anything: `-P` keeps the current directory out, so does this."""
    search: list[str] | None = [entry for entry in sys.path if entry]
    name = ""
    for part in package.split("."):
        name = f"{name}.{part}".lstrip(".")
        if search is None:
            return f"no package {package!r} for this Python"
        spec = importlib.machinery.PathFinder.find_spec(name, search)
        if spec is None:
            return f"no package {package!r} for this Python"
        search = list(spec.submodule_search_locations) if spec.submodule_search_locations else None
    return None
