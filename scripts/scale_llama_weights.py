"""The tensors of an enlarged Llama checkpoint, made one at a time.

How each part grows so that the predictions stay the same:

- Width. The residual stream is padded with zeros, which divides the mean of its squares by
  h_new / h_old. Norm weights are multiplied by sqrt(h_old / h_new) and epsilon by h_old / h_new;
  then every norm's output is what it was. Both are exact in any dtype where h_new / h_old is a
  power of four; otherwise the norm weights are rounded once.
- Heads. Added query heads meet zero columns in o_proj. Each old query head stays with its own
  key/value head, which is repeated where the new groups are smaller than the old ones.
- Head size, by a whole factor m. Rotary pair i moves to pair m * i, whose frequency is the same;
  q_proj is multiplied by sqrt(m) because scores are divided by the root of the head size.
- Feed-forward units meet zero columns in down_proj. Added layers have zero o_proj and down_proj.
- Vocabulary. One added hidden dimension holds a small constant, whose square is taken off epsilon;
  added tokens read it with a large negative weight, so their logits are far below all others.
  With tied embeddings the old logits all rise by one tiny amount, which changes no probability.

Weights that meet a zero elsewhere are small random numbers, so that no kernel sees empty matrices.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

_STD = 0.02
# Both are exact in float16 and bfloat16; the product with the norm's output stays in their range.
_NEVER = -32768.0
_AMPLIFIED = 8.0
_ROPE_TYPES = ("default", "linear", "llama3")
INDEX_FILE = "model.safetensors.index.json"


class ScaleError(Exception):
    """A request that cannot be met; the message is one sentence for the user."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama, under the names that config.json gives them."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int

    @property
    def group(self) -> int:
        """Number of query heads on one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads


class Source:
    """A checkpoint folder, read one tensor at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = _read_json(folder / "config.json")
        if self.config.get("model_type") != "llama":
            raise ScaleError(f"{folder} does not hold a Llama: model_type is not 'llama'")
        if self.config.get("attention_bias") or self.config.get("mlp_bias"):
            raise ScaleError("checkpoints with attention or feed-forward biases are not supported")
        self.shape = _shape_of(self.config)
        self.tied = bool(self.config.get("tie_word_embeddings", False))
        self._files = self._locate()

    def _locate(self) -> dict[str, Path]:
        if (self.folder / INDEX_FILE).is_file():
            weight_map = _read_json(self.folder / INDEX_FILE)["weight_map"]
            return {name: self.folder / file for name, file in weight_map.items()}
        path = self.folder / "model.safetensors"
        if not path.is_file():
            raise ScaleError(f"{self.folder} has neither model.safetensors nor {INDEX_FILE}")
        with _opened(path) as file:
            return dict.fromkeys(file.keys(), path)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor by its name in the checkpoint."""
        if name not in self._files:
            raise ScaleError(f"{self.folder} has no tensor {name}")
        with _opened(self._files[name]) as file:
            found: Tensor = file.get_tensor(name)
        return found


def _opened(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise ScaleError(f"{path} cannot be read as safetensors: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScaleError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ScaleError(f"{path} is not valid JSON: {error}") from error
    return content


def _shape_of(config: dict[str, Any]) -> Shape:
    heads = config.get("num_attention_heads") or 0
    defaults = {
        "num_key_value_heads": heads,
        "head_dim": config.get("hidden_size", 0) // max(heads, 1),
    }
    sizes = {name: config.get(name) or defaults.get(name) for name in Shape.__annotations__}
    missing = [name for name, size in sizes.items() if not isinstance(size, int) or size < 1]
    if missing:
        raise ScaleError(f"config.json gives no usable value for {', '.join(missing)}")
    return Shape(**{name: int(size) for name, size in sizes.items() if size})


def check(old: Shape, new: Shape, config: dict[str, Any]) -> None:
    """Raise ScaleError if a checkpoint of one shape cannot be enlarged to the other."""
    for name, size in vars(new).items():
        if size < getattr(old, name):
            raise ScaleError(
                f"{name} can only grow: the source has {getattr(old, name)}, not {size}"
            )
    if new.num_attention_heads % new.num_key_value_heads:
        raise ScaleError("num_attention_heads must be a multiple of num_key_value_heads")
    if new.hidden_size % new.num_attention_heads:
        raise ScaleError("hidden_size must be a multiple of num_attention_heads")
    needed = old.num_key_value_heads * _copies(old, new)
    if new.num_key_value_heads < needed:
        raise ScaleError(
            f"num_key_value_heads must be at least {needed}, so that every old query head keeps "
            f"its key/value head in groups of {new.group}"
        )
    if new.vocab_size > old.vocab_size and new.hidden_size == old.hidden_size:
        raise ScaleError("vocab_size can only grow together with hidden_size")
    _check_head_dim(old, new, config)


def _check_head_dim(old: Shape, new: Shape, config: dict[str, Any]) -> None:
    if new.head_dim == old.head_dim:
        return
    if new.head_dim % old.head_dim:
        raise ScaleError(f"head_dim must be a multiple of the source's {old.head_dim}")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise ScaleError(f"head_dim cannot grow with rotary positions of type '{kind}'")


def _copies(old: Shape, new: Shape) -> int:
    return -(-old.group // new.group)


class Scaler:
    """Makes the enlarged checkpoint's tensors."""

    def __init__(self, source: Source, new: Shape, dtype: torch.dtype | None) -> None:
        check(source.shape, new, source.config)
        self.source, self.old, self.new, self.dtype = source, source.shape, new, dtype
        self.ratio = self.old.hidden_size / new.hidden_size
        self.constant, self.eps = self._epsilon()
        copies = _copies(self.old, new)
        q_head = torch.arange(self.old.num_attention_heads)
        group, member = q_head // self.old.group, q_head % self.old.group
        slot = group * copies + member // new.group
        self.q_rows = self._rows(slot * new.group + member % new.group)
        self.kv_slots = torch.arange(self.old.num_key_value_heads * copies)
        self.kv_rows = self._rows(self.kv_slots)

    def _epsilon(self) -> tuple[float, float]:
        """Return the constant feature's value (0 if unused) and the new epsilon."""
        eps = float(self.source.config.get("rms_norm_eps", 1e-6))
        if self.new.vocab_size == self.old.vocab_size:
            return 0.0, eps * self.ratio
        # A power of two is exact in every dtype; its square takes at most half of epsilon.
        constant = 2.0 ** math.floor(math.log2(eps * self.old.hidden_size / 2) / 2)
        return constant, eps * self.ratio - constant**2 / self.new.hidden_size

    def _rows(self, heads: Tensor) -> Tensor:
        """Return where each row of the old heads goes, given each old head's new place."""
        half, factor = self.old.head_dim // 2, self.new.head_dim // self.old.head_dim
        pair = torch.arange(half) * factor
        inside = torch.cat((pair, pair + self.new.head_dim // 2))
        return (heads[:, None] * self.new.head_dim + inside).flatten()

    def names(self) -> Iterator[str]:
        """Yield the names of the enlarged checkpoint's tensors."""
        yield "model.embed_tokens.weight"
        for layer in range(self.new.num_hidden_layers):
            for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
                yield f"model.layers.{layer}.self_attn.{part}.weight"
            for part in ("gate_proj", "up_proj", "down_proj"):
                yield f"model.layers.{layer}.mlp.{part}.weight"
            for part in ("input_layernorm", "post_attention_layernorm"):
                yield f"model.layers.{layer}.{part}.weight"
        yield "model.norm.weight"
        if not self.source.tied:
            yield "lm_head.weight"

    def tensor(self, name: str) -> Tensor:
        """Return one tensor of the enlarged checkpoint, in the dtype asked for."""
        part = name.split(".")[-2]
        added = name.startswith("model.layers.") and (
            int(name.split(".")[2]) >= self.old.num_hidden_layers
        )
        # An added layer takes dtype and sizes from the first layer.
        origin = f"model.layers.0.{name.split('.', 3)[3]}" if added else name
        old = self.source.tensor(origin).to(self.dtype)
        if part in ("embed_tokens", "lm_head"):
            return self._vocabulary(old, part)
        if part.endswith("norm"):
            return self._norm(torch.ones_like(old) if added else old, part)
        return self._matrix(name, part, old, added)

    def _vocabulary(self, old: Tensor, part: str) -> Tensor:
        result = old.new_zeros(self.new.vocab_size, self.new.hidden_size)
        result[: self.old.vocab_size, : self.old.hidden_size] = old
        if self.constant:
            if part == "embed_tokens":
                result[: self.old.vocab_size, self.old.hidden_size] = self.constant
            if part == "lm_head" or self.source.tied:
                result[self.old.vocab_size :, self.old.hidden_size] = _NEVER
        return result

    def _norm(self, old: Tensor, part: str) -> Tensor:
        # Padding is zero, so that the layers never read the constant feature.
        result = old.new_zeros(self.new.hidden_size)
        result[: self.old.hidden_size] = (old.double() * math.sqrt(self.ratio)).to(old.dtype)
        if part == "norm" and self.constant:
            result[self.old.hidden_size] = _AMPLIFIED
        return result

    def _matrix(self, name: str, part: str, old: Tensor, added: bool) -> Tensor:
        rows, columns = self._places(part)
        shape = self._matrix_shape(part)
        if part in ("o_proj", "down_proj"):
            result = old.new_zeros(shape)
        else:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            result = torch.empty(shape, dtype=old.dtype).normal_(0.0, _STD, generator=generator)
        if added:
            return result
        if part == "k_proj":
            # The added dimensions of an old head must not add to its scores.
            result.view(-1, self.new.head_dim, shape[1])[self.kv_slots] = 0
        if part in ("k_proj", "v_proj"):
            heads = old.view(self.old.num_key_value_heads, self.old.head_dim, -1)
            old = heads.repeat_interleave(_copies(self.old, self.new), dim=0).flatten(0, 1)
        if part == "q_proj":
            old = (old.double() * math.sqrt(self.new.head_dim / self.old.head_dim)).to(old.dtype)
        result[rows[:, None], columns] = old
        return result

    def _places(self, part: str) -> tuple[Tensor, Tensor]:
        hidden = torch.arange(self.old.hidden_size)
        inner = torch.arange(self.old.intermediate_size)
        return {
            "q_proj": (self.q_rows, hidden),
            "k_proj": (self.kv_rows, hidden),
            "v_proj": (self.kv_rows, hidden),
            "o_proj": (hidden, self.q_rows),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }[part]

    def _matrix_shape(self, part: str) -> tuple[int, int]:
        new = self.new
        if part in ("gate_proj", "up_proj"):
            return new.intermediate_size, new.hidden_size
        if part == "down_proj":
            return new.hidden_size, new.intermediate_size
        queries = part in ("q_proj", "o_proj")
        heads = new.num_attention_heads if queries else new.num_key_value_heads
        outer = heads * new.head_dim
        return (new.hidden_size, outer) if part == "o_proj" else (outer, new.hidden_size)

    def config(self) -> dict[str, Any]:
        """Return the enlarged checkpoint's config.json."""
        result = {**self.source.config, **vars(self.new), "rms_norm_eps": self.eps}
        if self.dtype is not None:
            result.pop("dtype", None)
            result["torch_dtype"] = str(self.dtype).removeprefix("torch.")
        return result
