"""The bytes of a stand-in engine: a line that says who built it, then the rank's tensors."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load, save

_MAGIC = b"TLLM-STANDIN-ENGINE "


def pack(tensors: dict[str, torch.Tensor], version: str, sm: int) -> bytes:
    """An engine of tensors, tied to a release and a GPU architecture."""
    header = json.dumps({"version": version, "sm": sm}).encode()
    return _MAGIC + header + b"\n" + save({k: t.contiguous() for k, t in tensors.items()})


def unpack(blob: bytes, version: str, sm: int) -> dict[str, torch.Tensor] | str:
    """The tensors, or why this release on this GPU cannot read the engine."""
    head, _, body = blob.partition(b"\n")
    if not head.startswith(_MAGIC):
        return "Serialization assertion stdMagicTag == magicTag failed. Magic tag does not match"
    header = json.loads(head.removeprefix(_MAGIC))
    if header["version"] != version:
        return (
            "The engine plan file is not compatible with this version of TensorRT, expecting "
            f"library version of {version} got that of {header['version']}, please rebuild."
        )
    if header["sm"] != sm:
        return (
            "The engine plan file is generated on an incompatible device, expecting compute "
            f"{sm / 10} got compute {header['sm'] / 10}, please rebuild."
        )
    return load(body)
