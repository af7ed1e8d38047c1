"""Texts of several ranks are those of one process, whoever drafts."""

from __future__ import annotations

import pytest

from tests.support.families import folder_and_model
from tests.support.gguf_models import write_gguf
from tests.support.models import Variant, make_model, save_model
from tests.support.ranks import PROMPTS, WIDE, drafted, everything, samplings
from tests.support.unchanged import RANK_SOURCES
from trtla import LLM, SamplingParams

pytestmark = RANK_SOURCES

BIASES = {"attention_bias": True, "mlp_bias": True}
LONG = {"max_position_embeddings": 256}


def test_two_ranks_say_what_one_process_says(tiny_llama):
    chosen = SamplingParams(24, temperature=0.8, top_p=0.9, seed=3)
    with (
        LLM(tiny_llama, dtype="float32") as one,
        LLM(tiny_llama, dtype="float32", tp_size=2) as llm,
    ):
        assert llm.is_leader
        assert "2 ranks" in llm.description
        wanted = one.generate(PROMPTS, chosen)[0].output_ids
        assert llm.generate(PROMPTS, chosen)[0].output_ids == wanted
        scored = one.log_probs(PROMPTS[0], wanted)
        assert llm.log_probs(PROMPTS[0], wanted) == pytest.approx(scored, abs=1e-4)


@pytest.mark.deep
@pytest.mark.parametrize("tp_size", [2, 4])
def test_the_texts_of_a_trained_model_are_those_of_one_process(tiny_llama, tp_size):
    opening = {"dtype": "float32", "draft_models": (str(tiny_llama),)}
    with LLM(tiny_llama, **opening) as one:
        wanted = everything(one, PROMPTS)
        scored = one.log_probs(PROMPTS[0], wanted[0][0][0])
    with LLM(tiny_llama, **opening, tp_size=tp_size) as llm:
        assert llm.is_leader
        assert f"{tp_size} ranks" in llm.description
        assert everything(llm, PROMPTS) == wanted
        assert llm.log_probs(PROMPTS[0], wanted[0][0][0]) == pytest.approx(scored, abs=1e-4)


BIASED = Variant("biases", {**LONG, **BIASES, "tie_word_embeddings": True})
WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
WINDOWED = Variant("qwen2-window", {**LONG, **WINDOWS}, family="qwen2")
DYNAMIC = Variant("dynamic", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}})


@pytest.mark.deep
@pytest.mark.parametrize(
    ("variant", "compiled"),
    [(BIASED, "1"), (WINDOWED, "1"), (DYNAMIC, "0")],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_models_of_all_kinds_are_split_rightly(variant, compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    save_model(make_model(variant), variant, tmp_path)
    prompts = [[5, 6, 7], list(range(1, 40)), [9]]
    with LLM(tmp_path, dtype="float32") as one, LLM(tmp_path, dtype="float32", tp_size=2) as llm:
        assert ("compiled" in llm.description) == (compiled == "1")
        for sampling in samplings(3, 24):
            for drafter in ("none", "auto", "prompt-lookup"):
                wanted = drafted(one, drafter, prompts, sampling)
                assert drafted(llm, drafter, prompts, sampling) == wanted


@pytest.mark.deep
def test_drafters_change_no_text_of_ranks_in_blocks(tmp_path):
    wide = Variant("wide", {**WIDE.keys, **LONG})
    path = write_gguf(make_model(wide), tmp_path / "model.gguf", "Q8_0")
    prompts = [[5, 6, 7], list(range(1, 40)), [9]]
    with LLM(path, tp_size=2) as llm:
        assert "int8 on Q8_0" in llm.description
        for sampling in samplings(3, 24):
            plain = drafted(llm, "none", prompts, sampling)
            for drafter in ("auto", "lookahead", "prompt-lookup", "ngram"):
                assert drafted(llm, drafter, prompts, sampling) == plain


@pytest.mark.deep
@pytest.mark.parametrize("compiled", ["1", "0"])
@pytest.mark.parametrize("name", ["gemma3", "granite", "phi3"])
def test_families_are_split_rightly(name, compiled, monkeypatch):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    folder, prompts = folder_and_model(name)[0], [(5, 17, 3, 40), tuple(range(30))]
    texts = []
    for tp_size in (1, 2):
        with LLM(folder, tp_size=tp_size, max_seq_len=96) as llm:
            llm.end_ids = frozenset()
            made = llm.generate(prompts, SamplingParams(max_output_len=24))
        texts.append([text.output_ids for text in made])
    assert texts[0] == texts[1]
