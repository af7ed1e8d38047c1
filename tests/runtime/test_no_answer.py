"""Logits that are not finite: the request that met them fails, and names itself; others go on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.models import Variant, make_model, save_model
from tests.support.real_models import tiny_model
from tests.support.tensors import argmax, draw_at
from tests.support.toys import (
    greedy_scores,
    hash_rule,
    plain,
    request,
    ruled,
    run,
    tokens_of,
    toy_executor,
)
from trtla import LLM, LookaheadConfig, SamplingParams, TrtlaError
from trtla.runtime.drafters.draft_model import entropies
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.drafters.lookahead import lookahead_drafter
from trtla.runtime.loop.beams import CachedBeams, beam_search
from trtla.runtime.loop.scores import text_log_probs
from trtla.runtime.models.cpu.library import RowChooser
from trtla.runtime.models.forward import Forwarded
from trtla.runtime.request import NO_TOKEN
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings, DraftOptions
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.sampling import BeamSettings

NAN, INF = float("nan"), float("inf")
SETTINGS = [
    SamplingParams(temperature=heat, top_k=top_k, top_p=top_p)
    for heat, top_k, top_p in [(0.0, 0, 1.0), (0.7, 0, 1.0), (0.7, 3, 1.0), (0.7, 0, 0.8)]
]


def chosen(params, row, noise=0.3):
    """The compiled choice and PyTorch's."""
    logits = torch.tensor([row])
    if params.greedy:
        return RowChooser().most_probable(logits.numpy(), 0), argmax(logits).item()
    return RowChooser().draw(logits.numpy(), 0, params, noise), int(
        draw_at(logits, params, [noise])[0]
    )


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("size", [1, 7, 64, 75])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_one_number_that_is_not_finite_leaves_no_answer(params, size, bad):
    for place in {0, size // 2, size - 1}:
        row = [float(i % 5) for i in range(size)]
        row[place] = bad
        assert chosen(params, row) == (NO_TOKEN, NO_TOKEN)


@pytest.mark.parametrize("params", SETTINGS)
def test_hidden_tokens_are_legal_unless_all_are_hidden(params):
    for size in (1, 7, 64, 75):
        assert chosen(params, [-INF] * size) == (NO_TOKEN, NO_TOKEN)
        for place in {0, size // 2, size - 1}:
            row = [-INF] * size
            row[place] = -80.0
            assert chosen(params, row) == (place, place)


def broken_after(rule, count, bad=NAN):
    """One-hot logits of a rule, and no answer behind texts of `count` tokens that begin with 1."""
    scores = greedy_scores(rule, 6)

    def broken(text):
        return [bad] * 6 if text[0] == 1 and len(text) >= count else scores(text)

    return broken


@pytest.mark.parametrize("name", ["none", "lookahead", "prompt-lookup", "ngram", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_a_request_fails_where_plain_decoding_fails_and_others_go_on(name, temperature):
    rule = hash_rule(6, 2)
    executor, _ = toy_executor(broken_after(rule, 30), 6, LookaheadConfig(4, 4, 4))
    executor._drafting.drafters = Drafters(executor.limits, DraftOptions(), {})
    drafter = DrafterSettings() if name == "tree" else DrafterSettings((name,))
    settings = {"drafter": drafter, "adaptive": name == "tree", "temperature": temperature}
    asked = [
        request(prompt, 60, None, index, **settings)
        for index, prompt in enumerate([[0, 1, 2], [1, 2, 3], [1] * 30, [2, 1, 2]])
    ]
    asked[1] = replace(asked[1], name="line 7", margins=True)
    outputs = run(executor, asked)
    whole = ruled(rule, 6, (4, 4, 4))[0]
    alone = {"lookahead": AUTOREGRESSIVE, "drafter": None, "adaptive": False}
    expected = run(whole, [replace(one, **alone) for one in asked])
    reasons = [outputs[index][-1].finish_reason for index in range(4)]
    assert reasons == ["length", "failed", "failed", "length"]
    assert tokens_of(outputs[1]) == tokens_of(expected[1])[:27]
    assert tokens_of(outputs[2]) == []
    for index in (0, 3):
        assert tokens_of(outputs[index]) == tokens_of(expected[index])
        assert outputs[index][-1].error is None
    error = outputs[1][-1].error
    assert "line 7: the model's logits for output token 27 are not finite" in error.message
    assert "--dtype" in error.hint
    assert sum(len(output.margins) for output in outputs[1]) == 27
    assert executor._cache.pool.num_free == executor._cache.pool.num_blocks


def test_an_output_that_ends_before_does_not_fail():
    rule = hash_rule(6, 2)
    text = plain(rule, [1, 2, 3], 27)
    end = text[-1]
    first = text.index(end) + 1
    executor, _ = toy_executor(
        broken_after(rule, 3 + first), 6, LookaheadConfig(4, 4, 4), drafter=lookahead_drafter
    )
    outputs = run(executor, [request([1, 2, 3], 60, (4, 4, 4), end_ids=[end])])[0]
    assert outputs[-1].finish_reason == "end_id"
    assert tokens_of(outputs) == text[:first]


def test_cells_of_the_window_without_an_answer_do_not_matter():
    """What the window reads never becomes text: only drafts are lost."""
    rule, prompt = hash_rule(6, 3), [0, 4, 2, 0]
    text = plain(rule, prompt, 60)
    whole = [*prompt, *text]
    scores = greedy_scores(rule, 6)

    def only_the_text(seen):
        return scores(seen) if seen == whole[: len(seen)] else [NAN] * 6

    executor, _ = toy_executor(
        only_the_text, 6, LookaheadConfig(5, 4, 3), drafter=lookahead_drafter
    )
    assert tokens_of(run(executor, [request(prompt, 60, (5, 4, 3))])[0]) == text


def test_a_broken_draft_model_says_nothing_of_entropy():
    assert entropies(np.array([[NAN, 1.0], [0.0, 0.0]]), [1.0, 0.0])[0] == 0.0


def saved(folder, broken):
    """A small model; broken: with one NaN in its last norm."""
    keys = {"head_dim": 16, "vocab_size": 64, "max_position_embeddings": 128}
    variant = Variant("broken" if broken else "sound", keys)
    model = make_model(variant)
    if broken:
        with torch.no_grad():
            model.model.norm.weight[3] = NAN
    save_model(model, variant, folder)
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("broken"), True)


@pytest.mark.parametrize("compiled", ["1", "0"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_broken_weights_are_an_error_and_not_a_text(broken, monkeypatch, compiled, temperature):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    sampling = SamplingParams(max_output_len=8, temperature=temperature)
    with LLM(broken, lookahead=LookaheadConfig(3, 3, 3)) as llm:
        for name, use in (
            ("prompt 0", lambda: llm.generate([[1, 2, 3]], sampling)),
            ("prompt 0", lambda: llm.generate([[1, 2, 3]], sampling)),  # the executor goes on
            ("line 3", lambda: llm.beam_search([1, 2, 3], name="line 3")),
            ("the prompt", lambda: llm.log_probs([1, 2, 3], [4, 5])),
        ):
            with pytest.raises(TrtlaError, match=f"{name}: the model's logits for output token 0"):
                use()


@pytest.mark.parametrize("drafter", ["draft", "egag"])
def test_a_broken_draft_model_drafts_nothing(broken, tmp_path, drafter):
    saved(tmp_path, False)
    settings = DrafterSettings((f"draft:{broken}",), egag=drafter == "egag")
    sampling = SamplingParams(max_output_len=12)
    with LLM(tmp_path, drafter=settings, dtype="float32") as llm:
        done = llm.generate([[1, 2, 3]], sampling)[0]
        plain = llm.generate([[1, 2, 3]], sampling, drafter=NO_DRAFTER)
        assert done.output_ids == plain[0].output_ids
    assert done.stats.drafted == 0


def no_answer_at(forward_number, row):
    """A small model, its cache, and its forward, whose logits are `row` from a forward on."""
    model, count = tiny_model(), 0
    cache = model.new_cache(16)

    def forward(feeds):
        nonlocal count
        count += 1
        cache.move_now()
        logits = model.forward(feeds, cache).logits
        return Forwarded(np.full_like(logits, row) if count >= forward_number else logits)

    return forward, cache


def best_beams(forward, cache, asked):
    with CachedBeams(forward, cache, asked, 3, 64) as target:
        return beam_search(target, BeamSettings(3), 8, frozenset())


def log_probs(forward, cache, asked):
    return text_log_probs(forward, cache, asked, [1, 5] * 20, 64)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("use", "forwards", "place"),
    [
        (best_beams, 1, 0), (best_beams, 2, 1), (best_beams, 4, 3),
        (log_probs, 1, 0), (log_probs, 2, 1), (log_probs, 3, 33),
    ],
)  # fmt: skip
def test_beams_and_log_probs_without_an_answer_are_an_error(use, bad, forwards, place):
    forward, cache = no_answer_at(forwards, bad)
    said = f"line 2: the model's logits for output token {place} are not finite"
    with pytest.raises(TrtlaError, match=said):
        use(forward, cache, replace(request((3, 1, 4), 8), name="line 2"))
    assert cache.pool.num_free == 16


def test_a_hidden_token_has_no_probability_and_is_no_error():
    model = tiny_model()
    cache = model.new_cache(16)

    def forward(feeds):
        cache.move_now()
        logits = model.forward(feeds, cache).logits
        logits[:, 5] = -INF
        return Forwarded(logits)

    found = text_log_probs(forward, cache, request((3, 1, 4), 1), [1, 5, 1], 64)
    assert found[1] == -INF
    assert -INF < found[0] < 0.0
    assert -INF < found[2] < 0.0
    beams = best_beams(forward, cache, request((3, 1, 4), 8))
    assert len(beams) == 3
    assert all(5 not in beam.tokens for beam in beams)
