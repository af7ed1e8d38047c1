"""Sliding windows: what local layers see equals transformers', for drafts as for plain steps."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compiled import (
    CPU,
    TREE,
    arrays,
    check_alone_and_among_others,
    check_threads,
    config_of,
    draft_of,
    filled,
    forward,
    native_of,
    needs_compiler,
    pair,
    path,
    sized,
    text,
    trees,
    weights_in,
    weights_of,
)
from tests.support.examples import examples
from tests.support.real_models import folder_and_model, generated, open_llm, prompts_for
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.build.quantize import Calibration
from trtla.formats.engine import engine_from_hugging_face
from trtla.formats.engine_limits import BuildSettings
from trtla.runtime.device import Device
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.load import load_engine
from trtla.runtime.sequence import Feed
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE

MODELS = ["mistral-window", "qwen2-window"]
"""Both layers have a window of 8 tokens, or the second one."""
FORWARDS = [pytest.param("1", marks=needs_compiler, id="compiled"), pytest.param("0", id="torch")]
WINDOWS = [(8, 8), (8, None), (None, 1), (3, 20)]


@pytest.mark.parametrize("compiled", FORWARDS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [3, 8, 9, 70])
def test_logits_equal_transformers_below_at_and_beyond_the_window(
    name, compiled, length, monkeypatch
):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    folder, theirs = folder_and_model(name)
    model = load_engine(engine_from_hugging_face(folder), "float32", Device("cpu"))
    tokens = text(length, length, 101)
    with torch.no_grad():
        wanted = theirs(torch.tensor([tokens])).logits[0]
    drafted = length // 2  # the last ones are fed as a draft
    cache, (sequence,), first = filled(model, [tokens[: length - drafted - 1]], chunks=2)
    sequence.output_ids = [tokens[length - drafted - 1]]
    feed = Feed.step(sequence, Draft.chain(tokens[length - drafted :]))
    found = torch.cat([first, forward(model, cache, [feed])])
    torch.testing.assert_close(found, wanted[-len(found) :], rtol=0, atol=1e-5)
    # The same prompt at once, behind nothing.
    again = filled(model, [tokens])[2]
    torch.testing.assert_close(again, wanted[-1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("compiled", FORWARDS)
@pytest.mark.parametrize("name", MODELS)
def test_texts_equal_generates_whoever_drafts_and_whatever_is_reused(name, compiled, monkeypatch):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    shared = prompts_for(1, 1, longest=3)[0] * 30
    prompts = [(*shared[:45], *prompt[:20]) for prompt in prompts_for(5, 4)]
    wanted = [generated(name, prompt, 24) for prompt in prompts]
    reused = accepted = 0
    for batch in (1, 4):
        draft = str(folder_and_model(MODELS[0])[0])
        options = {"max_batch_size": batch, "block_reuse": True, "draft_models": [draft]}
        with open_llm(name, (5, 4, 5), **options) as llm:
            for how in ("auto", LookaheadConfig(3, 4, 4), AUTOREGRESSIVE, draft):
                given = {"lookahead": how}
                if how is draft:
                    given = {"drafter": DrafterSettings((f"draft:{draft}",))}
                done = llm.generate(prompts, SamplingParams(max_output_len=24), **given)
                assert [one.output_ids for one in done] == wanted
                reused += sum(one.stats.reused_tokens for one in done)
                accepted += sum(one.stats.accepted for one in done)
    assert reused > 500
    assert accepted > 20


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["auto", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_gives_the_same_texts(name, path, monkeypatch):
    monkeypatch.setenv("TRTLA_CUDA_PATH", path)
    prompts = prompts_for(5, 4)
    wanted = [generated(name, prompt, 24) for prompt in prompts]
    with open_llm(name, (5, 4, 5), max_batch_size=4, device="cuda", dtype="float32") as llm:
        for how in ("auto", LookaheadConfig(3, 4, 4), AUTOREGRESSIVE):
            done = llm.generate(prompts, SamplingParams(max_output_len=24), lookahead=how)
            assert [one.output_ids for one in done] == wanted


@pytest.mark.parametrize("quantised", [False, True])
def test_engines_keep_the_windows_of_the_layers(quantised, tmp_path):
    """FP8's ranges are found with the windows too, in texts that are longer than they."""
    data = Calibration([list(prompt) for prompt in prompts_for(3, 2, longest=60)])
    folder, _ = folder_and_model("qwen2-window")
    calibration = data if quantised else None
    convert(folder, tmp_path / "ckpt", dtype="float32", calibration=calibration)
    build_engine(tmp_path / "ckpt", tmp_path / "engine", BuildSettings(LookaheadConfig(4, 4, 4)))
    prompt = prompts_for(7, 1, longest=40)[0] * 2
    with LLM(tmp_path / "engine") as llm:
        assert llm.engine.config.pretrained_config.layer_windows == (None, 8)
        params = SamplingParams(max_output_len=24)
        texts = [llm.generate([prompt], params, how)[0] for how in (None, AUTOREGRESSIVE)]
    assert texts[0].output_ids == texts[1].output_ids
    if not quantised:
        assert texts[0].output_ids == generated("qwen2-window", prompt, 24)


@functools.cache
def local(windows, block_type=None, int8_cache=False):
    config = (sized if block_type else config_of)(layer_windows=windows)
    weights = weights_in(config, lambda name: block_type) if block_type else weights_of(config)
    return native_of(config, weights, int8_cache=int8_cache)


@needs_compiler
@pytest.mark.parametrize(
    ("block_type", "int8_cache"), [(None, False), ("Q4_0", False), ("Q4_K", True)]
)
@examples(15)
@given(st.sampled_from(WINDOWS), st.lists(trees, min_size=1, max_size=3), st.integers(0, 10**6))
def test_every_token_has_the_same_bits_alone_and_among_others(
    block_type, int8_cache, windows, shapes, seed
):
    check_alone_and_among_others(local(windows, block_type, int8_cache), shapes, seed)


@needs_compiler
@examples(15)
@given(st.sampled_from(WINDOWS), trees, st.integers(1, 60), st.booleans())
def test_nodes_of_trees_have_the_bits_of_plain_steps(windows, nodes, length, int8_cache):
    model, draft = local(windows, "Q4_0", int8_cache), draft_of(nodes)
    cache, (sequence,), _ = filled(model, [text(length, length)])
    drafted = forward(model, cache, [Feed.step(sequence, draft)]).clone()
    for node in line_to(draft, max(range(draft.size), key=lambda one: len(path(draft, one)))):
        sequence.output_ids = [(3, *draft.tokens)[node]]
        plain = forward(model, cache, [Feed.step(sequence, NO_DRAFT)])
        assert torch.equal(drafted[node], plain[0])
        sequence.num_cached += 1


def line_to(draft, node):
    return [*line_to(draft, draft.parents[node - 1]), node] if node else [0]


@needs_compiler
@pytest.mark.parametrize("windows", WINDOWS)
def test_the_compiled_forward_computes_what_pytorch_computes(windows):
    prompts, found = [text(1, 37), text(2, 5), text(3, 300)], []
    for model in pair(config_of(layer_windows=windows)):
        cache, running, first = filled(model, prompts, chunks=3)
        steps = forward(model, cache, [Feed.step(s, TREE) for s in running]).clone()
        feeds = [Feed.step(running[0], NO_DRAFT), Feed.step(running[1], TREE)]
        found.append(torch.cat([first, steps, forward(model, cache, feeds)]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_threads_do_not_change_a_bit():
    check_threads(local((8, None)))


def numbers_of(model, cache):
    """Keys and values, [layers, 2, slots, bytes or numbers]; a view."""
    layers = model.config.num_hidden_layers
    if isinstance(model, LlamaModel):
        return cache.data.flatten(3).numpy()
    heads, both, slots, size = cache.data.shape
    by_layer = cache.data.reshape(layers, heads // layers, both, slots, size)
    return by_layer.transpose(0, 2, 3, 1, 4)


def spoil(model, cache, sequence, layer, places):
    slots = list(cache.table(sequence.blocks).order[places.start : places.stop])
    rows = numbers_of(model, cache)
    rows[layer, :, slots] = np.nan if rows.dtype.kind == "f" else 0xFF  # bytes of a NaN


POISONED = [
    pytest.param("compiled", marks=needs_compiler),
    pytest.param("int8", marks=needs_compiler),
    "torch",
]


@pytest.mark.parametrize("kind", POISONED)
@pytest.mark.parametrize("draft", [NO_DRAFT, TREE], ids=["plain", "tree"])
def test_keys_and_values_beyond_the_window_are_not_read(kind, draft):
    config = config_of(layer_windows=(8, 20))
    model = local((8, 20), None, kind == "int8")
    if kind == "torch":
        model = LlamaModel(config, arrays(weights_of(config)), torch.float32, CPU)
    cache, running, _ = filled(model, [text(1, 90), text(2, 5), text(3, 45)])
    assert numbers_of(model, cache).shape[0] == 2
    feeds = [Feed.step(sequence, draft) for sequence in running]
    before = forward(model, cache, feeds).clone()
    for sequence in running:
        for layer, window in enumerate(config.windows):
            spoil(model, cache, sequence, layer, range(max(0, sequence.num_cached + 1 - window)))
    after = forward(model, cache, feeds).clone()
    assert after.isfinite().all()
    assert torch.equal(before, after)
    # The last one that the window shows is read.
    spoil(model, cache, running[0], 0, range(90 + 1 - 8, 90 + 2 - 8))
    assert forward(model, cache, feeds[:1])[0].isnan().any()


def test_long_prompts_are_read_in_pieces_that_give_the_same_numbers(monkeypatch):
    import trtla.runtime.models.attention as attention

    config = config_of(layer_windows=(8, 20))
    model = LlamaModel(config, arrays(weights_of(config)), torch.float32, CPU)
    found = []
    for piece in (7, 1000):
        monkeypatch.setattr(attention, "_PIECE", piece)
        cache, _, logits = filled(model, [text(1, 90), text(2, 33)], chunks=1)
        found.append((logits, cache.data[:, :, : 4 * 32].clone()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
