"""Candidate trees without a compiler: the same nodes as in C++, and requests that draft."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.real_models import folder_and_model
from tests.support.trees import Session
from trtla import LLM, DraftOptions, LookaheadConfig, SamplingParams
from trtla.runtime.models.cpu import library as forward
from trtla.runtime.tree import library
from trtla.runtime.tree.fallback import PlainTrees
from trtla.runtime.tree.library import SharedTrees
from trtla.runtime.tree.open import open_trees
from trtla.settings.drafting import SOURCES

TEXTS = [name for name in SOURCES if name != "rows"]


@examples(40)
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
        mine, others = ours.counts(), theirs.counts()
        assert mine.keys() == others.keys()
        for name, own in mine.items():
            same = replace(others[name], expected=own.expected)  # but for the order of the sum
            assert own == same
            assert own.expected == pytest.approx(others[name].expected)


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """Neither a compiler nor what it made before."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for loaded in (library._library, forward.library):
        loaded.cache_clear()


def test_adaptive_requests_draft_without_a_compiler(no_compiler):
    folder, options = folder_and_model("mha")[0], DraftOptions(nodes=6)
    prompts = [[5, 9, 2, 5, 9], [7, 7, 1, 2, 7, 7, 1]]
    params = [SamplingParams(max_output_len=40, temperature=heat, seed=3) for heat in (0.0, 0.8)]
    with LLM(folder, lookahead="auto", dtype="float32", draft_options=options) as llm:
        llm.end_ids = frozenset()
        plain = llm.generate(prompts, params, LookaheadConfig(1, 1, 0))
        drafted = llm.generate(prompts, params)
        assert isinstance(llm._executor._drafting.drafters._trees, PlainTrees)
    assert [one.output_ids for one in drafted] == [one.output_ids for one in plain]
    assert all(one.stats.accepted > 3 for one in drafted)
    assert all(one.stats.drafted == 0 for one in plain)


def test_no_compiler_is_no_error(no_compiler):
    assert isinstance(open_trees(12), PlainTrees)


def test_a_compiler_is_used():
    assert isinstance(open_trees(12), SharedTrees)
