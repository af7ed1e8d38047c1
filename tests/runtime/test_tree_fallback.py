"""Drafts where candidate trees cannot be compiled."""

from __future__ import annotations

import pytest

from tests.support.real_models import folder_and_model
from trtla import LLM, DrafterSettings, LookaheadConfig, SamplingParams
from trtla.runtime.models.cpu import library as forward
from trtla.runtime.models.cpu import native_code
from trtla.runtime.tree import library
from trtla.settings.drafting import NO_DRAFTER


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """Neither a compiler nor what it made before."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_code, "_noted", set())
    for loaded in (library.tree_library, forward.library):
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
