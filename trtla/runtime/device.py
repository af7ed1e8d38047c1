"""The device that a model runs on. Torch is imported only if a GPU may be meant."""

from __future__ import annotations

from dataclasses import dataclass

from trtla.console import counted
from trtla.errors import UsageError
from trtla.machine import loaded_driver


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


def resolve_device(device: str, flag: str = "--device") -> Device:
    """Resolve auto, cpu, cuda or cuda:N; auto takes CUDA if available.

    Args:
        flag: the flag to change in an error's hint.
    """
    if device == "auto":
        device = "cuda" if _has_cuda() else "cpu"
    if device == "cpu":
        return CPU
    kind, _, number = device.partition(":")
    if kind != "cuda" or (":" in device and not (number.isascii() and number.isdecimal())):
        raise UsageError(f"device {device!r} is not known", "use auto, cpu, cuda or cuda:N")
    return _cuda(device, number, flag)


def _has_cuda() -> bool:
    """Return True if PyTorch sees a GPU; torch is not imported unless a driver is loaded."""
    if loaded_driver() == (None, None):
        return False
    try:
        import torch
    except ImportError:  # only GPUs need it
        return False
    return torch.cuda.is_available()


def _cuda(device: str, number: str, flag: str) -> Device:
    try:
        import torch
    except ImportError:
        raise UsageError(
            f"device {device!r} needs PyTorch", f"use {flag} cpu, or install torch"
        ) from None
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        others = "cpu, or install a PyTorch build for your GPU's driver"
        if count:
            others = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UsageError(
            f"device {device!r} is not available: PyTorch sees {counted(count, 'GPU')}",
            f"use {flag} {others}",
        )
    return Device("cuda", int(number) if number else torch.cuda.current_device())
