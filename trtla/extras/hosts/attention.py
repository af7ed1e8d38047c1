"""The inputs of a transformers model: tree masks, and caches that go back to an accepted path."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer

from trtla.runtime.draft import Draft, depths

_FULL, _SLIDING = "full_attention", "sliding_attention"
_TAKEN = ("sdpa", "eager")
"""Implementations of attention that take any mask."""
_PROBE = (0, 0, 2, 1, 4)
"""Parents of a draft to check models with: a chain's nodes 1, 4, 5, and two unseen by it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The kinds of attention layers of a model."""

    kinds: tuple[str, ...]
    window: int
    """Tokens that sliding layers see."""
    by_kind: bool
    """True if the model takes one mask for each kind."""

    def masks(self, seen: Tensor, distance: Tensor, dtype: torch.dtype) -> Any:
        """Return what the model takes as its attention mask.

        Args:
            seen: bool [rows, 1, fed, slots], True where a token may look.
            distance: positions between each fed token and each slot.
        """
        masks = {
            kind: _additive(seen & (distance < self.window) if kind == _SLIDING else seen, dtype)
            for kind in self.kinds
        }
        return masks if self.by_kind else masks[self.kinds[0]]


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)


def layout_of(model: Any) -> Layout | None:
    """Return the layout of a model that takes tree masks; None: it does not, or errs with them."""
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    found = tuple(dict.fromkeys(kinds or [_SLIDING if window else _FULL]))
    other = set(found) - {_FULL, _SLIDING} or getattr(config, "attention_types", None)
    if other or model.config._attn_implementation not in _TAKEN:
        return None
    layout = Layout(found, window or 0, bool(kinds) and _SLIDING in found)
    return layout if _takes(model, layout, config.vocab_size) else None


@torch.no_grad()
def _takes(model: Any, layout: Layout, vocab_size: int) -> bool:
    """Return True if the logits of a chain among other nodes are those of the chain alone."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    draft = Draft(tuple(range(7, 7 + 3 * len(_PROBE), 3)), _PROBE)
    chain = [0, *draft.path(5)]
    ids = torch.tensor([[5, *draft.tokens]], device=model.device) % vocab_size
    positions = torch.tensor([depths(draft.parents)], device=model.device)
    seen = ancestors([draft], draft.size).to(model.device)[:, None]
    distance = positions[:, None, :, None] - positions[:, None, None, :]
    try:
        mask = layout.masks(seen, distance, model.dtype)
        tree = _logits(model, ids, attention_mask=mask, position_ids=positions)[:, chain]
        other = _logits(model, ids, position_ids=positions)[:, chain]
        plain = _logits(model, ids[:, chain])
    except Exception:  # whatever a model raises at a mask that it does not take
        return False
    scale = plain.abs().max().item()
    error, blind = ((found - plain).abs().max().item() for found in (tree, other))
    exact = model.dtype in (torch.float32, torch.float64)
    return error <= (1e-4 if exact else 5e-2) * scale and (not blind or error < 0.5 * blind)


def _logits(model: Any, ids: Tensor, **options: Any) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=False, return_dict=True, **options).logits
    return logits.float()


def ancestors(drafts: Sequence[Draft], size: int) -> Tensor:
    """Return bool [drafts, size, size]: which fed tokens each of a draft's nodes sees.

    Tokens behind a draft's last node see the input token and themselves.
    """
    seen = torch.zeros(len(drafts), size, size, dtype=torch.bool)
    seen[:, :, 0] = True
    seen |= torch.eye(size, dtype=torch.bool)
    for row, draft in zip(seen, drafts, strict=True):
        for node, parent in enumerate(draft.parents, 1):
            row[node] |= row[parent]
    return seen


class CacheEnd:
    """The end of a cache of transformers, where the tokens of a step come and go.

    Args:
        moves: entries can change their places, as the path of a tree asks for.
        is_static: slots are there from the beginning.
    """

    def __init__(self, cache: Any, moves: bool, is_static: bool) -> None:
        self.cache, self.moves, self.is_static = cache, moves, is_static

    @classmethod
    def of(cls, cache: Any) -> CacheEnd | None:
        """Return the end of a cache; None: it does not go back, or has no place for it."""
        kinds = {type(layer) for layer in getattr(cache, "layers", ())}
        if (new := getattr(cache, "layer_class_to_replicate", None)) is not None:
            kinds.add(new)
        known = {DynamicLayer, StaticLayer, DynamicSlidingWindowLayer}
        if not kinds or kinds - known or getattr(cache, "offloading", False):
            return None
        return cls(cache, DynamicSlidingWindowLayer not in kinds, StaticLayer in kinds)

    def whole(self) -> CacheEnd:
        """Return the end of a cache whose layers all keep everything; this one if it is in use."""
        used = len(self) or getattr(self.cache, "_is_user_defined", False)
        if self.moves or used or type(self.cache) is not DynamicCache:
            return self
        return CacheEnd(DynamicCache(), True, False)

    def begin(self) -> None:
        """Keep what sliding layers would drop, from now on."""
        if not self.moves:
            self.cache.activate_past_recording()

    @property
    def room(self) -> int | None:
        """Tokens that a static cache still takes; None: any number."""
        if not self.is_static:
            return None
        return min(int(layer.max_cache_len) for layer in self.cache.layers) - len(self)

    def slots(self, fed: int) -> int:
        """Return the slots that attention sees in a step that feeds these many tokens."""
        return int(self.cache.get_mask_sizes(fed, 0)[0])

    def __len__(self) -> int:
        return int(self.cache.get_seq_length())

    def keep(self, paths: Sequence[Sequence[int]], fed: int) -> None:
        """Keep the input token and a path of nodes in each row, all equally long.

        Args:
            fed: tokens of the step, which are the cache's last ones.
        """
        count = len(paths[0])
        start = len(self) - fed + 1
        if any(list(path) != list(range(1, count + 1)) for path in paths):
            nodes = torch.tensor([list(path) for path in paths]) + (start - 1)
            for layer in self._layers():
                _move(layer, nodes, start)
        self._drop(fed - 1 - count)

    def _layers(self) -> list[Any]:
        return [layer for layer in self.cache.layers if layer.is_initialized]

    def _drop(self, count: int) -> None:
        for layer in self._layers():
            if self.is_static:
                layer.cumulative_length.sub_(count)
            else:
                layer.crop(-count)


def _move(layer: Any, nodes: Tensor, start: int) -> None:
    nodes = nodes.to(layer.keys.device)
    rows = torch.arange(len(nodes), device=nodes.device)[:, None]
    for states in (layer.keys, layer.values):
        states[:, :, start : start + nodes.shape[1]] = states[rows, :, nodes].transpose(1, 2)
