"""Two books across any cuts: every frame exactly once, in order. Source: spec 10-wire §8."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kite_modules.sdk.resume import ResumeBook


class Side:
    """One end: its book, what it got, and what is on its wire towards the other."""

    def __init__(self) -> None:
        self.book = ResumeBook(frames_max=1000, bytes_max=1_000_000)
        self.book.resumed({"session": "s", "resumed": False, "received": 0})
        self.sent = 0
        self.got: list[str] = []
        self.wire: list[str] = []

    def send(self) -> None:
        self.sent += 1
        frame = str(self.sent)
        self.book.sent(frame)
        self.wire.append(frame)


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ab"), st.just("send"), st.just(0)),
        st.tuples(st.sampled_from("ab"), st.just("arrive"), st.integers(1, 5)),
        st.tuples(st.sampled_from("ab"), st.just("ping"), st.just(0)),
        st.tuples(st.just("a"), st.just("cut"), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_every_frame_arrives_once_and_in_order_over_any_cuts(plan: list[tuple[str, str, int]]) -> None:
    a, b = Side(), Side()
    ends = {"a": (a, b), "b": (b, a)}
    for who, what, count in plan:
        here, there = ends[who]
        if what == "send":
            here.send()
        elif what == "arrive":
            for _ in range(min(count, len(there.wire))):
                here.got.append(there.wire.pop(0))
                here.book.received()
        elif what == "ping":
            there.book.acknowledged(here.book.received_frames)
        else:
            _cut_and_resume(a, b)
    _cut_and_resume(a, b)
    for here, there in ends.values():
        here.got += there.wire
        assert here.got == [str(number) for number in range(1, there.sent + 1)]


def _cut_and_resume(a: Side, b: Side) -> None:
    """What was on the wires is gone; each side tells what it has."""
    received = {"a": a.book.received_frames, "b": b.book.received_frames}
    for here, other in ((a, received["b"]), (b, received["a"])):
        again = here.book.resumed({"session": "s", "resumed": True, "received": other})
        assert again is not None
        here.wire = list(again)


def test_the_book_is_bounded_and_counts_what_it_forgot() -> None:
    book = ResumeBook(frames_max=10, bytes_max=100)
    book.resumed({"session": "s", "resumed": False, "received": 0})
    for _ in range(1000):
        book.sent("x" * 20)
    assert book.statistics() == {"frames": 5, "bytes": 100, "forgotten": 995}
