"""Which CUDA graphs a model captures for its steps, and what it reports about them.

Attention over pages is the reference's; what would be captured is run again.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.draft_models import DRAFT
from tests.support.paged import TRIPLE, fake_capture, llama, reference_attention
from tests.support.toys import Made, run, tokens_of
from tests.support.toys import request as toy_request
from trtla import LLM
from trtla.runtime.drafters.draft_model import DraftModelDrafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models import tensor_model
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sampling.predict import StepSampler
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import LookaheadConfig

PLAIN = LookaheadConfig(1, 1, 0)


def short(most):
    """A capture without memory for buckets of more than so many tokens, told by their logits."""

    def capture(run):
        before = torch.Tensor.copy_

        def copy(kept, logits, *args):
            if len(logits) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return before(kept, logits, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "copy_", copy)
            run()
        return run

    return capture


def refused(run):
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def graphs(monkeypatch):
    """Lets PyTorch's models capture graphs, as a GPU does; gives how captures go."""
    captures = [fake_capture]
    monkeypatch.setattr(LlamaModel, "fast", True)
    monkeypatch.setattr(tensor_model, "CudaCapture", lambda device: lambda run: captures[0](run))
    monkeypatch.setenv("TRTLA_COMPILED", "0")
    with reference_attention():
        yield captures


def limits_of(batch=3, tokens=512, lookahead=PLAIN):
    return ExecutorLimits(batch, 64, 96, tokens, 101, lookahead)


def sizes(step):
    (runner,) = step.args
    return {(one.tokens, one.sequences) for one in runner.captured}


@pytest.mark.usefixtures("graphs")
def test_no_graph_is_for_more_tokens_than_a_step_has():
    model = llama()
    runner = model.step_forward(model.new_cache(8), limits_of(8, 60, TRIPLE))
    assert max(tokens for tokens, _ in sizes(runner)) == 60
    assert model.graphs == "graphs"


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("tokens", [512, 4])
def test_a_draft_model_has_graphs_of_one_and_two_tokens_a_sequence(tokens):
    model, limits = llama(), limits_of(3, tokens)
    group = DraftModelDrafters(model, model.new_cache(16), DrafterSettings(DRAFT), limits)
    assert sizes(group._forward) == {(1, 1), (2, 1), (2, 2), (4, 2), (3, 3), (6, 3)}


@pytest.mark.usefixtures("graphs")
def test_texts_that_a_draft_model_drafts_for_through_graphs_are_the_same():
    model, chosen = llama(), DrafterSettings(DRAFT, gamma=3)
    limits = limits_of()
    group = DraftModelDrafters(model, model.new_cache(16), chosen, limits)
    factory = Made(lambda _, one: group.drafter(one))
    before = sizes(group._forward)
    asked = [toy_request([5, 9, 5 + i], 30, request_id=i) for i in range(3)]

    def texts(drafters=None):
        executor = TorchExecutor(llama(), model.new_cache(24), limits, drafters)
        outputs = run(executor, asked)
        return [tokens_of(outputs[i]) for i in range(3)]

    assert texts(factory) == texts()
    assert group.totals.accepted == group.totals.drafted > 30
    assert sizes(group._forward) == before


def test_a_model_tells_which_graphs_it_has(graphs):
    model = llama()
    told = []
    for capture in (fake_capture, short(8), refused):
        graphs[0] = capture
        model.graphs = ""
        model.step_forward(model.new_cache(8), limits_of(1))
        told.append(model.graphs)
    vars(model).pop("fast")
    assert told == ["graphs", "graphs of up to 8 tokens", ""]


def opened(folder):
    return LLM(folder, dtype="float32", device="cpu", lookahead=PLAIN, max_batch_size=1)


@pytest.mark.usefixtures("graphs")
def test_a_sampler_that_does_not_compile_leaves_the_choice_to_pytorch(caplog):
    class Broken(StepSampler):
        def choose(self, logits, draws):
            raise RuntimeError("no kernel image is available\nstack")

    model = llama()
    model._sampler = Broken()
    model.step_forward(model.new_cache(8), limits_of(1))
    assert model.row_sampler is None
    assert model.fast
    assert "tokens are chosen on the host" in caplog.text
    assert "stack" not in caplog.text
