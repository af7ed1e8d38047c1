"""The text of TensorRT-LLM's own examples/run.py on an engine, beside that of trtla on it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from texts import TINY, prompts

from trtla import LLM, SamplingParams
from trtla.settings.executor import TrtllmSettings

LENGTH = 32


def theirs(script: Path, engine: Path, prompt: str) -> str:
    """What run.py prints between the quotes of its output."""
    command = [
        sys.executable, str(script), "--engine_dir", str(engine), "--tokenizer_dir", str(TINY),
        "--max_output_len", str(LENGTH), "--lookahead_config", "[7,7,7]", "--input_text", prompt,
        "--kv_cache_free_gpu_memory_fraction", "0.2",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = re.search(r'Output \[Text 0 Beam 0\]: "(.*)"', done.stdout, re.DOTALL)
    if found is None:
        raise SystemExit(f"run.py printed no output:\n{done.stdout}")
    return found[1]


def main() -> int:
    """0: the same text; 1: another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--script", type=Path, required=True)
    given = parser.parse_args()
    prompt, engine = prompts()[0], given.folder / "built"
    settings = TrtllmSettings(kv_cache_free_gpu_memory_fraction=0.2)
    with LLM(engine, trtllm=settings) as llm:
        (ours,) = llm.generate(prompt, SamplingParams(LENGTH))
    text = theirs(given.script, engine, prompt)
    print(f"trtla:  {ours.text!r}\nrun.py: {text!r}")
    return 0 if ours.text is not None and ours.text.strip() == text.strip() else 1


if __name__ == "__main__":
    sys.exit(main())
