"""What `trtla run --num-beams` does: search the most probable texts of prompts; no printing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trtla.prompts import PromptRequest
from trtla.runtime.beam import BeamSettings

if TYPE_CHECKING:
    from trtla.runtime.beam_text import BeamText
    from trtla.runtime.llm import LLM

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class PromptBeams:
    """One prompt and its beams, the best first."""

    index: int
    input_text: str | None
    """None for a model without tokenizer files."""
    input_ids: tuple[int, ...]
    beams: tuple[BeamText, ...]


@dataclass(frozen=True, slots=True)
class Searched:
    """Prompts in their order, how they were searched, and how long that took."""

    settings: BeamSettings
    prompts: tuple[PromptBeams, ...]
    time_s: float


def search(
    llm: LLM,
    requests: Sequence[PromptRequest],
    settings: BeamSettings,
    num_return_sequences: int | None = None,
) -> Searched:
    """Search the prompts one after another.

    Args:
        requests: prompts; of their settings `max_output_len` counts.
        num_return_sequences: most beams of a prompt; None is all.

    Raises:
        UsageError: a prompt does not fit; nothing has been searched then.
        TrtlaError: the K/V cache has no room for the beams.
    """
    prompts = [_checked(llm, request) for request in requests]
    start = time.perf_counter()
    found = [
        _beams(llm, index, asked, ids, settings, num_return_sequences)
        for index, (asked, ids) in enumerate(zip(requests, prompts, strict=True))
    ]
    return Searched(settings, tuple(found), time.perf_counter() - start)


def _checked(llm: LLM, asked: PromptRequest) -> tuple[int, ...]:
    """The ids of a prompt that fits."""
    request = llm.request(asked.prompt, asked.sampling, asked.name)
    llm.limits.check(request)
    return request.given_ids


def _beams(
    llm: LLM,
    index: int,
    asked: PromptRequest,
    prompt: tuple[int, ...],
    settings: BeamSettings,
    most: int | None,
) -> PromptBeams:
    length = asked.sampling.max_output_len
    beams = llm.beam_search(prompt, settings, length, name=asked.name)
    text = asked.prompt if isinstance(asked.prompt, str) else None
    if text is None and llm.tokenizer is not None:
        text = llm.tokenizer.decode(prompt)
    return PromptBeams(index, text, prompt, tuple(beams[:most]))


def document(searched: Searched, executor: str) -> dict[str, Any]:
    """The JSON document of a search."""
    return {
        "schema_version": SCHEMA_VERSION,
        "executor": executor,
        "settings": asdict(searched.settings),
        "results": [_result(prompt) for prompt in searched.prompts],
        "stats": {"prompts": len(searched.prompts), "time_s": searched.time_s},
    }


def _result(prompt: PromptBeams) -> dict[str, Any]:
    """One entry of `results`."""
    return {
        "index": prompt.index,
        "input_text": prompt.input_text,
        "input_ids": list(prompt.input_ids),
        "beams": [
            {
                "text": beam.text,
                "output_ids": list(beam.output_ids),
                "log_prob": beam.log_prob,
                "score": beam.score,
                "finished": beam.finished,
            }
            for beam in prompt.beams
        ],
    }
