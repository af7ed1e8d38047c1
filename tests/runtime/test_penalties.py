"""Penalties, biases and min-p: transformers' own, and never a matter of who drafts."""

from __future__ import annotations

import functools
import math
import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

import trtla
from tests.support.draft_models import DRAFT, decode
from tests.support.encoder_decoders import PROMPTS as ENCODED
from tests.support.encoder_decoders import VOCAB as ENCODED_VOCAB
from tests.support.encoder_decoders import executor as encoder_decoder
from tests.support.encoder_decoders import folder, generate
from tests.support.encoder_decoders import load as load_encoder_decoder
from tests.support.examples import examples
from tests.support.real_models import generated, open_llm, prompts_for
from tests.support.sampled import COUNT, distance, floor, law, sampled_texts
from tests.support.tensors import draw_at, probabilities
from tests.support.toys import hash_scores, request, run, tokens_of, toy_executor
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.errors import UsageError
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.drafters.lookahead import lookahead_drafter
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.cpu.library import RowChooser
from trtla.runtime.request import Request
from trtla.runtime.sampling.changes import changed, changed_rows
from trtla.runtime.sampling.predict import predict
from trtla.runtime.sequence import Feed, Sequence
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings, DraftOptions
from trtla.settings.lookahead import AUTOREGRESSIVE

TINY = Path(trtla.__file__).parent / "assets/tiny-llama"
VOCAB = 101
penalties = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.1, 1.3, 3.0]),
        "presence_penalty": st.sampled_from([-2.0, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-0.7, 0.3, 2.0]),
        "logit_bias": st.dictionaries(
            st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 2.5, 100.0]), max_size=5
        ),
        "min_p": st.sampled_from([0.01, 0.2, 1.0]),
    },
)


def feed_of(prompt, output, sampling, draft=None):
    """A text and a draft behind it, with no model."""
    asked = Request(0, tuple(prompt), SamplingParams(**sampling))
    text = Sequence(asked, AUTOREGRESSIVE, NoDrafter(), output_ids=list(output))
    return Feed.step(text, Draft() if draft is None else draft)


def theirs(row, prompt, output, sampling):
    """A row after transformers' processors; of those that it has not, after OpenAI's formula."""
    scores, text = row[None].clone(), torch.tensor([[*prompt, *output]])
    biases = {(token,): bias for token, bias in sampling.get("logit_bias", {}).items()}
    processors = LogitsProcessorList([SequenceBiasLogitsProcessor(biases)] if biases else [])
    processors.append(RepetitionPenaltyLogitsProcessor(sampling.get("repetition_penalty", 1.0)))
    scores = processors(text, scores)
    counts = torch.bincount(torch.tensor(output), minlength=len(row))
    scores -= counts * sampling.get("frequency_penalty", 0.0)
    return (scores - (counts > 0) * sampling.get("presence_penalty", 0.0))[0]


@examples(200)
@given(penalties, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=80), st.data())
def test_rows_are_those_of_transformers_at_every_node(sampling, prompt, data):
    """Below each node of a tree the text is its own path; afterwards all is as it was."""
    output = data.draw(st.lists(st.sampled_from(prompt), min_size=1, max_size=70))
    drafted = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=6))
    parents = [data.draw(st.integers(0, place)) for place in range(len(drafted))]
    feed = feed_of(prompt, output, sampling, Draft(tuple(drafted), tuple(parents)))
    rows = torch.randn(len(feed.rows), VOCAB, generator=torch.Generator().manual_seed(7)) * 5
    before = rows.clone()
    with changed(rows, changed_rows([feed])):
        for place, node in enumerate(feed.rows):
            text = [*output, *feed.tree.tokens_to(node)]
            assert torch.equal(rows[place], theirs(before[place], prompt, text, sampling))
    assert torch.equal(rows, before)


@pytest.mark.parametrize("size", [63, 64, 65, 128, 129, 1000])
def test_texts_of_many_distinct_tokens(size):
    """Of the prompt, of the output, and of biases."""
    ids = random.Random(size).sample(range(3000), size)
    rows = torch.randn(1, 3000, generator=torch.Generator().manual_seed(1)) * 5
    for prompt, output, biases in (
        (ids, ids[:1], {}),
        (ids[:1], ids, {}),
        (ids[:1], ids[:1], dict.fromkeys(ids, 2.0)),
    ):
        own = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": biases}
        feed, before = feed_of(prompt, output, own), rows.clone()
        with changed(rows, changed_rows([feed])):
            assert torch.equal(rows[0], theirs(before[0], prompt, output, own))
        assert torch.equal(rows, before)


@examples(60)
@given(st.sampled_from([0.3, 1.0, 2.5]), st.sampled_from([0.001, 0.05, 0.5, 1.0]), st.data())
def test_min_p_is_that_of_transformers_and_of_the_compiled_draw(heat, least, data):
    salt = data.draw(st.integers(0, 999))
    rows = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(salt)) * 3
    params = SamplingParams(temperature=heat, min_p=least)
    kept = MinPLogitsWarper(least)(None, rows / heat) > -math.inf
    assert torch.equal(probabilities(rows, params) > 0, kept)
    narrow = SamplingParams(
        temperature=heat, min_p=least, top_k=data.draw(st.sampled_from([0, 5])), top_p=0.9
    )
    for one in (params, narrow):
        noise = [data.draw(st.floats(0.0, 1.0, exclude_max=True)) for _ in rows]
        wanted = draw_at(rows, one, noise).tolist()
        drawn = [RowChooser().draw(rows.numpy(), row, one, noise[row]) for row in range(len(rows))]
        assert drawn == wanted
        assert all(kept[row, token] for row, token in enumerate(wanted))


@pytest.mark.parametrize(
    ("penalty", "biases"), [(1.1, ()), (1.8, ()), (0.6, ()), (1.3, ((5, 4.0), (9, -30.0)))]
)
def test_greedy_text_equals_generate(penalty, biases):
    prompts = prompts_for("penalties", 6)
    params = SamplingParams(max_output_len=24, repetition_penalty=penalty, logit_bias=dict(biases))
    with open_llm("gqa", (5, 4, 5), max_batch_size=3) as llm:
        texts = llm.generate(prompts, params)
    wanted = [generated("gqa", p, 24, biases, repetition_penalty=penalty) for p in prompts]
    assert [t.output_ids for t in texts] == wanted


@functools.cache
def opened():
    return LLM(TINY, max_batch_size=4, device="cpu", draft_models=[str(TINY)])


drafting = st.sampled_from(
    [
        ("auto", None),
        (LookaheadConfig(5, 4, 5), None),
        (None, DrafterSettings(("ngram",))),
        (None, DrafterSettings(("prompt-lookup", "ngram"))),
        (None, DrafterSettings((f"draft:{TINY}",))),
    ]
)


@examples(40, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.tuples(penalties, drafting), min_size=1, max_size=4), st.data())
def test_who_drafts_changes_no_text_in_mixed_batches(asked, data):
    llm, dice = opened(), random.Random(data.draw(st.integers(0, 999)))
    text = llm.encode("def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return a")
    prompts = [text[: dice.randrange(1, len(text))] for _ in asked]
    heats = [dice.choice((0.0, 0.0, 0.7, 1.5)) for _ in asked]
    params = [
        SamplingParams(max_output_len=dice.choice((1, 9, 30)), temperature=heat, seed=3, **own)
        for (own, _), heat in zip(asked, heats, strict=True)
    ]
    plain = llm.generate(prompts, params, drafter=NO_DRAFTER)
    expected = [one.output_ids if dice.random() < 0.3 else None for one in plain]
    triples, drafters = zip(*(how for _, how in asked), strict=True)
    right = [one if how == "auto" else None for one, how in zip(expected, triples, strict=True)]
    together = llm.generate(
        prompts, params, list(triples), drafter=list(drafters), expected_output=right, logprobs=2,
        private=[dice.random() < 0.3 for _ in prompts],
    )  # fmt: skip
    for prompt, one, done in zip(prompts, params, together, strict=True):
        (alone,) = llm.generate([prompt], one, drafter=NO_DRAFTER, logprobs=2)
        assert (done.output_ids, done.text) == (alone.output_ids, alone.text)
        assert done.logprobs == alone.logprobs


def test_drafts_are_accepted_under_a_penalty():
    """Otherwise the equality above would say little."""
    llm = opened()
    text = llm.encode("x = [1, 1, 1, 1, 1, 1, 1, 1,")
    params = SamplingParams(max_output_len=40, repetition_penalty=1.02, frequency_penalty=-0.5)
    done = llm.generate([text], params, LookaheadConfig(5, 4, 5))[0]
    assert done.stats.accepted > 5


def test_log_probabilities_are_the_model_s_own():
    """A token that a bias forces has the log probability that it has without one."""
    llm = opened()
    prompt = llm.encode("def add(a, b):")
    params = SamplingParams(max_output_len=3, logit_bias={17: 100})
    (done,) = llm.generate([prompt], params, logprobs=1)
    assert done.output_ids == (17, 17, 17)
    wanted = llm.log_probs(prompt, done.output_ids)
    assert [one.logprob for one in done.logprobs] == pytest.approx(wanted, abs=1e-4)
    assert done.logprobs[0].logprob < -3


@examples(40)
@given(
    st.tuples(st.integers(1, 6), st.integers(2, 6), st.integers(0, 6)),
    penalties, st.integers(0, 999), st.sampled_from([0.0, 0.6, 1.5]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_texts_of_toys_are_those_of_plain_decoding(triple, own, salt, heat, adaptive, ahead):
    """PyTorch's operations choose here: all rows of a step in one go."""
    own = {**own, "logit_bias": {k % 6: v for k, v in own.get("logit_bias", {}).items()}}
    common = {"temperature": heat, **own}

    def texts(executor, lookahead, **more):
        asked = [
            request(
                [1, 2, 1, 3][: 2 + i], 40, lookahead, i, seed=i, **more, **(common if i else {})
            )
            for i in range(3)
        ]
        found = run(executor, asked)
        return [tokens_of(found[i]) for i in range(3)]

    config = LookaheadConfig(*triple)
    plain, _ = toy_executor(hash_scores(6, salt), 6, config, drafter=lookahead_drafter)
    how = {"options": DraftOptions()} if adaptive else {"drafter": lookahead_drafter}
    drafted, _ = toy_executor(hash_scores(6, salt), 6, config, ahead=ahead, **how)
    assert texts(drafted, triple, adaptive=adaptive) == texts(plain, (1, 1, 0))


def test_rejection_keeps_the_law_of_a_penalised_target():
    """A target whose penalised law is known: tokens of the output cannot come again."""
    bias = {"presence_penalty": 2.0, "temperature": 0.05}
    chosen = DrafterSettings(DRAFT, gamma=3, rejection=True)
    target = lambda text: [0.01 * token for token in range(5)]  # noqa: E731
    counts, totals = sampled_texts(target, hash_scores(5, 2), 5, 3, chosen, **bias)
    assert all(len(set(text)) == 3 for text in counts)
    assert totals.drafted > 0
    again = lambda text: [0.01 * token - 2.0 * (token in text[2:]) for token in range(5)]  # noqa: E731
    expected = law(again, [1, 0], 3, SamplingParams(temperature=0.05))
    assert distance(counts, expected, COUNT) < 2 * floor(expected, COUNT)


@pytest.mark.parametrize(
    ("own", "rule"),
    [
        (
            {"logit_bias": {0: -100.0, 3: -100.0}},
            lambda row, _: [n - 100.0 * (i in (0, 3)) for i, n in enumerate(row)],
        ),
        (
            {"frequency_penalty": 2.0},
            lambda row, text: [n - 2.0 * text[2:].count(i) for i, n in enumerate(row)],
        ),
        (
            {"repetition_penalty": 20.0},
            lambda row, text: [
                (n * 20.0 if n < 0 else n / 20.0) if i in text else n for i, n in enumerate(row)
            ],
        ),
    ],
    ids=["bias", "frequency", "repetition"],
)
def test_rejection_divides_by_the_law_that_a_draft_was_drawn_from(own, rule):
    target, sampling = hash_scores(5, 1, 4.0), {"temperature": 1.2}
    counts, totals = sampled_texts(target, hash_scores(5, 2, 4.0), 5, 4, **sampling, **own)
    expected = law(lambda text: rule(target(text), text), [1, 0], 4, SamplingParams(**sampling))
    assert 0 < totals.accepted < totals.drafted
    assert distance(counts, expected, COUNT) < 1.3 * floor(expected, COUNT)


@pytest.mark.parametrize("heat", [0.0, 0.9])
@pytest.mark.parametrize("rejection", [False, True], ids=["equality", "rejection"])
def test_equal_models_agree_under_penalties(heat, rejection):
    own = {"frequency_penalty": 1.5, "repetition_penalty": 1.3, "logit_bias": {4: 3.0}}
    chosen = DrafterSettings(DRAFT, gamma=3, rejection=rejection)
    scores = hash_scores(6, 3)
    asked = [request([1, 2, 1], 40, None, 0, seed=5, temperature=heat, **own)]
    done = decode(scores, scores, 6, asked, chosen)
    assert done.stats().accepted == done.stats().drafted > 20


def test_a_row_sampler_and_pytorch_choose_alike():
    feed = feed_of([5, 6], [7, 7, 8], {"frequency_penalty": 2.0, "repetition_penalty": 1.5})
    rows = torch.zeros(1, VOCAB)
    rows[0, 7], rows[0, 6], rows[0, 30] = 5.0, 3.0, 2.5
    for sampler in (None, RowChooser()):
        assert predict([feed], rows.clone(), sampler)[0].draws[0] == 30


def test_an_encoder_decoder_looks_at_its_output_alone():
    """As transformers, whose processors see the decoder's tokens."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder("T5"), dtype=torch.float32)
    model.generation_config.repetition_penalty = 1.7
    sampling = SamplingParams(max_output_len=12, repetition_penalty=1.7)
    asked = [Request(i, (0,), sampling, encoder_ids=ids) for i, ids in enumerate(ENCODED)]
    own = load_encoder_decoder(folder("T5"), torch.float32)
    done = run(encoder_decoder(own, ENCODED_VOCAB, NO_DRAFTER), asked)
    for i, ids in enumerate(ENCODED):
        assert tuple(tokens_of(done[i])) == generate(model, ids, 12)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("repetition_penalty", 0.0, "a number, from 0.01 to 100"),
        ("presence_penalty", 2.5, "a number, from -2 to 2"),
        ("frequency_penalty", float("nan"), "a number, from -2 to 2"),
        ("min_p", 1.5, "a number, from 0 to 1"),
        ("logit_bias", {3: 101}, "token ids, each once"),
        ("logit_bias", {-1: 1}, "token ids, each once"),
        ("logit_bias", {"x": 1}, "token ids, each once"),
        ("logit_bias", [(1, 2), (1, 3)], "token ids, each once"),
        ("logit_bias", 7, "token ids, each once"),
    ],
)
def test_values_out_of_range_are_refused(name, value, hint):
    with pytest.raises(UsageError, match=f"{name} is ") as refusal:
        SamplingParams(**{name: value})
    assert hint in str(refusal.value.hint)


def test_biases_are_kept_as_pairs_whatever_they_are_given_as():
    wanted = ((3, -100.0), (17, 2.5))
    for given_as in ({17: 2.5, 3: -100, 4: 0}, [(17, 2.5), (3, -100)], "17:2.5,3:-100", wanted):
        assert SamplingParams(logit_bias=given_as).logit_bias == wanted
    assert not SamplingParams(logit_bias={4: 0}).changes_rows


def limits(**more):
    return ExecutorLimits(1, 1000, 2000, 100, VOCAB, LookaheadConfig(2, 2, 2), **more)


def test_ids_beyond_the_vocabulary_are_refused():
    with pytest.raises(UsageError, match="logit_bias of request 0 holds token id 101"):
        limits().check(Request(0, (1,), SamplingParams(4, logit_bias={VOCAB: 1})))


def test_engines_of_tensorrt_llm_refuse_them_by_name():
    """Each of them: tests/contract/test_serve.py."""
    asked = Request(0, (1,), SamplingParams(4, repetition_penalty=1.1))
    with pytest.raises(UsageError, match="request 0 has repetition_penalty") as refusal:
        limits(fixed_triples=True).check(asked)
    assert "--backend torch" in str(refusal.value.hint)
