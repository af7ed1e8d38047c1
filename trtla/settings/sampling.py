"""Sampling by name: greedy, multinomial, topk, nucleus, topknucleus over temperature, top-k, top-p.

Names and the order of their values are those of earlier speculative-decoding demos. Torch-free;
the filters themselves are in trtla.runtime.sampling.draw.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from trtla.errors import UsageError, did_you_mean
from trtla.settings.arguments import named_settings
from trtla.settings.fields import check, declared, option, whole
from trtla.settings.grammar import Grammar

VALUES = {
    "greedy": ("temperature",),
    "multinomial": ("temperature",),
    "topk": ("temperature", "top_k"),
    "nucleus": ("temperature", "top_p"),
    "topknucleus": ("temperature", "top_k", "top_p"),
}
"""The processors, and what their values mean, in order."""


class Filters(NamedTuple):
    """The filters of a draw."""

    temperature: float
    top_k: int
    top_p: float


_ALL = "greedy, multinomial[:T], topk:T:K, nucleus:T:P, topknucleus:T:K:P"


def parse_processor(text: str) -> Filters:
    """The filters of a processor written NAME[:VALUE...], such as `nucleus:0.8:0.9`.

    Greedy is temperature 0 whatever its value. The temperature may be omitted where it is the only
    value, and is 1 then.
    """
    name, *parts = text.split(":")
    try:
        values = tuple(float(part) for part in parts)
    except ValueError:
        raise UsageError(f"processor {text} has a value that is no number", f"use {_ALL}") from None
    if name not in VALUES:
        raise UsageError(
            f"processor {text} is not known", f"{did_you_mean(name, VALUES)}use {_ALL}"
        )
    wanted = VALUES[name]
    if len(values) > len(wanted) or len(values) < len(wanted) - (len(wanted) == 1):
        raise UsageError(
            f"processor {text} has {len(values)} values, and {name} takes {', '.join(wanted)}",
            f"use {_ALL}",
        )
    named = dict(zip(wanted, values, strict=False))
    top_k = named.get("top_k", 0.0)
    if not top_k.is_integer() or ("top_k" in named and top_k < 1):
        raise UsageError(f"processor {text} has top_k {top_k:g}", "top_k must be 1, 2, 3, ...")
    filters = named.get("temperature", 1.0), int(top_k), named.get("top_p", 1.0)
    try:
        SamplingParams(temperature=filters[0], top_k=filters[1], top_p=filters[2])
    except UsageError as error:
        message, hint = error.spelt(str)
        raise UsageError(f"processor {text}: {message}", hint) from None
    return Filters(*((0.0, 0, 1.0) if name == "greedy" else filters))


def filters_text(temperature: float, top_k: int, top_p: float) -> str:
    """The filters that do something, such as `temperature 0.8, top-p 0.9`."""
    parts = [f"temperature {temperature:g}"]
    if temperature:
        parts += [f"top-k {top_k}"] if top_k else []
        parts += [f"top-p {top_p:g}"] if top_p < 1.0 else []
    return ", ".join(parts)


_MOST_TOP_K = 2**31 - 1  # no vocabulary is larger, and executors take C ints
_LEAST_TOP_P = 5e-324  # the smallest number above 0
_MOST_TIME_MS = 2**53  # exact as a float, and some 285 000 years

DrawSettings = tuple[float, ...]
"""The values of `DRAWN`."""

_SEEDS = 2**63
_MOST_CHOICES = 2**16
_N_RULE = f"a whole number, from 1 to {_MOST_CHOICES}"


class UsualLength(int):
    """A default length: where the context leaves less, that is enough."""


class ModelLength(UsualLength):
    """A default length in place of which an open model has its own: the room that is left, or its
    limit of outputs without a length."""


USUAL_LEN = ModelLength(2048)
"""Tokens of an output where no length is given and no model says better."""


@named_settings
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request, and where its output ends.

    Order: logit_bias, repetition_penalty, frequency and presence penalty; temperature, top_k,
    top_p, min_p. Temperature 0 is argmax. `seed` fixes both the noise of sampling, keyed by
    absolute position, and the initial lookahead window. An explicit `max_output_len` must fit
    into the context; the default one is the model's, and shrinks to fit.

    Raises:
        UsageError: a value has another type, or is out of its range.
    """

    max_output_len: int = option(
        USUAL_LEN, "Most tokens to write.", least=1, chat="length", short="n", alias="max_tokens"
    )
    temperature: float = option(0.0, "0 takes the most probable token.", draws=True)
    top_k: int = option(0, "0 keeps all tokens.", most=math.inf, draws=True)
    top_p: float = option(
        1.0,
        "1 keeps all tokens.",
        rule="a number, above 0 and at most 1",
        least=_LEAST_TOP_P,
        most=1.0,
        draws=True,
    )
    seed: int = option(
        0,
        "Fixes the sampled text; lookahead never changes it.",
        rule="a whole number, at least 0 and below 2**63",
    )
    stop: str | Sequence[str] = option((), "Texts that end an output.")
    """Kept as a tuple; a text alone stands for a list of one."""
    allotted_time_ms: int | None = option(
        None,
        "Milliseconds after which a request ends as it is, waiting included.",
        least=1,
        most=_MOST_TIME_MS,
    )
    min_p: float = option(
        0.0,
        "Least probability of a drawn token, as a share of the most probable one's.",
        most=1,
        draws=True,
    )
    repetition_penalty: float = option(
        1.0,
        "Tokens of prompt and output: positive logits are divided by it, negative ones multiplied.",
        least=0.01,
        most=100,
    )
    presence_penalty: float = option(
        0.0, "Subtracted from the logits of the output's tokens.", least=-2, most=2
    )
    frequency_penalty: float = option(
        0.0, "Subtracted from them once for each time that they are there.", least=-2, most=2
    )
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = option(
        (),
        "Added to the logits of tokens before all else, such as 17:-100,42:2.5.",
        least=-100,
        most=100,
        metavar="ID:BIAS,...",
    )
    """Kept as pairs, ordered by id: `biases`."""
    stop_token_ids: int | Sequence[int] = option((), "Ids of tokens that end an output.")
    """Kept as a tuple; such a token is the output's last one, and not in its text."""
    grammar: Grammar | Mapping[str, Any] | str | type | None = option(
        None,
        "What the output must be: an object of one key, json_schema, json_object, regex, choice or "
        "lark; as a text, rules in Lark or GBNF.",
        single=False,
    )
    """Kept as a `Grammar`."""
    n: int = field(default=1, kw_only=True)
    """Texts for each prompt; the i-th has `seed` + i."""
    if TYPE_CHECKING:
        max_tokens: int = field(default=USUAL_LEN, kw_only=True)
        """Another name of `max_output_len`."""
    else:
        max_tokens = property(lambda self: self.max_output_len)

    def __post_init__(self) -> None:
        length = self.max_output_len
        check(self)
        if isinstance(length, UsualLength):
            object.__setattr__(self, "max_output_len", length)
        if self.grammar is not None:
            object.__setattr__(self, "grammar", Grammar.of(self.grammar))
        object.__setattr__(self, "top_k", min(self.top_k, _MOST_TOP_K))
        object.__setattr__(self, "n", whole("n", self.n, _N_RULE, 1, _MOST_CHOICES))

    def fitted(self, room: int, usual: int | None = None) -> SamplingParams:
        """Itself, or with the room that is left in place of a default length that exceeds it.

        Args:
            usual: the model's limit of outputs without a length; None: it has none.
        """
        length = self.max_output_len
        if not isinstance(length, UsualLength):
            return self
        if isinstance(length, ModelLength):
            length = UsualLength(room if usual is None else usual)
        least = UsualLength(max(min(room, length), 1))
        return self if least == self.max_output_len else replace(self, max_output_len=least)

    def choices(self) -> tuple[SamplingParams, ...]:
        """The settings of each of the `n` texts."""
        if self.n == 1:
            return (self,)
        seeds = ((self.seed + choice) % _SEEDS for choice in range(self.n))
        return tuple(replace(self, n=1, seed=seed) for seed in seeds)

    @property
    def draw_settings(self) -> DrawSettings:
        """All that decides a draw from a row but the seed: requests that share it are drawn
        together."""
        return _draw_settings(self)

    @property
    def changes_rows(self) -> bool:
        """Penalties or biases change rows of logits before tokens are chosen."""
        neither = self.frequency_penalty == self.presence_penalty == 0.0
        return not neither or self.repetition_penalty != 1.0 or bool(self.logit_bias)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs."""
        return self.logit_bias  # type: ignore[return-value]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """`stop_token_ids` as a tuple."""
        return self.stop_token_ids  # type: ignore[return-value]

    @property
    def beyond(self) -> tuple[str, ...]:
        """Those of `BEYOND`, and the grammar, that ask for something."""
        names = (*BEYOND, "grammar")
        return tuple(one for one in names if getattr(self, one) != getattr(_USUAL, one))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


DRAWN = tuple(name for name, setting in declared(SamplingParams).items() if setting.option.draws)
"""Temperature and filters, by name."""
_EVERYWHERE = (
    *("max_output_len", "temperature", "top_k", "top_p", "seed", "stop", "allotted_time_ms"),
    "stop_token_ids",
)
BEYOND = tuple(name for name in declared(SamplingParams) if name not in _EVERYWHERE)
"""Other filters, penalties and biases, by name: TensorRT-LLM engines do not apply them here."""
_USUAL = SamplingParams()
_draw_settings = attrgetter(*DRAWN)


@lru_cache(maxsize=64)
def drawn_with(settings: DrawSettings) -> SamplingParams:
    """Settings that draw tokens as all settings with these `draw_settings` do."""
    return SamplingParams(**dict(zip(DRAWN, settings, strict=True)))  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def draws_by(known: Collection[str], settings: DrawSettings) -> bool:
    """Return True if applying the named filters alone draws as `settings` ask."""
    wanted = zip(DRAWN, settings, _USUAL.draw_settings, strict=True)
    return all(value == usual or name in known for name, value, usual in wanted)


_LARGEST_PENALTY = 20  # far above any useful one; keeps penalties of long texts finite


@named_settings
@dataclass(frozen=True, slots=True)
class BeamSettings:
    """Expansion and comparison of beams."""

    num_beams: int = option(
        4,
        "Texts that are kept at a time. Prompts are searched one after another, each step feeding "
        "one token a beam: lookahead and other drafters do not apply. 1 is ordinary decoding, "
        "unless expansions or a penalty are given beside it.",
        least=1,
    )
    expansions: int = option(3, "Most probable tokens that every beam is continued with.", least=1)
    length_penalty: float = option(
        1.2,
        "Exponent of Wu et al.'s length penalty; 0 compares plain log probabilities.",
        most=_LARGEST_PENALTY,
    )
    length_penalty_offset: float = option(5.0, "The constant in that penalty; no minimum length.")

    def __post_init__(self) -> None:
        check(self)

    def penalty(self, length: int) -> float:
        """The divisor of the log probability of `length` new tokens."""
        offset = self.length_penalty_offset
        return float(((offset + length) / (offset + 1.0)) ** self.length_penalty)

    def score(self, log_prob: float, length: int) -> float:
        """The rank of a text of `length` new tokens: the larger, the better."""
        return log_prob / self.penalty(length)
