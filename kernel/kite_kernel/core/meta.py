"""`meta` beside the params of a call: what a caller may wish for, and what a callee that asked for it is told.

Whatever else a caller says there is not passed on: caller and deadline are the kernel's word. Source: spec 10-wire §6,
05-surface §9, case X-18.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kite_kernel.core.text import encode


class Meta(msgspec.Struct, gc=False):
    """What a caller may say. `timeout` in seconds; `wait` False: no holding while the callee is in debounce."""

    timeout: float | None = None
    wait: bool = True
    key: str | None = None
    credit: int | None = None
    traceparent: str | None = None
    tracestate: str | None = None


decode_meta: Final = msgspec.json.Decoder(Meta).decode
PLAIN: Final = Meta()
_PASSED_ON: Final = ("traceparent", "tracestate", "credit")


def meta_member(caller: str, meta: Meta, deadline_utc: float | None) -> bytes:
    """Make the end of a forwarded frame for a callee that asked for `meta`: the member and the closing brace."""
    told: dict[str, Any] = {"caller": caller}
    if deadline_utc is not None:
        told["deadline"] = round(deadline_utc, 6)
    for name in _PASSED_ON:
        value = getattr(meta, name)
        if value is not None:
            told[name] = value
    return b',"meta":' + encode(told) + b"}"
