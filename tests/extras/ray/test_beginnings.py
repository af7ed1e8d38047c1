"""Whole blocks of tokens are remembered, each with all before it, and the oldest are forgotten."""

from __future__ import annotations

from trtla.extras.ray.beginnings import Beginnings

FIRST, SECOND = tuple(range(100)), tuple(range(100, 200))


def test_who_has_the_longest_beginning():
    found = Beginnings()
    found.add(FIRST, "a")
    found.add((*FIRST[:64], *SECOND), "b")
    both = {"a", "b"}
    assert found.longest(FIRST, both) == "a"
    assert found.longest((*FIRST[:64], *SECOND, 7), both) == "b"
    assert found.longest(FIRST[:64], both) == "b"  # the last one that read it
    assert found.longest((*FIRST[:40], *SECOND), both) == "b"


def test_a_beginning_that_nobody_has():
    found = Beginnings()
    found.add(FIRST, "a")
    assert found.longest(SECOND, {"a"}) is None
    assert found.longest((5, *FIRST), {"a"}) is None  # the same tokens in other places
    assert found.longest(FIRST[:31], {"a"}) is None  # less than a block


def test_who_is_gone_is_not_named():
    found = Beginnings()
    found.add(FIRST[:32], "a")
    found.add(FIRST, "b")
    assert found.longest(FIRST, {"a"}) is None
    found.add(FIRST[:32], "a")
    assert found.longest(FIRST, {"a"}) == "a"


def test_the_oldest_are_forgotten():
    found = Beginnings(most=3)
    found.add(FIRST, "a")
    found.add(SECOND[:64], "b")
    assert found.longest(SECOND, {"a", "b"}) == "b"
    assert found.longest(FIRST, {"a", "b"}) == "a"
    found.add(SECOND, "b")
    assert found.longest(FIRST, {"a", "b"}) is None
