"""Hidden states of tapped layers: transformers' own, and the same packed and compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.compiled import config_of, needs_compiler, pair, sequences
from tests.support.real_models import folder_and_model
from tests.support.toys import Made, request, run, tokens_of
from trtla.formats.engine import engine_from_hugging_face
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

CPU = torch.device("cpu")
PROMPTS = [(3, 1, 4, 1, 5), (2, 6)]
TREE = Draft((7, 8, 9), (0, 1, 0))


def states(model, feeds, cache):
    """Hidden states of all fed tokens, which the first drafter wants."""
    feeds[0].sequence.drafter = Head(())
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


def test_they_are_the_outputs_of_transformers_layers():
    path, reference = folder_and_model("gqa")
    engine = engine_from_hugging_face(path)
    model = LlamaModel(engine.config.pretrained_config, engine.weights(), torch.float32, CPU)
    model.taps = (0,)
    cache = model.new_cache(4)
    (running,) = sequences(cache, PROMPTS[:1])
    found = states(model, [Feed.prompt(running, len(running.prompt), True)], cache)
    with torch.no_grad():
        ids = torch.tensor(PROMPTS[:1])
        wanted = reference(ids, output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class Head(NoDrafter):
    """Proposes tokens of a known text, and a wrong one at times."""

    wants_states = True

    def __init__(self, text):
        self.text, self.done, self.states = text, 0, []

    def propose(self):
        right = self.text[self.done : self.done + 2]
        return Draft((1, *right), (0, 0, 2)[: 1 + len(right)])

    def observe(self, greedy, committed):
        self.done += len(committed)

    def saw_hidden(self, first, states):
        assert first == sum(one.shape[1] for one in self.states)
        self.states.append(states)


def in_a_tree(head):
    """A candidate tree whose only source is what the head proposes."""
    shared = SharedTrees(96)
    tree = shared.tree(PROMPTS[0], SamplingParams(), ("chain",), True)
    return TreeDrafter(tree, shared, 4, 11, others=(head,))


@needs_compiler
@pytest.mark.parametrize("in_tree", [False, True])
@pytest.mark.parametrize("most", [64, 3])
def test_a_drafter_sees_the_states_of_the_prompt_and_of_all_accepted_tokens(in_tree, most):
    for model in pair(config_of(num_hidden_layers=3)):
        limits = ExecutorLimits(2, 64, 96, most, 96, LookaheadConfig(1, 1, 0))
        asked = request(PROMPTS[0], 11)
        plain = TorchExecutor(model, model.new_cache(24), limits, Made(lambda *_: NoDrafter()))
        text = tokens_of(run(plain, [asked])[0])
        model.taps, head = (0, 2), Head(text)
        made = Made(lambda *_, head=head: in_a_tree(head) if in_tree else head)
        tapped = TorchExecutor(model, model.new_cache(24), limits, made)
        assert tokens_of(run(tapped, [replace(asked, adaptive=in_tree)])[0]) == text
        if most == 64 and not in_tree:
            assert len(head.states) == 1 + 4  # a prompt, then steps of 3, 3, 3 and 1 tokens
        (whole,) = sequences(cache := model.new_cache(4), [(*PROMPTS[0], *text)])
        wanted = states(model, [Feed.prompt(whole, len(whole.prompt), True)], cache)
        found = torch.cat([*map(torch.from_numpy, head.states)], 1)
        assert found.shape[1] == len(whole.prompt) - 1  # all but the newest token
        torch.testing.assert_close(found, wanted[:, :-1], rtol=1e-4, atol=1e-4)
