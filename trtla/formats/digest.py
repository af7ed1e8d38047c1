"""What a model is, in a few characters: a digest of its weights, whatever files hold them."""

from __future__ import annotations

import hashlib

import torch

from trtla.formats.engine import EncoderDecoder, Engine
from trtla.formats.plan import source_shapes


def text_digest(text: str) -> str:
    """A digest of a text, as long as that of weights."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def model_digest(engine: Engine) -> str:
    """As `weights_digest`; of the T5 family, whose files are read otherwise, nothing."""
    return "" if isinstance(engine, EncoderDecoder) else weights_digest(engine)


def weights_digest(engine: Engine) -> str:
    """A digest of a model's sizes and of each weight's middle row; training changes them all."""
    source, config = engine.tensor_source()
    found = hashlib.sha256()
    for name, shape in source_shapes(config).items():
        row = source.read(name, shape[0] // 2, shape[0] // 2 + 1)
        found.update(f"{name} {shape} {row.dtype}\n".encode())
        found.update(row.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
