"""The numbers of streams: `/stats`, `/metrics`, `stream.list` and `stream.stats`.

Source: spec 40-streams §1, 05-surface §7 and §9 (metrics have bounded labels).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kite_kernel.core.text import encode

if TYPE_CHECKING:
    from kite_kernel.edge.stream_channel import Channel
    from kite_kernel.edge.stream_shelf import Shelf

LAGS_TOLD: Final = 1000
"""Subscribers of one stream that `stream.stats` lists, those furthest behind first."""

_METRICS: Final = (
    ("subscribers", "gauge"),
    ("dropped_total", "counter"),
    ("published_total", "counter"),
    ("rate", "gauge"),
    ("bytes", "gauge"),
    ("lag_max", "gauge"),
)


def stats_text(channel: Channel) -> bytes:
    """Make what `/stats` says. Source: 40-streams §1."""
    stats = channel.stream.statistics()
    return encode(
        {
            "subscribers": stats.subscribers,
            "dropped": stats.dropped,
            "seq": stats.seq,
            "epoch": stats.epoch,
            "ring": stats.ring,
            "bytes": stats.bytes,
        }
    )


def numbers_of(channel: Channel) -> dict[str, Any]:
    """Say what `/stats` says, and what an operator asks next: rate, the longest lag, the oldest that is kept."""
    stats = channel.stream.statistics()
    return {
        "stream": channel.stream.name,
        "state": "ok" if channel.trouble() is None else "failing",
        "subscribers": stats.subscribers,
        "publishers": len(channel.publishers),
        "dropped": stats.dropped,
        "seq": stats.seq,
        "epoch": stats.epoch,
        "ring": stats.ring,
        "bytes": stats.bytes,
        "first": stats.first,
        "published": channel.published,
        "rate": round(channel.rate, 1),
        "lag_max": max((lag for _, lag in channel.stream.lags()), default=0),
        **channel.disk_numbers(),
    }


def lags_of(channel: Channel, *, now: float) -> list[dict[str, Any]]:
    """List who is how far behind, those furthest behind first."""
    lags = sorted(channel.stream.lags(), key=lambda row: -row[1])[:LAGS_TOLD]
    return [
        {
            "module_id": subscriber.hand.module_id,
            "address": subscriber.hand.addr,
            "lag": lag,
            "live": subscriber.live,
            "since_s": round(now - subscriber.joined_at, 3),
        }
        for subscriber, lag in lags
    ]


def metrics_lines(shelf: Shelf) -> list[str]:
    """Make the lines of /metrics; streams that no configuration names share one label, so that labels are bounded."""
    rows: dict[str, list[float]] = {}
    for name, channel in shelf.channels.items():
        stats = channel.stream.statistics()
        lag = max((lag for _, lag in channel.stream.lags()), default=0)
        numbers = [stats.subscribers, stats.dropped, channel.published, channel.rate, stats.bytes]
        held = rows.setdefault(name if channel.is_configured else "other", [0.0] * len(_METRICS))
        held[:-1] = [a + b for a, b in zip(held, numbers, strict=False)]
        held[-1] = max(held[-1], lag)
    lines: list[str] = []
    for at, (name, kind) in enumerate(_METRICS):
        lines.append(f"# TYPE kite_stream_{name} {kind}")
        lines += [f'kite_stream_{name}{{stream="{label}"}} {row[at]:.12g}' for label, row in sorted(rows.items())]
    lines += ["# TYPE kite_streams gauge", f"kite_streams {len(shelf.channels)}"]
    lines += ["# TYPE kite_streams_refused_total counter", f"kite_streams_refused_total {shelf.refused}"]
    return lines
