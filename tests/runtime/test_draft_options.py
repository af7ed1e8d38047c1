"""Lookahead's options: none changes a text, all keep the budget and the counters.

The traces of window acceptance with merged prefixes are TensorRT-LLM's own for constant text.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases, triples
from tests.support.examples import examples
from tests.support.real_models import folder_and_model
from tests.support.toys import (
    cyclic_window,
    greedy_scores,
    hash_scores,
    plain,
    request,
    ruled,
    run,
    tokens_of,
    toy_executor,
)
from trtla import LLM, DraftOptions, LookaheadConfig, SamplingParams, UsageError
from trtla.runtime.costs import CostTable
from trtla.runtime.drafters.lookahead import LookaheadDrafter, new_window
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import option
from trtla.trtllm.start import refuse_torch_choices

options = st.builds(
    DraftOptions,
    cells=st.sampled_from(["greedy", "drawn"]),
    reference=st.booleans(),
)
ENGINE = SimpleNamespace(
    name="engine", config=SimpleNamespace(pretrained_config=SimpleNamespace(dtype="float16"))
)
DEFAULT, REFERENCE = DraftOptions(), DraftOptions(reference=True)
FLAT = CostTable.of([(1, 0.01), (512, 0.01)])
COSTLY = CostTable.of([(1, 0.01), (512, 5.12)])
CPU = CostTable.of([(1, 0.0013), (2, 0.002), (8, 0.003), (32, 0.0058), (128, 0.017)])


def decode(scores, vocab, triple, requests, chosen, **more):
    executor, model = toy_executor(scores, vocab, LookaheadConfig(*triple), options=chosen, **more)
    return run(executor, requests), model, executor


@examples(150)
@given(cases(), options, st.booleans(), st.sampled_from([FLAT, COSTLY, CPU]))
def test_the_text_is_plain_decodings_within_budget_and_counters_add_up(
    case, chosen, adaptive, costs
):
    rule, vocab, prompt, triple, count, seed = case
    asked = [request(prompt, count, seed=seed, adaptive=adaptive)]
    scores = greedy_scores(rule, vocab)
    outputs, model, executor = decode(scores, vocab, triple, asked, chosen, costs=costs)
    stats, total, config = outputs[0][-1].stats, executor.stats(), LookaheadConfig(*triple)
    assert tokens_of(outputs[0]) == plain(rule, prompt, count)
    assert adaptive or all(1 <= n <= config.ngram_size for n in stats.step_lengths)
    assert all(fed <= config.max_decoding_tokens for fed in model.fed[1:])
    assert stats.fed == sum(model.fed) == total.fed
    assert stats.lookahead == config
    assert sum(stats.step_lengths) == count
    assert 0 <= stats.accepted <= stats.drafted <= stats.fed - len(prompt) - stats.steps
    assert count - 1 - stats.steps <= stats.accepted <= count - stats.steps


@examples(40)
@given(
    triples,
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=4),
    options,
    st.sampled_from([0.3, 0.8, 1.5]),
    st.integers(0, 4),
    st.sampled_from([1.0, 0.8]),
    st.integers(0, 999),
)
def test_sampled_texts_of_a_mixed_batch_are_plain_decodings(
    triple, prompts, chosen, heat, top_k, top_p, salt
):
    """Sampled and greedy, fixed and adaptive requests together, each against (1,1,0) alone."""

    def asked(own):
        sampling = [{"temperature": heat * (i != 1), "seed": salt + i} for i in range(4)]
        return [
            request(prompt, 25, own, i, adaptive=own is None and i == 2, **sampling[i],
                    top_k=top_k, top_p=top_p)
            for i, prompt in enumerate(prompts)
        ]  # fmt: skip

    scores = hash_scores(6, salt)
    outputs, model, _ = decode(scores, 6, triple, asked(None), chosen, costs=FLAT)
    for one in asked((1, 1, 0)):
        expected, _, _ = decode(scores, 6, triple, [one], DraftOptions())
        assert tokens_of(outputs[one.request_id]) == tokens_of(expected[one.request_id])
    most = LookaheadConfig(*triple).max_decoding_tokens
    assert all(fed <= len(prompts) * most for fed in model.fed[1:])


@functools.cache
def opened(chosen):
    folder, _ = folder_and_model("mha")
    llm = LLM(folder, lookahead=LookaheadConfig(5, 4, 5), dtype="float32", draft_options=chosen)
    llm.end_ids = frozenset()
    return llm


@pytest.mark.parametrize("heat", [0.0, 0.6])
@pytest.mark.parametrize(
    "chosen",
    [DEFAULT, REFERENCE, DraftOptions(cells="drawn")],
    ids=lambda chosen: "+".join(chosen.changed) or "default",
)
def test_a_real_model_says_the_same(chosen, heat):
    prompts = [[5, 9, 2, 5, 9], [3], [7, 7, 1, 2, 7, 7, 1]]
    params = [SamplingParams(max_output_len=40, temperature=heat, seed=i) for i in range(3)]
    shapes = [None, LookaheadConfig(3, 4, 2), LookaheadConfig(2, 2, 1)]
    drafted = opened(chosen).generate(prompts, params, shapes)
    expected = opened(DraftOptions()).generate(prompts, params, LookaheadConfig(1, 1, 0))
    assert [c.output_ids for c in drafted] == [c.output_ids for c in expected]
    assert sum(c.stats.drafted for c in drafted) > 0


def constant(triple, chosen):
    def drafter(config, request):
        window = cyclic_window(config, request.input_ids)
        return LookaheadDrafter(config, request.input_ids, window, options=chosen)

    executor, model = ruled(lambda s: s[-1], 9, triple, drafter=drafter)
    return run(executor, [request([5, 5, 5], 24)])[0][-1].stats.step_lengths, model.fed


@pytest.mark.parametrize(
    ("triple", "forwards", "fed"),
    [((4, 4, 0), 7, 6), ((4, 4, 2), 7, 6), ((1, 4, 1), 7, 4), ((3, 2, 1), 13, 3)],
)
def test_trace_15_with_window_acceptance_and_merged_prefixes(triple, forwards, fed):
    lengths, each = constant(triple, DEFAULT)
    assert len(lengths) == forwards
    assert max(each) == fed
    assert max(constant(triple, REFERENCE)[1]) > fed


def test_the_reference_accepts_nothing_of_the_window():
    assert constant((4, 4, 0), REFERENCE)[0] == [1] * 24


def drafter_of(prompt, triple, chosen):
    config = LookaheadConfig(*triple)
    window = new_window(config, prompt[:-1], 0)
    drafter = LookaheadDrafter(config, prompt[:-1], window, options=chosen)
    drafter.observe((), prompt[-1:])
    return drafter


def candidates(draft):
    return [draft.tokens[node - 1] for node in draft.candidates]


def test_candidates_that_begin_alike_are_fed_once():
    prompt = [0, 1, 2, 3, 4, 0, 1, 2, 9, 9, 0, 1, 7, 7, 7, 0]
    apart = drafter_of(prompt, (2, 5, 4), REFERENCE).propose()
    together = drafter_of(prompt, (2, 5, 4), DEFAULT).propose()
    assert len(candidates(apart)) == 12
    assert apart.size - together.size >= 3


def test_values_out_of_range_are_named():
    with pytest.raises(UsageError, match="cells is") as raised:
        DraftOptions(cells="both")
    assert "--lookahead-cells" in raised.value.hint


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"draft_options": DraftOptions(cells="drawn", reference=True)},
         "lookahead cells, reference cannot", "--backend torch"),
        ({"block_reuse": True}, "whose executor shares K/V blocks itself",
         "--kv-cache-enable-block-reuse"),
        ({"bounded_steps": True}, "whose executor shares out its steps itself",
         "--enable-chunked-context"),
    ],
)  # fmt: skip
def test_tensorrt_llm_engines_name_their_own_setting(given, message, hint):
    refuse_torch_choices(ENGINE, ExecutorOptions())
    with pytest.raises(UsageError, match=message) as refusal:
        refuse_torch_choices(ENGINE, ExecutorOptions(**given))
    assert hint in refusal.value.hint


def test_tensorrt_llm_engines_refuse_an_option_that_nobody_told_them_of():
    @dataclass(frozen=True, kw_only=True)
    class More(ExecutorOptions):
        width: int = option(2, "Branches side by side.")

    refuse_torch_choices(ENGINE, More())
    with pytest.raises(
        UsageError, match="engine is a TensorRT-LLM engine, which has no width"
    ) as no:
        refuse_torch_choices(ENGINE, More(width=3))
    assert no.value.hint == "omit --width, or build with --backend torch"
