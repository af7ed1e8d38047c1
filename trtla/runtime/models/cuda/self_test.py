"""Whether the fast path gives right numbers here: a small model run both ways, before it is used.

Kernels that do not compile, a driver that refuses graphs and wrong results all show in it. What has
passed is remembered for each GPU and version, so later starts do not wait for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from trtla.errors import first_line
from trtla.files import user_cache, write_whole
from trtla.formats.config import CheckpointConfig, Quantization
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.models.cuda.graphs import Capture, GraphRunner
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as Decoded
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.version import __version__

_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
_KV_HEADS, _LAYERS, _VOCABULARY = 2, 2, 320
_BLOCKS = 12
_CACHED = 70
_TREE = (0, 1, 2, 0, 4, 5, 0, 7, 8, 3, 10)
"""Parents of a small draft: branches and a chain."""
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 0.05}
"""What the largest difference may be, as a share of the largest logit: with a wrong bit in the mask
it is 0.15."""


def remembered_problem(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device, capture: Capture | None
) -> str | None:
    """As `problem`, but where it has passed on such a GPU with these versions nothing is run."""
    try:
        path = user_cache() / f"cuda-{_key(config, dtype, device)}.json"
    except Exception as error:  # a Triton that cannot be imported, or a driver that is gone
        return f"{type(error).__name__}: {first_line(error)}"
    with suppress(OSError, ValueError):
        if json.loads(path.read_text(encoding="utf-8")) == {"passed": True}:
            return None
    found = problem(config, dtype, device, capture)
    if found is None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({"passed": True}))
    return found


def problem(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device, capture: Capture | None
) -> str | None:
    """Why the fast path cannot be used, in one line; None: it gives what PyTorch's operations give.

    Args:
        config: of the model it is wanted for, whose heads and cache the small one has.
        capture: how graphs are made; None: without any.
    """
    try:
        worst = _difference(_small(config), dtype, device, capture)
    except Exception as error:  # of Triton, its compiler, the driver, or no memory
        return f"{type(error).__name__}: {first_line(error)}"
    if not worst <= _TOLERANCE[dtype]:  # NaN is no pass
        return f"its logits differ from PyTorch's by {worst:.2g} of their largest"
    return None


def _key(config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> str:
    """What the result depends on."""
    facts = (
        *(config.head_size, config.num_attention_heads // config.num_key_value_heads),
        *(config.fp8_kv_cache, config.rope_type, str(dtype)),
        *(torch.cuda.get_device_name(device), torch.version.cuda),
        *(torch.__version__, _triton_version(), __version__, *map(_digest, _SOURCES)),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _triton_version() -> str:
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return str(triton.__version__)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _small(config: CheckpointConfig) -> CheckpointConfig:
    """Two layers with the model's heads, rotary embedding and K/V cache."""
    heads = _KV_HEADS * (config.num_attention_heads // config.num_key_value_heads)
    cache = config.quantization.kv_cache_quant_algo
    changed = {
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": _KV_HEADS,
        "hidden_size": 128,
        "intermediate_size": 256,
        "vocab_size": _VOCABULARY,
        "attn_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "quantization": Quantization(kv_cache_quant_algo=cache),
    }
    return config.model_copy(update=changed)


def _weights(config: CheckpointConfig, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Random ones, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    hidden, size = config.hidden_size, config.head_size
    heads = config.num_attention_heads
    shapes = {
        "attention.qkv.weight": ((heads + 2 * config.num_key_value_heads) * size, hidden),
        "attention.dense.weight": (hidden, heads * size),
        "mlp.fc.weight": (config.intermediate_size, hidden),
        "mlp.gate.weight": (config.intermediate_size, hidden),
        "mlp.proj.weight": (hidden, config.intermediate_size),
    }
    yield "transformer.vocab_embedding.weight", _random((config.vocab_size, hidden), generator)
    yield "transformer.ln_f.weight", torch.ones(hidden)
    for layer in range(config.num_hidden_layers):
        for norm in ("input_layernorm", "post_layernorm"):
            yield f"transformer.layers.{layer}.{norm}.weight", torch.ones(hidden)
        for name, shape in shapes.items():
            yield f"transformer.layers.{layer}.{name}", _random(shape, generator)
        if config.fp8_kv_cache:
            scale = torch.tensor([0.05])
            yield f"transformer.layers.{layer}.attention.kv_cache_scaling_factor", scale


def _random(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator).div_(shape[1] ** 0.5)


def _difference(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device, capture: Capture | None
) -> float:
    """Largest difference of logits over prompts and steps, as a share of the largest logit."""
    model = LlamaModel(config, _weights(config, device), dtype, device)
    plain, fast = model.new_cache(_BLOCKS + 1), model.new_cache(_BLOCKS + 1)
    sizes, texts = (1 + len(_TREE),), _texts(fast)
    runner = GraphRunner(model.forward_batch, fast, 2, sizes, _CACHED + 64, capture)
    found: list[Tensor] = []
    for feeds in _steps(texts):
        expected = model.forward(feeds, plain).logits
        model.fused = True
        got = runner(feeds).logits
        model.fused = False
        if runner.problem is not None:
            raise RuntimeError(runner.problem)
        found.append((got - expected).abs().max() / expected.abs().max())
    return torch.stack(found).max().item()  # NaN where any is


def _texts(cache: KVCache) -> list[Decoded]:
    """Two, in blocks of a cache, with nothing in it yet."""
    prompts = [tuple((7 * i + 3 * which) % _VOCABULARY for i in range(_CACHED)) for which in (0, 1)]
    texts = []
    for which, prompt in enumerate(prompts):
        blocks = cache.pool.allocate(_BLOCKS // 2 * TOKENS_PER_BLOCK)
        assert blocks is not None
        request = Request(which, prompt)
        texts.append(Decoded(request, AUTOREGRESSIVE, NoDrafter(), [], 0, blocks))
    return texts


def _steps(texts: Sequence[Decoded]) -> Iterator[Sequence[Feed]]:
    """The prompts, then one token each, then a tree beside one token, then a tree alone."""
    yield [Feed.prompt(text, len(text.prompt), True) for text in texts]
    for text in texts:
        text.num_cached = len(text.prompt)
        text.output_ids.append(5)
    none = Draft((), ())
    tree = Draft(tuple(11 + node for node in range(len(_TREE))), _TREE)
    yield [Feed.step(text, none) for text in texts]
    yield [Feed.step(texts[0], tree), Feed.step(texts[1], none)]
    yield [Feed.step(texts[0], tree)]
