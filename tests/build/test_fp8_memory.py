"""Writing FP8 streams: memory follows a piece, not the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.models import BASE, Variant
from trtla.formats.hf_config import read_hf_config
from trtla.formats.plan import hf_shapes

MEASURE = """
import resource, sys
from pathlib import Path
from trtla.build.quantize import Fp8Source
from trtla.formats.config import Quantization
from trtla.formats.hf import HFModel
from trtla.formats.plan import source_shapes
from trtla.formats.writer import write_ranks
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
model = HFModel.open(sys.argv[1])
config = model.config.model_copy(update={"quantization": Quantization(quant_algo="FP8")})
ranges = {name: 1.0 for name in source_shapes(config) if name.endswith("input_scale")}
before = peak()
write_ranks(Path(sys.argv[2]), config, Fp8Source(model, config, ranges))
print(peak() - before)
"""
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}


def test_writing_fp8_keeps_a_piece_in_memory_not_the_model(tmp_path: Path) -> None:
    variant = Variant("large", {**LARGE, "num_attention_heads": 16})
    config = {**BASE, **variant.keys, "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (tmp_path / "hf").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    shapes = hf_shapes(read_hf_config(tmp_path / "hf" / "config.json")[0])
    tensors = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "hf" / "model.safetensors")
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "hf"), str(tmp_path / "out")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    size = (tmp_path / "out" / "rank0.safetensors").stat().st_size / 2**20
    assert size > 55
    assert int(out) < 40, f"{out} MiB for {size:.0f} MiB of FP8"
