"""Texts, not only ids, are plain decoding's whoever drafts: with stops inside tokens, cut runs."""

from __future__ import annotations

import random

import pytest

import tests.support.tokenizers
from tests.support.models import Variant, make_model, save_model
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE

LOOKUP = DrafterSettings(("prompt-lookup",))
CODE = (
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):",
    "class A:\n    def __init__(self):\n        self.a = 1\n        self.b = 2\n        self.c =",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)\nfor k in range(10):",
)


def same_texts(llm, prompt, sampling):
    """What plain decoding writes, after checking that drafters write the same."""
    plain = llm.generate([prompt], sampling, AUTOREGRESSIVE)[0]
    for drafter in (None, LOOKUP):
        chunks = list(llm.stream([prompt], sampling, drafter=drafter))
        ours = chunks[-1].completion
        assert ours.output_ids == plain.output_ids
        assert ours.finish_reason == plain.finish_reason
        assert ours.text == plain.text == "".join(chunk.text for chunk in chunks)
    return plain


def test_a_stop_that_an_accepted_token_holds_ends_the_text_there(tiny_llama):
    stopped = 0
    with LLM(tiny_llama, lookahead=LookaheadConfig(7, 7, 7), dtype="float32") as llm:
        for text in CODE:
            for stop in ("\n", " ", "("):
                for cut in range(0, 30, 10):
                    given = SamplingParams(max_output_len=32, stop=(stop,))
                    plain = same_texts(llm, text[: len(text) - cut], given)
                    assert stop not in plain.text
                    stopped += plain.finish_reason == "stop_words"
    assert stopped > 20


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory):
    """A random model with Llama 2's kind of tokenizer."""
    folder = tmp_path_factory.mktemp("byte-model")
    tokenizer = tests.support.tokenizers.byte_fallback()
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
    size = tokenizer.get_vocab_size()
    variant = Variant("byte-model", {**sizes, "vocab_size": size, "num_hidden_layers": 2})
    model = make_model(variant, 3)
    model.generation_config.eos_token_id = 2
    save_model(model, variant, folder)
    tests.support.tokenizers.save(tokenizer, folder)
    return folder


@pytest.mark.parametrize("heat", [0.0, 0.9])
def test_cut_runs_of_bytes_read_the_same(byte_model, heat):
    rng = random.Random(1)
    broken = 0
    with LLM(byte_model, lookahead=LookaheadConfig(5, 4, 5), dtype="float32") as llm:
        for seed in range(24):
            prompt = [259, *[rng.randrange(3, 260) for _ in range(3)] * 4]
            given = SamplingParams(40, temperature=heat, seed=seed, top_k=4)
            broken += "\N{REPLACEMENT CHARACTER}" in (same_texts(llm, prompt, given).text or "")
    assert broken  # else nothing was cut inside a character
