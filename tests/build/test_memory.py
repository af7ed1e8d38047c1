"""Converting keeps one piece of a tensor in memory: the peak does not follow the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trtla.formats.hf_config import read_hf_config
from trtla.formats.shapes import hf_shapes

MEASURE = """
import os, resource, sys
from pathlib import Path
from trtla.build.convert import convert
from trtla.build.quantize import Fp8Source
from trtla.formats.config import Quantization
from trtla.formats.hf import HFModel
from trtla.formats.plan import source_shapes
from trtla.formats.checkpoint import write_ranks
def fp8(model, target):
    model = HFModel.open(model)
    config = model.config.model_copy(update={"quantization": Quantization(quant_algo="FP8")})
    ranges = {name: 1.0 for name in source_shapes(config) if name.endswith("input_scale")}
    target.mkdir()
    write_ranks(target, config, Fp8Source(model, config, ranges))
def split(model, target):
    convert(model, target, tp_size=2)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
folder = Path(sys.argv[1])
for work in (split, fp8):
    child = os.fork()  # imports are paid for once, each conversion has a peak of its own
    if not child:
        before = peak()
        work(folder / "hf", folder / work.__name__)
        print(peak() - before, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}


@pytest.mark.deep
def test_peak_memory_is_far_below_the_models_size(tmp_path: Path) -> None:
    """A model of about 300 MB of ones."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes = hf_shapes(read_hf_config(folder)[0])
    tensors = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peaks = [int(line) for line in out.split()]
    size = sum(path.stat().st_size for path in (tmp_path / "split").iterdir()) / 2**20
    assert size > 280
    assert (tmp_path / "fp8" / "rank0.safetensors").stat().st_size > 180 * 2**20
    assert len(peaks) == 2
    assert peaks[0] < 100, f"{peaks[0]} MiB for {size:.0f} MiB of safetensors"
    assert peaks[1] < 100, f"{peaks[1]} MiB to write FP8"
