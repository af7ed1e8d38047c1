"""Texts and steps of lookahead parallelism are those of one process, whoever drafts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples, some
from tests.support.gguf_models import write_gguf
from tests.support.models import Variant, make_model, save_model
from tests.support.ranks import (
    DRAFTERS,
    LONG,
    PROMPTS,
    TRTLA,
    WIDE,
    children,
    drafted,
    everything,
    samplings,
)
from tests.support.tensors import argmax, draw_at, ranked_rows
from tests.support.unchanged import RANK_SOURCES
from trtla import LLM, SamplingParams
from trtla.errors import RankLost, UsageError
from trtla.runtime.loop.lookahead_rank import (
    RowAnswers,
    RowQuery,
    answer_rows,
    check_head_ranks,
    query_message,
    read_queries,
    width,
)
from trtla.runtime.models.cpu.library import RowChooser
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import LookaheadConfig

pytestmark = RANK_SOURCES

TRIPLE = LookaheadConfig(5, 4, 5)
MODELS = (
    Variant("qwen2", {"max_position_embeddings": 256}, family="qwen2"),
    Variant("dynamic", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
)


@st.composite
def queries(draw):
    """What can be asked of a row: what is drawn has filters and noise."""
    greedy, top = draw(st.booleans()), draw(st.sampled_from((0, 3)))
    if draw(st.booleans()):
        return RowQuery(greedy, top=top)
    filters = {
        "top_k": draw(st.sampled_from((0, 2, 9))),
        "top_p": draw(st.sampled_from((0.3, 0.9, 1.0))),
        "min_p": draw(st.sampled_from((0.0, 0.3))),
    }
    params = SamplingParams(temperature=draw(st.floats(0.01, 3.0)), **filters)
    return RowQuery(greedy, params, draw(st.integers(0, 2**53 - 1)) * 2.0**-53, top)


@examples(100)
@given(st.lists(queries(), max_size=8))
def test_what_is_asked_arrives_and_is_answered(rows):
    assert read_queries(json.loads(json.dumps(query_message(rows)))) == rows
    if not rows:
        return
    logits = torch.randn(len(rows), 50, generator=torch.Generator().manual_seed(len(rows)))
    for sampler in (None, RowChooser()):
        said = RowAnswers(answer_rows(logits.numpy(), rows, width(rows), sampler))
        for row, one in enumerate(rows):
            alone = logits[row : row + 1]
            if one.greedy:
                assert said.most_probable(logits, row) == int(argmax(alone))
            if not one.params.greedy:
                drawn = int(draw_at(alone, one.params, [one.noise]))
                assert said.draw(logits, row, one.params, one.noise) == drawn
        tops = [row for row, one in enumerate(rows) if one.top]
        if tops:
            pairs = zip(
                said.top_rows(logits, tops, 3), ranked_rows(logits, tops, 3, sampler), strict=True
            )
            assert all(torch.equal(torch.from_numpy(found), wanted) for found, wanted in pairs)


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_texts_of_a_trained_model_are_those_of_one_process(tiny_llama, ranks):
    opening = {"dtype": "float32", "draft_models": (str(tiny_llama),), "block_reuse": True}
    with LLM(tiny_llama, **opening) as one:
        wanted = everything(one, PROMPTS)
        scored = one.log_probs(PROMPTS[0], wanted[0][0][0])
    with LLM(tiny_llama, **opening, lookahead_parallel=ranks) as llm:
        assert llm.is_leader
        assert llm.description.endswith(f"lookahead on {ranks} ranks")
        assert everything(llm, PROMPTS) == wanted
        again = [drafted(llm, "lookahead", PROMPTS, sampling) for sampling in samplings(3)]
        assert again == wanted[0][2 :: len(DRAFTERS)]  # behind blocks that were kept
        assert llm.log_probs(PROMPTS[0], wanted[0][0][0]) == scored


def counted(llm, sampling):
    """Texts and the steps that each took, with a fixed triple: no clock decides what is fed."""
    done = llm.generate(PROMPTS, sampling, TRIPLE)
    return [(one.output_ids, one.stats.steps, one.stats.accepted, one.stats.fed) for one in done]


def test_steps_are_as_many_as_those_of_one_process(tiny_llama):
    opening = {"dtype": "float32", "lookahead": TRIPLE}
    with LLM(tiny_llama, **opening) as one, LLM(tiny_llama, **opening, lookahead_parallel=2) as llm:
        for sampling in some(samplings(len(PROMPTS), 48)[::-1]):
            assert counted(llm, sampling) == counted(one, sampling)
        assert llm.stats().steps == one.stats().steps


def reported(llm):
    """What needs logits: they are not exchanged."""
    drawn = SamplingParams(24, temperature=0.8, seed=3)
    done = llm.generate(PROMPTS, drawn, TRIPLE, logprobs=[None, 2, None])
    done += llm.generate(PROMPTS, SamplingParams(24), TRIPLE, margins=True)
    top = DrafterSettings("ngram", top_k_filler=3)
    done += llm.generate(PROMPTS, SamplingParams(24), drafter=top)
    return [(one.output_ids, one.logprobs, one.margins) for one in done]


@pytest.mark.deep
def test_what_needs_logits_is_as_exact(tiny_llama):
    opening = {"dtype": "float32", "lookahead": TRIPLE}
    with LLM(tiny_llama, **opening) as one, LLM(tiny_llama, **opening, lookahead_parallel=2) as llm:
        assert reported(llm) == reported(one)


@pytest.mark.deep
@pytest.mark.parametrize("compiled", ["1", "0"])
@pytest.mark.parametrize("variant", MODELS, ids=lambda one: one.name)
def test_models_of_all_kinds(variant, compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    save_model(make_model(variant), variant, tmp_path)
    prompts, opening = [[5, 6, 7], list(range(1, 40)), [9]], {"dtype": "float32"}
    with LLM(tmp_path, **opening) as one, LLM(tmp_path, **opening, lookahead_parallel=2) as llm:
        for sampling in samplings(3, 24):
            for drafter in ("none", "auto", "lookahead", "prompt-lookup"):
                wanted = drafted(one, drafter, prompts, sampling)
                assert drafted(llm, drafter, prompts, sampling) == wanted


@pytest.mark.deep
def test_weights_in_blocks_and_a_rounded_cache(tmp_path):
    wide = Variant("wide", {**WIDE.keys, "max_position_embeddings": 256})
    path = write_gguf(make_model(wide), tmp_path / "model.gguf", "Q4_0")
    prompts, opening = [[5, 6, 7], list(range(1, 40))], {"kv_cache_dtype": "int8"}
    with LLM(path, **opening) as one, LLM(path, **opening, lookahead_parallel=2) as llm:
        for sampling in samplings(2, 24):
            for drafter in ("auto", "lookahead"):
                wanted = drafted(one, drafter, prompts, sampling)
                assert drafted(llm, drafter, prompts, sampling) == wanted


@pytest.mark.deep
def test_who_stops_listening_leaves_all_ranks_in_step(tiny_llama):
    opening = {"dtype": "float32", "lookahead": TRIPLE}
    with LLM(tiny_llama, **opening) as one, LLM(tiny_llama, **opening, lookahead_parallel=2) as llm:
        stream = llm.stream(PROMPTS * 2, LONG, TRIPLE)
        for _ in range(12):
            next(stream)
        stream.close()
        assert counted(llm, SamplingParams(40)) == counted(one, SamplingParams(40))


@pytest.mark.deep
def test_a_rank_that_is_killed_ends_the_text_with_an_error(tiny_llama):
    with LLM(tiny_llama, dtype="float32", lookahead_parallel=2) as llm:
        (other,) = children(os.getpid())
        stream = llm.stream([PROMPTS[0]] * 100, LONG, LookaheadConfig(7, 7, 7))
        next(stream)
        os.kill(other, signal.SIGKILL)
        with pytest.raises(RankLost, match="rank 1 has ended with exit code -9"):
            list(stream)


def test_ranks_split_the_model_or_have_it_whole(tiny_llama):
    with pytest.raises(UsageError, match="tp_size 2 and lookahead_parallel 2 exclude"):
        LLM(tiny_llama, tp_size=2, lookahead_parallel=2)
    with LLM(tiny_llama, lookahead_parallel=1) as llm:
        assert "ranks" not in llm.description


def test_ranks_that_share_out_trees_have_no_head():
    for ranks, heads in ((None, ["eagle"]), (1, ["eagle"]), (2, [])):
        check_head_ranks(ranks, heads)
    with pytest.raises(UsageError, match=r"lookahead_parallel 2 has no states for .* head eagle"):
        check_head_ranks(2, ["eagle", "other"])


@pytest.mark.deep
def test_torchrun_starts_the_ranks(tiny_llama):
    run = ("run", "-m", str(tiny_llama), "--dtype", "float32", "--input-text", PROMPTS[1])
    flags = ("--max-output-len", "24")
    wanted = subprocess.run([*TRTLA, *run, *flags], capture_output=True, text=True, timeout=200)
    assert wanted.returncode == 0, wanted.stderr
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    command = (*torchrun, "--nproc-per-node", "2", "-m", "trtla", *run, *flags)
    flag = ("--lookahead-parallel", "2")
    found = subprocess.run([*command, *flag], capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr
    assert "lookahead on 2 ranks" in found.stderr
    assert found.stdout.split("\n\n|")[0] == wanted.stdout.split("\n\n|")[0]
