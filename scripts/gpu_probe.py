#!/usr/bin/env python3
"""Measures on a machine with one NVIDIA GPU what trtla does there; scripts/gpu_check.sh runs it.

    python scripts/gpu_probe.py s1 [s2 s3]
    python scripts/gpu_probe.py again SECTION...
    python scripts/gpu_probe.py only SECTION...      (in this process, without a table)

A section, such as `gemm` or `step:8B`, has a process and a time limit of its own; one that fails
does not stop the next. At the end comes a table of figures and verdicts, in $OUT/STAGE.json too.
Exit codes: 0 nothing is wrong (times may be slow), 1 a figure is WRONG or a section failed, 2
usage, 3 something is missing. PROBE_DRY=1 runs the same code on a CPU with tiny sizes.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_probe_figures as figures

DRY = os.environ.get("PROBE_DRY") == "1"
OUT = Path(os.environ.get("OUT") or "/tmp/out")
MODELS = Path(os.environ.setdefault("PROBE_MODELS", "/tmp/trtla-gpu-check"))
"""Where the sections have the enlarged models made."""

SECTIONS = {
    "models": "gpu_probe_models:start",
    "env": "gpu_probe_device:env",
    "check": "gpu_probe_attention:check",
    "mini": "gpu_probe_attention:mini",
    "stall": "gpu_probe_products:stall",
    "gemm": "gpu_probe_products:gemm",
    "sample": "gpu_probe_draws:sample",
    "step": "gpu_probe_step:step",
    "texts": "gpu_probe_texts:texts",
    "doctor": "gpu_probe_commands:doctor",
    "bench": "gpu_probe_commands:bench",
    "peers": "gpu_probe_commands:peers",
    "sampled": "gpu_probe_commands:sampled",
    "memory": "gpu_probe_commands:memory",
    "serve": "gpu_probe_commands:serve",
    "tests": "gpu_probe_models:tests",
    "sanitizer": "gpu_probe_models:sanitizer",
    "tune": "gpu_probe_products:tune",
}


@dataclass(frozen=True)
class Work:
    """Sections that run at the same time, and the seconds they may take."""

    limit_s: int
    sections: tuple[str, ...]


STAGES = {
    "s1": (
        Work(20, ("models",)),
        Work(40, ("env",)),
        Work(150, ("check:bfloat16", "check:float16", "check:float32")),
        Work(30, ("stall",)),
        Work(40, ("sample",)),
        Work(60, ("gemm",)),
        Work(80, ("step:1B",)),
        Work(140, ("step:8B",)),
    ),
    "s2": (
        Work(20, ("models",)),
        Work(110, ("texts",)),
        Work(30, ("doctor",)),
        Work(90, ("bench:1B",)),
        Work(90, ("peers:1B",)),
        Work(60, ("sampled:1B",)),
        Work(150, ("bench:8B",)),
    ),
    "s3": (
        Work(20, ("models",)),
        Work(70, ("memory:8B",)),
        Work(100, ("serve:1B",)),
        Work(190, ("tests",)),
        Work(90, ("sanitizer",)),
        Work(100, ("tune",)),
    ),
}
ALWAYS = ("click", "gguf", "numpy", "prompt_toolkit", "pydantic", "rich", "safetensors", "torch",
          "transformers", "yaml")  # fmt: skip
KERNELS = ("check", "mini", "step", "sanitizer")
"""Sections that need Triton on a CPU too."""
FOR = {
    **dict.fromkeys(KERNELS, ("triton",)),
    "serve": ("fastapi", "httpx", "prometheus_client", "starlette", "uvicorn"),
    "tests": ("hypothesis", "pytest", "pytest_timeout", "xdist"),
}
"""Modules that single sections need."""
BRING = "run `scripts/gpu_check.sh prepare` where there is a network, and bring .whl/ along"
NOT_DRY = ("check:bfloat16", "check:float16", "step:8B", "bench:8B")
"""What a dry run omits: on a CPU one type and one size stand for all."""
FROM_PYTORCH = "PyTorch's builds for CUDA bring it on Linux"
DISK_GB, MEMORY_GB = 22, 24
"""What the 8B model needs beside what is made already, and to run."""


@dataclass
class Missing:
    """What is not there: a sentence each."""

    fatal: list[str] = field(default_factory=list)
    """Without these nothing can be measured."""
    sections: dict[str, str] = field(default_factory=dict)
    """What single sections lack."""

    @property
    def sentences(self) -> list[str]:
        """All; what several sections lack once."""
        by_reason: dict[str, list[str]] = {}
        for section, reason in self.sections.items():
            by_reason.setdefault(reason, []).append(section)
        skipped = (f"{reason} ({', '.join(names)})" for reason, names in by_reason.items())
        return [*self.fatal, *skipped]


@dataclass(frozen=True)
class Gpu:
    """The first GPU; None where there is none or PyTorch cannot use it."""

    name: str | None = None
    memory_gb: float = 0.0

    @classmethod
    def look(cls) -> Gpu:
        """Asked in a process of its own, which gives the GPU's memory back."""
        code = (
            "import torch; p = torch.cuda.get_device_properties(0); print(p.total_memory, p.name)"
        )
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return cls()
        memory, name = done.stdout.strip().split(" ", 1)
        return cls(name, int(memory) / 1e9)


def base(section: str) -> str:
    """The name of a section without its argument."""
    return section.partition(":")[0]


def missing(sections: Sequence[str], gpu: Gpu) -> Missing:
    """What this machine lacks for sections."""
    found = Missing([f"the package {name} is missing: {BRING}" for name in absent(ALWAYS)])
    for section in sections:
        if lacking := absent(FOR.get(base(section), ())):
            hint = FROM_PYTORCH if "triton" in lacking else BRING
            found.sections[section] = f"{', '.join(lacking)} cannot be imported: {hint}"
    if DRY:
        return found
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        found.fatal.append(
            "there is no C compiler: Triton builds its launchers with one, such as gcc"
        )
    if gpu.name is None:
        found.fatal.append(
            "PyTorch sees no CUDA device: `nvidia-smi` says whether there is a driver"
        )
    made = (MODELS / "8B").exists()
    disk_gb = shutil.disk_usage(MODELS.parent).free / 1e9
    for section in (one for one in sections if one.endswith(":8B")):
        if gpu.name is not None and gpu.memory_gb < MEMORY_GB:
            reason = f"the GPU has {gpu.memory_gb:.0f} GB of memory, 8B needs {MEMORY_GB}"
            found.sections[section] = reason
        elif disk_gb < DISK_GB and not made:
            reason = f"{MODELS.parent} has {disk_gb:.0f} GB free, the models need {DISK_GB}"
            found.sections[section] = reason
    return found


def absent(modules: Sequence[str]) -> list[str]:
    """Those that cannot be imported."""
    return [name for name in modules if find_spec(name) is None]


def only(section: str) -> str | None:
    """Run a section in this process; why it failed, None where it came to its end."""
    name, _, argument = section.partition(":")
    module, function = SECTIONS[name].split(":")
    print(f"===== {section} ({time.strftime('%H:%M:%S')})", flush=True)
    try:
        getattr(importlib.import_module(module), function)(*([argument] if argument else []))
    except Exception as error:  # the next section may well work
        traceback.print_exc()
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def together(work: Work) -> Iterator[tuple[str, str]]:
    """Run sections at the same time; yields those that failed, and why."""
    if DRY:
        names = [name for name in work.sections if name not in NOT_DRY]
        yield from ((name, why) for name in names if (why := only(name)))
        return
    command = [sys.executable, "-W", "ignore", __file__, "only"]
    end = time.monotonic() + work.limit_s
    # Sessions of their own, so that what a section started ends with it.
    running = {
        name: subprocess.Popen([*command, name], start_new_session=True) for name in work.sections
    }
    for name, process in running.items():
        try:
            code = process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            yield name, f"it took longer than {work.limit_s} s"
        else:
            if code:
                yield name, f"exit code {code}; its output says why"


def stage(name: str, works: Sequence[Work]) -> int:
    """Run a stage and print its table; the exit code."""
    start = time.monotonic()
    OUT.mkdir(parents=True, exist_ok=True)
    records = OUT / f"{name}.records"
    records.unlink(missing_ok=True)
    os.environ[figures.RECORDS] = str(records)
    sections = [section for work in works for section in work.sections]
    gpu = Gpu() if DRY else Gpu.look()
    lacking, failed = missing(sections, gpu), dict[str, str]()
    for sentence in lacking.sentences:
        print("missing:", sentence, flush=True)
    for work in () if lacking.fatal else works:
        kept = tuple(section for section in work.sections if section not in lacking.sections)
        failed.update(together(Work(work.limit_s, kept)))
    rows = figures.judge(records, sections, gpu.name)
    records.unlink(missing_ok=True)
    wrong = failed or any(row["verdict"] == figures.WRONG for row in rows)
    code = 1 if wrong else 3 if lacking.sentences else 0
    document = {
        "schema_version": 1, "stage": name, "gpu": gpu.name, "dry": DRY, "figures": rows,
        "failed": failed, "missing": lacking.sentences,
        "seconds": round(time.monotonic() - start, 1), "exit_code": code,
    }  # fmt: skip
    (OUT / f"{name}.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    show(document)
    return code


def show(document: dict[str, Any]) -> None:
    """Print a stage's table and what failed."""
    print(
        f"\n{document['stage']}: {document['gpu'] or 'dry run on a CPU'}, {document['seconds']} s"
    )
    print(figures.table(document["figures"]))
    for section, why in document["failed"].items():
        print(f"FAILED {section}: {why}")
    for sentence in document["missing"]:
        print("missing:", sentence)


def main(args: Sequence[str]) -> int:
    """Run a stage, or sections; the exit code."""
    if args and set(args) <= set(STAGES):
        codes = [stage(name, STAGES[name]) for name in args]
        return 1 if 1 in codes else max(codes)
    name, *sections = args or [""]
    unknown = [section for section in sections if base(section) not in SECTIONS]
    if unknown or name not in ("again", "only") or not sections:
        wrong = f"no section {unknown[0]}; there are {', '.join(SECTIONS)}" if unknown else __doc__
        print(wrong, file=sys.stderr)
        return 2
    if name == "only":
        return int(len([section for section in sections if only(section)]) > 0)
    limits = {
        one: work.limit_s for works in STAGES.values() for work in works for one in work.sections
    }
    again = [Work(limits.get(section, 300), (section,)) for section in sections]
    return stage(name, again)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
