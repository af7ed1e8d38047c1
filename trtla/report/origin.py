"""Where a document comes from: its command and its machine, as rows of label and value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtla.report.documents import Bench, Run, Summarize, Tune
from trtla.report.reading import Source

_LABELS = {
    "cpu": "processor",
    "cores": "cores",
    "instruction_sets": "instruction sets",
    "memory_bytes": "memory",
    "gpus": "GPUs",
    "driver": "driver",
    "platform": "system",
    "python": "Python",
    "torch": "PyTorch",
    "transformers": "transformers",
    "llama_cpp_python": "llama-cpp-python",
    "trtla": "trtla",
    "commit": "commit",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """A document's file, command, settings and machine."""

    number: int
    name: str
    kind: str
    command: str | None
    rows: tuple[tuple[str, str], ...]


def origin(source: Source) -> Origin:
    """What a document tells of its making."""
    given = source.document.environment
    command = _command(source) or given.get("command")
    rows = (*_settings(source), *_machine(given))
    return Origin(source.number, source.name, source.kind, str(command) if command else None, rows)


def _command(source: Source) -> str | None:
    document = source.document
    if isinstance(document, Tune):
        return document.argv
    return None if isinstance(document, Bench) else document.command


def _machine(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in given.items():
        if key == "command" or value in (None, "", []):
            continue
        yield _LABELS.get(key, key), _shown(key, value)


def _shown(key: str, value: Any) -> str:
    if key == "memory_bytes" and isinstance(value, int | float):
        return f"{value / 2**30:.1f} GiB"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _settings(source: Source) -> Iterator[tuple[str, str]]:
    match source.document:
        case Bench(settings=own):
            told = {
                "model": own.model,
                "rounds": own.rounds,
                "tokens a prompt": own.max_output_len,
            }
        case Tune() as tune:
            told = {"engine": tune.engine, "executor": tune.executor}
            told["tuning took"] = None if tune.time_s is None else f"{tune.time_s:.0f} s"
        case Summarize() as own_summaries:
            told = {
                "data set": own_summaries.dataset,
                "articles": own_summaries.items,
                "batch size": own_summaries.batch_size,
                "tokens a summary": own_summaries.output_len,
            }
        case Run() as run:
            told = {"executor": run.executor, "prompts": len(run.results)}
        case ablation:
            models = dict.fromkeys(row.model for row in ablation.means if row.model)
            told = {"model": ", ".join(models) or None}
    yield from ((label, str(value)) for label, value in told.items() if value is not None)
