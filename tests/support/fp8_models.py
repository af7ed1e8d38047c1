"""A model with biases and four layers, and FP8 checkpoints of it by a real calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.models import Variant
from trtla.build.convert import convert
from trtla.build.quantize import Calibration

BIASED = Variant("biased", {"num_hidden_layers": 4, "attention_bias": True, "mlp_bias": True})
PROMPTS = [[i * 7 % 101 for i in range(12)], [5, 3], [i * i % 101 for i in range(16)]]
LINEARS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")


def to_fp8(hf: Path, target: Path, prompts: Any = PROMPTS, **keys: Any) -> Path:
    return convert(hf, target, calibration=Calibration(prompts), **keys)
