"""What a run leaves behind: report.md, the bundle with all evidence, and the verdict."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from running import NOT_RUN, Outcome, Run

BUNDLE = "verify-trtllm.tar.gz"
_TAIL = 40
_EVIDENCE = ("*.md", "*.json", "*.txt", "*.xml", "*.log")
"""Files that go into the bundle; never weights."""


def outcome_line(outcome: Outcome) -> str:
    """`pass, 12.3 s`, with the note."""
    note = f": {outcome.note}" if outcome.note else ""
    return f"{outcome.word}, {outcome.seconds:.1f} s{note}"


def verdict(outcomes: Sequence[Outcome]) -> tuple[str, int]:
    """The last line and the exit code."""
    failed = [one.name for one in outcomes if one.word in ("fail", NOT_RUN)]
    if failed:
        return f"FAIL {' '.join(failed)}", 1
    if any(one.word == "rounding" for one in outcomes):
        return "PASS (rounding only)", 3
    return "PASS", 0


def write_report(run: Run, outcomes: Sequence[Outcome]) -> None:
    """report.md: a row for each step, the end of the logs of failed ones, texts, the machine."""
    lines = ["# trtla on TensorRT-LLM", "", f"Result: {verdict(outcomes)[0]}", ""]
    lines += ["| step | result | time | code | note |", "|---|---|---|---|---|"]
    for one in outcomes:
        note = one.note.replace("|", "/").replace("\n", " ")
        lines.append(f"| {one.name} | {one.word} | {one.seconds:.1f} s | {one.code} | {note} |")
    for one in outcomes:
        if one.word == "fail":
            log = run.work / "logs" / f"{one.name}.log"
            lines += ["", f"## {one.name} failed", "", "```", *_tail(log), "```"]
    for table in sorted(run.work.glob("*/texts.md")):
        lines += ["", f"## Texts of {table.parent.name}", "", table.read_text(encoding="utf-8")]
    machine = run.work / "doctor.json"
    if machine.is_file():
        lines += ["", "## Machine", "", "```", machine.read_text(encoding="utf-8").strip(), "```"]
    (run.work / "report.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _tail(log: Path) -> list[str]:
    if not log.is_file():
        return ["no log"]
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]


def write_bundle(run: Run) -> None:
    """All evidence in one file: report, logs, doctor, packages, engines' configs, junit."""
    with tarfile.open(run.work / BUNDLE, "w:gz") as bundle:
        for path in _evidence(run.work):
            bundle.add(path, Path("verify-trtllm") / path.relative_to(run.work))


def _evidence(work: Path) -> Iterator[Path]:
    venv = work / "venv"
    for pattern in _EVIDENCE:
        found = (path for path in work.rglob(pattern) if venv not in path.parents)
        yield from sorted(path for path in found if "token" not in path.name)
