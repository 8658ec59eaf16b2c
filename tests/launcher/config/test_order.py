"""Start and stop order as facts about a graph."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kite_launcher.core.order import circles, closure, dependents, longest_chain, start_layers, stop_layers

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def test_a_diamond_starts_in_three_layers_and_stops_in_the_reverse() -> None:
    assert start_layers(DIAMOND) == [["a"], ["b", "c"], ["d"]]
    assert stop_layers(DIAMOND) == [["d"], ["b", "c"], ["a"]]


def test_file_order_decides_where_the_order_leaves_a_choice() -> None:
    assert start_layers({"z": [], "a": [], "m": ["z"]}) == [["z", "a"], ["m"]]


def test_a_wanted_name_that_is_not_part_of_the_run_is_nothing_to_wait_for() -> None:
    assert start_layers({"a": ["gone"]}) == [["a"]]


def test_the_critical_path_is_the_heaviest_chain() -> None:
    assert longest_chain(DIAMOND, {"a": 1, "b": 1, "c": 5, "d": 1}) == (["a", "c", "d"], 7)
    assert longest_chain({}, {}) == ([], 0.0)
    assert longest_chain(DIAMOND, {})[1] == 0.0


def test_dependents_are_the_arrows_turned_round() -> None:
    assert dependents(DIAMOND) == {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}
    assert closure(["b"], dependents(DIAMOND)) == ["b", "d"]


def test_circles_are_named_once_each_by_their_shortest_path() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["d"], "e": ["a"]}) == [["a", "b", "c", "a"], ["d", "d"]]
    assert circles({"a": ["b", "c"], "b": ["a"], "c": ["a"]}) == [["a", "b", "a"], ["a", "c", "a"]]
    assert circles(DIAMOND) == []


def test_who_stands_behind_a_circle_is_stopped_first() -> None:
    graph = {"a": ["b"], "b": ["a"], "c": ["a"], "x": []}
    assert start_layers(graph) == [["x"]]
    assert stop_layers(graph) == [["a", "b", "c"], ["x"]]


_NAMES = st.sampled_from("abcdefgh")


@settings(deadline=None)
@given(st.dictionaries(_NAMES, st.lists(_NAMES, max_size=4)))
def test_every_name_is_placed_after_what_it_wants_or_stands_behind_a_circle(graph: dict[str, list[str]]) -> None:
    layers = start_layers(graph)
    level = {name: depth for depth, layer in enumerate(layers) for name in layer}
    for name, depth in level.items():
        assert all(level[other] < depth for other in graph[name] if other in graph)
    found = circles(graph)
    assert bool(found) == (set(level) != set(graph))
    for path in found:
        assert path[0] == path[-1]
        assert all(after in graph[before] for before, after in pairwise(path))
        assert len(set(path)) == len(path) - 1
    assert sorted(name for layer in stop_layers(graph) for name in layer) == sorted(graph)
