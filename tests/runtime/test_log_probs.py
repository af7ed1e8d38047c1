"""How probable texts are: against transformers' logits, in stretches, and beside other requests."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.real_models import folder_and_model, tiny_model
from tests.support.toys import request
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.errors import TrtlaError, UsageError
from trtla.runtime.loop.scores import perplexity, text_log_probs

PLAIN = LookaheadConfig(1, 1, 0)


def by_transformers(model, prompt, output):
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *output]])).logits[0].double()
    rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return [row[token].item() for row, token in zip(rows, output, strict=True)]


@pytest.mark.parametrize("compiled", ["0", "1"])
@pytest.mark.parametrize("length", [1, 2, 33, 34, 130])
def test_log_probs_are_those_of_transformers(monkeypatch, compiled, length):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    folder, model = folder_and_model("mha")
    prompt = (5, 9, 2, 5)
    noise = torch.Generator().manual_seed(length)
    output = torch.randint(model.config.vocab_size, (length,), generator=noise).tolist()
    with LLM(folder, lookahead=PLAIN, dtype="float32") as llm:
        found = llm.log_probs(prompt, output)
    expected = by_transformers(model.float(), prompt, output)
    assert found == pytest.approx(expected, abs=1e-4)
    assert perplexity(found) == pytest.approx(math.exp(-sum(expected) / length), rel=1e-4)


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_small_forwards_give_the_same(chunk):
    model = tiny_model()
    cache = model.new_cache(3)

    def forward(feeds):
        assert sum(feed.length for feed in feeds) <= chunk
        return model.forward(feeds, cache)

    def whole(feeds):
        return model.forward(feeds, cache)

    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    found = text_log_probs(forward, cache, request(text[:5], 1), text[5:], chunk)
    assert cache.pool.num_free == 3
    one_by_one = [
        text_log_probs(whole, cache, request(text[:at], 1), text[at : at + 1], 64)[0]
        for at in range(5, 12)
    ]
    assert found == pytest.approx(one_by_one)
    with pytest.raises(TrtlaError, match="no room for a text of 97 tokens"):
        text_log_probs(forward, cache, request([1] * 90, 1), [1] * 7, 64)


def test_an_engine_scores_beside_its_requests_and_changes_none(tiny_llama):
    prompt, params = "def read(path):", SamplingParams(max_output_len=24)
    with LLM(tiny_llama, lookahead=LookaheadConfig(3, 4, 2), max_batch_size=8) as llm:
        [alone] = llm.generate(prompt, params)
        stream = llm.stream(prompt, params)
        begun = next(stream).token_ids
        scores = llm.log_probs(prompt, alone.output_ids)
        assert (*begun, *(t for chunk in stream for t in chunk.token_ids)) == alone.output_ids
        assert len(scores) == 24
        assert max(scores) <= 0.0
        assert scores == llm.log_probs(alone.input_ids, alone.output_ids)
        # Greedy tokens: nothing else is as probable in its place.
        other = [(token + 1) % 2048 for token in alone.output_ids]
        assert all(
            llm.log_probs((*alone.input_ids, *alone.output_ids[:at]), [other[at]])[0] < scores[at]
            for at in range(3)
        )
        assert llm.log_probs(prompt, []) == []
        with pytest.raises(UsageError, match="outside the vocabulary"):
            llm.log_probs(prompt, [2048])
        with pytest.raises(UsageError, match="above max_seq_len"):
            llm.log_probs(prompt, [1] * 5000)
