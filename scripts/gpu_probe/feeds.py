"""What scripts/gpu_probe feeds: drafts of lookahead's shapes, to random models of real sizes.

Models run as the executor runs them, by `step_forward`: what a GPU chooses there is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest.mock import patch

import torch
from gpu_probe.device import DEVICE, DRY
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.formats.torch_tensors import as_array
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import NO_DRAFT, Draft, NoDrafter
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models import tensor_model
from trtla.runtime.models.cuda import graphs
from trtla.runtime.models.cuda.graphs import CudaCapture
from trtla.runtime.models.forward import SPARE_BLOCKS, StepForward
from trtla.runtime.models.layers import PlainOperations
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as Running
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

NAMES = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_size",
    "intermediate_size", "vocab_size",
)  # fmt: skip
SIZES = {
    name: dict(zip(NAMES, sizes, strict=True))
    for name, sizes in {
        "tiny": (1, 32, 2, 1, 16, 64, 64),
        "small": (4, 1024, 8, 2, 128, 2816, 32000),
        "1B": (16, 2048, 32, 8, 64, 8192, 128256),
        "8B": (32, 4096, 32, 8, 128, 14336, 128256),
    }.items()
}


def tree(window: int, ngram: int, guesses: int) -> Draft:
    """A draft as lookahead with this triple feeds it: the window, then candidate chains."""
    depth = ngram - 2
    first = 1 + depth + (window - 1) * (ngram - 1)
    parents = list(range(depth))  # the window's first column continues the input
    for _ in range(window - 1 + guesses):
        parents.append(0)
        parents += range(len(parents), len(parents) + depth)
    read = tuple(range(max(1, first - window), first))
    return Draft((1,) * len(parents), tuple(parents), first, read)


SHAPES = {"AR": NO_DRAFT, "7,7,7": tree(7, 7, 7), "15,5,15": tree(15, 5, 15)}
LARGEST = LookaheadConfig(15, 5, 15)
"""The triple of the largest shape."""
if DRY:
    SHAPES = {"AR": NO_DRAFT, "7,7,7": tree(2, 3, 2), "15,5,15": tree(1, 3, 1)}
    LARGEST = LookaheadConfig(2, 3, 2)
FED = {shape: 1 + len(draft.tokens) for shape, draft in SHAPES.items()}
"""Tokens of a step."""


def set_path(model: LlamaModel, *, fused: bool) -> None:
    """Run steps through graphs over pages, whatever a self-test would say; fused kernels or not."""
    model.use_fast_path()
    if not fused:
        model.operations = PlainOperations()


def stepper(model: LlamaModel, text: int) -> tuple[StepForward, TensorCache]:
    """How a model runs steps of the shapes, one sequence of so many tokens, and its empty cache.

    Only what the shapes need is captured. In a dry run it is run again instead, its kernels
    interpreted.

    Raises:
        RuntimeError: nothing is captured, so that PyTorch's operations would run.
    """
    with patch.object(graphs, "_SIZES", ()):
        return _opened(model, text, LARGEST, sorted({*FED.values()}))


def open_all(model: LlamaModel, text: int) -> None:
    """Capture all that a model has captured which is opened with 7,7,7; raises as `stepper`."""
    _opened(model, text, LARGEST if DRY else LookaheadConfig(7, 7, 7), ())


def _opened(
    model: LlamaModel, text: int, triple: LookaheadConfig, sizes: Sequence[int]
) -> tuple[StepForward, TensorCache]:
    limits = ExecutorLimits(1, text, text, 4096, model.config.vocab_size, triple)
    longest = text + limits.max_draft_len
    cache = model.new_cache(-(-longest // TOKENS_PER_BLOCK) + 1 + SPARE_BLOCKS)
    cache.data.zero_()
    capture = (lambda device: lambda run: run) if DRY else CudaCapture
    model.graphs = ""
    with patch.object(tensor_model, "CudaCapture", capture):
        run = model.step_forward(cache, limits, sizes)
    if model.graphs != "graphs":
        raise RuntimeError("not all graphs can be captured; a warning above says why")
    return run, cache


def packed(model: LlamaModel, text: int) -> tuple[StepForward, TensorCache]:
    """As `stepper`, by PyTorch's operations."""
    cache = model.new_cache(-(-text // TOKENS_PER_BLOCK) + 1 + SPARE_BLOCKS)
    cache.data.zero_()
    return lambda feeds: model.forward(feeds, cache), cache


def step_feed(draft: Draft, cached: int, blocks: tuple[int, ...]) -> Feed:
    """A generation step; the blocks must be the sequence's own, or padding overwrites them."""
    request = Request(0, (1,) * 8)
    return Feed.step(Running(request, AUTOREGRESSIVE, NoDrafter(), [1], cached, blocks), draft)


def prompt_feed(start: int, length: int, blocks: tuple[int, ...]) -> Feed:
    """A stretch of a prompt of which `start` tokens are cached."""
    prompt = tuple(1 + i % 60 for i in range(start + length))
    sequence = Running(Request(0, prompt), AUTOREGRESSIVE, NoDrafter(), [], start, blocks)
    return Feed.prompt(sequence, length, is_last=True)


def random_model(name: str, dtype: torch.dtype) -> LlamaModel:
    """A Llama of a named size with random weights; in a dry run a tiny one."""
    config = CheckpointConfig.model_validate(
        {
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "max_position_embeddings": 8192,
            "norm_epsilon": 1e-5,
            "rotary_base": 500000.0,
            "hidden_act": "silu",
            **SIZES["tiny" if DRY else name],
        }
    )
    weights = ((name, as_array(weight)) for name, weight in _weights(config, dtype))
    return LlamaModel(config, weights, dtype, DEVICE, products=False)


def _weights(config: CheckpointConfig, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    queries = config.num_attention_heads * config.head_size
    keys = config.num_key_value_heads * config.head_size
    norm = torch.ones(hidden, device=DEVICE, dtype=dtype)

    def weight(out: int, size: int) -> Tensor:
        return torch.randn(out, size, device=DEVICE, dtype=dtype).mul_(size**-0.5)

    yield "transformer.vocab_embedding.weight", weight(vocab, hidden) * hidden**0.5
    for index in range(config.num_hidden_layers):
        layer = f"transformer.layers.{index}"
        yield f"{layer}.input_layernorm.weight", norm
        yield f"{layer}.attention.qkv.weight", weight(queries + 2 * keys, hidden)
        yield f"{layer}.attention.dense.weight", weight(hidden, queries)
        yield f"{layer}.post_layernorm.weight", norm
        yield f"{layer}.mlp.fc.weight", weight(inner, hidden)
        yield f"{layer}.mlp.gate.weight", weight(inner, hidden)
        yield f"{layer}.mlp.proj.weight", weight(hidden, inner)
    yield "transformer.ln_f.weight", norm
    yield "transformer.lm_head.weight", weight(vocab, hidden)
