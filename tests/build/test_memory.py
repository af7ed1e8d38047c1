"""Converting keeps one piece of a tensor in memory: the peak does not follow the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from trtla.formats.hf_config import read_hf_config
from trtla.formats.plan import hf_shapes

MEASURE = """
import os, resource, sys
from trtla.build.convert import convert
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
for model, target in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()  # imports are paid for once, each conversion has a peak of its own
    if not child:
        before = peak()
        convert(model, target, tp_size=2)
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


def make_models(folder: Path) -> list[Path]:
    """Two models of about 300 MB of zeros, as safetensors and as `.bin`."""
    folders = [folder / "safetensors", folder / "bin"]
    for path in folders:
        path.mkdir()
        (path / "config.json").write_text(json.dumps(CONFIG))
    config, _ = read_hf_config(folders[0] / "config.json")
    tensors = {
        name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in hf_shapes(config).items()
    }
    save_file(tensors, folders[0] / "model.safetensors")
    torch.save(tensors, folders[1] / "pytorch_model.bin")
    return folders


def test_peak_memory_is_far_below_the_models_size(tmp_path: Path) -> None:
    first, second = make_models(tmp_path)
    paths = [first, tmp_path / "one", second, tmp_path / "two"]
    command = [sys.executable, "-c", MEASURE, *map(str, paths)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peaks = [int(line) for line in out.split()]
    size = sum(path.stat().st_size for path in paths[1].iterdir()) / 2**20
    assert size > 280
    # A mapped .bin file counts what was read since the mapping was last dropped.
    assert len(peaks) == 2
    assert peaks[0] < 100, f"{peaks[0]} MiB for {size:.0f} MiB of safetensors"
    assert peaks[1] < 220, f"{peaks[1]} MiB for {size:.0f} MiB of .bin"
