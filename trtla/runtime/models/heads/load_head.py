"""Loads a trained head beside its target. Torch is imported only where it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, install_hint, is_installed
from trtla.formats.config import CheckpointConfig
from trtla.formats.heads.head import EagleConfig, Head
from trtla.runtime.device import Device
from trtla.runtime.models.cpu.library import library
from trtla.runtime.models.cpu.llama import NativeLlama
from trtla.runtime.models.forward import Model
from trtla.runtime.models.heads.head_model import HeadModel
from trtla.runtime.models.heads.native_head import NativeHead, native_head_problem
from trtla.runtime.threads import set_torch_threads

if TYPE_CHECKING:
    from trtla.runtime.models.heads.tensor_head import TensorHead


def load_head(
    head: Head, target: Model[Any], config: CheckpointConfig, dtype: str, device: Device
) -> HeadModel:
    """Load the fastest forward here of a head, whose types are its target's.

    Args:
        config: of the target.
        dtype: of the target's activations.
        device: of the target.
    """
    shape = head.config
    if not isinstance(shape, EagleConfig):
        raise UsageError(f"{head.name} holds heads of Medusa", "use an EAGLE-3 head")
    _check(head, shape, target, config)
    problem = None
    if isinstance(target, NativeLlama):
        problem = native_head_problem(shape)
        if problem is None:
            return NativeHead(head, shape, target)
    if not is_installed("torch"):
        reason = f"the head {head.name} needs torch, which is not installed: {problem}"
        raise UsageError(reason, install_hint("torch"))
    return _in_tensors(head, shape, target, dtype, device)


def _check(head: Head, shape: EagleConfig, target: Model[Any], config: CheckpointConfig) -> None:
    """Refuse a head of another model, and one that lacks what its target has no whole of."""
    other = "use a head that was trained for this model"
    sizes = {
        "hidden size": (shape.target_hidden_size, config.hidden_size),
        "vocabulary size": (shape.vocab_size, config.vocab_size),
    }
    for what, (own, there) in sizes.items():
        if own != there:
            raise UsageError(
                f"the head {head.name} is for models of {what} {own}; that of this one is {there}",
                other,
            )
    width, there_width = shape.layer.hidden_size, config.hidden_size
    for name, fits in (
        ("embedding", width == there_width),
        ("lm_head", (width, shape.layer.vocab_size) == (there_width, config.vocab_size)),
    ):
        whole = fits and not (name == "lm_head" and target.is_part)
        if name not in head.tensors and not whole:
            raise UsageError(
                f"the head {head.name} has no {name}, and that of its model does not fit",
                f"{other}, or no ranks" if fits else other,
            )


def _in_tensors(
    head: Head, shape: EagleConfig, target: Model[Any], dtype: str, device: Device
) -> TensorHead:
    import torch

    from trtla.runtime.models.heads.tensor_head import Ends, TensorHead
    from trtla.runtime.models.layers import Linear
    from trtla.runtime.models.llama import LlamaModel

    kind, place = getattr(torch, dtype), torch.device(str(device))
    if place.type == "cpu":
        set_torch_threads()
    if isinstance(target, LlamaModel):
        ends = Ends(*target.ends)
    elif isinstance(target, NativeLlama):
        found = (library().numbers(end.matrix) for end in target.ends)
        embedding, lm_head = (torch.from_numpy(one).to(place, kind) for one in found)
        ends = Ends(embedding, Linear.of(lm_head))
    else:
        raise UsageError(f"the head {head.name} drafts for no encoder-decoder", "omit it")
    return TensorHead(head, shape, ends, kind, place)
