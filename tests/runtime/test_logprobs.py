"""Log probabilities of output tokens: those of the model, whoever drafts and whatever is drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.encoder_decoders import PROMPTS, folder
from tests.support.tensors import token_log_probs
from tests.support.toys import hash_scores, request, run, tokens_of, toy_executor
from trtla import LLM, DrafterSettings, LookaheadConfig, SamplingParams, UsageError
from trtla.llm.llm import Completion
from trtla.runtime.request import TokenLogProb
from trtla.settings.drafting import NO_DRAFTER

INF = float("inf")
PROMPT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):"
LENGTH = 24
SAMPLINGS = {
    "greedy": SamplingParams(LENGTH),
    "sampled": SamplingParams(LENGTH, temperature=1.3, seed=5),
    "filtered": SamplingParams(LENGTH, temperature=0.6, top_k=5, top_p=0.9, seed=7),
}


@pytest.fixture(
    scope="module",
    params=["1", pytest.param("0", marks=pytest.mark.deep)],
    ids=["compiled", "pytorch"],
)
def llm(request: pytest.FixtureRequest, tiny_llama: Path):
    draft = str(tiny_llama.with_name("tiny-llama-draft"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTLA_COMPILED", request.param)
        options = {"dtype": "float32", "draft_models": [draft]}
        with LLM(tiny_llama, lookahead=LookaheadConfig(5, 4, 5), **options) as opened:
            opened.draft = f"draft:{draft}"
            yield opened


@pytest.fixture(scope="module")
def model(tiny_llama: Path):
    """The model in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


def drafting(llm: LLM) -> list[tuple[LookaheadConfig | str | None, DrafterSettings | None]]:
    rejecting = DrafterSettings((llm.draft,), gamma=3, rejection=True)
    names = [("lookahead",), ("prompt-lookup",), ("ngram",), (llm.draft,), ("ngram", "lookahead")]
    others = [(None, DrafterSettings(name)) for name in names]
    small = (LookaheadConfig(2, 3, 1), None)
    return [(None, NO_DRAFTER), ("auto", None), small, *others, (None, rejecting)]


def assert_the_models(done: Completion, model, count: int) -> None:
    """Its values are those of transformers' logits, at every token."""
    with torch.inference_mode():
        text = torch.tensor([[*done.input_ids, *done.output_ids]])
        rows = model(text).logits[0, len(done.input_ids) - 1 : -1].double().log_softmax(-1)
    assert [one.token for one in done.logprobs] == list(done.output_ids)
    for one, row in zip(done.logprobs, rows, strict=True):
        assert one.logprob == pytest.approx(row[one.token].item(), abs=1e-4)
        best = [value for _, value in one.top]
        assert best == pytest.approx(row.topk(count).values.tolist(), abs=1e-4)
        assert best == pytest.approx([row[token].item() for token, _ in one.top], abs=1e-4)
        assert best == sorted(best, reverse=True)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_whoever_drafts_they_are_the_models(llm, model, name):
    triples, drafters = zip(*drafting(llm), strict=True)
    counts = [0, 1, 5, 20, 5, 5, 5, 3, 2]
    prompts = [PROMPT[: len(PROMPT) - cut] for cut in range(len(counts))]
    sampling = SAMPLINGS[name]
    found = llm.generate(prompts, sampling, triples, drafter=drafters, logprobs=counts)
    for done, count in zip(found, counts, strict=True):
        assert_the_models(done, model, count)
        own = llm.log_probs(done.input_ids, done.output_ids)
        assert [one.logprob for one in done.logprobs] == pytest.approx(own, abs=1e-4)
    assert found[0].stats.accepted == 0
    assert sum(done.stats.accepted > 0 for done in found) > (name == "greedy") * 5
    outside = [one for one in found[2].logprobs if one.token not in dict(one.top)]
    assert bool(outside) == (name == "sampled")
    if name == "greedy":
        assert all(one.top[0] == (one.token, one.logprob) for one in found[2].logprobs)


def test_only_who_asks_gets_them_and_chunks_bring_those_of_their_tokens(llm):
    prompts, asked = [PROMPT, PROMPT[:30], PROMPT[:50]], [2, None, 0]
    chunks = list(llm.stream(prompts, SAMPLINGS["greedy"], margins=True, logprobs=asked))
    plain = llm.generate(prompts, SAMPLINGS["greedy"])
    for index, count in enumerate(asked):
        own = [chunk for chunk in chunks if chunk.index == index]
        done = own[-1].completion
        assert done.output_ids == plain[index].output_ids
        assert sum((chunk.logprobs for chunk in own), ()) == done.logprobs
        assert len(done.margins) == LENGTH
        for chunk in own:
            of = () if count is None else chunk.token_ids
            assert tuple(one.token for one in chunk.logprobs) == of
            assert all(len(one.top) == count for one in chunk.logprobs)
    for one, margin in zip(own_of(chunks, 0).logprobs, own_of(chunks, 0).margins, strict=True):
        (_, best), (_, second) = one.top
        assert best - second == pytest.approx(margin, abs=1e-4)


def own_of(chunks, index):
    """The completion of one prompt."""
    return next(c.completion for c in chunks if c.completion and c.index == index)


def test_tokens_that_are_cut_off_have_none(llm):
    """A step may bring more tokens than the output has room for."""
    whole = llm.generate(PROMPT, SAMPLINGS["greedy"], logprobs=1)[0]
    for length in range(1, 9):
        cut = llm.generate(PROMPT, SamplingParams(length), logprobs=1)[0]
        assert [one.token for one in cut.logprobs] == list(whole.output_ids[:length])
    stopped = llm.generate(PROMPT, SamplingParams(LENGTH, stop=("\n",)), logprobs=1)[0]
    assert [one.token for one in stopped.logprobs] == list(stopped.output_ids)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_of_a_tree_get_those_of_their_own_rows(temperature):
    """Exact, with branches on both sides of the accepted ones."""
    scores = hash_scores(6, spread=2.0)
    executor, _ = toy_executor(scores, 6, LookaheadConfig(4, 3, 4))
    asked = [
        request([1, 0, number], 40, None, number, temperature=temperature) for number in (2, 3)
    ]
    outputs = run(executor, [replace(one, logprobs=6) for one in asked])
    for number, own in outputs.items():
        text = [1, 0, number]
        for one in sum((output.logprobs for output in own), ()):
            row = torch.tensor(scores(text), dtype=torch.float64)
            logs = row.log_softmax(-1).tolist()
            best = sorted(range(6), key=lambda token, row=row: (-row[token].item(), token))
            assert [token for token, _ in one.top] == best
            assert dict(one.top) == pytest.approx(dict(enumerate(logs)), abs=1e-5)
            assert one.logprob == dict(one.top)[one.token]
            text.append(one.token)
        assert text[3:] == tokens_of(own)
        assert own[-1].stats.accepted > 0


def test_equal_tokens_are_listed_by_their_ids_and_impossible_ones_not_at_all():
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, -INF], [-INF, 0.0, -INF, -INF, 0.0, -INF]])
    half, total = -math.log(2), math.log(2 * math.exp(2) + 3 * math.exp(1))
    first, second = token_log_probs(logits, [4, 1], 4)
    assert [token for token, _ in first.top] == [1, 3, 0, 2]
    assert [log for _, log in first.top] == pytest.approx([2 - total] * 2 + [1 - total] * 2)
    assert (first.token, first.logprob) == (4, pytest.approx(1 - total))
    assert second.top == ((1, pytest.approx(half)), (4, pytest.approx(half)))
    assert token_log_probs(logits[1:], [4], 0) == (TokenLogProb(4, second.logprob, ()),)
    alike = token_log_probs(torch.zeros(1, 50), [7], 20)[0]
    assert [token for token, _ in alike.top] == list(range(20))


def test_an_encoder_decoder_has_them_too():
    with LLM(folder("T5"), dtype="float32") as llm:
        for done in llm.generate(PROMPTS, SamplingParams(12), logprobs=3):
            own = llm.log_probs(done.input_ids, done.output_ids)
            assert [one.logprob for one in done.logprobs] == pytest.approx(own, abs=1e-4)
            assert all(one.top[0] == (one.token, one.logprob) for one in done.logprobs)


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (21, "prompt 0 has logprobs 21, not a number from 0 to 20"),
        ([5, -1], "prompt 1 has logprobs -1, not a number from 0 to 20"),
        (True, "logprobs is True, not a whole number"),
        ([2, "all"], "logprobs hold 'all'"),
        ([1, 2, 3], "3 logprobs for 2 prompts"),
    ],
)
def test_other_numbers_are_refused(llm, logprobs, message):
    steps = llm.stats().steps
    with pytest.raises(UsageError) as refused:
        llm.generate(["a", "b"], logprobs=logprobs)
    assert message in refused.value.message
    assert refused.value.hint
    assert llm.stats().steps == steps
