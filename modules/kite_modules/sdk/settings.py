"""What a module's process was given: address, identity, token, options. Source: spec 05-surface §4."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec

from kite_modules.sdk.errors import SettingsError

EX_NOPERM: Final = 77
EX_CONFIG: Final = 78
_TOKEN_BYTES_MAX: Final = 65536


@attrs.frozen
class Settings:
    """Where to connect and as whom; `instance` is random per process, so that a restart is told from a cut."""

    url: str
    token: str = attrs.field(repr=False)
    module_id: str | None = None
    state_dir: Path | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)
    instance: str = attrs.field(factory=lambda: secrets.token_hex(16))


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Read what the launcher gave this process; the token's descriptor is read to its end and closed.

    Raises: SettingsError with one line that says what is missing and how to get it.
    """
    env = dict(os.environ) if environ is None else environ
    if environ is None:
        os.environ.pop("KITE_TOKEN_FD", None)  # closed below: a child must not read another file by this number
    url = env.get("KITE_URL", "")
    if not url:
        raise SettingsError(
            "KITE_URL is not set: kite starts this module (a [module.NAME] section in kite.toml, then `kite up`)",
            exit_code=EX_CONFIG,
        )
    state_dir = env.get("KITE_STATE_DIR")
    return Settings(
        url=url,
        token=_token(env),
        module_id=env.get("KITE_MODULE_ID") or None,
        state_dir=Path(state_dir) if state_dir else None,
        options=_options(env),
    )


def _token(env: Mapping[str, str]) -> str:
    descriptor, path = env.get("KITE_TOKEN_FD"), env.get("KITE_TOKEN_FILE")
    if descriptor:
        if not (descriptor.isascii() and descriptor.isdigit()):
            raise SettingsError("KITE_TOKEN_FD is no descriptor number", exit_code=EX_CONFIG)
        source: str | int = int(descriptor)
    elif path:
        source = path
    else:
        raise SettingsError(
            "no token: neither KITE_TOKEN_FD nor KITE_TOKEN_FILE is set (write the output of `kite token NAME` "
            "to a file of mode 0600 and set KITE_TOKEN_FILE to it)",
            exit_code=EX_CONFIG,
        )
    try:
        with open(source, "rb") as file:
            token = file.read(_TOKEN_BYTES_MAX).decode("utf-8").strip()
    except PermissionError as error:
        raise SettingsError(f"the token can't be read: {error.strerror} ({path})", exit_code=EX_NOPERM) from None
    except (OSError, UnicodeDecodeError):
        where = f"KITE_TOKEN_FD={descriptor}" if descriptor else f"KITE_TOKEN_FILE={path}"
        raise SettingsError(f"the token can't be read from {where}", exit_code=EX_CONFIG) from None
    if not token:
        raise SettingsError("the token is empty", exit_code=EX_CONFIG)
    return token


def _options(env: Mapping[str, str]) -> Mapping[str, Any]:
    path = env.get("KITE_OPTIONS_FILE")
    if not path:
        return {}
    try:
        options = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or 'unreadable'}", exit_code=EX_CONFIG) from None
    except msgspec.DecodeError as error:
        raise SettingsError(f"{path}: {error}", exit_code=EX_CONFIG) from None
    if not isinstance(options, dict):
        raise SettingsError(f"{path}: the options are no object", exit_code=EX_CONFIG)
    return options
