"""Loads a trained head beside its target. Torch is imported only where it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, install_hint, is_installed
from trtla.formats.config import CheckpointConfig
from trtla.formats.heads.head import EagleConfig, Head, MedusaConfig
from trtla.runtime.device import Device
from trtla.runtime.models.cpu.library import library
from trtla.runtime.models.cpu.llama import NativeLlama
from trtla.runtime.models.forward import Model
from trtla.runtime.models.heads.head_model import HeadModel, MedusaModel
from trtla.runtime.models.heads.native_head import NativeHead, native_head_problem
from trtla.runtime.models.heads.native_medusa import NativeMedusa
from trtla.runtime.threads import set_torch_threads

if TYPE_CHECKING:
    from trtla.runtime.models.heads.tensor_head import TensorHead
    from trtla.runtime.models.heads.tensor_medusa import TensorMedusa

_OTHER = "use a head that was trained for this model"


def load_head(
    head: Head, target: Model[Any], config: CheckpointConfig, dtype: str, device: Device
) -> HeadModel | MedusaModel:
    """Load the fastest forward here of a head, whose types are its target's.

    Args:
        head: one that `read_head` has checked against the target.
        config: of the target.
        dtype: of the target's activations.
        device: of the target.
    """
    shape = head.config
    if isinstance(shape, MedusaConfig):
        return _medusa(head, shape, target, dtype, device)
    _check_ends(head, shape, target, config)
    problem = None
    if isinstance(target, NativeLlama):
        problem = native_head_problem(shape)
        if problem is None:
            return NativeHead(head, shape, target)
    if not is_installed("torch"):
        reason = f"the head {head.name} needs torch, which is not installed: {problem}"
        raise UsageError(reason, install_hint("torch"))
    return _in_tensors(head, shape, target, dtype, device)


def _medusa(
    head: Head, shape: MedusaConfig, target: Model[Any], dtype: str, device: Device
) -> MedusaModel:
    """Load Medusa heads, which are compiled wherever their target is."""
    if shape.vocab_size is None and target.is_part:
        raise _lacks(head, "lm_head", f"{_OTHER}, or no ranks")
    if isinstance(target, NativeLlama):
        return NativeMedusa(head, shape, target)
    return _medusa_in_tensors(head, shape, target, dtype, device)


def _medusa_in_tensors(
    head: Head, shape: MedusaConfig, target: Model[Any], dtype: str, device: Device
) -> TensorMedusa:
    import torch

    from trtla.runtime.models.heads.tensor_medusa import LastLayer, TensorMedusa
    from trtla.runtime.models.llama import LlamaModel

    if not isinstance(target, LlamaModel):
        raise _no_encoder(head)
    config = target.config
    ends = target.norm, config.norm_epsilon, target.ends[1]
    last = LastLayer(config.num_hidden_layers - 1, *ends)
    return TensorMedusa(head, shape, last, getattr(torch, dtype), torch.device(str(device)))


def _no_encoder(head: Head) -> UsageError:
    return UsageError(f"the head {head.name} drafts for no encoder-decoder", "omit it")


def _lacks(head: Head, name: str, hint: str) -> UsageError:
    return UsageError(
        f"the head {head.name} has no {name}, and that of its model does not fit", hint
    )


def _check_ends(
    head: Head, shape: EagleConfig, target: Model[Any], config: CheckpointConfig
) -> None:
    """Refuse a head that lacks what its target has no whole of."""
    width, there_width = shape.layer.hidden_size, config.hidden_size
    for name, fits in (
        ("embedding", width == there_width),
        ("lm_head", (width, shape.layer.vocab_size) == (there_width, config.vocab_size)),
    ):
        whole = fits and not (name == "lm_head" and target.is_part)
        if name not in head.tensors and not whole:
            raise _lacks(head, name, f"{_OTHER}, or no ranks" if fits else _OTHER)


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
        raise _no_encoder(head)
    return TensorHead(head, shape, ends, kind, place)
