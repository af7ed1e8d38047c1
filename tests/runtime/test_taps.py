"""Hidden states of tapped layers: transformers' own, and the same packed and compiled."""

from __future__ import annotations

import pytest
import torch

from tests.support.compiled import config_of, native_of, needs_compiler, pair, sequences
from tests.support.models import Variant, make_model, save_model
from tests.support.states import Seen
from tests.support.toys import Made, request, run, tokens_of
from trtla.formats.engine import engine_from_hugging_face
from trtla.runtime.draft import Draft
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed
from trtla.settings.lookahead import AUTOREGRESSIVE

CPU = torch.device("cpu")
PROMPTS = [(3, 1, 4, 1, 5), (2, 6)]
TREE = Draft((7, 8, 9), (0, 1, 0))


def states(model, feeds, cache):
    """Hidden states of all fed tokens, which the first drafter wants."""
    feeds[0].sequence.drafter = Seen()
    hidden = model.forward(feeds, cache).hidden
    return None if hidden is None else torch.from_numpy(hidden)


def hidden_of(model, taps):
    """Hidden states of two prompts, then of a tree beside a single token."""
    model.taps = taps
    cache = model.new_cache(32)
    running = sequences(cache, PROMPTS)
    prompts = [Feed.prompt(one, len(one.prompt), True) for one in running]
    found = [states(model, prompts, cache)]
    for one in running:
        one.num_cached = len(one.prompt)
    drafts = (TREE, Draft())
    steps = [Feed.step(one, draft) for one, draft in zip(running, drafts, strict=True)]
    return [*found, states(model, steps, cache)]


@needs_compiler
@pytest.mark.parametrize("taps", [(0, 2), (1,), (2, 0, 1)])
def test_the_compiled_model_gives_the_packed_ones(taps):
    native, packed = pair(config_of(num_hidden_layers=3))
    for ours, theirs in zip(hidden_of(native, taps), hidden_of(packed, taps), strict=True):
        assert ours.shape == (len(taps), ours.shape[1], 64)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_there_are_none_unless_asked_and_no_tap_of_a_layer_that_is_not_there():
    for model in pair(config_of(num_hidden_layers=3)):
        assert hidden_of(model, ()) == [None, None]
        with pytest.raises((ValueError, KeyError)):
            hidden_of(model, (3,))


@needs_compiler
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("most", [64, 9])
def test_they_are_the_outputs_of_transformers_layers(tmp_path, compiled, most):
    """Of all layers but the last, whose output transformers normalises; in chunks and at once."""
    variant = Variant("deep", {"num_hidden_layers": 4, "max_position_embeddings": 160})
    reference = make_model(variant)
    engine = engine_from_hugging_face(save_model(reference, variant, tmp_path / "model"))
    config = engine.config.pretrained_config
    packed = LlamaModel(config, engine.weights(), torch.float32, CPU)
    model = native_of(config, engine.weights()) if compiled else packed
    model.taps, seen, prompt = (0, 1, 2), Seen(), tuple(range(40))
    limits = ExecutorLimits(2, 64, 96, most, config.vocab_size, AUTOREGRESSIVE)
    executor = TorchExecutor(model, model.new_cache(8), limits, Made(lambda *_: seen))
    text = (*prompt, *tokens_of(run(executor, [request(prompt, 9)])[0]))
    with torch.no_grad():
        wanted = reference(torch.tensor([text]), output_hidden_states=True).hidden_states
    first, found = seen.states()
    assert first == 0
    joined = torch.cat(wanted[1:4])[:, :-1]
    torch.testing.assert_close(torch.from_numpy(found), joined, rtol=1e-4, atol=1e-5)
