"""`kite relay`: who may log in from a browser, and where. Source: spec 80 §1.

Works on the relay's own file, whether the instance runs or not; a running relay heeds a change within a second.
Secrets are printed once, here, and kept nowhere else in plain.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kite_modules.cli.fail import CONFIG, NO, NOTHING, OK, PERMISSION, USAGE, Failure, complain, say, say_json
from kite_modules.cli.instance import find_state_dir, judge, read_json
from kite_modules.cli.ownership import table

if TYPE_CHECKING:
    from kite_modules.relay.accounts import Accounts, Made

ROLES: Final = ("viewer", "operator", "admin")
ACTIONS: Final = {
    "add": "make a user",
    "list": "list users",
    "remove": "remove a user; open pages are closed",
    "reset-totp": "a new second factor; open pages are closed",
    "role": "change what a user may do (--role)",
    "password": "a new password (--password-stdin, or one is made); open pages are closed",
    "token": "a personal token, used instead of the password",
    "logout": "end the sessions of a user",
}
PASSWORD_MAX: Final = 1024
SHORT: Final = 8


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    says = "users of the console, and where it is"
    example = "example: kite relay user add ada --role operator"
    parser = subparsers.add_parser("relay", description=says, epilog=example, allow_abbrev=False)
    parser.add_argument("what", choices=("user", "url"), help="user: manage users; url: where the console is")
    parser.add_argument(
        "action", nargs="?", choices=tuple(ACTIONS), help="; ".join(f"{k}: {v}" for k, v in ACTIONS.items())
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the user")
    parser.add_argument("--role", choices=ROLES, help="viewer: sees; operator: also starts, stops, calls; admin: all")
    parser.add_argument("--password-stdin", action="store_true", help="read the password from stdin")


def run(args: argparse.Namespace) -> int:
    """Do one thing."""
    state = find_state_dir(args.state_dir, args.config, os.environ, os.getcwd())
    judge(state)
    if args.what == "url":
        return _url(args, Path(state))
    if args.action is None:
        raise Failure(USAGE, "relay user: what? " + ", ".join(ACTIONS), "see `kite relay --help`")
    accounts = _open(Path(state))
    try:
        if args.action == "list":
            return _list(args, accounts)
        return _on_user(args, accounts)
    finally:
        accounts.close()


def _open(state: Path) -> Accounts:
    import apsw

    from kite_modules.relay.accounts import FILE, Accounts

    folder = state / "modules" / "relay"
    try:
        for part in (state, folder.parent, folder):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        judge(str(folder))
        return Accounts(folder / FILE, clock=time.time)
    except OSError as error:
        raise Failure(PERMISSION, f"{error.filename or folder}: {(error.strerror or '').lower()}") from None
    except apsw.Error as error:
        raise Failure(CONFIG, f"{folder / FILE}: {error}", "restore it from a backup (`kite backup`)") from None


def _url(args: argparse.Namespace, state: Path) -> int:
    told = read_json(str(state / "modules" / "relay" / "relay.json"))
    if told is None:
        raise Failure(
            NOTHING, "the relay has not run yet", "a [relay] section in kite.toml starts it, then `kite up -d`"
        )
    shown = {key: told.get(key) for key in ("url", "fingerprint_sha256")}
    if args.json:
        say_json(shown)
    else:
        say(str(shown["url"]))
        if shown["fingerprint_sha256"]:
            say(f"certificate's SHA-256 fingerprint: {shown['fingerprint_sha256']}")
    return OK


def _list(args: argparse.Namespace, accounts: Accounts) -> int:
    users = accounts.users()
    if args.json:
        say_json({"users": [{"name": user.name, "role": user.role} for user in users]})
    elif users:
        say("\n".join(table(("NAME", "ROLE"), [(user.name, user.role) for user in users])))
    else:
        say("nobody may log in yet; make somebody with `kite relay user add NAME --role ROLE`")
    return OK


def _on_user(args: argparse.Namespace, accounts: Accounts) -> int:
    from kite_modules.relay.accounts import is_name

    name = args.name
    if name is None:
        raise Failure(USAGE, f"relay user {args.action}: a NAME is needed", "see `kite relay --help`")
    if not is_name(name):
        raise Failure(USAGE, "a name has 1 to 64 characters that can be read, no blank at its ends")
    if args.action == "add":
        return _add(args, accounts)
    if accounts.find(name) is None:
        known = ", ".join(user.name for user in accounts.users()[:10]) or "nobody yet"
        raise Failure(NO, f"there is no user {name!r}", f"known: {known}")
    if args.action == "reset-totp":
        made = accounts.reset_totp(name)
        assert made is not None
        return _show(args, made)
    if args.action == "password":
        return _password(args, accounts)
    if args.action == "token":
        token = accounts.set_token(name)
        return _done(args, "a personal token, shown once: " + str(token), name=name, token=token)
    if args.action == "role":
        if args.role is None:
            raise Failure(USAGE, "relay user role: --role is needed", "viewer, operator or admin")
        accounts.set_role(name, args.role)
        return _done(args, f"{name} is {args.role} now", name=name, role=args.role)
    if args.action == "logout":
        ended = accounts.end_sessions(name)
        return _done(args, f"{ended} sessions of {name} were ended", name=name, ended=ended)
    accounts.remove(name)
    return _done(args, f"{name} is removed", name=name, removed=True)


def _done(args: argparse.Namespace, text: str, **told: Any) -> int:
    if args.json:
        say_json(told)
    else:
        say(text)
    return OK


def _add(args: argparse.Namespace, accounts: Accounts) -> int:
    if args.role is None:
        raise Failure(USAGE, "relay user add: --role is needed", "viewer, operator or admin")
    if accounts.find(args.name) is not None:
        raise Failure(NO, f"there is a user {args.name!r} already", "remove it first, or `kite relay user reset-totp`")
    made = accounts.add(args.name, args.role, _read_password() if args.password_stdin else None)
    if made is None:
        raise Failure(NO, f"there is a user {args.name!r} already")
    return _show(args, made)


def _password(args: argparse.Namespace, accounts: Accounts) -> int:
    import secrets

    given = _read_password() if args.password_stdin else None
    accounts.set_password(args.name, given or (made := secrets.token_urlsafe(15)))
    if given is not None:
        return _done(args, f"{args.name} has a new password", name=args.name)
    return _done(args, f"the new password, shown once: {made}", name=args.name, password=made)


def _read_password() -> str:
    """Read the first line of stdin. Raises: Failure."""
    if sys.stdin is None:
        raise Failure(USAGE, "there is no stdin to read a password from")
    try:
        line = sys.stdin.readline(PASSWORD_MAX + 2)
    except UnicodeDecodeError:
        raise Failure(USAGE, "the password is no UTF-8") from None
    password = line.removesuffix("\n").removesuffix("\r")
    if not password or len(password) > PASSWORD_MAX:
        raise Failure(USAGE, f"a password has 1 to {PASSWORD_MAX} characters")
    if len(password) < SHORT:
        complain(
            f"a password of fewer than {SHORT} characters is soon guessed; the code alone then guards this account"
        )
    return password


def _show(args: argparse.Namespace, made: Made) -> int:
    """Tell the secrets, once."""
    codes = list(made.recovery_codes)
    if args.json:
        told: dict[str, Any] = {"name": made.name, "role": made.role, "otpauth": made.otpauth, "secret": made.secret}
        told |= {"recovery_codes": codes, "qr": _qr(made.otpauth)}
        say_json(told if made.password is None else {**told, "password": made.password})
        return OK
    say(f"user {made.name}, role {made.role}")
    if made.password is not None:
        say(f"password (shown once): {made.password}")
    say("scan this with an authenticator app (shown once):")
    say(_qr(made.otpauth))
    say(made.otpauth)
    say("recovery codes, each good once instead of a code (shown once):")
    for code in codes:
        say(f"  {code}")
    return OK


def _qr(text: str) -> str:
    import segno

    out = io.StringIO()
    segno.make(text, error="m", micro=False).terminal(out, border=2, compact=True)
    return out.getvalue().rstrip("\n")
