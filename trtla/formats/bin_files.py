"""PyTorch's `.bin` files: a state dict, which PyTorch loads as tensors and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy import ndarray

from trtla.errors import UsageError, require
from trtla.files import refuse_stand_in
from trtla.formats.weight_files import Entry, changed, flat_shape, refusing, stamp


class BinFile:
    """A state dict in a `.bin` file, mapped; one from before PyTorch 1.6 is loaded whole."""

    def __init__(self, path: Path) -> None:
        require(f"{path}, a file of PyTorch,", "torch")
        import torch

        from trtla.formats.torch_tensors import as_array

        self.path = path
        with refusing(path, "is truncated or no PyTorch file"), path.open("rb") as file:
            is_archive = file.read(2) == b"PK"
            self._stamp = stamp(path.stat())
            refuse_stand_in(path)
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
            self._tensors = {k: _flat(k, v) for k, v in _checked(path, state).items()}
            tensors = self._tensors.items()
            self.entries = {k: Entry(as_array(v).dtype, tuple(v.shape), 0) for k, v in tensors}

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop) of a tensor with at least one dimension, in memory of their own."""
        from trtla.formats.torch_tensors import as_array

        with refusing(self.path, "cannot be read"):
            if stamp(self.path.stat()) != self._stamp:
                raise changed(self.path)
            rows: ndarray = as_array(self._tensors[name][start:stop]).copy()
        return rows

    def close(self) -> None:
        """Do nothing: the file stays mapped while this object is used."""


def _flat(name: str, tensor: Any) -> Any:
    """A tensor in its `flat_shape`."""
    return tensor.reshape(flat_shape(name, tuple(tensor.shape)))


def _checked(path: Path, state: Any) -> dict[str, Any]:
    from torch import Tensor, strided

    tensors: dict[Any, Any] = state if isinstance(state, dict) else {type(state).__name__: state}
    for name, value in tensors.items():
        plain = isinstance(value, Tensor) and value.layout == strided
        if not isinstance(name, str) or not plain:
            raise UsageError(
                f"{path} holds {name!r}, which is no named plain tensor",
                "save the model's state_dict() again",
            )
    return tensors
