"""The work of `trtla run`: decoding prompts, measuring, comparing with plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trtla.results.documents import (
    SCHEMA_VERSION,
    Beam,
    BeamSearch,
    Divergence,
    PromptBeams,
    Run,
    RunResult,
    RunTotals,
)
from trtla.results.metrics import Metrics, distinct_4grams, first_difference
from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.messages import follow_up

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Chunk, Completion
    from trtla.llm.prompt import PromptRequest
    from trtla.settings.sampling import BeamSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Finished completions in the order of their prompts, and their figures."""

    completions: list[Completion]
    totals: Metrics
    ttft_ms: float
    """Mean milliseconds from the start of a turn to a prompt's first token."""
    prompts_s: float = 0.0
    """Seconds until every prompt of a turn has its first token, over all turns."""
    decoding_s: float = 0.0
    """Seconds from a turn's first token to its last, over all turns."""

    @property
    def prompt_tokens(self) -> int:
        return sum(len(done.input_ids) for done in self.completions)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        return self.prompt_tokens / self.prompts_s if self.prompts_s else None

    @property
    def decoded_tokens_per_s(self) -> float | None:
        """Tokens a second after the first ones, which come with the prompts; None: no others."""
        tokens = sum(len(done.output_ids) - 1 for done in self.completions if done.output_ids)
        return tokens / self.decoding_s if tokens and self.decoding_s else None


def decode(
    llm: LLM,
    requests: Sequence[PromptRequest],
    *,
    plain: bool = False,
    on_chunk: Callable[[Chunk], None] | None = None,
    on_first: Callable[[], None] = lambda: None,
) -> Decoded:
    """Decode all prompts in one in-flight batch, later turns after the answers that they continue.

    Args:
        plain: decode every request without drafts and record the target's margins.
        on_chunk: called with every chunk as it comes.
        on_first: called before the first one is shown.
    """
    requests = list(requests)
    done: dict[int, Completion] = {}
    first_s: dict[int, float] = {}
    prompts_s = decoding_s = 0.0
    stats = llm.stats()
    start = time.perf_counter()
    for turn in range(1 + max((request.turn for request in requests), default=0)):
        wave = [index for index, request in enumerate(requests) if request.turn == turn]
        for index in wave if turn else ():
            answer = done[index - 1].text
            before: Any = requests[index - 1].prompt  # no token ids: those have no turns
            question: Any = requests[index].prompt
            prompt = follow_up(before, answer, question)
            requests[index] = replace(requests[index], prompt=prompt)
        began, last_s = time.perf_counter(), 0.0
        together = [_undrafted(requests[i]) if plain else requests[i] for i in wave]
        for chunk in llm.decode(together, whole=on_chunk is None):
            if len(wave) < len(requests):
                chunk = _renumbered(chunk, wave[chunk.index])
            if not first_s:
                on_first()
            last_s = chunk.at - began
            first_s.setdefault(chunk.index, last_s)
            if chunk.completion is not None:
                done[chunk.index] = chunk.completion
            if on_chunk is not None:
                on_chunk(chunk)
        firsts = [first_s[index] for index in wave]
        prompts_s += max(firsts)
        decoding_s += last_s - min(firsts)
    time_s = time.perf_counter() - start
    completions = [done[i] for i in range(len(requests))]
    ttft_ms = 1000.0 * mean(first_s.values())
    totals = Metrics.of(completions, time_s, heads=llm.stats().heads_since(stats))
    return Decoded(completions, totals, ttft_ms, prompts_s, decoding_s)


def _undrafted(request: PromptRequest) -> PromptRequest:
    return replace(
        request, lookahead=AUTOREGRESSIVE, drafter=NO_DRAFTER, expected_output=None, margins=True
    )


def _renumbered(chunk: Chunk, index: int) -> Chunk:
    done = chunk.completion and replace(chunk.completion, index=index)
    return replace(chunk, index=index, completion=done)


def warm_up(llm: LLM, request: PromptRequest) -> None:
    """Decode a few tokens untimed, with drafts and plainly: the first steps of a process are slower
    than the rest."""
    few = replace(request.sampling, max_output_len=min(_FEW, request.sampling.max_output_len))
    short = replace(request, sampling=few, expected_output=None)
    for arm in (short, _undrafted(short)):
        for _ in llm.decode([arm]):
            pass


_FEW = 8
"""Tokens of a warm-up."""
_LEAST_STEPS = 8
"""The fewest steps that show a triple's acceptance."""
_GAIN = 1.1
"""The least ratio of plain decoding's speed that is worth a note."""


def certain_loss(llm: LLM, requests: Sequence[PromptRequest]) -> str | None:
    """Describe a triple that is slower than plain decoding whatever the text; None: none is known.

    A step gives at most as many tokens as the triple's n-grams have. Costs are those of `auto`.
    """
    for request in requests:
        triple = request.lookahead or llm.lookahead
        drafter = request.drafter or llm.limits.drafter
        if triple == "auto" or triple.is_autoregressive or drafter != LOOKAHEAD:
            continue
        together = min(len(requests), llm.limits.max_batch_size)
        whole, plain = _step_costs(llm, triple.max_decoding_tokens, together)
        if whole and plain and whole / plain > _GAIN * triple.ngram_size:
            return (
                f"a step of {triple} takes about {whole / plain:.0f} times a plain step here and "
                f"gives at most {triple.ngram_size} tokens; auto feeds what pays: omit the triple"
            )
    return None


def _step_costs(llm: LLM, fed: float, together: int) -> list[float | None]:
    """The seconds of a step in which each text feeds so many tokens, and of a plain one."""
    return llm.executor.call(
        lambda executor: [
            executor.step_seconds(round(tokens * together), together) for tokens in (fed, 1.0)
        ]
    )


def lookahead_loss(llm: LLM, requests: Sequence[PromptRequest], decoded: Decoded) -> str | None:
    """Describe the loss of a triple that was slower than plain decoding; None: none is known.

    Costs of steps are those that `auto` uses.
    """
    done, totals = decoded.completions, decoded.totals
    triples = {completion.lookahead for completion in done}
    drafters = {completion.stats.drafter for completion in done}
    if len(triples) > 1 or drafters != {LOOKAHEAD.name} or totals.steps < _LEAST_STEPS:
        return None
    if any((request.lookahead or llm.lookahead) == "auto" for request in requests):
        return None
    if not totals.fed or triples == {AUTOREGRESSIVE}:
        return None
    together = min(len(done), llm.limits.max_batch_size)
    fed = totals.fed / totals.steps
    whole, plain = _step_costs(llm, fed, together)
    if whole is None or plain is None:
        return None
    gain = whole / plain / totals.tokens_per_step
    if gain < _GAIN:
        return None
    (triple,) = triples
    return (
        f"{triple} fed {fed:.1f} tokens a step for {totals.tokens_per_step:.1f} tokens; by what "
        "steps cost here, plain decoding is faster; try --request-lookahead auto"
    )


def divergence(completion: Completion, plain: Completion) -> Divergence | None:
    """Find the first difference from plain decoding; None: ids, text and reason are equal."""
    ours, theirs = completion.output_ids, plain.output_ids
    position = first_difference(ours, theirs)
    if position is not None:
        return Divergence(
            position=position,
            id=_at(ours, position),
            plain_id=_at(theirs, position),
            margin=_at(plain.margins, position),
            of="ids",
        )
    names: tuple[Literal["text", "finish_reason"], ...] = ("text", "finish_reason")
    for name in names:
        if getattr(completion, name) != getattr(plain, name):
            return Divergence(position=len(ours), id=None, plain_id=None, margin=None, of=name)
    return None


def _at(row: Sequence[T], index: int) -> T | None:
    return row[index] if index < len(row) else None


def result(completion: Completion, plain: Completion | None = None) -> RunResult:
    """Return a completion's entry in the JSON document, with `plain` also their comparison."""
    compared: dict[str, Any] = {} if completion.input_text is not None else {"text": None}
    if plain is not None:
        first = divergence(completion, plain)
        compared |= {"lossless": first is None, "divergence": first}
    return RunResult.fill(
        completion,
        completion.stats,
        lookahead=completion.lookahead.as_tuple(),
        distinct_4grams=distinct_4grams([completion.output_ids]),
        **compared,
    )


def document(decoded: Decoded, plain: Decoded | None, executor: str) -> dict[str, Any]:
    """Return the JSON document of a run, with `plain` also the comparison with plain decoding."""
    compared: dict[str, Any] = {}
    theirs: Sequence[Completion | None] = [None] * len(decoded.completions)
    if plain is not None:
        theirs, compared = plain.completions, {"plain_stats": _totals(plain)}
    return Run(
        schema_version=SCHEMA_VERSION,
        executor=executor,
        results=tuple(map(result, decoded.completions, theirs)),
        stats=_totals(decoded),
        **compared,
    ).document()


def _totals(decoded: Decoded) -> RunTotals:
    return RunTotals.fill(decoded.totals, ttft_ms=decoded.ttft_ms)


def search(
    llm: LLM,
    requests: Sequence[PromptRequest],
    settings: BeamSettings,
    num_return_sequences: int | None = None,
) -> BeamSearch:
    """Search the prompts one after another; all are checked first.

    Args:
        requests: prompts, of whose settings only `max_output_len` counts.
        num_return_sequences: the most beams of a prompt; None: all.
    """
    prompts = [llm.request_and_text(request) for request in requests]
    start, results = time.perf_counter(), list[PromptBeams]()
    spelled = {} if llm.tokenizer is not None else {"text": None}
    for index, (request, text) in enumerate(prompts):
        ids = request.given_ids
        best = llm.beams(request, settings)[:num_return_sequences]
        beams = tuple(Beam.fill(beam, **spelled) for beam in best)
        results.append(PromptBeams(index=index, input_text=text, input_ids=ids, beams=beams))
    time_s = time.perf_counter() - start
    return BeamSearch(
        schema_version=SCHEMA_VERSION,
        executor=llm.description,
        settings=asdict(settings),
        results=tuple(results),
        stats={"prompts": len(results), "time_s": time_s},
    )
