"""Hidden states of tapped layers: transformers' own, and the same packed and compiled."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.support.compiled import config_of, pair, sequences
from tests.support.encoder_decoders import KINDS, folder, load, sequence
from tests.support.real_models import folder_and_model
from trtla.formats.engine import engine_from_hugging_face
from trtla.runtime.draft import Draft
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed

CPU = torch.device("cpu")
PROMPTS = [(3, 1, 4, 1, 5), (2, 6)]
TREE = Draft((7, 8, 9), (0, 1, 0))
compiles = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def hidden_of(model, taps):
    """Hidden states of two prompts, then of a tree beside a single token."""
    model.taps = taps
    cache = model.new_cache(32)
    running = sequences(cache, PROMPTS)
    found = [model.forward([Feed.prompt(s, len(s.prompt), True) for s in running], cache).hidden]
    for one in running:
        one.num_cached = len(one.prompt)
    drafts = (TREE, Draft())
    steps = [Feed.step(one, draft) for one, draft in zip(running, drafts, strict=True)]
    return [*found, model.forward(steps, cache).hidden]


@compiles
@pytest.mark.parametrize("taps", [(0, 2), (1,), (2, 0, 1)])
def test_the_compiled_model_gives_the_packed_ones(taps):
    native, packed = pair(config_of(num_hidden_layers=3))
    for ours, theirs in zip(hidden_of(native, taps), hidden_of(packed, taps), strict=True):
        assert ours.shape == (len(taps), ours.shape[1], 64)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@compiles
def test_there_are_none_unless_asked_and_no_tap_of_a_layer_that_is_not_there():
    for model in pair(config_of(num_hidden_layers=3)):
        assert hidden_of(model, ()) == [None, None]
        with pytest.raises((ValueError, KeyError)):
            hidden_of(model, (3,))


def test_they_are_the_outputs_of_transformers_layers():
    path, reference = folder_and_model("gqa")
    engine = engine_from_hugging_face(path)
    model = LlamaModel(engine.config.pretrained_config, engine.weights(), torch.float32, CPU)
    model.taps = (0,)
    cache = model.new_cache(4)
    (running,) = sequences(cache, PROMPTS[:1])
    found = model.forward([Feed.prompt(running, len(running.prompt), True)], cache).hidden
    with torch.no_grad():
        ids = torch.tensor(PROMPTS[:1])
        wanted = reference(ids, output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_encoder_decoders_have_them_too():
    model = load(folder(KINDS[0]))
    own = sequence((5, 6, 7), (1, 2, 3), 0)
    plain = model.forward([Feed.prompt(own, 3, True)], model.new_cache(2))
    model.taps = (0, 1)
    tapped = model.forward([Feed.prompt(own, 3, True)], model.new_cache(2))
    assert plain.hidden is None
    assert tapped.hidden.shape[:2] == (2, 3)
    assert torch.equal(plain.logits, tapped.logits)
    assert not torch.equal(tapped.hidden[0], tapped.hidden[1])
