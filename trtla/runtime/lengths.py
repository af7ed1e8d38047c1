"""Lengths of texts: limits of engines, of trained models, and of memory.

Plain integers and sentences, the same for both executors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtla.errors import at_start
from trtla.formats.engine import Engine
from trtla.formats.engine_limits import DEFAULT_SEQ_LEN
from trtla.runtime.limits import REBUILD_INPUT, REBUILD_LONGER, ExecutorLimits


@dataclass(frozen=True, slots=True)
class TextLengths:
    """The lengths of an `ExecutorLimits`, and hints for texts that exceed them."""

    max_input_len: int
    max_text_len: int
    input_len_hint: str
    text_len_hint: str


def text_lengths(engine: Engine, requested: int | None) -> TextLengths:
    """Return those of an engine or a model; `requested` is max_seq_len of the executor's options.

    Raises:
        UsageError: the request exceeds the engine's build.
    """
    text_len, longest = engine.text_len(requested), engine.longest_text
    hint = REBUILD_LONGER
    if text_len < longest:
        hint = f"open the model with a larger {at_start('max_seq_len')}, at most {longest}"
    elif engine.is_in_memory:
        hint = "use a model that was trained for longer texts"
    built = engine.config.build_config.max_input_len
    if built < text_len:
        return TextLengths(built, text_len, REBUILD_INPUT, hint)
    return TextLengths(text_len, text_len, hint, hint)


def usual_text_len(text_len: int) -> int:
    """Return the tokens that each text of a full batch has room for, if the model sets the length.

    A single text may have all of it. Room for a full batch of longest texts would take far more
    memory than most batches ever use.
    """
    return min(text_len, DEFAULT_SEQ_LEN)


def usual_output_len(text_len: int, max_batch_size: int) -> int:
    """Return the output limit of requests without one, so that a full batch runs at once."""
    return max(usual_text_len(text_len), text_len // max_batch_size)


def shortened(limits: ExecutorLimits, text_len: int, why: str) -> ExecutorLimits:
    """Return limits with texts as long as memory has room for.

    Args:
        why: a clause that names the memory and its size.
    """
    note = f"texts have at most {text_len} of the model's {limits.max_text_len} tokens: {why}"
    hint = f"use a device with more memory: {why}"
    return replace(
        limits,
        max_input_len=min(limits.max_input_len, text_len),
        max_text_len=text_len,
        input_len_hint=hint,
        text_len_hint=hint,
        usual_output_len=usual_output_len(text_len, limits.max_batch_size),
        length_note=note,
    )
