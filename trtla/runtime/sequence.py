"""A request in the executor, and the tokens that it feeds to a forward."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy import ndarray

from trtla.errors import TrtlaError, UsageError, named, sentence
from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, depths
from trtla.runtime.grammar import GrammarState
from trtla.runtime.request import DraftRecorder, FinishReason, Output, Request, no_answer
from trtla.runtime.stats import RequestStats
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings
from trtla.settings.lookahead import LookaheadConfig

_FIRST_ROOM = 64


class Written:
    """The distinct tokens of a text, and those that have a bias.

    Args:
        prompt: tokens of the text that count as seen; empty if none do.
        bias: (token, number) pairs.
    """

    def __init__(self, prompt: Seq[int], bias: Seq[tuple[int, float]]) -> None:
        self._places: dict[int, int] = {}
        self._length = 0  # counted output tokens
        self._ids = np.empty(_FIRST_ROOM, np.int64)
        self._numbers = np.zeros((3, _FIRST_ROOM), np.float32)  # biases, seen, counts
        for token, number in bias:
            slot = self._place(token)  # the arrays may grow
            self._numbers[0, slot] = number
        for token in dict.fromkeys(prompt):
            slot = self._place(token)
            self._numbers[1, slot] = 1

    @property
    def ids(self) -> np.ndarray:
        """The tokens, int64; like the next properties, a view until a token is added."""
        return self._ids[: len(self._places)]

    @property
    def biases(self) -> np.ndarray:
        """Their biases, float32."""
        return self._numbers[0, : len(self._places)]

    @property
    def seen(self) -> np.ndarray:
        """Above 0 for tokens in prompt or output."""
        return self._numbers[1, : len(self._places)]

    @property
    def counts(self) -> np.ndarray:
        """The count of each token in the output."""
        return self._numbers[2, : len(self._places)]

    def follow(self, output_ids: Seq[int]) -> None:
        self._add(output_ids[self._length :], 1)
        self._length = len(output_ids)

    @contextmanager
    def ahead(self, path: Seq[int]) -> Iterator[None]:
        """Count a path behind the output meanwhile."""
        self._add(path, 1)
        try:
            yield
        finally:
            self._add(path, -1)

    def _add(self, tokens: Seq[int], number: int) -> None:
        for token in tokens:
            slot = self._place(token)
            self._numbers[1:, slot] += number

    def _place(self, token: int) -> int:
        slot = self._places.setdefault(token, len(self._places))
        if slot == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            more = np.zeros_like(self._numbers)
            self._numbers = np.concatenate((self._numbers, more), axis=1)
        self._ids[slot] = token
        return slot


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of a request in plain integers.

    Invariant between steps of the generation phase: all tokens except the last are cached.
    """

    request: Request
    lookahead: LookaheadConfig
    drafter: Drafter
    output_ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    """Tokens whose keys and values are cached."""
    blocks: tuple[int, ...] = ()
    stats: RequestStats = field(default_factory=RequestStats)
    drafting: DrafterSettings = LOOKAHEAD
    """The drafter's settings."""
    outputs: list[Output] = field(default_factory=list)
    """The record of what was committed, step by step. A step is committed by its one `append`: all
    other fields except the request can be rebuilt from the record."""
    deadline: float | None = None
    """The time of its timeout, on the monotonic clock in seconds; None: never."""
    written: Written | None = None
    """Created by `counted`."""
    grammar: GrammarState | None = None
    """Created by `constraint`."""
    recorder: DraftRecorder | None = None

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.request.input_ids

    @property
    def prefill(self) -> tuple[int, ...]:
        """The tokens to cache before it generates: the prompt; for an interrupted text all tokens
        except the last, which its next step feeds."""
        return (*self.prompt, *self.output_ids[:-1]) if self.output_ids else self.prompt

    @property
    def in_generation(self) -> bool:
        """True once the first token is generated and all before it is cached."""
        written = len(self.output_ids)
        return written > 0 and self.num_cached + 1 >= len(self.prompt) + written

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[-1].finish_reason if self.outputs else None

    @property
    def cached_text(self) -> tuple[int, ...]:
        return (*self.prompt, *self.output_ids)[: self.num_cached]

    @property
    def max_cached(self) -> int:
        """Cache slots that the text and one step's draft can need together."""
        text = len(self.prompt) + self.request.sampling.max_output_len
        return text + self.max_draft_len

    @property
    def max_draft_len(self) -> int:
        """Most tokens that its drafter proposes in a step."""
        return self.drafting.max_draft_len(self.lookahead)

    def counted(self) -> Written:
        """Return the tokens that penalties depend on, up to the last one."""
        if self.written is None:
            sampling = self.request.sampling
            seen = () if sampling.repetition_penalty == 1.0 else self.prompt
            self.written = Written(seen, sampling.biases)
        self.written.follow(self.output_ids)
        return self.written

    def constraint(self) -> GrammarState | None:
        """The grammar behind the output so far; None: the request has none."""
        start = self.request.grammar
        if start is None:
            return None
        if self.grammar is None:
            self.grammar = start()
        return self.grammar.follow(self.output_ids)

    def no_answer(self, tokens: Seq[int]) -> TrtlaError:
        """Return the error of a text that cannot go on behind these new tokens."""
        output, grammar = [*self.output_ids, *tokens], self.constraint()
        mask = None if grammar is None else grammar.follow(output).mask()
        if grammar is None or mask is None or mask.any():
            return no_answer(self.request.label, len(output))
        return UsageError(
            f"{self.request.label}: the grammar allows nothing as output token {len(output)}: "
            f"{grammar.failure or 'the tokenizer cannot write what would follow'}",
            "correct or simplify it",
            getattr(self.request.sampling.grammar, "given_as", None),
        )

    def propose(self) -> Draft:
        """Return the drafter's proposal for the next step."""
        try:
            draft = self.drafter.propose()
            if self.recorder is not None:
                self.recorder.proposed(draft)
        except Exception as error:
            raise RequestFailed(self) from error
        return draft

    def observe(self, greedy: Seq[int], committed: Seq[int]) -> None:
        """Have the drafter learn from a forward; arguments as in `Drafter.observe`."""
        self.drafter.observe(greedy, committed)
        if self.recorder is not None:
            self.recorder.observed(greedy, committed)

    def end(self, reason: FinishReason, error: TrtlaError | None = None) -> Output:
        """Commit the end of the output after its tokens so far."""
        output = (self.request.request_id, (), reason, self.stats, (), error)
        self.outputs.append(Output(*output, start=len(self.output_ids)))
        return self.outputs[-1]

    def fail(self, cause: BaseException | None) -> None:
        """Commit the failure of a request that has not ended; it is in no queue."""
        if self.finish_reason is None:
            error = cause if isinstance(cause, TrtlaError) else _failure(self.request, cause)
            self.end("failed", error)

    def rewind(self) -> None:
        """Return to the committed record: nothing is cached, and counters are recomputed."""
        committed = [output for output in self.outputs if output.new_tokens]
        self.output_ids = [token for output in committed for token in output.new_tokens]
        self.num_cached, self.blocks, self.written, self.grammar = 0, (), None, None
        stats = self.stats
        stats.step_lengths[:] = [len(output.new_tokens) for output in committed]
        stats.steps = max(0, len(committed) - 1)
        stats.accepted = sum(output.accepted for output in committed)


def _failure(request: Request, cause: BaseException | None) -> TrtlaError:
    error = TrtlaError(
        f"{request.label} failed: {sentence(cause) if cause else 'its drafter raised'}",
        f"other requests continue; decode this one with {named('drafter')} none and without stop "
        "strings",
    )
    error.__cause__ = cause
    return error


class RequestFailed(Exception):
    """A request's own drafter or stop check raised; `__cause__` is the exception."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence.request.label)
        self.sequence = sequence


@dataclass(frozen=True, slots=True)
class Feed:
    """The tokens that a sequence feeds in a step: a stretch of its prompt, or input and draft."""

    sequence: Sequence
    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    """Indexes of fed tokens whose logits are wanted."""
    draft: Draft | None = None
    """None: a stretch of the prompt."""

    @classmethod
    def prompt(cls, sequence: Sequence, length: int, is_last: bool) -> Feed:
        """Return the next `length` tokens of its prefill; with `is_last` the last one's logits."""
        start = sequence.num_cached
        rows = (length - 1,) if is_last else ()
        return cls(sequence, sequence.prefill[start : start + length], rows)

    @classmethod
    def step(cls, sequence: Sequence, draft: Draft) -> Feed:
        if not draft.tokens:
            return cls(sequence, (sequence.output_ids[-1],), (0,), draft)
        return cls(sequence, (sequence.output_ids[-1], *draft.tokens), draft.rows, draft)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def total(self) -> int:
        """Cache slots that the fed tokens can see: cached ones and their own."""
        return self.sequence.num_cached + len(self.tokens)

    @property
    def wants_states(self) -> bool:
        """True if the drafter is shown the hidden states of the fed tokens."""
        return self.sequence.drafter.wants_states

    @property
    def tree(self) -> Draft:
        """The draft, or an empty one for a prompt."""
        return self.draft or NO_DRAFT

    def positions(self) -> list[int]:
        """Return the absolute position of each fed token."""
        start = self.sequence.num_cached
        if self.draft is None or len(self.tokens) == 1:
            return list(range(start, start + len(self.tokens)))
        return [start + depth for depth in _depths(self.draft.parents)]

    def depth(self, node: int) -> int:
        """Return a fed token's distance behind the cached tokens."""
        return node if self.draft is None or not node else _depths(self.draft.parents)[node]

    def path(self, node: int) -> tuple[int, ...]:
        """The drafted tokens between the output and what follows a node."""
        return () if self.draft is None or not node else self.draft.tokens_to(node)

    def mask(self, node: int) -> ndarray | None:
        """The tokens that the request's grammar allows after a node; None: any, or it has none.

        Raises:
            RequestFailed: the grammar cannot tell.
        """
        try:
            grammar = self.sequence.constraint()
            return None if grammar is None else grammar.mask(self.path(node))
        except Exception as error:
            raise RequestFailed(self.sequence) from error

    def lengths(self, positions: Seq[int]) -> list[int]:
        """Return the text's length when each token was first seen: the prompt's, then one more."""
        if self.draft is not None:
            return [position + 1 for position in positions]
        prompt = len(self.sequence.prompt)
        return [max(prompt, position + 1) for position in positions]


_depths = lru_cache(maxsize=1024)(depths)
