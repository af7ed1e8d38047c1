"""What an ablation decodes: task sets, or one prompt, each with every processor and every seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtla.data.prompt_sets import SetLine
from trtla.errors import UsageError, did_you_mean
from trtla.files import ASSETS, parse_jsonl, read_text
from trtla.settings.sampling import Processor

TASKS = ("dialogue", "translation", "continuation", "code")
"""The sets that come with trtla."""
OWN_PROMPT = "prompt"
"""The task of a prompt that was given with --prompt."""
_FOLDER = ASSETS / "ablation"


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """One prompt of a task."""

    task: str
    prompt_id: int
    """Its place in the task's file, from 0."""
    text: str
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What all arms decode before the next case begins."""

    prompt: TaskPrompt
    processor: Processor
    repeat: int
    seed: int


def load_tasks(tasks: Sequence[str], limit: int | None = None) -> list[TaskPrompt]:
    """The prompts of shipped tasks, at most `limit` of each.

    Raises:
        UsageError: a task is not known.
    """
    for task in tasks:
        if task not in TASKS:
            guess = did_you_mean(task, TASKS)
            raise UsageError(f"there is no task {task}", f"{guess}there are {', '.join(TASKS)}")
    return [prompt for task in tasks for prompt in _load(task)[:limit]]


def _load(task: str) -> list[TaskPrompt]:
    path = _FOLDER / f"{task}.jsonl"
    lines = parse_jsonl(SetLine, read_text(path), path.name)
    return [
        TaskPrompt(task, index, line.text or "", line.reference)
        for index, (_, line) in enumerate(lines)
    ]


def cases(
    prompts: Sequence[TaskPrompt], processors: Sequence[Processor], repeats: int, seed: int
) -> Iterator[Case]:
    """Prompt by prompt, so that an interrupted run has whole ones; repeat i has seed + i."""
    for prompt in prompts:
        for processor in processors:
            for repeat in range(repeats):
                yield Case(prompt, processor, repeat, seed + repeat)
