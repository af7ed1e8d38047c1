"""The texts and references of summarize.py's tasks, from a file, a folder or the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtla.data.dataset_folder import read_folder, read_lines
from trtla.data.prompt_sets import CNN_DAILYMAIL, load_rows
from trtla.errors import UsageError
from trtla.settings.eval_tasks import EvalTask


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One text and the reference for what is written after it."""

    text: str
    reference: str


def load_items(dataset: str, task: EvalTask, count: int, seed: int) -> list[EvalItem]:
    """The first `count` items: of a .jsonl file, or of a shuffled folder or CNN/DailyMail."""
    hint = f"give --dataset PATH: a .jsonl file with {task.lines}, or the data set's folder"
    path = Path(dataset)
    if dataset == CNN_DAILYMAIL:
        rows = load_rows(task.split, count, hint, seed)
    elif path.is_dir():
        rows = read_folder(path, task, count, seed)
    elif path.suffix.lower() == ".jsonl":
        rows = read_lines(path, task.columns)[:count]
    else:
        raise UsageError(
            f"dataset {dataset} is neither {CNN_DAILYMAIL} nor a .jsonl file nor a folder", hint
        )
    if not rows:
        raise UsageError(f"{dataset} holds no texts", f"write {task.lines}")
    return [EvalItem(row[task.input], row[task.reference]) for row in rows]
