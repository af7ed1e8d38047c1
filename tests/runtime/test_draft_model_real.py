"""Real models in float32 draft for real models: compiled and through PyTorch, mixed batches.

The draft model is a noisy copy of the shipped one, so that it is right often but not always.
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import trtla
from tests.support.toys import Made, request, run, tokens_of
from trtla.formats.engine import engine_from_hugging_face
from trtla.runtime.device import CPU
from trtla.runtime.drafters.draft_model import load_draft_model
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models.kv_cache import cache_blocks
from trtla.runtime.models.load import load_engine
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import LookaheadConfig

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
ROOT = Path(trtla.__file__).parent.parent
DRAFT = ("draft:noisy",)
PROMPT = [5, 9, 200, 31, 77, 9, 200]


@functools.cache
def noisy(share=0.1):
    """The shipped model with noise on every matrix, a share of its own spread."""
    folder = Path(tempfile.mkdtemp()) / "noisy"
    shutil.copytree(SHIPPED, folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if weight.dim() == 2:
            wide = weight.float()
            noise = torch.randn(wide.shape, generator=generator) * wide.std() * share
            weights[name] = (wide + noise).to(weight.dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@functools.cache
def larger():
    """The shipped model in a wider and deeper shape that predicts the same."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import scale_llama

    folder, old = Path(tempfile.mkdtemp()) / "larger", engine(SHIPPED).config.pretrained_config
    sizes = ["--hidden-size", str(4 * old.hidden_size)]
    sizes += ["--num-hidden-layers", str(old.num_hidden_layers + 1)]
    arguments = ["--model-dir", str(SHIPPED), "--output-dir", str(folder), *sizes]
    assert scale_llama.main(arguments) == 0
    return folder


@functools.cache
def engine(folder):
    return engine_from_hugging_face(folder)


@functools.cache
def loaded(folder, compiled):
    return load_engine(engine(folder), "float32", CPU)


def limits_of(folder, triple):
    vocab = engine(folder).config.pretrained_config.vocab_size
    return ExecutorLimits(4, 256, 256, 512, vocab, LookaheadConfig(*triple))


def drafters(folder, limits):
    """A loaded draft model with as large a cache as there is room for."""
    loaded = load_draft_model(engine(folder), device="cpu", dtype="float32")
    return loaded.with_cache(*cache_blocks([loaded.need(limits)], limits.max_batch_size), limits)


def decode(folder, requests, chosen=None, draft=None, compiled=True):
    """Outputs, and the drafters' totals; plain decoding without settings."""
    triple, group, factory = (1, 1, 0), None, None
    if chosen:
        triple = (1, 2, chosen.gamma)
        limits = limits_of(folder, triple)
        group = drafters(draft or noisy(), replace(limits, drafter=chosen))
        factory = Made(lambda _, one: group.drafter(one))

    model = loaded(folder, compiled)
    executor = TorchExecutor(model, model.new_cache(48), limits_of(folder, triple), factory)
    outputs = run(executor, requests)
    if group:
        assert group.cache.pool.num_free == group.cache.pool.num_blocks
    return [tokens_of(outputs[one.request_id]) for one in requests], group and group.totals


def mixed():
    heats = [0.0, 0.8, 1.0, 0.8, 0.0]
    return [
        request(PROMPT[: 2 + i], 40 - 5 * i, None, i, temperature=heat, top_p=0.9, seed=i)
        for i, heat in enumerate(heats)
    ]


@pytest.fixture(
    params=[True, pytest.param(False, marks=pytest.mark.deep)], ids=["compiled", "pytorch"]
)
def compiled(request, monkeypatch):
    if not request.param:
        monkeypatch.setenv("TRTLA_COMPILED", "0")
    return request.param


@pytest.mark.parametrize(
    "chosen",
    [
        DrafterSettings(DRAFT, gamma=1),
        DrafterSettings(DRAFT, gamma=4),
        DrafterSettings(DRAFT, gamma=6, egag=True, gamma_min=0, ema=0.5),
    ],
    ids=["one", "four", "egag"],
)
def test_texts_of_a_mixed_batch_are_plain_decodings(chosen, compiled):
    expected, _ = decode(SHIPPED, mixed(), compiled=compiled)
    texts, totals = decode(SHIPPED, mixed(), chosen, compiled=compiled)
    assert texts == expected
    assert 0 < totals.accepted < totals.drafted


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("rejection", [False, True], ids=["equality", "rejection"])
def test_a_model_drafts_for_itself_without_a_miss(heat, rejection, compiled):
    asked = [request(PROMPT, 42, temperature=heat, top_p=0.9, seed=3)]
    chosen = DrafterSettings(DRAFT, gamma=4, rejection=rejection)
    _, totals = decode(SHIPPED, asked, chosen, SHIPPED, compiled=compiled)
    assert totals.accepted == totals.drafted > 30


def test_rejection_gives_the_same_text_alone_and_in_a_batch(compiled):
    chosen = DrafterSettings(DRAFT, gamma=3, rejection=True)
    together, totals = decode(SHIPPED, mixed(), chosen, compiled=compiled)
    alone = [decode(SHIPPED, [one], chosen, compiled=compiled)[0][0] for one in mixed()[1::2]]
    assert together[1::2] == alone
    assert 0 < totals.accepted < totals.drafted


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_the_shipped_model_drafts_for_an_enlarged_one(heat):
    asked = [request(PROMPT, 42, temperature=heat, seed=3)]
    expected, _ = decode(larger(), asked)
    texts, totals = decode(larger(), asked, DrafterSettings(DRAFT, gamma=4), SHIPPED)
    assert texts == expected
    assert totals.accepted > 0.9 * totals.drafted


def test_i9_logits_after_truncation_equal_those_of_a_fresh_forward(compiled):
    chosen = DrafterSettings(DRAFT, gamma=4)
    group, fresh = (
        drafters(SHIPPED, replace(limits_of(SHIPPED, (1, 2, 4)), drafter=chosen))
        for _ in range(2)
    )  # fmt: skip
    drafter, text = group.drafter(request(PROMPT, 60)), list(PROMPT)
    committed = [17]
    for accepted in (0, 2, 4, 1, 3):
        drafter.observe((), committed)
        text += committed
        again = fresh.drafter(request(text[:-1], 60))
        again.observe((), text[-1:])
        rows = [group_logits(own, one) for own, one in ((group, drafter), (fresh, again))]
        torch.testing.assert_close(*rows, rtol=1e-5, atol=1e-4)
        drafted = drafter.propose().tokens
        assert drafted == again.propose().tokens
        again.close()
        committed = [*drafted[:accepted], (drafted[accepted - 4] + 1) % 500]


def group_logits(group, drafter):
    """Logits after the text's last token, from the cache as it stands; it is fed again later."""
    if not drafter.sequence.blocks:
        drafter.sequence.blocks = group.cache.pool.allocate(drafter.sequence.max_cached)
        group._catch_up([drafter])
    return torch.tensor(group._forward([drafter.feed()]).logits)
