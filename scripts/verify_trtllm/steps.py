"""The steps, in order; each is one function, and none needs another but the first two."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from running import Failed, Run, Skipped, Step

TEST_PACKAGES = ("pytest>=8.3,<10", "pytest-timeout>=2.3,<3", "hypothesis>=6.100,<7")
LIMITS = ("--max-batch-size", "8", "--max-input-len", "256", "--max-seq-len", "512")
TRIPLE = ("--lookahead", "7,7,7")
UPSTREAM = ("/app/tensorrt_llm/examples", "/workspace/tensorrt_llm/examples")
"""Where NVIDIA's images have the examples; TRTLLM_EXAMPLES names another place."""


def environment(run: Run) -> str:
    """An environment of its own on top of this Python; the tree's, where the stand-in plays."""
    tree = run.root / ".venv" / "bin" / "python"
    if run.stand_in and tree.is_file():
        run.python = tree
        return "the tree's .venv"
    venv = run.work / "venv"
    run.call(run.python, "-m", "venv", "--system-site-packages", "--without-pip", venv)
    run.python = venv / "bin" / "python"
    run.variables["PATH"] = os.pathsep.join([str(venv / "bin"), run.variables["PATH"]])
    if run.call(run.python, "-m", "pip", "--version", codes=(0, 1)):
        run.call(run.python, "-m", "ensurepip")
    options = ("--disable-pip-version-check", "--progress-bar", "off")
    run.call(run.python, "-m", "pip", "install", *options, "-e", ".[serve,torch]", *TEST_PACKAGES)
    return "verify-trtllm/venv"


def machine(run: Run) -> None:
    """What is installed, and what doctor says."""
    run.call(run.python, "-m", "pip", "freeze", out=run.work / "pip-freeze.txt")
    if shutil.which("nvidia-smi"):
        run.call("nvidia-smi", out=run.work / "nvidia-smi.txt", codes=tuple(range(256)))
    run.trtla("doctor", "--json", out=run.work / "doctor.json")
    library = run.machine()["tensorrt_llm"]
    if not library["has_backend"]:
        raise Failed(library["problem"])


def float16(run: Run) -> int:
    """Lookahead, plain decoding, smaller triples and block reuse, against torch's plain texts."""
    return _texts(run, "float16", "--runs", "lookahead,plain,triples,block_reuse")


def bfloat16(run: Run) -> int:
    """The same in the other type of activations."""
    return _texts(run, "bfloat16", "--dtype", "bfloat16")


def sampling(run: Run) -> int:
    """A plain engine: greedy texts, and texts that are drawn."""
    return _texts(run, "sampling", "--lookahead", "1,1,0", "--runs", "lookahead,sampled")


def qwen2(run: Run) -> int:
    """A model of the other family, with biases of q, k and v."""
    return _texts(run, "qwen2", "--model", "qwen2")


def w8a16(run: Run) -> int:
    """Weights that the library rounds to int8."""
    return _texts(run, "w8a16", "--dtype", "w8a16")


def w4a16_awq(run: Run) -> int:
    """Weights in int4 groups, written by trtla."""
    return _texts(run, "w4a16_awq", "--dtype", "w4a16_awq")


def fp8(run: Run) -> int:
    """FP8 weights, where the GPU has FP8."""
    shown = [gpu["capability"] or "0" for gpu in run.machine()["gpus"]]
    if any([*map(int, one.split("."))] < [8, 9] for one in shown):
        raise Skipped("the GPU has no FP8")
    return _texts(run, "fp8", "--dtype", "fp8")


def tp2(run: Run) -> int:
    """Two ranks, where there are two GPUs."""
    gpus = len(run.machine()["gpus"])
    if gpus < 2 or not shutil.which("mpirun"):
        raise Skipped(f"{gpus} GPU and {'an' if shutil.which('mpirun') else 'no'} mpirun here")
    folder = run.folder("tp2")
    model = run.root / "trtla" / "assets" / "tiny-llama"
    checkpoint, engine = folder / "checkpoint", folder / "engine"
    to = ("--output-dir", checkpoint, "--tp-size", 2, "--dtype", "float16", "--force")
    run.trtla("convert", "--model-dir", model, *to)
    made = ("--checkpoint-dir", checkpoint, "--output-dir", engine, "--force")
    run.trtla("build", *made, "--backend", "tensorrt-llm", "--workers", 2, *TRIPLE, *LIMITS)
    run.script("texts.py", "--folder", folder, "--write-prompts")
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    asked = ("--engine-dir", engine, "--input-file", folder / "prompts.jsonl", *_length(run))
    decode = ("-m", "trtla", "run", *asked, "--json")
    run.call("mpirun", *root, "-n", 2, run.python, *decode, out=folder / "outputs.json")
    return _texts(run, "tp2", "--outputs", folder / "outputs.json")


def from_existing(run: Run) -> int | str:
    """An engine that trtllm-build made, adopted; its text beside that of upstream's run.py."""
    folder = run.folder("from_existing")
    made = ("--checkpoint-dir", folder / "checkpoint", "--output-dir", folder / "built")
    model = run.root / "trtla" / "assets" / "tiny-llama"
    to = ("--output-dir", folder / "checkpoint", "--dtype", "float16", "--force")
    run.trtla("convert", "--model-dir", model, *to)
    plan = folder / "plan.json"
    asked = (*made, "--backend", "tensorrt-llm", *TRIPLE, *LIMITS)
    run.trtla("build", *asked, "--dry-run", "--json", out=plan)
    shutil.rmtree(folder / "built", ignore_errors=True)
    for line in json.loads(plan.read_text(encoding="utf-8"))["commands"]:
        run.call(*shlex.split(line))
    adopt = ("--from-existing", folder / "built", *TRIPLE, "--tokenizer-dir", model)
    run.trtla("build", *adopt)
    found = _texts(run, "from_existing", "--engine", folder / "built")
    script = _upstream()
    if script is None:
        return found or "no examples/run.py of TensorRT-LLM here: not compared with it"
    return max(found, run.script("upstream.py", "--folder", folder, "--script", script))


def serve(run: Run) -> None:
    """A server on an engine: an answer, a stream, a cancelled one, its figures, its end."""
    run.script("serving.py", "--folder", run.folder("serve"))


def contract(run: Run) -> None:
    """The promises of both executors on the real library; on the stand-in it plays that."""
    junit = f"--junitxml={run.work / 'junit.xml'}"
    run.call(run.python, "-m", "pytest", "tests/contract", "-m", "trtllm", "-q", "-rs", junit)
    ran = (run.work / "junit.xml").read_text(encoding="utf-8")
    if 'tests="0"' in ran or "<skipped" in ran:
        raise Failed("contract tests were skipped")


_FUNCTIONS: tuple[Callable[[Run], int | str | None], ...] = (
    environment, machine, float16, bfloat16, sampling, qwen2, w8a16, w4a16_awq, fp8, tp2,
    from_existing, serve, contract,
)  # fmt: skip
STEPS: dict[str, Step] = {step.__name__: step for step in _FUNCTIONS}


def _texts(run: Run, name: str, *arguments: object) -> int:
    """Texts of an engine against plain decoding on torch: 0, or 3 where they part at near ties."""
    place = ("--device", "cpu", "--torch-dtype", "float32") if run.stand_in else ()
    return run.script("texts.py", "--folder", run.folder(name), *_length(run), *place, *arguments)


def _length(run: Run) -> tuple[str, str]:
    """The stand-in computes every sequence anew for every token."""
    return "--max-output-len", "16" if run.stand_in else "64"


def _upstream() -> Path | None:
    places = (os.environ.get("TRTLLM_EXAMPLES", ""), *UPSTREAM)
    found = (Path(place) / "run.py" for place in places if place)
    return next((path for path in found if path.is_file()), None)
