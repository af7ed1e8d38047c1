"""Candidate trees without a compiler: the same nodes as in C++, and requests that draft."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.runtime.trees import Session
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.runtime.tree import library
from trtla.runtime.tree.fallback import PlainTrees
from trtla.runtime.tree.library import SharedTrees
from trtla.runtime.tree.open import open_trees
from trtla.settings.drafting import SOURCES

TEXTS = [name for name in SOURCES if name != "rows"]


@examples(60)
@given(st.integers(0, 2**32), st.sampled_from([40, 10_000]))
def test_both_kinds_take_the_same_nodes(seed, most_tokens):
    compiled, plain = (
        Session(kind(12, most_tokens), Random(seed)) for kind in (SharedTrees, PlainTrees)
    )
    for _ in range(25):
        compiled.step()
        plain.step()
        assert plain.drafts == compiled.drafts
    for ours, theirs in zip(plain.drafts, compiled.drafts, strict=True):
        assert ours.values == pytest.approx(theirs.values, rel=1e-6)
        assert ours.sources == theirs.sources
    assert plain.shared.texts() == compiled.shared.texts()
    for ours, theirs in zip(plain.trees, compiled.trees, strict=True):
        assert [ours.gained(name) for name in TEXTS] == [theirs.gained(name) for name in TEXTS]
