"""Block reuse on real models: the text of every turn is that of an `LLM` that reuses nothing."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trtla
from tests.support import encoder_decoders
from tests.support.compiled import needs_compiler
from tests.support.examples import examples
from tests.support.real_models import open_fp8, open_llm
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.cpu.library import library
from trtla.runtime.models.forward import Forwarded
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
DRAFT = f"draft:{SHIPPED}-draft"
SOURCE = (SHIPPED.parents[1] / "runtime" / "stats.py").read_text()
TURNS = 3


def conversation(llm, params, added, **options):
    """Texts of turns that each begin with all of the one before, and the tokens they reused."""
    texts, reused, prompts = [], [], [tuple(ids) for ids in added[0]]
    for turn in range(TURNS):
        done = llm.generate(prompts, params, **options)
        texts.append([c.output_ids for c in done])
        reused.append([c.stats.reused_tokens for c in done])
        after = added[min(turn + 1, len(added) - 1)]
        prompts = [(*c.input_ids, *c.output_ids, *ids) for c, ids in zip(done, after, strict=True)]
    return texts, reused


def pieces_of(llm):
    """Two conversations' first prompts, one with a beginning of the other, and what is added."""
    ids = llm.tokenizer.encode(SOURCE)
    first = [ids[:90], (*ids[:70], *ids[200:230])]
    return [first, [ids[240:261], ids[261:280]]]


@pytest.mark.deep(first=2)
@pytest.mark.parametrize("heat", [0.8, 0.0])
@pytest.mark.parametrize("drafter", [f"{DRAFT},ngram,prompt-lookup", DRAFT, "lookahead", "none"])
@pytest.mark.parametrize("compiled", [pytest.param("1", marks=needs_compiler), "0"])
def test_every_turn_says_what_it_says_without_reuse(monkeypatch, compiled, heat, drafter):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    found = []
    for reuse in (False, True):
        with LLM(
            SHIPPED, lookahead=LookaheadConfig(4, 4, 4), dtype="float32", max_batch_size=2,
            draft_models=[DRAFT.removeprefix("draft:")], block_reuse=reuse,
        ) as llm:  # fmt: skip
            params = [SamplingParams(24, heat, top_p=0.9, seed=i) for i in range(2)]
            settings = DrafterSettings(tuple(drafter.split(",")), gamma=4)
            found.append(conversation(llm, params, pieces_of(llm), drafter=settings))
    (texts, none), (again, reused) = found
    assert again == texts
    assert none == [[0, 0]] * TURNS
    assert reused == [[0, 64], [96, 96], [128, 160]]  # 64: of a prompt that has begun with it


@functools.cache
def shipped(compiled, reuse):
    """The shipped model for up to 3 requests at once, its cache but for 40 blocks in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTLA_COMPILED", compiled)
        llm = LLM(
            SHIPPED, lookahead=LookaheadConfig(4, 4, 4), dtype="float32", max_batch_size=3,
            block_reuse=reuse,
        )  # fmt: skip
    llm.end_ids = frozenset()
    pool = llm._executor._cache.pool
    assert pool.allocate((pool.num_blocks - 40) * TOKENS_PER_BLOCK)
    return llm


starts = st.tuples(st.integers(0, 2), st.integers(1, 300), st.integers(0, 20), st.integers(1, 16))
"""Where a prompt begins, its tokens, those of its own behind them, and the output's length."""


@pytest.mark.parametrize("compiled", [pytest.param("1", marks=needs_compiler), "0"])
@examples(8)
@given(st.lists(st.lists(starts, min_size=1, max_size=5), min_size=1, max_size=3), st.booleans())
def test_any_batches_say_what_they_say_without_reuse(compiled, batches, sampled):
    pool = shipped(compiled, True)._executor._cache.pool
    pool.release(pool.allocate(40 * TOKENS_PER_BLOCK))  # nothing is kept of the last example
    for batch in batches:
        found = []
        for llm in (shipped(compiled, False), shipped(compiled, True)):
            ids = llm.tokenizer.encode(SOURCE)
            prompts = [
                (*ids[30 * place :][:length], *ids[-own - 1 :]) for place, length, own, _ in batch
            ]
            params = [SamplingParams(count, 0.9 * sampled, seed=count) for *_, count in batch]
            found.append([c.output_ids for c in llm.generate(prompts, params)])
        assert found[0] == found[1]
        assert pool.num_free == 40


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_compiled_forward_gives_the_same_bits_behind_reused_blocks(dtype):
    if dtype == "bfloat16" and not library().has_bfloat16_products:
        pytest.skip("the processor does not multiply bfloat16")
    found = []
    for reuse in (False, True):
        with LLM(
            SHIPPED, lookahead=LookaheadConfig(7, 7, 7), dtype=dtype, block_reuse=reuse
        ) as llm:
            logits, forward = [], llm._executor._stepper.forward
            llm._executor._stepper.forward = lambda feeds, f=forward, kept=logits: (
                kept.append((sum(feed.length for feed in feeds), f(feeds).logits.copy()))
                or Forwarded(kept[-1][1])
            )
            texts, _ = conversation(llm, SamplingParams(40), [p[:1] for p in pieces_of(llm)])
            found.append((texts, logits))
    (texts, plain), (again, reusing) = found
    assert again == texts
    assert [fed for fed, _ in plain] != [fed for fed, _ in reusing]
    assert all(
        np.array_equal(one, other) for (_, one), (_, other) in zip(plain, reusing, strict=True)
    )


def test_stop_strings_and_end_ids_leave_only_what_they_keep():
    texts = []
    for reuse in (False, True):
        with LLM(SHIPPED, dtype="float32", block_reuse=reuse) as llm:
            params = SamplingParams(60, 0.8, seed=2, stop=("\n    ",))
            llm.end_ids = frozenset(range(0, llm.limits.vocab_size, 50))
            texts.append(conversation(llm, params, pieces_of(llm))[0])
    assert texts[0] == texts[1]


def test_a_cache_in_fp8_is_reused_as_it_was_rounded():
    prompts = [[(7 * i + i * i) % 101 for i in range(70)]]
    found = []
    for reuse in (False, True):
        with open_fp8(True, dtype="float32", block_reuse=reuse) as llm:
            added = [prompts, [[5, 9]]]
            found.append(conversation(llm, SamplingParams(12), added))
    assert found[0][0] == found[1][0]
    assert found[1][1] == [[0], [64], [64]]


def test_dynamic_scaling_shares_texts_up_to_its_trained_length():
    """Beyond 48 tokens every key depends on the length of the prompt that it was read with."""
    prompt = [(5 * i + i * i) % 101 for i in range(90)]
    texts, reused = [], []
    for reuse in (False, True):
        with open_llm("dynamic", (3, 3, 3), block_reuse=reuse) as llm:
            done = [
                llm.generate(prompt[:size], SamplingParams(count))[0]
                for size, count in ((60, 20), (40, 30), (41, 8), (70, 8), (90, 8), (48, 8))
            ]
            texts.append([c.output_ids for c in done])
            reused.append([c.stats.reused_tokens for c in done])
    assert texts[0] == texts[1]
    assert reused == [[0] * 6, [0, 0, 32, 0, 0, 32]]


def test_encoder_decoders_keep_nothing():
    """What their decoder caches depends on the encoder's input, not on its own text alone."""
    with LLM(encoder_decoders.folder("T5"), dtype="float32", block_reuse=True) as llm:
        llm.end_ids = frozenset()
        for prompt in ([5, 6, 7], [8, 9]):
            (done,) = llm.generate(prompt, SamplingParams(70))
            assert len(done.output_ids) == 70
        assert llm._executor._cache.pool._kept.num_unused == 0


def test_a_consumer_that_leaves_early_leaves_only_whole_blocks():
    with LLM(SHIPPED, dtype="float32", block_reuse=True) as llm:
        ids, params = llm.tokenizer.encode(SOURCE)[:100], SamplingParams(50)
        (expected,) = llm.generate(ids, params)
        for steps in (1, 3, 8):
            stream = llm.stream([*ids[:80], 7], params, drafter=NO_DRAFTER)
            for _ in range(steps):
                next(stream)
            stream.close()
            (again,) = llm.generate(ids, params)
            assert again.output_ids == expected.output_ids
            assert again.stats.reused_tokens == 96
