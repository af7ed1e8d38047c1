"""The ablation's table: its columns, and one row of cells. Nothing here decodes or writes files.

A cell is a text; empty means that the column does not apply, or that the figure cannot be had.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtla.data.prompt_sets import Ids

COLUMNS = (
    "run_id", "method", "gamma_policy", "gamma", "gamma_min", "gamma_max", "ema_beta",
    "ngram_kind", "ngram_n", "top_k_filler", "window", "ngram", "guesses", "model", "drafter",
    "backend", "device", "dtype", "use_cache", "processor", "temperature", "top_k", "top_p",
    "seed", "repeat", "task", "prompt_id", "prompt_tokens", "new_tokens", "steps",
    "drafter_forwards", "drafted", "accepted", "acceptance_rate", "tokens_per_step", "mean_gamma",
    "mean_h_norm", "time_s", "ttft_ms", "tokens_per_s", "ms_per_token", "speedup_vs_ar",
    "peak_mem_mib", "finish_reason", "output_sha256", "same_as_ar", "rouge_l", "perplexity",
)  # fmt: skip
"""One row is one decoding: an arm with one setting, on one prompt, once."""

SETTING = COLUMNS[COLUMNS.index("method") : COLUMNS.index("seed")]
"""What tells an arm's settings apart from another's."""

TIMES = ("time_s", "ttft_ms", "tokens_per_s", "ms_per_token", "speedup_vs_ar", "peak_mem_mib")
"""What differs between two runs of one command; all other cells are the same."""

FIGURES = (
    *COLUMNS[COLUMNS.index("prompt_tokens") : COLUMNS.index("finish_reason")],
    "same_as_ar", "rouge_l", "perplexity",
)  # fmt: skip
"""What has a mean."""

Cells = dict[str, str]


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one decoding gave; None where it cannot be had."""

    output_ids: Ids
    finish_reason: str
    steps: int
    drafted: int | None
    accepted: int
    time_s: float
    """From the request to its last token, the prompt pass included."""
    first_s: float
    peak_bytes: int
    drafter_forwards: int | None = None
    """Forwards of the draft model that it took."""
    mean_gamma: float | None = None
    """What the draft model was allowed, mean over steps."""
    mean_entropy: float | None = None
    """Of the draft model, over ln(vocabulary), mean over steps."""
    rouge_l: float | None = None
    """F-measure x100 against the prompt's reference, where it has one."""
    accepted_lengths: tuple[int, ...] | None = None
    """Accepted drafts of each step."""
    perplexity: float | None = None
    """The target's own of the text, at temperature 1 without filters."""

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the whole time."""
        return len(self.output_ids) / self.time_s


def shown(value: object) -> str:
    """A value as a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def number(text: str) -> float | None:
    """A cell as a number, true and false as 1 and 0; None for an empty one."""
    if text in ("true", "false"):
        return float(text == "true")
    return float(text) if text else None


def run_id(settings: Mapping[str, object]) -> str:
    """A name for a row, made from all that its text and its arm depend on."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def figures(found: Decoded, plain: Decoded) -> dict[str, object]:
    """The measured cells; `plain` is the same prompt's plain decoding in this process."""
    return {
        "new_tokens": len(found.output_ids),
        "steps": found.steps,
        "drafter_forwards": found.drafter_forwards,
        "drafted": found.drafted,
        "accepted": found.accepted,
        "acceptance_rate": found.accepted / found.drafted if found.drafted else None,
        "tokens_per_step": 1.0 + found.accepted / found.steps if found.steps else 1.0,
        "mean_gamma": found.mean_gamma,
        "mean_h_norm": found.mean_entropy,
        "time_s": found.time_s,
        "ttft_ms": 1000.0 * found.first_s,
        "tokens_per_s": found.tokens_per_s,
        "ms_per_token": 1000.0 / found.tokens_per_s,
        "speedup_vs_ar": found.tokens_per_s / plain.tokens_per_s,
        "peak_mem_mib": round(found.peak_bytes / 2**20, 1),
        "finish_reason": found.finish_reason,
        "output_sha256": _sha256(found.output_ids),
        "same_as_ar": (found.output_ids, found.finish_reason)
        == (plain.output_ids, plain.finish_reason),
        "rouge_l": found.rouge_l,
        "perplexity": found.perplexity,
    }


def _sha256(ids: Sequence[int]) -> str:
    """Of the output ids, written in decimal with spaces between."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()


def as_cells(values: Mapping[str, object]) -> Cells:
    """A whole row; columns that are not named stay empty."""
    return {column: shown(values.get(column)) for column in COLUMNS}
