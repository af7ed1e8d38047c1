"""Prompts of benchmarks: prompt sets by category, prompts of a given length, CNN/DailyMail.

Sets come from JSONL: `{"category", "text"}` lines, or Spec-Bench's `{"question_id", "category",
"turns"}`; SPEED-Bench's files are in speed_bench.py. CNN/DailyMail, for summaries and calibration,
is from the Hugging Face hub or its cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field

from trtla.data.speed_bench import SpeedBenchColumns, read_parquet, refuse_placeholder
from trtla.errors import UsageError, did_you_mean, first_line
from trtla.files import ASSETS, parse_jsonl, read_text
from trtla.formats.hub import hub_if_it_answers

Ids = tuple[int, ...]
T = TypeVar("T")
SHIPPED = ("code", "chat", "summarization", "ablation")
"""The sets that come with trtla; `ablation` has four categories, one of them with references."""
_FOLDER = ASSETS / "bench"

CNN_DAILYMAIL = "cnn_dailymail"
"""The data set's name on the command line."""

_HUB_NAMES = ("abisee/cnn_dailymail", "ccdv/cnn_dailymail")
_HUB_VERSION = "3.0.0"

NO_CATEGORY = "prompts"
"""The category of lines without one."""


class SetLine(SpeedBenchColumns):
    """One line of a prompt set, ours, Spec-Bench's or SPEED-Bench's."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    instead: ClassVar[dict[str, str]] = {"prompt": "text"}

    category: str = Field(NO_CATEGORY, min_length=1)
    text: str | None = None
    question_id: int | str | None = None
    reference: Any = None


@dataclass(frozen=True, slots=True)
class Question:
    """One line of a set."""

    turns: tuple[str, ...]
    """The questions, in order; each later one continues the answer to the one before."""
    is_chat: bool = False
    """It becomes a chat where the model has a template: those of Spec-Bench and SPEED-Bench do."""
    reference: str | None = None
    """A good answer to the last turn."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The questions of one category."""

    category: str
    questions: tuple[Question, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(question.turns[0] for question in self.questions)


def load_sets(names: Sequence[str], categories: Sequence[str], limit: int) -> list[PromptSet]:
    """The sets by category, in the order of the lines, at most `limit` lines each.

    Args:
        names: shipped sets by name, .jsonl files, SPEED-Bench's .parquet files, or .txt files with
            a prompt a line.
        categories: those to keep; empty keeps all.
        limit: most lines of a category.
    """
    questions: dict[str, list[Question]] = {}
    for name in names:
        for category, question in _lines(name):
            questions.setdefault(category, []).append(question)
    for category in categories:
        if category not in questions:
            raise UsageError(
                f"there is no prompt of category {category}", f"there are {', '.join(questions)}"
            )
    kept = [c for c in questions if not categories or c in categories]
    return [PromptSet(c, tuple(questions[c][:limit])) for c in kept]


def mixed(sets: Sequence[PromptSet]) -> list[Question]:
    """The questions of all sets, one of each in turn."""
    rounds = zip_longest(*(prompt_set.questions for prompt_set in sets))
    return [question for row in rounds for question in row if question is not None]


def _lines(name: str) -> list[tuple[str, Question]]:
    """Category and question of each line of a shipped set or a file."""
    path = _FOLDER / f"{name}.jsonl" if name in SHIPPED else Path(name)
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", ".parquet", ".txt"):
        raise UsageError(
            f"prompt set {name} is not known",
            f"{did_you_mean(name, SHIPPED)}use {', '.join(SHIPPED)}, or a .jsonl, .parquet or "
            ".txt file",
        )
    if suffix == ".txt":
        texts = (line.rstrip("\r") for line in read_text(path).split("\n") if line.strip())
        lines = [(NO_CATEGORY, Question((line,))) for line in texts]
    else:
        parsed = (
            read_parquet(SetLine, path)
            if suffix == ".parquet"
            else parse_jsonl(SetLine, read_text(path), name)
        )
        lines = [(line.category, _question(line, where)) for where, line in parsed]
    if not lines:
        form = "a prompt a line" if suffix == ".txt" else '{"text": "..."} lines'
        raise UsageError(f"{name} holds no prompts", f"write {form}")
    return lines


def _question(line: SetLine, where: str) -> Question:
    if sum(key is not None for key in (line.text, line.turns, line.messages)) != 1:
        raise UsageError(f'{where} needs either "text" or "turns"', "give exactly one of them")
    turns = line.asked() if line.text is None else (line.text,)
    if not turns or not all(turns):
        raise UsageError(f"{where} has an empty prompt", "give at least one character")
    refuse_placeholder(turns, where)
    reference = line.reference if isinstance(line.reference, str) else None
    return Question(turns, is_chat=line.text is None, reference=reference)


def fit(prompts: Sequence[Ids], prompt_len: int | None, room: int) -> list[Ids]:
    """Prompts of exactly `prompt_len` tokens; None keeps their lengths, but cuts them to `room`.

    Prompts are cut at the beginning, as the question stands at the end. A short prompt gets the
    set's other prompts in front: text repeated within a prompt would flatter n-gram methods.
    """
    if prompt_len is None:
        return [ids[-room:] for ids in prompts]
    if prompt_len > room:
        raise UsageError(
            f"--prompt-len {prompt_len} is above the {room} tokens that the engine leaves",
            "lower --prompt-len or --max-output-len, or rebuild with larger limits",
        )
    fitted = []
    for at, ids in enumerate(prompts):
        others = islice(cycle(prompts), at + 1, None)
        while len(ids) < prompt_len:
            ids = next(others) + ids
        fitted.append(ids[-prompt_len:])
    return fitted


def batches(prompts: Sequence[T], batch_size: int) -> list[list[T]]:
    """Full batches that hold every prompt; the last is filled up with prompts from the front."""
    count = -(-len(prompts) // batch_size) * batch_size
    wide = [prompts[i % len(prompts)] for i in range(count)]
    return [wide[i : i + batch_size] for i in range(0, count, batch_size)]


def load_rows(split: str, count: int, hint: str, seed: int | None = None) -> list[dict[str, Any]]:
    """The first `count` rows of a split, shuffled first if there is a seed.

    Rows have `article` and `highlights`. The package `datasets` must be installed.
    """
    with hub_if_it_answers():
        return _load_rows(split, count, hint, seed)


def _load_rows(split: str, count: int, hint: str, seed: int | None) -> list[dict[str, Any]]:
    import datasets

    problem: Exception | None = None
    for name in _HUB_NAMES:
        try:
            rows = datasets.load_dataset(
                name,
                _HUB_VERSION,
                split=split,
                trust_remote_code=False,
                download_config=datasets.DownloadConfig(max_retries=1),
            )
        except Exception as error:  # the hub's client raises dozens of kinds, none of them ours
            problem = error
            continue
        rows = rows if seed is None else rows.shuffle(seed=seed)
        return [dict(row) for row in rows.select(range(min(count, len(rows))))]
    reason = first_line(problem)
    raise UsageError(f"{CNN_DAILYMAIL} cannot be loaded from the Hugging Face hub: {reason}", hint)
