"""The peers on transformers: generate as it is, with prompt lookup, and with an assistant model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from trtla.extras.bench.peers import BATCHING, LOOKUP_TOKENS
from trtla.measuring.arms import Arm, Decode, Options, PeerArm
from trtla.runtime.device import Device

if TYPE_CHECKING:
    from trtla.measuring.hugging_face import HuggingFace


def peer_dtypes(wanted: str, run: str, stored: str, device: Device) -> list[str]:
    """Return the types that a peer may compute in: the run's; for auto on a CPU stored and float32.

    The processor decides which of the two is faster; float32 changes no weight.
    """
    if wanted != "auto" or device.type != "cpu":
        return [run]
    return list(dict.fromkeys((stored, "float32")))


def peer_arms(names: Sequence[str], inner: HuggingFace, assistant_dir: str | None) -> list[Arm]:
    """Make the named peers."""
    from trtla.measuring.hugging_face import load_causal

    model, arms = inner.model, list[Arm]()
    dtype = str(model.dtype).removeprefix("torch.")
    for name in names:
        decode: Decode = inner.decode
        choices: list[Options] = [{}]
        if name == "hf-prompt-lookup":
            choices = [{"prompt_lookup_num_tokens": number} for number in LOOKUP_TOKENS]
        if name == "hf-assisted" and assistant_dir is not None:
            assistant = load_causal(assistant_dir, model.device, model.dtype)
            decode = partial(inner.decode, assistant=assistant)
        types = {"weight_type": dtype, "compute_type": dtype}
        arms.append(PeerArm(name, decode, choices, **types, batching=name in BATCHING))
    return arms
