"""PyTorch `.bin` weight files, read with `weights_only`: no code of theirs is ever run.

The file is mapped into memory; the mapping is dropped now and then so that pages already read do
not count as resident memory.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from trtla.build.safetensors_file import Entry
from trtla.errors import UsageError

_DROP_AFTER = 128 * 2**20


class BinFile:
    """A state dict in a `.bin` file.

    Raises:
        UsageError: the file is missing, truncated, or holds anything but tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: dict[str, torch.Tensor] | None = None
        self._touched = 0
        self.entries = {
            name: Entry(tensor.dtype, tuple(tensor.shape), 0)
            for name, tensor in self._load().items()
        }

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of a tensor with at least one dimension, in memory of their own."""
        if self._touched > _DROP_AFTER:
            self.close()
        state = self._state if self._state is not None else self._load()
        rows = state[name][start:stop].clone(memory_format=torch.contiguous_format)
        self._touched += rows.numel() * rows.element_size()
        return rows

    def close(self) -> None:
        """Drop the mapping; the next read makes it again."""
        self._state, self._touched = None, 0

    def _load(self) -> dict[str, torch.Tensor]:
        state = _load(self.path)
        if not isinstance(state, dict):
            raise UsageError(f"{self.path} holds no state dict", "save the model again")
        for name, value in state.items():
            if not isinstance(name, str):
                raise UsageError(
                    f"{self.path}: a tensor is called {name!r}, which is no text",
                    "save the model's state_dict() again",
                )
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                raise UsageError(f"{self.path}: {name} is no plain tensor", "save the model again")
        self._state = state
        return state


def _load(path: Path) -> object:
    try:
        # Files older than PyTorch 1.6 are no zip archives and cannot be mapped.
        with path.open("rb") as file:
            mapped = file.read(2) == b"PK"
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "copy the missing file") from None
    except pickle.UnpicklingError:
        raise UsageError(
            f"{path} holds objects other than tensors, which trtla does not load",
            "save the model as safetensors where you trust it",
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check its mode") from None
    except Exception:  # a broken pickle ends in whatever its bytes happen to say
        raise UsageError(
            f"{path} is truncated or no PyTorch file", "copy the file again, or make it again"
        ) from None
