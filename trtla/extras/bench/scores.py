"""Scores of decodings' texts: ROUGE-L against references, and the target's perplexity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from statistics import fmean

from trtla.data.prompt_sets import Ids
from trtla.extras.bench.opened import OpenedModel
from trtla.measuring.summaries import rouge
from trtla.measuring.turns import Turn
from trtla.runtime.loop.scores import perplexity


class TextScores:
    """Scores of texts; arms write the same texts, so each is scored once, between timed runs.

    Args:
        references: reference texts by prompt.
    """

    def __init__(self, model: OpenedModel, references: Mapping[Ids, str]) -> None:
        self._model, self._references = model, references
        self._perplexities: dict[tuple[Ids, Ids], float] = {}

    def of(self, turns: Sequence[Turn], label: str) -> dict[str, float | None]:
        """Return means over the texts of an arm; None if no text has the score."""
        pairs = (zip(turn.batch.work[0], turn.runs[label].outputs, strict=True) for turn in turns)
        texts = list(chain.from_iterable(pairs))
        scores = {
            "rougeL": [self._rouge_l(*text) for text in texts],
            "perplexity": [self._perplexity(*text) for text in texts],
        }
        known = {name: [x for x in values if x is not None] for name, values in scores.items()}
        return {name: fmean(values) if values else None for name, values in known.items()}

    def _rouge_l(self, prompt: Ids, output: Ids) -> float | None:
        reference = self._references.get(prompt)
        if reference is None or find_spec("rouge_score") is None:
            return None
        return rouge(self._model.tokenizer.decode(output), reference, ("rougeL",))["rougeL"]

    def _perplexity(self, prompt: Ids, output: Ids) -> float | None:
        """Return it at temperature 1 without filters; None if the executor does not report it."""
        if self._model.llm.engine.backend == "tensorrt-llm":
            return None
        if (prompt, output) not in self._perplexities:
            log_probs = self._model.llm.log_probs(prompt, output)
            self._perplexities[prompt, output] = perplexity(log_probs)
        return self._perplexities[prompt, output]
