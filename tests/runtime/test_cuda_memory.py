"""What forwards and graphs are said to take of a GPU's memory, against tensors that are made."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from tests.support.compiled import arrays
from tests.support.paged import CPU, NUM_BLOCKS, fake_capture, llama, sequence_of, tree_feed
from trtla.formats.config import Quantization
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.cuda import fused, kernels, tree_kernels
from trtla.runtime.models.cuda import memory as memory_module
from trtla.runtime.models.cuda.fused import FusedOperations
from trtla.runtime.models.cuda.graphs import GraphRunner, buckets
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.memory import ForwardMemory
from trtla.runtime.models.cuda_check import _weights
from trtla.runtime.models.layers import PlainOperations
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed
from trtla.settings.lookahead import LookaheadConfig

WIDE_MLP = {"hidden_size": 64, "intermediate_size": 224, "vocab_size": 101}
WIDE_ATTENTION = {"hidden_size": 32, "intermediate_size": 16, "vocab_size": 101}
WIDE_HEAD = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 2003}
SHAPES = [WIDE_MLP, WIDE_ATTENTION, WIDE_HEAD]
TAPS = [(), tuple(range(12))]


class NoLaunch:
    """A kernel that is not run: it would make no tensor."""

    def __getitem__(self, grid):
        return lambda *args, **keys: None


@pytest.fixture
def unlaunched(monkeypatch):
    kind = type(fused.add_norm)
    for module in (fused, kernels, tree_kernels):
        for name in [name for name, one in vars(module).items() if isinstance(one, kind)]:
            monkeypatch.setattr(module, name, NoLaunch())


class Peak(TorchDispatchMode):
    """Counts the bytes of tensors that are made meanwhile, while they live."""

    def __init__(self):
        super().__init__()
        self.live = self.most = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {one.untyped_storage().data_ptr() for one in tensors((args, kwargs or {}))}
        made = func(*args, **(kwargs or {}))
        for tensor in tensors(made):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known and storage not in self._known:
                self._known.add(storage)
                self._take(storage.nbytes())
                weakref.finalize(storage, self._take, -storage.nbytes())
        return made

    def _take(self, size):
        self.live += size
        self.most = max(self.most, self.live)


def tensors(nested):
    """All tensors of nested lists, but for weights in oneDNN's own layout."""
    found = filter(torch.is_tensor, torch.utils._pytree.tree_leaves(nested))
    return [one for one in found if one.layout == torch.strided]


def test_the_peak_is_of_what_lives_at_once():
    with Peak() as peak:
        first = torch.zeros(10)
        second = first + 1
        del first
        third = second.view(2, 5) * 2
        del second, third
    assert (peak.most, peak.live) == (80, 0)


def model_of(shape, cache=None, taps=()):
    """A random model of a shape, its fused kernels on; all of its layers are tapped, or none."""
    quantization = Quantization(kv_cache_quant_algo=cache)
    changed = {**shape, "quantization": quantization, "tie_word_embeddings": True}
    changed["num_hidden_layers"] = len(taps) or 2
    config = llama().config.model_copy(update=changed)
    model = LlamaModel(config, arrays(_weights(config)), torch.float32, CPU)
    model.operations, model.taps = FusedOperations(), taps
    return model


def memory_of(model):
    return ForwardMemory(model.config, model.dtype.itemsize, taps=len(model.taps))


@pytest.mark.usefixtures("unlaunched")
@pytest.mark.parametrize("cache", [None, "FP8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mixed", [False, True], ids=["steps", "mixed"])
@pytest.mark.parametrize("taps", TAPS, ids=["untapped", "tapped"])
@pytest.mark.parametrize(("tokens", "rows"), [(96, 3), (96, 96)])
def test_a_forward_takes_no_more_than_is_said_and_not_much_less(
    shape, cache, tokens, rows, taps, mixed
):
    model = model_of(shape, cache, taps)
    kv = model.new_cache(3)
    prompts = tokens // 2 if mixed else 0
    room = Room(tokens, prompts, rows, min(prompts, 1), 2, prompts, tokens, 1, 8)
    inputs = StepInputs(room, 2, CPU, taps=taps).fill(())
    with Peak() as peak:
        model._for_sampler(model.forward_batch(inputs, kv))
    said = memory_of(model).forward_bytes(tokens, rows)
    assert peak.most <= said < 2 * peak.most


@pytest.mark.usefixtures("unlaunched")
@pytest.mark.parametrize("taps", TAPS, ids=["untapped", "tapped"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_graphs_keep_is_said(shape, taps):
    model = model_of(shape, taps=taps)

    def capture(run):
        run()  # which is not recorded
        return fake_capture(run)

    runner = GraphRunner(model.forward_batch, model.new_cache(3), 2, (8,), 8, capture, taps=taps)
    with Peak() as peak:
        runner.capture_all()
    said = memory_of(model).graph_bytes(16)
    inputs = sum(graph.inputs._device.nbytes * 2 for graph in runner._graphs.values())
    assert peak.most - inputs <= said < 2 * peak.most


def limits_of(batch=3, text=160, tokens=96):
    return ExecutorLimits(batch, text, text, tokens, 101, LookaheadConfig(4, 4, 3))


def test_all_together_hold_the_graphs_the_buffer_and_a_forward_of_prompts():
    limits, sizes = limits_of(), (20, 40)
    memory = memory_of(model_of(WIDE_HEAD))
    said = memory.scratch_bytes(limits, sizes)
    logits = 96 * 2003 * 4
    assert said > 3 * logits + memory.forward_bytes(96, 96)
    graphs = len(buckets(sizes, 3, 96))
    assert said < 4 * logits + 224 * 2**20 + graphs * 5 * 2**20
    assert memory.scratch_bytes(limits, (1, 2)) < said
    assert memory.scratch_bytes(limits_of(tokens=960), sizes) > said


@pytest.mark.parametrize("taps", TAPS, ids=["untapped", "tapped"])
@pytest.mark.parametrize("cache", [None, "FP8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_pytorchs_operations_take_no_more_than_is_said(shape, cache, taps):
    model = model_of(shape, cache, taps)
    model.operations = PlainOperations()
    blocks, limits = list(range(NUM_BLOCKS)), limits_of(batch=4)
    prompts = [sequence_of(at, 28, blocks, range(at + 28), ()) for at in (0, 40)]
    feeds = [Feed.prompt(sequence, 28, True) for sequence in prompts]
    feeds += [tree_feed(sequence_of(120, n, blocks), range(n - 1)) for n in (30, 10)]
    feeds[0].sequence.drafter.wants_states = True
    kv = model.new_cache(NUM_BLOCKS)
    with Peak() as peak:
        model.run(feeds, kv)
    said = memory_of(model).plain_scratch_bytes(limits, (30,)) - memory_module._LIBRARIES
    print(shape, cache, peak.most, said)
    assert peak.most <= said


def test_on_a_cpu_nothing_is_put_aside():
    assert model_of(WIDE_MLP).scratch_bytes(limits_of()) == 0
