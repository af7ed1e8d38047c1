"""The device that a model runs on. Torch is imported only if a GPU may be meant."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

from trtla.console import counted
from trtla.errors import UsageError, install_hint, is_installed, named
from trtla.machine import loaded_driver

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """A processor of a machine; `str` gives PyTorch's name of it."""

    type: str
    """cpu or cuda."""
    index: int | None = None
    """The GPU's number, always set for CUDA: without one, a tensor goes to its thread's device."""

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")


def resolve_device(device: str, setting: str = "device") -> Device:
    """Resolve auto, cpu, cuda or cuda:N; auto takes CUDA if available.

    Args:
        setting: the setting to change in an error's hint.
    """
    if device == "auto":
        device = "cuda" if _has_cuda() else "cpu"
    if device == "cpu":
        return CPU
    kind, _, number = device.partition(":")
    if kind != "cuda" or (":" in device and not (number.isascii() and number.isdecimal())):
        raise UsageError(f"device {device!r} is not known", "use auto, cpu, cuda or cuda:N")
    return _cuda(device, number, setting)


def _has_cuda() -> bool:
    """Return True if PyTorch sees a GPU; torch is not imported unless a driver is loaded."""
    if loaded_driver() == (None, None):
        return False
    if not is_installed("torch"):
        _note_unused()
        return False
    import torch

    return torch.cuda.is_available()


@cache
def _note_unused() -> None:
    _log.warning("note: GPUs need PyTorch, so the CPU computes; %s", install_hint("torch"))


def _cuda(device: str, number: str, setting: str) -> Device:
    if not is_installed("torch"):
        raise UsageError(
            f"device {device!r} needs torch, which is not installed",
            f"{install_hint('torch')}, or use {named(setting)} cpu",
        )
    import torch

    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        others = "cpu, or install a PyTorch build for your GPU's driver"
        if count:
            others = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UsageError(
            f"device {device!r} is not available: PyTorch sees {counted(count, 'GPU')}",
            f"use {named(setting)} {others}",
        )
    return Device("cuda", int(number) if number else torch.cuda.current_device())
