"""The lookahead triple (W, N, G): parsing, legality, draft budget, limits.

All of trtla's knowledge about the limits of a triple is here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from trtla.errors import UsageError, at_start, flag_name, named, plainly
from trtla.settings.fields import shown

_NUMBERS = r"\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*"
_TRIPLE = re.compile(rf"\s*(?:{_NUMBERS}|\[{_NUMBERS}\]|\({_NUMBERS}\))\s*")
_MAX_COMPONENT = 65_536  # far above any useful triple; keeps a typo from asking for terabytes


@dataclass(frozen=True, slots=True, order=False)
class LookaheadConfig:
    """Window, n-gram and verification set sizes of lookahead decoding (TensorRT-LLM's W, N, G).

    Legality is TensorRT-LLM's (executor/decodingConfig.cpp): W >= 1, N >= 1, G >= 0, and N == 1
    forces W == 1 and G == 0. (1,1,0) is plain autoregressive decoding.
    """

    window_size: int
    ngram_size: int
    verification_set_size: int

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise UsageError(
                f"{plainly('lookahead')} {self} is not legal: {problem}",
                "use window >= 1, ngram >= 2, verification >= 0, such as 7,7,7; "
                "1,1,0 is plain autoregressive decoding",
            )

    def _problem(self) -> str | None:
        w, n, g = self.as_tuple()
        if any(isinstance(v, bool) or not isinstance(v, int) for v in (w, n, g)):
            return "window, ngram and verification must be whole numbers"
        if w < 1:
            return f"window={w} is below 1"
        if n < 1:
            return f"ngram={n} is below 1"
        if g < 0:
            return f"verification={g} is below 0"
        if max(w, n, g) > _MAX_COMPONENT:
            return f"{max(w, n, g)} is above {_MAX_COMPONENT}"
        if n == 1 and (w, g) != (1, 0):
            return "ngram=1 allows only window=1 verification=0"
        return None

    @classmethod
    def parse(cls, value: str | Sequence[int] | LookaheadConfig) -> LookaheadConfig:
        """Read `7,7,7`, `[7,7,7]`, `(7,7,7)` or a sequence of three integers."""
        if isinstance(value, LookaheadConfig):
            return value
        if isinstance(value, str):
            match = _TRIPLE.fullmatch(value)
            numbers = [int(part) for part in match.groups() if part] if match else []
        elif isinstance(value, (list, tuple)):
            numbers = list(value)
        else:
            numbers = []
        if len(numbers) != 3:
            raise UsageError(
                f"{plainly('lookahead')} {value!r} is not a triple of whole numbers",
                "write window,ngram,verification, such as 7,7,7",
            )
        return cls(*numbers)

    @property
    def max_draft_len(self) -> int:
        """Draft tokens fed in one step beside the input token (TensorRT-LLM's README rule)."""
        w, n, g = self.as_tuple()
        return (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1)

    @property
    def max_decoding_tokens(self) -> int:
        """Tokens fed in one generation step: the input token and all drafts."""
        return self.max_draft_len + 1

    @property
    def is_autoregressive(self) -> bool:
        """True when no n-gram longer than its key is ever formed: one token per step."""
        return self.ngram_size == 1

    def fits(self, limit: LookaheadConfig) -> bool:
        """True when every component is at most the limit's (TensorRT-LLM's per-request rule)."""
        return all(a <= b for a, b in zip(self.as_tuple(), limit.as_tuple(), strict=True))

    def as_tuple(self) -> tuple[int, int, int]:
        return (self.window_size, self.ngram_size, self.verification_set_size)

    def __str__(self) -> str:
        w, n, g = self.as_tuple()
        return f"{w},{n},{g}"

    def describe(self) -> str:
        """The triple with its names, as trtla prints it."""
        w, n, g = self.as_tuple()
        return f"window={w} ngram={n} verification={g}"


AUTOREGRESSIVE = LookaheadConfig(1, 1, 0)
"""Plain autoregressive decoding."""

DEFAULT_LOOKAHEAD = LookaheadConfig(7, 7, 7)
"""The largest triple that the torch executor runs where no other is named."""
SMALLER_DEFAULTS = tuple(LookaheadConfig(n, n, n) for n in range(6, 1, -1))
"""Its replacements where limits leave no room for it, the largest first."""

Lookahead = LookaheadConfig | Literal["auto"]
"""A triple that every step feeds, or `auto`: the part of the default that pays, per step."""


TRIPLES = "give a LookaheadConfig, such as LookaheadConfig(7, 7, 7), or 'auto'"


def is_lookahead(value: object) -> bool:
    """Return True for None, `auto` or a triple."""
    return value is None or value == "auto" or isinstance(value, LookaheadConfig)


def as_lookahead(value: object) -> str | None:
    """The Python expression for a text or a sequence that is a triple; None: it is none."""
    if isinstance(value, (str, list, tuple)):
        with suppress(UsageError, ValueError):  # the latter of a number of thousands of digits
            return f"LookaheadConfig{LookaheadConfig.parse(value).as_tuple()}"
    return None


def check_lookahead(value: object) -> None:
    """Refuse a value that is no `Lookahead`; raises UsageError."""
    if not is_lookahead(value):
        hint = f"give {as_lookahead(value)}" if as_lookahead(value) else TRIPLES
        raise UsageError(f"lookahead is {shown(value)}, not a LookaheadConfig", hint)


def max_draft_len(window_size: int, ngram_size: int, verification_set_size: int) -> int:
    """max_draft_len(W, N, G) that an engine must be built with; raises UsageError when illegal."""
    return LookaheadConfig(window_size, ngram_size, verification_set_size).max_draft_len


def triples_for(max_draft_len: int) -> list[LookaheadConfig]:
    """Triples that need exactly max_draft_len, the most useful ones first; (1,1,0) for 0.

    max_draft_len + 1 is (N - 1) x (W + G): there is one triple for every N that divides it, with
    W and G as equal as can be. First come those with W == G, then those with N nearest to W.
    """
    if max_draft_len < 0:
        raise UsageError(f"max_draft_len {max_draft_len} is below 0", "it is 0 or more")
    if max_draft_len == 0:
        return [AUTOREGRESSIVE]
    tokens, triples = max_draft_len + 1, []
    for steps in range(1, min(tokens // 2, _MAX_COMPONENT - 1) + 1):
        both, left = divmod(tokens, steps)
        if not left and (both + 1) // 2 <= _MAX_COMPONENT:
            triples.append(LookaheadConfig((both + 1) // 2, steps + 1, both // 2))

    def usefulness(triple: LookaheadConfig) -> tuple[bool, int, int]:
        w, n, g = triple.as_tuple()
        return (w != g, abs(n - w), n)

    return sorted(triples, key=usefulness)


def check_default(triple: LookaheadConfig, engine_max_draft_len: int, engine_name: str) -> None:
    """Check a default triple against the engine, which was built for one max_draft_len."""
    if triple.max_draft_len == engine_max_draft_len:
        return
    ways = [f"rebuild with trtla build --lookahead {triple}", f"leave {plainly('lookahead')} unset"]
    if engine_max_draft_len:  # there is room for smaller triples
        ways.append(f"set a smaller triple for single requests with {named('request_lookahead')}")
    raise UsageError(
        f"lookahead {triple} needs max_draft_len {triple.max_draft_len}, "
        f"but {engine_name} was built with max_draft_len {engine_max_draft_len}",
        f"{', '.join(ways[:-1])}, or {ways[-1]}",
    )


OPEN, REBUILD = "open the model", "rebuild the engine"
"""How to get a larger default triple: a model alone takes any, an engine is built for one."""


def check_request(
    request: LookaheadConfig, default: LookaheadConfig, request_name: str, larger: str = REBUILD
) -> None:
    """Check one request's triple against the default triple, component by component.

    Args:
        larger: what gives a larger default triple, for the hint: `OPEN` or `REBUILD`.
    """
    if request.fits(default):
        return
    raise UsageError(
        f"{request_name} asks for lookahead {request}, more than the default triple {default}",
        f"use {default.describe() if default == AUTOREGRESSIVE else f'at most {default}'}, or "
        f"{larger} with {(flag_name if larger == REBUILD else at_start)('lookahead')} {request}",
        "lookahead",
    )


def refuse_auto(name: str) -> UsageError:
    """The refusal of lookahead `auto` on engines of TensorRT-LLM."""
    return UsageError(
        f"{name} asks for lookahead auto, but TensorRT-LLM feeds a request's triple in every step",
        "give a triple, such as 7,7,7, or use an engine built with --backend torch",
        "lookahead",
    )
