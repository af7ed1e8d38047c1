"""An ablation's arms by name, what they are set to, and the cases that they decode.

The defaults are the four arms that speculative-decoding demos compare (plain, a fixed gamma, EGAG,
n-grams), and beside them prompt lookup, lookahead, lookahead auto and a chain. Further arms are
auto without one of its sources, and with so many nodes in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from trtla.bench.arms import AR, Way
from trtla.errors import UsageError, did_you_mean
from trtla.files import ASSETS, parse_jsonl, read_text
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import Processor, SamplingParams

if TYPE_CHECKING:
    from trtla.data.prompt_sets import PromptSet  # pydantic, which --help does without

METHODS = (
    AR, "sd", "egag", "nasd", "prompt-lookup", "lookahead", "lookahead-auto", "chain"
)  # fmt: skip
"""The arms, in the order in which they run."""
WITHOUT, NODES = "auto-without-", "auto-nodes"
SOURCE_METHODS = (
    "lookahead-auto", *(f"{WITHOUT}{name}" for name in ("own", "others", "rows", "window")), NODES
)  # fmt: skip
"""What the candidate tree is worth: whole, without each of its sources, and by size."""
KNOWN_METHODS = tuple(dict.fromkeys((*METHODS, *SOURCE_METHODS)))

TASKS = ("dialogue", "translation", "continuation", "code")
"""The sets that come with trtla."""
OWN_PROMPT = "prompt"
"""The task of a prompt that was given with --prompt."""
_FOLDER = ASSETS / "ablation"


def cells_of(way: Way) -> dict[str, object]:
    """What an arm is set to, by the columns of the table; a folder without the way to it."""
    own, kinds = way.drafter, {name.partition(":")[0] for name in way.drafter.drafter}
    found: dict[str, object] = {"method": way.name}
    if own.egag:
        found |= {"gamma_policy": "egag", "ema_beta": own.ema}
        found |= {"gamma_min": own.gamma_min, "gamma_max": own.gamma_max}
    elif own.most_tokens:
        found |= {"gamma_policy": "fixed", "gamma": own.gamma}
    elif way.options is not None and way.options.nodes is not None:
        found |= {"gamma_policy": "fixed", "gamma": way.options.nodes}
    if "ngram" in kinds:
        found |= {"ngram_kind": own.ngram_kind, "ngram_n": own.ngram_order}
        found["top_k_filler"] = own.top_k_filler
    if own.uses_lookahead and isinstance(way.lookahead, LookaheadConfig):
        found |= zip(("window", "ngram", "guesses"), way.lookahead.as_tuple(), strict=True)
    if own.draft_model is not None:
        found["drafter"] = Path(own.draft_model).resolve().name
    return found


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """One prompt of a task."""

    task: str
    prompt_id: int
    """Its place in the task's file, from 0."""
    text: str
    reference: str | None = None
    is_chat: bool = False
    """Whether it is asked as a chat where the model has a template."""


@dataclass(frozen=True, slots=True)
class Case:
    """What all arms decode before the next case begins."""

    prompt: TaskPrompt
    processor: Processor
    repeat: int
    seed: int

    def sampling(self, shared: SamplingParams) -> SamplingParams:
        """What all cases share, with this one's filters and seed."""
        return replace(shared, **self.processor.filters._asdict(), seed=self.seed)

    @property
    def cells(self) -> dict[str, object]:
        """The case by the columns of the table; filters that are off stay empty."""
        chosen, prompt = self.processor, self.prompt
        return {
            "processor": chosen.name,
            "temperature": chosen.temperature,
            "top_k": chosen.top_k or None,
            "top_p": chosen.top_p if chosen.top_p < 1.0 else None,
            "seed": self.seed,
            "repeat": self.repeat,
            "task": prompt.task,
            "prompt_id": prompt.prompt_id,
        }


def load_tasks(tasks: Sequence[str], limit: int | None = None) -> list[TaskPrompt]:
    """The prompts of shipped tasks, at most `limit` of each."""
    from trtla.data.prompt_sets import SetLine  # pydantic, which --help does without

    found = []
    for task in tasks:
        if task not in TASKS:
            guess = did_you_mean(task, TASKS)
            raise UsageError(f"there is no task {task}", f"{guess}there are {', '.join(TASKS)}")
        path = _FOLDER / f"{task}.jsonl"
        lines = parse_jsonl(SetLine, read_text(path), path.name)[:limit]
        found += [
            TaskPrompt(task, index, line.text or "", line.reference)
            for index, (_, line) in enumerate(lines)
        ]
    return found


def prompts_of(sets: Sequence[PromptSet]) -> list[TaskPrompt]:
    """The first turns of prompt sets, whose categories are the tasks."""
    return [
        TaskPrompt(one.category, place, question.turns[0], is_chat=question.is_chat)
        for one in sets
        for place, question in enumerate(one.questions)
    ]


def cases(
    prompts: Sequence[TaskPrompt], processors: Sequence[Processor], repeats: int, seed: int
) -> Iterator[Case]:
    """Round by round, each of which has every prompt once; repeat i has seed + i.

    What an arm learns from one prompt for the next is its own of the round.
    """
    for processor, repeat, prompt in product(processors, range(repeats), prompts):
        yield Case(prompt, processor, repeat, seed + repeat)
