"""Settings of drafting: which drafters guess a request's next tokens, how many, and their options.

Torch-free: the command line, prompt files and the API read it. None of it changes the output but
`rejection`, which draws a different sample from the same distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, product
from typing import Any, ClassVar, Literal

from trtla.errors import UsageError, did_you_mean, named, trtllm_cannot
from trtla.settings.custom_drafters import is_custom_name
from trtla.settings.fields import check, option, wrong
from trtla.settings.lookahead import LookaheadConfig

NgramKind = Literal["basic", "onelevel"]
"""Contexts that n-grams are stored by: every length below the order, or the longest alone."""

DRAFT_PREFIX, HEAD_PREFIX = "draft:", "head:"
DRAFTERS = ("none", "lookahead", "ngram", "prompt-lookup")
"""Names of drafters, beside `draft:PATH`, `head:PATH` and `module:Name`."""
_PREFIXES = (DRAFT_PREFIX, HEAD_PREFIX)
"""Beginnings of names that are no modules."""

SOURCES = ("context", "expected", "requests", "window", "chain", "grammar", "recycling", "head")
"""The sources of `auto`'s drafts: the request's own text, its expected output, texts of other
requests, the lookahead window, further drafters, the request's grammar, token recycling, and a
trained head.
"""
PROPOSERS = (*SOURCES, "agreement")
"""Proposers of a node: a source, or a text and recycled logits that agree."""

_NAMES = (
    f"{', '.join(DRAFTERS)}, draft:PATH, head:PATH or module:Name, or several with commas between"
)
_MOST_TOKENS = 256  # far above any useful draft; keeps a typo from asking for gigabytes
_LONGEST_ORDER = 32
_MOST_FILLERS = 64
_OF_DRAFT_MODELS = ("egag", "rejection")


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """The drafters and their options; the default is lookahead alone."""

    drafter: tuple[str, ...] = option(
        ("lookahead",),
        "What drafts: none, lookahead, ngram, prompt-lookup, head:PATH (trained head), draft:PATH "
        "(small model) or module:Name. The last is a drafter of your own. A small model needs the "
        "same tokenizer. Several with commas between are sources of one tree: each proposes where "
        "those before it have fewer than gamma tokens.",
        metavar="NAME,...",
        rule=_NAMES,
        commas=True,
    )
    gamma: int = option(
        4,
        "Most tokens that drafters other than lookahead propose in a step.",
        rule=f"from 1 to {_MOST_TOKENS}; the drafter none drafts nothing",
        least=1,
        most=_MOST_TOKENS,
    )
    egag: bool = option(False, "Let the draft model's entropy choose how many (EGAG).")
    gamma_min: int = option(1, "Fewest that EGAG takes.", most=_MOST_TOKENS, chat="egag_gamma_min")
    gamma_max: int | None = option(
        None,
        "Most that EGAG takes.",
        least=1,
        most=_MOST_TOKENS,
        shown="--gamma",
        chat="egag_gamma_max",
    )
    ema: float = option(
        0.0,
        "Weight of the past in EGAG's choice; 0 looks at the step alone.",
        rule="at least 0 and below 1",
        most=math.nextafter(1.0, 0.0),
        chat="egag_ema",
    )
    ngram_kind: NgramKind = option(
        "basic",
        "Contexts that n-grams are looked up by: all lengths, the longest first, or the longest "
        "alone.",
    )
    ngram_order: int = option(
        3,
        "Tokens of the longest n-gram, the predicted one included.",
        rule=f"from 2 to {_LONGEST_ORDER}; an n-gram is a context and a token",
        least=2,
        most=_LONGEST_ORDER,
    )
    top_k_filler: int = option(
        3,
        "How many of the model's most probable tokens n-grams are counted with; 1: its text alone.",
        least=1,
        most=_MOST_FILLERS,
    )
    stop_if_unknown: bool = option(
        True, "End an n-gram draft at an unknown context; else a random token stands in."
    )
    reset_in_between: bool = option(True, "Forget the n-grams of earlier requests.", at_start=True)
    rejection: bool = option(
        False,
        "Verify a draft model's tokens by rejection sampling: a different sample from the same "
        "distribution.",
    )

    def __post_init__(self) -> None:
        check(self)
        self._check_names()
        if self.gamma_min > self.largest_gamma:
            raise UsageError(
                f"gamma_min {self.gamma_min} is above gamma_max {self.largest_gamma}",
                f"use {named('gamma_min')} at most {named('gamma_max')} ({named('gamma')}, where "
                "that is not given)",
                "gamma_min",
            )
        if self.rejection and self.draft_model is not None and len(self.drafter) > 1:
            raise UsageError(
                f"rejection sampling verifies one drafter, and there are {self.name}",
                f"use {named('drafter')} draft:PATH alone, or omit {named('rejection')}",
                "rejection",
            )

    def _check_names(self) -> None:
        if not self.drafter:
            raise UsageError("no drafter is named", f"use {_NAMES}")
        for name in self.drafter:
            if f"{name.removesuffix(':')}:" in _PREFIXES:
                raise _without_path(name)
            if name not in DRAFTERS and not name.startswith(_PREFIXES) and not is_custom_name(name):
                guess = did_you_mean(name, (*DRAFTERS, *_PREFIXES))
                raise UsageError(f"drafter {name!r} is not known", f"{guess}use {_NAMES}")
        kinds = [name if name in self.custom else name.partition(":")[0] for name in self.drafter]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise UsageError(f"drafter {kind} is named twice", "name each drafter once")
        if "none" in kinds and len(kinds) > 1:
            raise UsageError(
                "drafter none cannot be combined with others", "use none alone, or omit it"
            )

    def changed(self, values: Mapping[str, Any]) -> DrafterSettings:
        """The same with a request's values; options of draft models are dropped without one."""
        result = replace(self, **values)
        if result.draft_model is None:
            result = replace(result, **{name: values.get(name, False) for name in _OF_DRAFT_MODELS})
        check_used([result])
        return result

    def without_lookahead(self) -> DrafterSettings:
        """The same without lookahead, and without a head that is named beside it."""
        if "lookahead" not in self.drafter:
            return self
        names = [name for name in self.drafter if name not in ("lookahead", self.head_name)]
        return replace(self, drafter=tuple(names) or ("none",))

    def with_head(self, path: str | None) -> DrafterSettings:
        """The same with another path in place of its trained head's; None: without the head."""
        there = {self.head_name: () if path is None else (f"{HEAD_PREFIX}{path}",)}
        names = (there.get(name, (name,)) for name in self.drafter)
        return replace(self, drafter=tuple(chain.from_iterable(names)))

    @property
    def name(self) -> str:
        return ",".join(self.drafter)

    @property
    def largest_gamma(self) -> int:
        return self.gamma if self.gamma_max is None else self.gamma_max

    @property
    def most_tokens(self) -> int:
        """Most tokens that drafters other than lookahead propose together in one step."""
        if all(name in ("none", "lookahead") for name in self.drafter):
            return 0
        return max(self.gamma, self.largest_gamma) if self.egag else self.gamma

    @property
    def draft_model(self) -> str | None:
        names = (name for name in self.drafter if name.startswith(DRAFT_PREFIX))
        return next((name.removeprefix(DRAFT_PREFIX) for name in names), None)

    @property
    def head_name(self) -> str | None:
        """The name `head:PATH`, if a trained head drafts."""
        return next((name for name in self.drafter if name.startswith(HEAD_PREFIX)), None)

    @property
    def head(self) -> str | None:
        """The path of the trained head that drafts."""
        name = self.head_name
        return None if name is None else name.removeprefix(HEAD_PREFIX)

    @property
    def custom(self) -> tuple[str, ...]:
        """The drafters of the user's own, by their names."""
        names = (name for name in self.drafter if not name.startswith(_PREFIXES))
        return tuple(name for name in names if is_custom_name(name))

    @property
    def uses_lookahead(self) -> bool:
        """True if lookahead drafts: it does beside a trained head."""
        return "lookahead" in self.drafter or self.head is not None

    def max_draft_len(self, triple: LookaheadConfig) -> int:
        """Most tokens drafted in one step, by lookahead with this triple and all others."""
        return self.most_tokens + (triple.max_draft_len if self.uses_lookahead else 0)


def _without_path(name: str) -> UsageError:
    if name.startswith(HEAD_PREFIX[:-1]):
        return UsageError(
            f"drafter {name!r} names no trained head",
            "write head:PATH, the folder or GGUF file of an EAGLE-3 head, or of Medusa heads",
        )
    return UsageError(
        f"drafter {name!r} names no draft model",
        "write draft:PATH, an engine or a Hugging Face folder with the same vocabulary",
    )


LOOKAHEAD = DrafterSettings()
"""Lookahead alone."""
NO_DRAFTER = DrafterSettings(("none",))
"""Plain autoregressive decoding."""


def parse_drafter(value: str | Sequence[str]) -> tuple[str, ...]:
    """The names in `draft:PATH,lookahead,ngram`; `DrafterSettings` checks them."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(name.strip() for name in names)


def drafter_of(value: object) -> object:
    """Return the settings of a drafter that is named as after --drafter; all else as it is."""
    return DrafterSettings(parse_drafter(value)) if isinstance(value, str) else value


def check_used(settings: Iterable[DrafterSettings]) -> None:
    """Refuse EGAG and rejection sampling where none of the settings has a draft model."""
    every = list(settings)
    if any(item.draft_model is not None for item in every):
        return
    for item, name in product(every, _OF_DRAFT_MODELS):
        if getattr(item, name):
            raise UsageError(
                f"{name} needs a draft model, and the drafter is {item.name}",
                f"use {named('drafter')} draft:PATH, or omit {named(name)}",
                name,
            )


def check_draft_place(
    device: str | None, dtype: str | None, has_draft_model: bool, trtllm: str | None = None
) -> None:
    """Refuse a device or a type of draft models where no draft model can use it; `trtllm` is the
    engine's name, if TensorRT-LLM runs it.
    """
    for name, value in (("draft_device", device), ("draft_dtype", dtype)):
        if value is None:
            continue
        flag = named(name)
        if trtllm is not None:
            raise trtllm_cannot(
                trtllm,
                f"which makes its drafts itself: {name} {value} cannot be chosen",
                f"omit {flag}, or build with --backend torch",
            )
        if not has_draft_model:
            raise UsageError(
                f"{name} {value} needs a draft model, and no drafter is one",
                f"use {named('drafter')} draft:PATH, or omit {flag}",
            )


def check_drafts_itself(settings: DrafterSettings, name: str) -> None:
    """Refuse drafters that TensorRT-LLM's lookahead engines do not have."""
    if settings.drafter not in (LOOKAHEAD.drafter, NO_DRAFTER.drafter):
        raise UsageError(
            f"{name} asks for the drafter {settings.name}, but an engine of TensorRT-LLM is "
            "compiled for lookahead and makes its drafts itself",
            f"omit {named('drafter')}, or build with --backend torch",
            "drafter",
        )


def refuse_texts(name: str, texts: str) -> UsageError:
    """The refusal of texts to draft from, such as a corpus, where TensorRT-LLM drafts."""
    return UsageError(
        f"{name} brings {texts}, but an engine of TensorRT-LLM drafts from its own pool alone",
        "omit it, or build with --backend torch",
        "expected_output",
    )


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Options of lookahead's drafts; by default branches with the same beginning share nodes, and
    tokens of the window are accepted like those of candidates, as in TensorRT-LLM.
    """

    FLAG_PREFIX: ClassVar[str] = "lookahead_"

    cells: Literal["greedy", "drawn"] = option(
        "greedy",
        "Tokens in the window of a sampled request: the most probable ones, or drawn ones.",
        alias="draft_cells",
    )
    sources: tuple[str, ...] = option(
        SOURCES,
        "Sources of auto's drafts: prompt and output so far, the expected output, texts of other "
        "requests, the lookahead window, further drafters, tokens that a grammar forces or allows, "
        "token recycling (likely tokens of earlier logits), and a trained head.",
        metavar="|".join(SOURCES),
        rule=f"some of {', '.join(SOURCES)}, with commas between",
        commas=True,
    )
    nodes: int | None = option(
        None,
        "Most drafted tokens of a step under auto, fed whatever they cost.",
        least=0,
        most=_MOST_TOKENS,
        shown="what pays",
    )
    by_noise: bool = True
    """Rank a sampled request's drafts with the noise that its tokens are drawn with. The text is
    the same without."""
    reference: bool = False
    """Draft as the algorithm is defined: every branch on nodes of its own, and only candidates are
    accepted. More tokens are fed for fewer accepted ones; exact traces are of this."""

    def __post_init__(self) -> None:
        check(self)
        for name in self.sources:
            if name not in SOURCES:
                guess = did_you_mean(name, SOURCES)
                raise UsageError(
                    f"source {name!r} is not known", f"{guess}use some of {', '.join(SOURCES)}"
                )
        if not isinstance(self.reference, bool):
            raise wrong("reference", self.reference, "True or False")

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)
