"""What `trtla run` does: decode prompts, measure, compare with plain decoding; no printing.

The names of the figures are those of docs/algorithm.md; `summarize` reports with the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from trtla.data.prompts import PromptRequest
from trtla.runtime.stats import accepted_per_pos, tokens_per_step
from trtla.settings.drafting import NO_DRAFTER
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead
from trtla.settings.sampling import BeamSettings

if TYPE_CHECKING:
    from trtla.llm.answer import BeamText
    from trtla.llm.llm import LLM, Chunk, Completion


SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Totals:
    """Figures over several completions; `tokens_per_s` counts output tokens over the whole time."""

    prompts: int
    output_tokens: int
    steps: int
    tokens_per_step: float
    drafted: int | None
    """None where the executor does not tell."""
    accepted: int
    accepted_per_pos: list[float] | None
    """Item i: in how many of all steps a draft was accepted at depth i + 1; None: unknown."""
    distinct_4grams: float | None
    time_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Decoded:
    """Finished completions in the order of their prompts, and their figures."""

    completions: list[Completion]
    totals: Totals


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer first differs from plain decoding's."""

    position: int
    """Index of the first output token that differs; the number of tokens where none does."""
    id: int | None = None
    """None where this answer has ended already, or where the tokens are the same."""
    plain_id: int | None = None
    margin: float | None = None
    """The target's top-2 logit margin there: near zero is rounding, a large one is a bug."""
    of: Literal["ids", "text", "finish_reason"] = "ids"
    """What differs. With the same ids, another text or reason is a bug."""

    def describe(self) -> str:
        """The difference in a few words."""
        if self.of != "ids":
            what = self.of.replace("_", " ")
            return f"the {self.position} output tokens are the same, the {what} is another"
        margin = "unknown" if self.margin is None else f"{self.margin:.3g}"
        ids = f"{self.id} here, {self.plain_id} there"
        return f"differs at output token {self.position}: {ids}; top-2 margin {margin}"


def distinct_4grams(outputs: Iterable[Sequence[int]]) -> float | None:
    """Share of 4-grams that differ from all others of their text; None for texts below 4 tokens.

    Text that loops has few of them, and makes any lookahead look good.
    """
    grams = [[tuple(ids[i : i + 4]) for i in range(len(ids) - 3)] for ids in outputs]
    count = sum(map(len, grams))
    return sum(len(set(text)) for text in grams) / count if count else None


def totals(completions: Sequence[Completion], time_s: float) -> Totals:
    """Add the counters of completions up."""
    output_tokens = sum(len(c.output_ids) for c in completions)
    steps = sum(c.stats.steps for c in completions)
    accepted = sum(c.stats.accepted for c in completions)
    return Totals(
        prompts=len(completions),
        output_tokens=output_tokens,
        steps=steps,
        tokens_per_step=tokens_per_step(steps, accepted),
        drafted=_sum(c.stats.drafted for c in completions),
        accepted=accepted,
        accepted_per_pos=accepted_per_pos(c.stats.accepted_lengths for c in completions),
        distinct_4grams=distinct_4grams(c.output_ids for c in completions),
        time_s=time_s,
        tokens_per_s=output_tokens / time_s if time_s else 0.0,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum, or None when a part is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def decode(
    llm: LLM,
    requests: Sequence[PromptRequest],
    *,
    plain: bool = False,
    on_chunk: Callable[[Chunk], None] | None = None,
) -> Decoded:
    """Decode all prompts in one in-flight batch.

    Args:
        plain: decode every request without drafts and record the target's margins.
        on_chunk: called with every chunk as it comes.
    """
    triples: list[Lookahead | None] = [
        AUTOREGRESSIVE if plain else request.lookahead for request in requests
    ]
    drafters = [NO_DRAFTER if plain else request.drafter for request in requests]
    done: dict[int, Completion] = {}
    start = time.perf_counter()
    for chunk in llm.stream(
        [request.prompt for request in requests],
        [request.sampling for request in requests],
        triples,
        drafter=drafters,
        margins=plain,
        names=[request.name for request in requests],
    ):
        if chunk.completion is not None:
            done[chunk.index] = chunk.completion
        if on_chunk is not None:
            on_chunk(chunk)
    time_s = time.perf_counter() - start
    completions = [done[i] for i in range(len(requests))]
    return Decoded(completions, totals(completions, time_s))


def warm_up(llm: LLM, request: PromptRequest) -> None:
    """Decode a few tokens untimed: the first forwards of a process are slower than the rest."""
    few = replace(request.sampling, max_output_len=min(4, request.sampling.max_output_len))
    llm.generate(
        [request.prompt], [few], [request.lookahead], drafter=request.drafter, names=[request.name]
    )


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first index at which two outputs differ, the shorter one's end included; None: equal."""
    shorter = min(len(ours), len(theirs))
    end = None if len(ours) == len(theirs) else shorter
    return next((i for i in range(shorter) if ours[i] != theirs[i]), end)


def divergence(completion: Completion, plain: Completion) -> Divergence | None:
    """Where an answer first differs from plain decoding's; None: ids, text and reason are equal."""
    ours, theirs = completion.output_ids, plain.output_ids
    position = first_difference(ours, theirs)
    if position is None:
        if completion.text != plain.text:
            return Divergence(len(ours), of="text")
        if completion.finish_reason != plain.finish_reason:
            return Divergence(len(ours), of="finish_reason")
        return None
    return Divergence(
        position,
        ours[position] if position < len(ours) else None,
        theirs[position] if position < len(theirs) else None,
        plain.margins[position] if position < len(plain.margins) else None,
    )


def result(completion: Completion) -> dict[str, Any]:
    """One entry of `results` in the JSON document."""
    return {
        "index": completion.index,
        "input_text": completion.input_text,
        "input_ids": list(completion.input_ids),
        "output_ids": list(completion.output_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "lookahead": list(completion.lookahead.as_tuple()),
        "drafter": completion.stats.drafter,
        "steps": completion.stats.steps,
        "tokens_per_step": completion.stats.tokens_per_step,
        "drafted": completion.stats.drafted,
        "accepted": completion.stats.accepted,
        "accepted_per_pos": completion.stats.accepted_per_pos,
        "distinct_4grams": distinct_4grams([completion.output_ids]),
    }


def document(decoded: Decoded, plain: Decoded | None, executor: str) -> dict[str, Any]:
    """The JSON document of a run; with `plain`, what the comparison with plain decoding found."""
    results = [result(completion) for completion in decoded.completions]
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "executor": executor,
        "results": results,
        "stats": asdict(decoded.totals),
    }
    if plain is not None:
        for entry, ours, theirs in zip(
            results, decoded.completions, plain.completions, strict=True
        ):
            found = divergence(ours, theirs)
            entry["lossless"] = found is None
            entry["divergence"] = asdict(found) if found else None
        body["plain_stats"] = asdict(plain.totals)
    return body


BEAM_SCHEMA_VERSION = 1


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


def beam_document(searched: Searched, executor: str) -> dict[str, Any]:
    """The JSON document of a search."""
    return {
        "schema_version": BEAM_SCHEMA_VERSION,
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
