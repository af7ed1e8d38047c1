"""The calls of candidate trees in C++, and the structures that they take, by ctypes."""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, c_double, c_int32, c_int64, c_uint64, c_void_p
from functools import lru_cache

from trtla.runtime.models.cpu.native_code import TREES, Calls, declare
from trtla.settings.drafting import PROPOSERS, SOURCES

_COUNTED_DEPTHS = 32


class TreeSettings(Structure):
    _fields_ = [
        ("greedy", c_int64),
        ("temperature", c_double),
        ("seed", c_uint64),
        ("sources", c_int64),
        ("unplaced", c_int64),
        ("by_noise", c_int64),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_double),
    ]


class Plan(Structure):
    _fields_ = [
        ("count", c_int64),
        ("sequences", c_void_p),
        ("most_nodes", c_void_p),
        ("most_depth", c_void_p),
        ("most", c_int64),
        ("knots", c_int64),
        ("knot_nodes", c_void_p),
        ("knot_seconds", c_void_p),
        ("rate", c_double),
        ("margin", c_double),
        ("least", c_double),
        ("lesson", c_double),
        ("sizes", c_void_p),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("values", c_void_p),
        ("sources", c_void_p),
    ]


_Counts = (c_double * _COUNTED_DEPTHS) * len(PROPOSERS)


class Counters(Structure):
    _fields_ = [
        ("proposed", _Counts),
        ("fed", _Counts),
        ("accepted", _Counts),
        ("expected", _Counts),
        ("gained", c_double * len(SOURCES)),
    ]


_CALLS: Calls = {
    "tree_shared": (c_void_p, (c_int64, c_int64)),
    "tree_free_shared": (None, (c_void_p,)),
    "tree_shared_texts": (c_int64, (c_void_p, POINTER(POINTER(c_int32)))),
    "tree_add_shared_text": (None, (c_void_p, c_void_p, c_int64, c_int64)),
    "tree_sequence": (c_void_p, (c_void_p, POINTER(TreeSettings), c_void_p, c_int64)),
    "tree_free_sequence": (None, (c_void_p,)),
    "tree_add_text": (None, (c_void_p, c_int64, c_void_p, c_int64)),
    "tree_set_chains": (None, (c_void_p, c_void_p, c_int64)),
    "tree_add_head_row": (None, (c_void_p, c_int64, c_int64, c_void_p, c_void_p)),
    "tree_unread": (c_int64, (c_void_p, POINTER(c_int32), c_void_p)),
    "tree_known": (c_double, (c_void_p,)),
    "tree_best_value": (c_double, (c_void_p,)),
    "tree_set_grammar": (
        None,
        (*(c_void_p, c_void_p, c_int64), *(c_void_p, c_int64), *[c_void_p] * 2),
    ),
    "tree_drop": (None, (c_void_p, c_void_p, c_int64)),
    "tree_plan": (None, (c_void_p,)),
    "tree_commit": (
        None,
        (*(c_void_p, c_void_p, c_int64, c_int64), *(c_void_p, c_int64, c_int64), *[c_void_p] * 2),
    ),
    "tree_learn_pairs": (None, (c_void_p, c_void_p, c_int64, c_void_p, c_void_p)),
    "tree_sequence_counters": (c_void_p, (c_void_p,)),
}


def declared(library: CDLL) -> CDLL:
    """Return the library with its calls' types."""
    return declare(
        library, _CALLS, ("tree_plan", "tree_commit", "tree_set_chains", "tree_set_grammar")
    )


@lru_cache(maxsize=1)
def tree_library() -> CDLL:
    """Raise `NotCompiled` if there is none."""
    return declared(TREES.load())
