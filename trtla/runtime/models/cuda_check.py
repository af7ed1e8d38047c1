"""The choice between the fast path on CUDA and PyTorch's operations, with its reason.

A self-test runs the fused operations at the model's own sizes, then a small model with the model's
heads and FP8 both ways. It finds kernels that do not compile, drivers that refuse graphs, and wrong
results. A pass is remembered for each GPU and version, so later starts do not wait for it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trtla.errors import UsageError, first_line
from trtla.files import user_cache, write_whole
from trtla.formats import tensors, torch_tensors
from trtla.formats.config import FP8, OPTIONS, CheckpointConfig, Quantization
from trtla.formats.plan import stored_plan
from trtla.formats.tensors import scale_of
from trtla.formats.torch_tensors import E4M3, as_array, quantize
from trtla.machine import loaded_driver
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.models.cuda.graphs import Capture, CudaCapture, GraphRunner
from trtla.runtime.models.cuda.paged_attention import kernels_problem
from trtla.runtime.models.layers import PlainOperations, Rotary, fp8_products
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as Decoded
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.version import __version__

VARIABLE = "TRTLA_CUDA_PATH"
CaptureOn = Callable[[torch.device], Capture]
"""A factory of graph captures for a device."""
_MODELS = Path(__file__).parent
_SOURCES = (
    *sorted(_MODELS.glob("*.py")),
    *sorted(_MODELS.glob("cuda/*.py")),
    Path(tensors.__file__),
    Path(torch_tensors.__file__),
)
"""Source files of the fast path and of its reference; a change repeats the self-test."""
_KV_HEADS, _LAYERS, _VOCABULARY = 2, 2, 320
_BLOCKS = 12
_CACHED, _SHORT, _WINDOW = 70, 9, 20
_TREE = (0, 1, 2, 0, 4, 5, 0, 7, 8, 3, 10)
"""Parents of a small draft: branches and a chain."""
_ACCEPTED = (4, 5, 6)
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 0.05}
"""Largest accepted difference of logits, as a share of the largest logit; one wrong bit in the mask
causes 0.15."""
_FP8_CACHE_TOLERANCE, _FP8_TOLERANCE = 0.06, 0.3
"""The same for an FP8 cache and FP8 products, whose rounding may go either way. Changed last bits
caused up to 0.054 with the cache and 0.18 with the products, which hides wrong masks."""
_ROUNDING = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 0.03}
"""Largest accepted difference of a single operation's results: some units in the last place."""
_SCALES = (0.02, 0.03)
"""Scales of FP8 inputs, which let them reach 9 or more."""
_TOKENS, _SCALE = 3, 0.05
"""Number of tokens, and FP8 scale, in tests of single operations; numbers may reach 22."""
_HALF_STEP, _LEAST_NORMAL = 2.0**-4, 2.0**-6 * _SCALE
"""Largest relative change when a number is rounded to FP8, and the smallest normal number, whose
change also bounds that of smaller ones."""
_Results = Iterator[tuple[Tensor, Tensor]]
"""Pairs of a fused result, which may be FP8 over `_SCALE`, and PyTorch's unrounded one."""


@dataclass(frozen=True, slots=True)
class CudaPath:
    """The path chosen for one model."""

    problem: str | None
    """The reason against the fast path; None selects it."""

    @property
    def fast(self) -> bool:
        return self.problem is None

    def __str__(self) -> str:
        if self.problem is None:
            return "CUDA graphs, and Triton kernels over pages"
        return f"PyTorch's operations: {self.problem}"


def choose_path(config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> CudaPath:
    """Return the fast path if it passes its self-test, else PyTorch's operations."""
    choice = os.environ.get(VARIABLE) or "auto"
    if choice not in ("auto", "plain"):
        raise UsageError(f"{VARIABLE} is {choice!r}", "use auto or plain")
    if choice == "plain":
        return CudaPath(f"{VARIABLE}=plain says so")
    found = kernels_problem(config, dtype, device)
    return CudaPath(found or _remembered_problem(config, dtype, device))


def _remembered_problem(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Return `problem`'s answer; nothing runs after a pass on such a GPU with these versions."""
    try:
        path = user_cache() / f"cuda-{_key(config, dtype, device)}.json"
    except Exception as error:  # a Triton that cannot be imported, or a driver that is gone
        return f"{type(error).__name__}: {first_line(error)}"
    with suppress(OSError, ValueError):
        if json.loads(path.read_text(encoding="utf-8")) == {"passed": True}:
            return None
    found = problem(config, dtype, device, CudaCapture)
    if found is None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({"passed": True}))
    return found


def problem(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device, capture_on: CaptureOn | None
) -> str | None:
    """Return in one line why the fast path cannot be used; None if it matches PyTorch's.

    Args:
        config: the model's; the small model has its heads, cache and FP8.
        capture_on: makes the capture of graphs; None runs without graphs.
    """
    try:
        products = config.fp8 and fp8_products(config, dtype, device)
        worst = largest_difference(config, dtype, device, products)
        if not worst <= _ROUNDING[dtype]:  # NaN is no pass
            return f"its small operations differ from PyTorch's by {worst:.2g} of their largest"
        for small in _small(config, products):
            worst = _difference(small, dtype, device, capture_on)
            if not worst <= _tolerance(small, dtype):
                return f"its logits differ from PyTorch's by {worst:.2g} of their largest"
    except Exception as error:  # of Triton, its compiler, the driver, or no memory
        return f"{type(error).__name__}: {first_line(error)}"
    return None


def _key(config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> str:
    facts = (
        *(config.head_size, config.num_attention_heads, config.num_key_value_heads),
        *(config.hidden_size, config.intermediate_size, config.norm_epsilon),
        bool(config.layer_windows),
        *(config.quantization.model_dump_json(), config.rope_type, str(dtype)),
        *(config.hidden_act, *(getattr(config, option) for option in OPTIONS)),
        *(torch.cuda.get_device_name(device), torch.version.cuda, *loaded_driver()),
        *(torch.__version__, _triton_version(), __version__, *map(_digest, _SOURCES)),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _triton_version() -> str:
    import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return str(triton.__version__)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tolerance(small: CheckpointConfig, dtype: torch.dtype) -> float:
    if small.fp8:
        return _FP8_TOLERANCE
    return _FP8_CACHE_TOLERANCE if small.fp8_kv_cache else _TOLERANCE[dtype]


def _small(config: CheckpointConfig, products: bool) -> Iterator[CheckpointConfig]:
    """Yield two-layer models with the model's heads, rotary embedding and K/V cache.

    The second one has FP8 weights, whose rounding hides a wrong bit in a mask; the first shows it.
    """
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
        "layer_windows": (_WINDOW, None) if config.layer_windows else (),
    }
    for algorithm in (None, "FP8") if products else (None,):
        quantization = Quantization(quant_algo=algorithm, kv_cache_quant_algo=cache)
        yield config.model_copy(update={**changed, "quantization": quantization})


def _weights(config: CheckpointConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield random matrices and norms of ones, with scales for FP8."""
    generator = torch.Generator().manual_seed(0)
    for target in stored_plan(config, 0):
        module, _, kind = target.name.rpartition(".")
        if kind == "kv_cache_scaling_factor":
            yield target.name, torch.tensor([0.05])
        elif kind == "activation_scaling_factor":
            # Gate and up share their rounded input in the first layer only.
            other = module.endswith("mlp.gate") and not module.startswith("transformer.layers.0.")
            yield target.name, torch.tensor([_SCALES[other]])
        elif len(target.shape) == 1 and kind == "weight":
            yield target.name, torch.ones(target.shape)
        elif kind == "weight":
            weight = torch.randn(target.shape, generator=generator).div_(target.shape[1] ** 0.5)
            scale = torch.tensor([scale_of(weight.abs().max().item())])
            if target.dtype == FP8:
                yield f"{module}.weights_scaling_factor", scale
            yield target.name, quantize(weight, scale) if target.dtype == FP8 else weight


def _difference(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device, capture_on: CaptureOn | None
) -> float:
    """Return the largest difference of logits over all steps, as a share of the largest logit."""
    from trtla.runtime.models.cuda.fused import FusedOperations

    capture = None if capture_on is None else capture_on(device)
    weights = ((name, as_array(tensor)) for name, tensor in _weights(config))
    model = LlamaModel(config, weights, dtype, device, products=config.fp8)
    plain, fast = model.new_cache(_BLOCKS + 1), model.new_cache(_BLOCKS + 1)
    sizes, texts = (1 + len(_TREE),), _texts(fast)
    most = _CACHED + 64
    runner = GraphRunner(model.forward_batch, fast, 2, sizes, most, capture, windows=model.windows)
    found: list[Tensor] = []
    for feeds in _steps(texts, (plain, fast)):
        plain.move_now()
        expected = model.run(feeds, plain).logits
        model.operations = FusedOperations()
        got = runner(feeds).logits
        model.operations = PlainOperations()
        if runner.problem is not None:
            raise RuntimeError(runner.problem)
        found.append((got - expected).abs().max() / expected.abs().max())
    if capture is not None and not runner.captured:  # for want of memory, which is no `problem`
        raise RuntimeError("out of memory: no graph could be captured")
    return torch.stack(found).max().item()  # NaN where any is


def _texts(cache: TensorCache) -> list[Decoded]:
    texts = []
    for which, length in enumerate((_CACHED, _SHORT)):
        prompt = tuple((7 * i + 3 * which) % _VOCABULARY for i in range(length))
        blocks = cache.pool.allocate(_BLOCKS // 2 * TOKENS_PER_BLOCK)
        assert blocks is not None
        request = Request(which, prompt)
        texts.append(Decoded(request, AUTOREGRESSIVE, NoDrafter(), [], 0, blocks))
    return texts


def _steps(texts: Sequence[Decoded], caches: Sequence[TensorCache]) -> Iterator[Sequence[Feed]]:
    """Yield the prompts, one token each, a tree next to one token, and the same tree again after
    its accepted nodes."""
    yield [Feed.prompt(text, len(text.prompt), True) for text in texts]
    for text in texts:
        text.num_cached = len(text.prompt)
        text.output_ids.append(5)
    none = Draft((), ())
    tree = Draft(tuple(11 + node for node in range(len(_TREE))), _TREE)
    yield [Feed.step(text, none) for text in texts]
    yield [Feed.step(texts[0], tree), Feed.step(texts[1], none)]
    _accept(texts[0], tree, caches)
    yield [Feed.step(texts[0], tree)]


def _accept(text: Decoded, tree: Draft, caches: Sequence[TensorCache]) -> None:
    """Append a chain of accepted nodes to a text; the next forward moves their rows."""
    for cache in caches:
        slots = cache.table(text.blocks).order[text.num_cached :]
        moves = [(slots[node], slots[place]) for place, node in enumerate(_ACCEPTED, 1)]
        cache.move_later(moves)
    text.num_cached += 1 + len(_ACCEPTED)
    text.output_ids += [*(tree.tokens[node - 1] for node in _ACCEPTED), 5]


@torch.inference_mode()
def largest_difference(
    config: CheckpointConfig, dtype: torch.dtype, device: torch.device, products: bool
) -> float:
    """Return the largest error of the fused operations at a model's own sizes.

    It is a share of the largest number and excludes FP8 rounding.
    """
    case = _Case(config, dtype, device, products)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        results = (*case.norms(), *case.activations(), *case.rotations())
        return torch.stack([_error(*pair) for pair in results]).max().item()


class _Case:
    def __init__(
        self, config: CheckpointConfig, dtype: torch.dtype, device: torch.device, products: bool
    ) -> None:
        from trtla.runtime.models.cuda.fused import FusedOperations

        self._config, self._dtype, self._device = config, dtype, device
        self._fused, self._plain = FusedOperations(), PlainOperations()
        self._generator = torch.Generator().manual_seed(0)
        self._products = products
        self._scale = torch.tensor([_SCALE], device=device) if products else None

    def norms(self) -> _Results:
        """Yield a model's first norm, a layer's, and the last one, which no FP8 product follows."""
        size, epsilon = self._config.hidden_size, self._config.norm_epsilon
        states, delta = self._numbers(_TOKENS, size), self._numbers(_TOKENS, size)
        weight = self._numbers(size)
        for added, scale in ((None, self._scale), (delta, self._scale), (delta, None)):
            found = self._fused.add_norm(states, added, weight, epsilon, scale)
            yield from zip(found, self._plain.add_norm(states, added, weight, epsilon), strict=True)

    def activations(self) -> _Results:
        """Yield the activation of gate and up, and rounded outputs of attention.

        Gate and up are views of one tensor where one product computes both.
        """
        gate, up = self._numbers(_TOKENS, 2 * self._config.intermediate_size).chunk(2, dim=-1)
        if self._products:
            gate, up = gate.contiguous(), up.contiguous()
        yield self._fused.silu_mul(gate, up, self._scale), self._plain.silu_mul(gate, up)
        attended = self._numbers(_TOKENS, self._config.num_attention_heads * self._config.head_size)
        yield self._fused.rounded(attended, self._scale), attended

    def rotations(self) -> _Results:
        config, device = self._config, self._device
        shape = (1, config.num_key_value_heads, config.head_size, 1)
        plain = TensorCache(*shape, self._dtype, device)
        scales = [_SCALE] if config.fp8_kv_cache else []
        fused = TensorCache(*shape, self._dtype, device, scales)
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        qkv = self._numbers(_TOKENS, heads * config.head_size)
        slots = torch.tensor([TOKENS_PER_BLOCK - 1, 0, 5], device=device)
        rotary = Rotary(config, self._dtype, device)(slots * 7, None)
        found = self._fused.rotate_write(qkv, rotary, slots, fused, 0)
        yield found, self._plain.rotate_write(qkv, rotary, slots, plain, 0)
        for part, wanted in zip(fused.layer(0), plain.layer(0), strict=True):
            stored = part[slots]
            yield stored.view(E4M3) if config.fp8_kv_cache else stored, wanted[slots]

    def _numbers(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator)
        return drawn.to(self._device, self._dtype)


def _error(found: Tensor, wanted: Tensor) -> Tensor:
    wanted = wanted.float()
    if found.dtype == E4M3:
        rounding = _HALF_STEP * wanted.abs().clamp(min=_LEAST_NORMAL)
        error = (found.float() * _SCALE - wanted).abs() - rounding
    else:
        error = (found.float() - wanted).abs()
    return error.max() / wanted.abs().max()  # NaN where any is
