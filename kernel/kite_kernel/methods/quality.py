"""The quality of one connection as the lists and statistics tell it. Source: spec 20-kernel §5, 05-surface §7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kite_kernel.core.quality import assess

if TYPE_CHECKING:
    from kite_kernel.core.hub import Hub
    from kite_kernel.core.peer import Peer


def quality_of(hub: Hub, peer: Peer, *, now: float) -> dict[str, Any]:
    """Return grade, score, reconnects and prediction of one connection."""
    comings = hub.board.comings.get(peer.id)
    hour = comings.hour(now) if comings is not None else 0
    timing = hub.settings.timing
    found = assess(
        peer.pulse,
        timing=timing,
        reconnects_hour=hour,
        pressure=peer.pressure,
        connected=peer.link is not None,
        silent=peer.role == "launcher" and peer.pulse.unanswered >= timing.ping_misses,
    )
    prediction = found.prediction
    return {
        "grade": found.grade,
        "score": found.score,
        "reconnects": {"hour": hour, "total": comings.total if comings is not None else 0},
        "prediction": {"risk": prediction.risk, "drop": prediction.drop, "why": prediction.why},
    }
