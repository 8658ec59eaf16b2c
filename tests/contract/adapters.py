"""One adapter per client: how each meets the vectors. OFFERS says who offers which law, and why not where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kite_launcher.core import link as launcher_link
from kite_modules import _contract
from kite_modules.sdk import reconnect
from kite_modules.sdk.errors import repeat_of
from kite_modules.sdk.frames import classify
from kite_modules.sdk.resume import ResumeBook
from kite_modules.sdk.session import Session
from kite_watchdog.core import link as watchdog_link

# law -> client -> None (offered) or the reason why it is not. The JavaScript client runs the same files in Node:
# tests/modules/javascript/vectors.test.mjs.
_FIXED = "its policy is the fixed internal column; its parameters are never a user's"
_SAME_HOST = "it lives on the kernel's own host: there is no network to lose"
_NO_SCREEN = "nobody is shown its state"
_IDEMPOTENT = "it makes idempotent calls only"
OFFERS: dict[str, dict[str, str | None]] = {
    "close": {"launcher": None, "watchdog": None, "sdk": None},
    "backoff": {"launcher": None, "watchdog": None, "sdk": None},
    "legacy": {"launcher": None, "watchdog": None, "sdk": None},
    "resume": {"launcher": None, "watchdog": None, "sdk": None},
    "framing": {"launcher": None, "watchdog": None, "sdk": None},
    "policy": {"launcher": _FIXED, "watchdog": _FIXED, "sdk": None},
    "network": {"launcher": _SAME_HOST, "watchdog": _SAME_HOST, "sdk": None},
    "session": {"launcher": _NO_SCREEN, "watchdog": _NO_SCREEN, "sdk": None},
    "errors": {"launcher": _IDEMPOTENT, "watchdog": _IDEMPOTENT, "sdk": None},
}


def _sdk_decide(code: int | None, attempt: int, **more: Any) -> Any:
    random = more.pop("random")
    return reconnect.decide(code, attempt, more.pop("policy", reconnect.INTERNAL), random, **more)


DECIDE: dict[str, Callable[..., Any]] = {
    "launcher": launcher_link.decide,
    "watchdog": watchdog_link.decide,
    "sdk": _sdk_decide,
}
CLASSIFY: dict[str, Callable[[str], str]] = {
    "launcher": launcher_link.classify,
    "watchdog": watchdog_link.classify,
    "sdk": classify,
}
BOOK: dict[str, Callable[..., Any]] = {
    "launcher": launcher_link.Session,
    "watchdog": watchdog_link.Session,
    "sdk": ResumeBook,
}


def once(value: float) -> Callable[[], float]:
    """Return a random source that gives one value and fails when it is asked twice."""
    values: Iterator[float] = iter([value])
    return lambda: next(values)


def decisions(client: str, given: dict[str, Any]) -> list[Any]:
    """Return the decisions of one client for the tries of one vector."""
    more: dict[str, Any] = {}
    if "retry_after_s" in given:
        more["retry_after_s"] = given["retry_after_s"]
    if "policy" in given:
        more["policy"] = reconnect.Policy(**given["policy"])
    return [
        DECIDE[client](given["code"], step["attempt"], random=once(step["random"]), **more) for step in given["tries"]
    ]


def run_resume(client: str, vector: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yield (step, what was wanted, what came) for each step of a resume vector that wants something."""
    book = BOOK[client](**vector["given"])
    for number, step in enumerate(vector["steps"]):
        event = dict(step["event"])
        do = event.pop("do")
        value = getattr(book, do)(**event)
        if "then" in step:
            yield number, step["then"], {"offer" if do == "resume" else "again": value}


def run_session(vector: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yield (step, what was wanted, what came) for each step of a session vector, on the SDK's session."""
    given = vector["given"]
    policy = {"internal": reconnect.INTERNAL, "remote": reconnect.REMOTE}[given["column"]]
    session = Session(policy, lambda: given["random"])
    for number, step in enumerate(vector["steps"]):
        event, now = dict(step["event"]), float(step["at_s"])
        do = event.pop("do")
        if do in ("lost", "time"):
            getattr(session, do)(event.pop("code"), now=now, **event) if do == "lost" else session.time(now=now)
        elif do == "network":
            session.network(event["next"], path_changed=event.get("path_changed", False))
        elif do != "none":
            getattr(session, do)(**event)
        yield number, step["then"], _shown(session, now)


def _shown(session: Session, now: float) -> dict[str, Any]:
    return {
        "state": session.state.value,
        "due_in_s": None if session.due_at is None else session.due_at - now,
        "attempt": session.attempt,
        "cooldown_attempts": session.cooldown_attempts,
        "last_close_code": session.last_close_code,
        "fatal": session.fatal,
        "wire": session.wire,
    }


def verdict(strategy: str) -> str:
    """Return what a `bye` says of this strategy."""
    return _contract.VERDICTS[strategy]


def repeat(code: int, data: Any) -> dict[str, Any]:
    """Return what the SDK says about repeating a failed call."""
    may, later = repeat_of(code, data)
    return {"repeat": may, "later": later}
