"""Candidate trees against their oracle, and what drafts where they cannot be compiled."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.plain_trees.plan import PlainTrees
from tests.support.real_models import folder_and_model
from tests.support.trees import Session
from trtla import LLM, DrafterSettings, LookaheadConfig, SamplingParams
from trtla.runtime.models.cpu import library as forward
from trtla.runtime.models.cpu import native_code
from trtla.runtime.tree import library
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.drafting import NO_DRAFTER, SOURCES

TEXTS = [name for name in SOURCES if name != "recycling"]


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
    monkeypatch.setattr(native_code, "_noted", set())
    for loaded in (library._library, forward.library):
        loaded.cache_clear()


@pytest.mark.parametrize(
    ("names", "triple"),
    [
        (("lookahead",), "auto"),
        (("ngram", "lookahead"), "auto"),
        (("ngram", "lookahead"), (3, 3, 2)),
    ],
)
def test_without_a_compiler_one_source_drafts_and_a_note_says_so(
    no_compiler, caplog, names, triple
):
    """Prompt lookup for `auto`, the first other drafter of a list, and a triple as it is."""
    folder, drafter = folder_and_model("mha")[0], DrafterSettings(names)
    lookahead = triple if triple == "auto" else LookaheadConfig(*triple)
    prompts = [[5, 9, 2, 5, 9], [7, 7, 1, 2, 7, 7, 1]]
    params = [SamplingParams(max_output_len=40, temperature=heat, seed=3) for heat in (0.0, 0.8)]
    with LLM(folder, lookahead=lookahead, dtype="float32", drafter=drafter) as llm:
        llm.end_ids = frozenset()
        plain = llm.generate(prompts, params, drafter=NO_DRAFTER)
        drafted = llm.generate(prompts, params)
    assert [one.output_ids for one in drafted] == [one.output_ids for one in plain]
    assert sum(one.stats.drafted for one in drafted) > 0
    assert all(one.stats.sources is None for one in drafted)
    notes = [one.getMessage() for one in caplog.records if "prompt lookup" in one.getMessage()]
    assert len(notes) == 1
    assert "no C++ compiler was found (no-such-compiler)" in notes[0]
