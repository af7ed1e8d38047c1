"""A second device where there is none: its tensors compute, but never together with the first's.

`Elsewhere` holds numbers on the CPU and says that it is on a CUDA device. PyTorch's own rule is
kept: an operation with tensors of both devices raises, whatever is moved with `to` is moved.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from trtla.runtime.models.forward import Forwarded

AWAY, HOME = torch.device("cuda:7"), torch.device("cpu")


class Elsewhere(Tensor):
    """A tensor of the second device."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == Tensor.device.__get__:
            return AWAY
        leaves = tree_leaves((args, kwargs or {}))
        if func is Tensor.cpu or (func is Tensor.to and HOME in leaves):
            return args[0].as_subclass(Tensor)
        if func is Tensor.to and AWAY in leaves:
            return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            homes = {
                isinstance(one, cls) for one in leaves if isinstance(one, Tensor) and one.dim()
            }
        if homes == {True, False}:
            raise RuntimeError("Expected all tensors to be on the same device")
        return super().__torch_function__(func, types, args, kwargs)


class SecondDevice(TorchFunctionMode):
    """While it is on, tensors can be made on the second device and moved there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is Tensor.to and AWAY in args and not isinstance(args[0], Elsewhere):
            return args[0].as_subclass(Elsewhere)
        if kwargs.get("device") == AWAY:
            rest = {key: value for key, value in kwargs.items() if key != "device"}
            return func(*args, **rest).as_subclass(Elsewhere)
        return func(*args, **kwargs)


def elsewhere(forward):
    """A step's forward whose logits come out on the second device."""
    return lambda feeds: Forwarded(torch.from_numpy(forward(feeds).logits).as_subclass(Elsewhere))
