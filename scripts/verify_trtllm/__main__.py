"""Runs every step, whatever becomes of the others, and always writes the report and the bundle.

It needs nothing but Python's own library: the first step makes the environment of the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from report import outcome_line, verdict, write_bundle, write_report
from running import NOT_RUN, Outcome, Run, attempt
from steps import STEPS

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "contract" / "standin"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="scripts/verify_trtllm.sh", description="Proves trtla on the TensorRT-LLM installed."
    )
    # The script that starts this one takes it, before any other flag.
    parser.add_argument("--docker", metavar="IMAGE", help="as the first flag: in a container")
    parser.add_argument("--work-dir", type=Path, default=ROOT / "verify-trtllm")
    parser.add_argument("--stand-in", action="store_true", help="against the tests' stand-in")
    parser.add_argument("--only", default="", help=f"steps of {', '.join(STEPS)}")
    given = parser.parse_args(arguments)
    if given.docker is not None:
        parser.error("--docker IMAGE must be the first flag")
    given.only = [name for name in given.only.split(",") if name]
    if unknown := [name for name in given.only if name not in STEPS]:
        parser.error(f"--only {unknown[0]}: the steps are {', '.join(STEPS)}")
    return given


def environment(stand_in: bool) -> dict[str, str]:
    """What all commands see: pip without the image's constraints, a library that keeps quiet."""
    variables = {**os.environ, "PIP_CONSTRAINT": "", "TLLM_LOG_LEVEL": "error"}
    if stand_in:
        places = [str(STAND_IN), os.environ.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, places))
        programs = [str(STAND_IN / "bin"), str(ROOT / ".venv" / "bin"), os.environ["PATH"]]
        variables["PATH"] = os.pathsep.join(programs)
        variables.setdefault("TENSORRT_LLM_STANDIN_GPU", "9.0")
        variables.setdefault("OMP_NUM_THREADS", "1")
    return variables


DEVICES = ("/dev/nvidiactl", "/dev/dxg")
"""Device files of NVIDIA's drivers: on Linux, and in WSL."""


def lacking() -> tuple[str, str] | None:
    """What this machine lacks, and what to do, before anything is fetched; None: nothing."""
    if not (shutil.which("nvidia-smi") or any(map(os.path.exists, DEVICES))):
        return "no GPU of NVIDIA's is here", "run it where one is, or with --stand-in"
    if importlib.util.find_spec("tensorrt_llm") is None:
        return (
            f"{sys.executable} has no tensorrt_llm",
            "name the Python that has it, e.g. PYTHON=python3.12, or give --docker IMAGE first",
        )
    return None


def main() -> int:
    """Run the steps; the exit code is 0 (all equal), 3 (equal but for rounding) or 1."""
    given = parse()
    if not given.stand_in and (missing := lacking()):
        print(f"error: {missing[0]}\nhint: {missing[1]}", file=sys.stderr)
        print("FAIL environment")
        return 1
    work = given.work_dir.resolve()
    run = Run(ROOT, work, environment(given.stand_in), given.stand_in)
    (work / "logs").mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    print(f"logs: {work / 'logs'}", file=sys.stderr, flush=True)
    try:
        for name, step in STEPS.items():
            if given.only and name not in (*given.only, "environment"):
                continue
            print(f"==> {name} (logs/{name}.log)", file=sys.stderr, flush=True)
            broken = bool(outcomes) and outcomes[0].word == "fail"
            outcomes.append(Outcome(name, NOT_RUN) if broken else attempt(name, step, run))
            print(f"    {outcome_line(outcomes[-1])}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        outcomes.append(Outcome("interrupted", "fail"))
    finally:
        write_report(run, outcomes)
        write_bundle(run)
    words, code = verdict(outcomes)
    print(f"wrote {work / 'report.md'} and verify-trtllm.tar.gz beside it\n{words}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
