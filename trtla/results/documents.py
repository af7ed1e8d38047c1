"""The JSON documents of run, and the parts that all documents share.

Readers ignore unknown fields, and optional ones have defaults.
"""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FiniteFloat

from trtla.machine import cpu, look
from trtla.runtime.stats import RequestCounters, SourceCounts
from trtla.version import __version__

SCHEMA_VERSION = 1
Triple = tuple[int, int, int]
Ids = tuple[int, ...]
Figure = FiniteFloat | None
PartT = TypeVar("PartT", bound="Part")


class Part(BaseModel):
    """A document, or a part of one; its fields are the keys, in their order."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def fill(cls: type[PartT], *sources: object, **known: Any) -> PartT:
        """Make a part; a field that is not known is read from the first source with its name."""
        for name in cls.model_fields:
            having = next((source for source in sources if hasattr(source, name)), None)
            if having is not None:
                known.setdefault(name, getattr(having, name))
        return cls(**known)

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON, of the fields that were set."""
        return self.model_dump(mode="json", exclude_unset=True)


class Divergence(Part):
    """The first difference of a text from plain decoding's."""

    position: int
    """Index of the first output token that differs; the number of tokens if none does."""
    id: int | None = None
    """The token here; None: this text has ended already, or the tokens are the same."""
    plain_id: int | None = None
    margin: Figure = None
    """The target's top-2 logit margin there: near zero is rounding, a large one is a bug."""
    of: Literal["ids", "text", "finish_reason"] = "ids"
    """The part that differs. With the same ids, another text or reason is a bug."""

    def describe(self) -> str:
        if self.of != "ids":
            part = self.of.replace("_", " ")
            return f"the {self.position} output tokens are the same, the {part} is another"
        margin = "unknown" if self.margin is None else f"{self.margin:.3g}"
        ids = f"{self.id} here, {self.plain_id} there"
        return f"differs at output token {self.position}: {ids}; top-2 margin {margin}"


class SourceRow(Part):
    """Counts of a source of the candidate tree; item i of a list is for depth i + 1."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    proposed: tuple[int, ...] = ()
    fed: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    expected: FiniteFloat = 0.0
    """Sum of the fed nodes' chances to be accepted."""
    calibration: Figure = None
    """Expected over accepted nodes: 1 if the chances are right."""

    @property
    def counts(self) -> SourceCounts:
        return SourceCounts(self.proposed, self.fed, self.accepted, self.expected)


Sources = dict[str, SourceRow] | None
"""Counts by source; None: `auto` did not draft, alone or for all."""


class Counted(Part):
    """A part with all counters of texts, including those without a field here."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @classmethod
    def fill(cls: type[PartT], *sources: object, **known: Any) -> PartT:
        """As `Part.fill`; counters are those of the first source that has them."""
        counters = next(source for source in sources if isinstance(source, RequestCounters))
        more = counters.reported("run").items()
        known |= {name: value for name, value in more if name not in cls.model_fields}
        return super().fill(*sources, **known)


class RunResult(Counted):
    """The result of a prompt; only --check-lossless sets `lossless` and `divergence`."""

    index: int | None = None
    input_text: str | None = None
    """None, as `text`: the model has no tokenizer files."""
    input_ids: Ids = ()
    output_ids: Ids = ()
    text: str | None = None
    finish_reason: str | None = None
    lookahead: Triple | None = None
    drafter: str | None = None
    steps: int | None = None
    tokens_per_step: Figure = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_per_pos: tuple[FiniteFloat, ...] | None = None
    sources: Sources = None
    distinct_4grams: Figure = None
    lossless: bool | None = None
    divergence: Divergence | None = None


class RunTotals(Counted):
    """Figures over all prompts of a run."""

    prompts: int | None = None
    output_tokens: int | None = None
    steps: int | None = None
    tokens_per_step: Figure = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_per_pos: tuple[FiniteFloat, ...] | None = None
    sources: Sources = None
    head_forwards: int | None = None
    """Forwards of trained heads; None: there are none."""
    head_s: Figure = None
    """Seconds that they took to draft."""
    distinct_4grams: Figure = None
    ttft_ms: Figure = None
    """Mean time to a prompt's first token."""
    time_s: Figure = None
    tokens_per_s: FiniteFloat


class Run(Part):
    """`trtla run --json`, with or without `--check-lossless`."""

    schema_version: int | None = None
    environment: dict[str, Any] = {}
    executor: str | None = None
    results: tuple[RunResult, ...]
    stats: RunTotals
    plain_stats: RunTotals | None = None


class Beam(Part):
    """One of a prompt's most probable texts."""

    text: str | None
    output_ids: Ids
    log_prob: float
    score: float
    finished: bool


class PromptBeams(Part):
    """One prompt and its beams, the best first."""

    index: int
    input_text: str | None
    input_ids: Ids
    beams: tuple[Beam, ...]


class BeamSearch(Part):
    """`trtla run --num-beams 4 --json`, which is not for reports."""

    schema_version: int
    executor: str
    settings: dict[str, int | float]
    results: tuple[PromptBeams, ...]
    stats: dict[str, int | float]


def environment(command: str) -> dict[str, Any]:
    """Describe the machine, the versions, the commit and the command of a measurement."""
    machine = look()
    return {
        **host(command),
        "gpus": [gpu.name for gpu in machine.gpus] if machine.usable else [],
        "driver": machine.driver.version,
        "torch": machine.torch.version,
        "transformers": machine.transformers,
        "llama_cpp_python": _version("llama-cpp-python"),
    }


def host(command: str) -> dict[str, Any]:
    """Describe them as far as possible without torch, for commands that compute elsewhere."""
    processor = cpu()
    return {
        "command": command,
        "trtla": __version__,
        "commit": _commit(),
        "cpu": processor.model,
        "cores": processor.cores,
        "instruction_sets": list(processor.instruction_sets),
        "memory_bytes": processor.memory_bytes,
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of trtla's checkout, with `-dirty` if files differ from it."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
