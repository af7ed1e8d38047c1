"""Keys and values as tensors, for PyTorch's operations and CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtla.formats.torch_tensors import quantize
from trtla.runtime.device import Device
from trtla.runtime.models.kv_cache import KVCache


class TensorCache(KVCache):
    """Keys and values of all layers, [layers, 2, slots, kv_heads, head_size].

    Those in FP8 are rounded when they are written, and kept as bytes: PyTorch's index operations
    know no float8.

    Args:
        dtype: of keys and values that are not FP8.
        scales: of those in FP8, one a layer; none: they are not.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        scales: Sequence[float] = (),
    ) -> None:
        super().__init__(num_blocks, Device(device.type, device.index))
        shape = (num_layers, 2, self.num_slots, num_kv_heads, head_size)
        self.data = torch.empty(shape, dtype=torch.uint8 if scales else dtype, device=device)
        self._layers = [(layer[0], layer[1]) for layer in self.data]
        self._scales = torch.tensor(scales, dtype=torch.float32, device=device) if scales else None

    def synchronize(self) -> None:
        if self.data.is_cuda:
            torch.cuda.synchronize(self.data.device)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store fed tokens' keys and values [tokens, kv_heads, head_size] at slots [tokens]."""
        scale = self.scale(layer)
        if scale is not None:
            keys, values = (quantize(part, scale).view(torch.uint8) for part in (keys, values))
        cached_keys, cached_values = self._layers[layer]
        cached_keys.index_copy_(0, slots, keys)
        cached_values.index_copy_(0, slots, values)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [slots, kv_heads, head_size]; FP8 as bytes."""
        return self._layers[layer]

    def scale(self, layer: int) -> Tensor | None:
        """The scale of stored keys and values of a layer; None: they are not FP8."""
        return None if self._scales is None else self._scales[layer]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy keys and values to other slots, now; the two may overlap."""
        self.data.index_copy_(2, target, self.data.index_select(2, source))

    def move_now(self) -> None:
        if self._moves:
            slots = torch.tensor(self.take_moves())
            if self.data.is_cuda:  # from pinned memory nobody waits for the copy
                slots = slots.pin_memory()
            self.move(*slots.to(self.data.device, non_blocking=True).unbind(1))
