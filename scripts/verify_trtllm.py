#!/usr/bin/env python3
"""Proves trtla on the TensorRT-LLM that is installed here, and writes a report.

    scripts/verify_trtllm.sh [--model-dir MODEL] [--lookahead 7,7,7] [--work-dir verify-trtllm]

Converts a model, builds it for both executors, decodes the same prompts greedily with lookahead and
without on TensorRT-LLM and without on torch, and compares the tokens. Texts may part where the two
best logits are closer than half precision resolves; the report gives that margin for each parting.
Exit code 0: every text is equal, or parts at such a margin; 3: one does not; others: a step failed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trtla
from trtla import LLM, SamplingParams
from trtla.results.run import divergence
from trtla.settings.lookahead import AUTOREGRESSIVE

ASSETS = Path(trtla.__file__).parent / "assets"
ROUNDING = 0.05
"""Largest top-2 logit margin at which a parting counts as rounding of half precision."""
SHORT_PROMPTS = ("x", "import")
"""Below N - 1 tokens: they run with a smaller n-gram."""


@dataclass
class Report:
    """What was done and found, as Markdown."""

    lines: list[str] = field(default_factory=list)
    equal: bool = True
    """Whether no text has parted so far."""

    def command(self, *arguments: str) -> str:
        """Run a trtla command; its stdout is returned, its time noted."""
        shown = shlex.join(["trtla", *arguments])
        print(f"$ {shown}", file=sys.stderr, flush=True)
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "trtla", *arguments], stdout=subprocess.PIPE, text=True
        )
        self.lines.append(f"- `{shown}`: {time.perf_counter() - started:.1f} s")
        if done.returncode:
            raise SystemExit(done.returncode)
        return done.stdout


def prompts(folder: Path) -> Path:
    """The shipped prompts and two short ones, texts only, in a file of their own."""
    shipped = (ASSETS / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [*(json.loads(line)["text"] for line in shipped), *SHORT_PROMPTS]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def build(report: Report, given: argparse.Namespace) -> None:
    """The checkpoint in half precision, and an engine for each executor."""
    checkpoint = str(given.work_dir / "checkpoint")
    report.command(
        "convert", "--model-dir", str(given.model_dir), "--output-dir", checkpoint,
        "--dtype", given.dtype, "--force",
    )  # fmt: skip
    for backend in ("tensorrt-llm", "torch"):
        report.command(
            "build", "--checkpoint-dir", checkpoint, "--backend", backend, "--force",
            "--output-dir", str(given.work_dir / backend),
            "--lookahead", given.lookahead, "--max-batch-size", "8",
        )  # fmt: skip


def decode(report: Report, given: argparse.Namespace, file: Path, *more: str) -> dict[str, Any]:
    """TensorRT-LLM's outputs for all prompts in one batch."""
    found = report.command(
        "run", "--engine-dir", str(given.work_dir / "tensorrt-llm"), "--input-file", str(file),
        "--max-output-len", str(given.max_output_len), "--json", *more,
    )  # fmt: skip
    return dict(json.loads(found))


def compare(report: Report, given: argparse.Namespace, file: Path) -> bool:
    """Both TensorRT-LLM runs against plain decoding on torch, prompt by prompt."""
    texts = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
    with_lookahead = decode(report, given, file)
    without = decode(report, given, file, "--no-lookahead")
    with LLM(given.work_dir / "torch", device=given.device, dtype=given.torch_dtype) as llm:
        sampling = SamplingParams(max_output_len=given.max_output_len)
        plain = llm.generate(texts, sampling, AUTOREGRESSIVE, margins=True)
        report.lines += ["", f"Reference: {llm.description}, plain decoding.", ""]
    report.lines += [
        "| prompt | run | tokens | tokens/step | equal to torch | parts at | top-2 margin |",
        "|---|---|---|---|---|---|---|",
    ]
    good = True
    for name, run in (("lookahead", with_lookahead), ("1,1,0", without)):
        for ours, theirs in zip(run["results"], plain, strict=True):
            good &= _row(report, name, ours, theirs)
    return good


def _row(report: Report, name: str, ours: dict[str, Any], plain: Any) -> bool:
    answer = {name: ours[name] for name in ("text", "finish_reason")}
    found = divergence(replace(plain, output_ids=tuple(ours["output_ids"]), **answer), plain)
    place = "-" if found is None else str(found.position)
    margin = None if found is None else found.margin
    cells = [
        str(ours["index"]), name, str(len(ours["output_ids"])), f"{ours['tokens_per_step']:.2f}",
        "yes" if found is None else "no", place, "-" if margin is None else f"{margin:.4f}",
    ]  # fmt: skip
    report.lines.append(f"| {' | '.join(cells)} |")
    report.equal &= found is None
    return found is None or (margin is not None and margin < ROUNDING)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model-dir", type=Path, default=ASSETS / "tiny-llama")
    parser.add_argument("--work-dir", type=Path, default=Path("verify-trtllm"))
    parser.add_argument("--lookahead", default="7,7,7")
    parser.add_argument("--max-output-len", type=int, default=64)
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--device", default="auto", help="of the torch executor")
    parser.add_argument("--torch-dtype", default="auto", help="of the torch executor")
    return parser.parse_args()


def main() -> int:
    """Run everything and write report.md into the work folder."""
    given = parse()
    given.work_dir.mkdir(parents=True, exist_ok=True)
    report = Report([f"# trtla {trtla.__version__} on TensorRT-LLM", ""])
    machine = report.command("doctor", "--json")
    build(report, given)
    good = compare(report, given, prompts(given.work_dir))
    verdict = "NOT equal" if not good else "equal" if report.equal else "equal, but for rounding"
    report.lines += ["", f"Result: the texts are {verdict}.", "", "```", machine.strip(), "```", ""]
    path = given.work_dir / "report.md"
    path.write_text("\n".join(report.lines), encoding="utf-8")
    print(f"{verdict}; wrote {path}")
    return 0 if good else 3


if __name__ == "__main__":
    sys.exit(main())
