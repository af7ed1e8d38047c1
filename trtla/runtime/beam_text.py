"""Hypotheses of a beam search in words, as `LLM.beam_search` gives them.

Formatting only; the search is in beam.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtla.runtime.beam import BeamSettings, Hypothesis
from trtla.runtime.text import Tokenizer
from trtla.runtime.text_stream import TextStream


@dataclass(frozen=True, slots=True)
class BeamText:
    """A hypothesis in words; `output_ids` hold the end token, the text does not."""

    output_ids: tuple[int, ...]
    text: str | None
    """None for a model without tokenizer files."""
    log_prob: float
    """Sum over the new tokens, natural logarithm."""
    score: float
    """What hypotheses are ordered by: `log_prob` over the penalty of their length."""
    finished: bool
    """It ends with an end token."""


def beam_text(
    beam: Hypothesis, settings: BeamSettings, prompt: Sequence[int], tokenizer: Tokenizer | None
) -> BeamText:
    """A hypothesis that continues a prompt, as text where there is a tokenizer."""
    told = beam.tokens[:-1] if beam.finished else beam.tokens
    text = None
    if tokenizer is not None:
        stream = TextStream(tokenizer.decode, prompt, (), tokenizer.byte_tokens)
        text = stream.push(told, last=True)
    return BeamText(beam.tokens, text, beam.log_prob, settings.score(beam), beam.finished)
