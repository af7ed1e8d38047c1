"""What is decoded while tuning: prompts by category as token ids, each with its own settings.

Prompts come from the sets of `trtla bench`, or from files, whose lines need no category.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtla.data.prompt_sets import (
    SHIPPED,
    Ids,
    PromptSet,
    SetLine,
    encode,
    fit,
    load_sets,
    prompt_room,
    set_lines,
)
from trtla.errors import UsageError
from trtla.files import read_text
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.llm.text import Tokenizer
    from trtla.runtime.limits import ExecutorLimits

NO_CATEGORY = "prompts"
"""The category of lines that name none."""


class _Line(SetLine):
    """One line of a .jsonl file."""

    category: str = NO_CATEGORY


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt; its text is the same for every triple."""

    category: str
    number: int
    """Its place in the category, from 0."""
    prompt: Ids
    sampling: SamplingParams

    @property
    def name(self) -> str:
        """How measurements call it."""
        return f"{self.category}/{self.number}"


Groups = Mapping[str, Sequence[Sample]]
"""Samples by category."""


def load_prompts(names: Sequence[str], most: int) -> list[PromptSet]:
    """The prompts by category, at most `most` of each.

    Raises:
        UsageError: a name, a file or a line is not usable, or there is no prompt.
    """
    return load_sets(names, (), most, _lines)


def _lines(name: str) -> list[tuple[str, str]]:
    suffix = Path(name).suffix.lower()
    if suffix not in (".jsonl", ".txt"):
        raise UsageError(
            f"prompts {name} are not known", f"use {', '.join(SHIPPED)}, or a .jsonl or .txt file"
        )
    text = read_text(Path(name))
    if suffix == ".txt":
        lines = [(NO_CATEGORY, line.rstrip("\r")) for line in text.split("\n") if line.strip()]
    else:
        lines = set_lines(_Line, text, name)
    if not lines:
        raise UsageError(f"{name} holds no prompts", 'write {"text": "..."} lines')
    return lines


def make_samples(
    sets: Sequence[PromptSet],
    tokenizer: Tokenizer,
    limits: ExecutorLimits,
    sampling: SamplingParams,
) -> tuple[list[Sample], int]:
    """The prompts as ids cut to the limits, and how many were cut; prompt i has seed + i.

    Raises:
        UsageError: the output leaves no room for a prompt.
    """
    room = prompt_room(limits, sampling.max_output_len)
    found, cut = [], 0
    for one in sets:
        encoded = encode(tokenizer, one)
        cut += sum(len(ids) > room for ids in encoded)
        found += [
            Sample(one.category, number, ids, replace(sampling, seed=sampling.seed + number))
            for number, ids in enumerate(fit(encoded, None, room))
        ]
    return found, cut


def by_category(samples: Sequence[Sample]) -> Groups:
    """The samples by category, in their order."""
    names = dict.fromkeys(sample.category for sample in samples)
    return {name: [one for one in samples if one.category == name] for name in names}
