"""The row of every measurement, the base of measurements' documents, and summarize's.

A field of a row is a key of the document and a column of the table. Rows are filled from records
by the fields' names: a counter of `Metrics` with a field here is in every output.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat

from trtla.results.documents import (
    Figure,
    Part,
    Sources,
    Triple,
)

Shares = tuple[FiniteFloat, ...]


def _listed(value: Any) -> Any:
    """Parse the text that stands for a list or a dictionary in a table."""
    return json.loads(value) if isinstance(value, str) else value


_TRIPLE = re.compile(r"lookahead (\d+),(\d+),(\d+)")


class Circumstances(Part):
    """The sampling and the category of texts, and the executor that wrote them."""

    temperature: FiniteFloat
    category: str
    top_k: int = 0
    top_p: FiniteFloat = 1.0
    executor: str | None = None
    """The executor's description of itself: library, device, arithmetic."""


class Cell(Circumstances):
    """The circumstances that arms of one table share."""

    device: str
    dtype: str
    threads: int
    batch_size: int
    prompt_len: int | None = None
    """Tokens of every prompt; None: the prompts' own lengths."""


class Row(Circumstances):
    """An arm in a cell: figures and counters, whose definitions are in docs/algorithm.md."""

    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    batch_size: int | None = None
    prompt_len: int | None = None
    arm: str
    setting: str | None = None
    """The arm's setting, or its own choice, in words."""
    weight_type: str | None = None
    """The type of most weights in memory, such as Q4_1."""
    compute_type: str | None = None
    """The arm's type of arithmetic; `dtype` is that of our engine."""
    rounds: int | None = None
    time_s: Figure = None
    """Seconds of a round, prefills included."""
    tokens_per_s: Figure = None
    tokens_per_s_min: Figure = None
    tokens_per_s_max: Figure = None
    ttft_ms: Figure = None
    ms_per_token: Figure = None
    tokens_per_step: Figure = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    acceptance_rate: Figure = None
    draft_forwards: int | None = None
    """Forwards of a draft model; None: there is none."""
    mean_gamma: Figure = None
    mean_entropy: Figure = None
    head_forwards: int | None = None
    """Forwards of a trained head; None: there is none."""
    head_s: Figure = None
    """Seconds that it took to draft; `head_share` is their share of the whole time."""
    head_share: Figure = None
    accepted_per_pos: Annotated[Shares | None, BeforeValidator(_listed)] = None
    sources: Annotated[Sources, BeforeValidator(_listed)] = None
    speedup_vs_ar: Figure = None
    speedup_vs_ar_min: Figure = None
    speedup_vs_ar_max: Figure = None
    predicted_speedup: Figure = None
    """The speed-up by the cost of steps, in a row of tune."""
    efficiency: Figure = None
    fed_per_step: Figure = None
    host_ms_per_step: Figure = None
    read_gb_per_s: Figure = None
    share_of_bandwidth: Figure = None
    peak_memory_mb: Figure = None
    output_tokens: int | None = None
    distinct_4grams: Figure = None
    texts: int | None = None
    equal_texts: int | None = None
    """None: texts are not comparable, since peers draw other random numbers."""
    first_divergence: int | None = None
    rouge1: Figure = None
    """The F-measure x100 against references, if available; of summaries and of an ablation."""
    rouge2: Figure = None
    rougeL: Figure = None  # noqa: N815  # rouge-score's names
    rougeLsum: Figure = None  # noqa: N815
    perplexity: Figure = None
    """The target's perplexity at temperature 1 without filters: of an ablation's outputs, and of
    prompts and outputs together in `summarize --eval-ppl`."""

    @property
    def cell(self) -> tuple[object, ...]:
        """The values that the arms of a table share."""
        return tuple(getattr(self, name) for name in Cell.model_fields)

    @property
    def triple(self) -> Triple | None:
        """The triple of an arm of lookahead alone or of plain decoding; None: it has none."""
        match = _TRIPLE.fullmatch("lookahead 1,1,0" if self.arm == "ar" else self.arm)
        return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


class Document(Part):
    """The fields that all documents of measurements share."""

    schema_version: int | None = None
    environment: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that all rows share, by name."""
    rows: tuple[Row, ...]

    @property
    def model(self) -> str | None:
        """The model that was measured, if the document says which."""
        named = self.settings.get("model")
        return None if named is None else str(named)


class Summarize(Document):
    """`trtla summarize --json`: rows of the engine with drafts and without, and of transformers."""

    items: int | None = None
    """The number of articles."""
