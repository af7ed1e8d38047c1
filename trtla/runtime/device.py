"""Which device a model runs on. Torch is imported only where a GPU may be meant."""

from __future__ import annotations

from dataclasses import dataclass

from trtla.console import counted
from trtla.errors import UsageError
from trtla.machine import loaded_driver


@dataclass(frozen=True, slots=True)
class Device:
    """A processor of a machine; its text is PyTorch's name of it."""

    type: str
    """cpu or cuda."""
    index: int | None = None
    """The GPU's number, always given for CUDA: without one, a tensor goes where its thread is."""

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")


def resolve_device(device: str, flag: str = "--device") -> Device:
    """auto, cpu, cuda or cuda:N; auto takes CUDA where there is one.

    Args:
        flag: what the hint of an error asks to change.
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
    """Whether PyTorch sees a GPU; it is not asked where no driver is loaded."""
    if loaded_driver() == (None, None):
        return False
    try:
        import torch
    except ImportError:  # it is needed for GPUs alone
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
