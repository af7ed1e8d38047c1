"""Runs the stages of scripts/gpu_check.sh.

    python scripts/gpu_probe s1 [s2 s3]
    python scripts/gpu_probe again SECTION...
    python scripts/gpu_probe only SECTION...      (in this process, without a table)
    python scripts/gpu_probe table s1.json ...    (the table of docs/gpu.md)

A section, such as `gemm` or `step:8B`, has a process and a time limit of its own; one that fails
does not stop the next. At the end comes a table of figures and verdicts, in $OUT/STAGE.json too;
what is printed goes to $OUT/STAGE.txt of the first stage too.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpu_probe import figures

DRY = os.environ.get("PROBE_DRY") == "1"
if DRY:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
OUT = Path(os.environ.get("OUT") or "/tmp/out")
MODELS = Path(os.environ.setdefault("PROBE_MODELS", "/tmp/trtla-gpu-check"))
"""Where the sections have the enlarged models made."""

SECTIONS = {
    "models": "gpu_probe.models:start",
    "env": "gpu_probe.device:env",
    "check": "gpu_probe.attention:check",
    "mini": "gpu_probe.attention:mini",
    "stall": "gpu_probe.products:stall",
    "gemm": "gpu_probe.products:gemm",
    "steady": "gpu_probe.products:steady",
    "sample": "gpu_probe.draws:sample",
    "step": "gpu_probe.step:step",
    "texts": "gpu_probe.texts:texts",
    "doctor": "gpu_probe.commands:doctor",
    "bench": "gpu_probe.commands:bench",
    "peers": "gpu_probe.commands:peers",
    "sampled": "gpu_probe.commands:sampled",
    "memory": "gpu_probe.commands:memory",
    "serve": "gpu_probe.commands:serve",
    "tests": "gpu_probe.models:tests",
    "sanitizer": "gpu_probe.models:sanitizer",
    "tune": "gpu_probe.products:tune",
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
        Work(45, ("steady",)),
        Work(110, ("texts",)),
        Work(30, ("doctor",)),
        Work(90, ("bench:1B",)),
        Work(90, ("peers:1B",)),
        Work(60, ("sampled:1B",)),
        Work(150, ("bench:8B",)),
    ),
    "s3": (
        Work(20, ("models",)),
        Work(160, ("tests",)),
        Work(70, ("sanitizer",)),
        Work(90, ("serve:1B",)),
        Work(120, ("memory:8B",)),
        Work(100, ("tune",)),
    ),
}
LIMITS = {one: work.limit_s for works in STAGES.values() for work in works for one in work.sections}
"""Of every section."""
ALWAYS = ("click", "gguf", "numpy", "prompt_toolkit", "pydantic", "rich", "safetensors", "torch",
          "transformers", "yaml")  # fmt: skip
KERNELS = ("check", "mini", "sample", "steady", "step", "sanitizer")
"""Sections that need Triton on a CPU too."""
FOR = {
    **dict.fromkeys(KERNELS, ("triton",)),
    "serve": ("fastapi", "httpx", "prometheus_client", "starlette", "uvicorn"),
    "tests": ("hypothesis", "pytest", "pytest_timeout", "xdist"),
}
"""Modules that single sections need."""
BRING = "run `scripts/gpu_check.sh prepare` where there is a network, and bring .whl/ along"
NOT_BROUGHT = ("numpy", "torch", "transformers", "triton")
"""What .whl/ does not hold: it has to fit the driver, or what fits it."""
NOT_DRY = ("models", "check:bfloat16", "check:float16", "step:8B", "bench:8B", "tests", "sanitizer",
           "tune")  # fmt: skip
"""What a dry run omits: on a CPU one type and one size stand for all."""
DISK_GB, MEMORY_GB = 22, 24
"""What the models need, and 8B to run."""


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


def missing(gpu: Gpu) -> list[str]:
    """Sentences about what this machine lacks, without which nothing can be measured."""
    found = [sentence for name in ALWAYS if (sentence := fault(name))]
    for variable, folder in (("OUT", OUT), ("PROBE_MODELS", MODELS))[: 1 if DRY else 2]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".written").touch()
            (folder / ".written").unlink()
        except OSError as error:
            reason = error.strerror or error
            found.append(f"{variable} is {folder}, which cannot be written ({reason})")
    if DRY:
        return found
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        found.append("there is no C compiler: Triton builds its launchers with one, such as gcc")
    if gpu.name is None:
        found.append(
            "PyTorch sees no CUDA device: `nvidia-smi` says whether there is a driver; PROBE_DRY=1 "
            "runs the same on a CPU with tiny sizes"
        )
    return found


def lacking(sections: Sequence[str], gpu: Gpu) -> dict[str, str]:
    """Why some of these sections cannot run, by section."""
    found = {
        section: sentence
        for section in sections
        for name in FOR.get(base(section), ())
        if (sentence := fault(name))
    }
    if DRY:
        return found
    if "sanitizer" in sections and shutil.which("compute-sanitizer") is None:
        found["sanitizer"] = "compute-sanitizer is missing: it comes with the CUDA toolkit"
    # What is half made counts as free: it is made to its end, or anew.
    parts = sum(path.stat().st_size for path in MODELS.glob("*.part/*"))
    disk_gb = (shutil.disk_usage(MODELS).free + parts) / 1e9
    for section in (one for one in sections if one.endswith(":8B")):
        if gpu.memory_gb < MEMORY_GB:
            reason = f"the GPU has {gpu.memory_gb:.0f} GB of memory, 8B needs {MEMORY_GB}"
            found[section] = reason
        elif disk_gb < DISK_GB and section != "step:8B" and not (MODELS / "8B").exists():
            reason = f"{MODELS} has {disk_gb:.0f} GB free, the models need {DISK_GB}"
            found[section] = reason
    return found


@cache
def fault(module: str) -> str | None:
    """Why a module cannot be imported, which is tried: what it imports itself may be missing."""
    try:
        importlib.import_module(module)
    except Exception as error:  # Triton and PyTorch find many reasons
        hint = f"`pip install {module}`" if module in NOT_BROUGHT else BRING
        return f"{module} cannot be imported ({first_line(error)}): {hint}"
    return None


def first_line(error: Exception) -> str:
    """Of its message, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def only(section: str) -> str | None:
    """Run a section in this process; why it failed, None where it came to its end."""
    name, _, argument = section.partition(":")
    module, function = SECTIONS[name].split(":")
    print(f"===== {section} ({time.strftime('%H:%M:%S')})", flush=True)
    try:
        getattr(importlib.import_module(module), function)(*([argument] if argument else []))
    except Exception as error:  # the next section may well work
        traceback.print_exc()
        return f"{type(error).__name__}: {first_line(error)}"
    return None


def together(work: Work) -> Iterator[tuple[str, str]]:
    """Run sections at the same time; yields those that failed, and why."""
    if DRY:
        names = [name for name in work.sections if name not in NOT_DRY]
        yield from ((name, why) for name in names if (why := only(name)))
        return
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent), "only"]
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


def stage(name: str, works: Sequence[Work], gpu: Gpu) -> int:
    """Run a stage and print its table; the exit code."""
    start = time.monotonic()
    records = OUT / f"{name}.records"
    records.unlink(missing_ok=True)
    os.environ[figures.RECORDS] = str(records)
    sections = [section for work in works for section in work.sections]
    without, failed = lacking(sections, gpu), dict[str, str]()
    for work in works:
        kept = tuple(section for section in work.sections if section not in without)
        failed.update(together(Work(work.limit_s, kept)))
    rows = figures.judge(records, sections, gpu.name, without)
    records.unlink(missing_ok=True)
    wrong = failed or any(row["verdict"] == figures.WRONG for row in rows)
    code = 1 if wrong else 3 if without else 0
    document = {
        "schema_version": 1, "stage": name, "gpu": gpu.name, "dry": DRY, "figures": rows,
        "failed": failed, "missing": grouped(without),
        "seconds": round(time.monotonic() - start, 1), "exit_code": code,
    }  # fmt: skip
    (OUT / f"{name}.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    show(document)
    return code


def grouped(without: Mapping[str, str]) -> list[str]:
    """What sections lack, a sentence each; what several lack once."""
    names: dict[str, list[str]] = {}
    for section, reason in without.items():
        names.setdefault(reason, []).append(section)
    return [f"{reason} ({', '.join(sections)})" for reason, sections in names.items()]


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


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """What is printed meanwhile, by other processes too, goes to a file as well."""
    sys.stdout.flush()
    own = os.dup(1), os.dup(2)
    tee = subprocess.Popen(["tee", "-i", str(path)], stdin=subprocess.PIPE)
    assert tee.stdin is not None
    for number in (1, 2):
        os.dup2(tee.stdin.fileno(), number)
    tee.stdin.close()
    try:  # new objects: those of Python may have been made for a file, in which they would seek
        with open(1, "w", 1, closefd=False) as out, redirect_stdout(out), redirect_stderr(out):
            yield
    finally:
        for number, before in enumerate(own, start=1):
            os.dup2(before, number)
        with suppress(subprocess.TimeoutExpired):  # where a process outlives its section
            tee.wait(5)


def usage(args: Sequence[str]) -> str | None:
    """What is wrong with the arguments; None: nothing."""
    if not args:
        return __doc__
    name, *sections = args
    single = name in ("again", "only")
    known = [*LIMITS, *["mini"] * (name == "only")] if single else list(STAGES)
    unknown = [one for one in (sections if single else args) if one not in known]
    if unknown:
        kind = "section" if single else "stage"
        return f"there is no {kind} {unknown[0]}; there are {', '.join(known)}"
    return None if sections or not single else f"{__doc__}\nSections: {', '.join(known)}"


def main(args: Sequence[str]) -> int:
    """Run stages or sections, or print their table; the exit code."""
    if args and args[0] == "table":
        return figures.main(args[1:])
    if wrong := usage(args):
        print(wrong, file=sys.stderr)
        return 2
    name, *sections = args
    if name == "only":
        return int(len([section for section in sections if only(section)]) > 0)
    gpu = Gpu() if DRY else Gpu.look()
    if sentences := missing(gpu):
        print(*(f"missing: {sentence}" for sentence in sentences), sep="\n")
        return 3
    again = [Work(LIMITS[section], (section,)) for section in sections if section in LIMITS]
    works = {"again": again} if name == "again" else {one: STAGES[one] for one in args}
    with kept(OUT / f"{name}.txt"):
        codes = [stage(one, works[one], gpu) for one in works]
    return 1 if 1 in codes else max(codes)
