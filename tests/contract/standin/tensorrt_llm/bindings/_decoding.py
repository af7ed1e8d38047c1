"""DecodingMode, LookaheadDecodingConfig, DecodingConfig; TensorRT-LLM decodingConfig.cpp."""

# ruff: noqa: N802

from __future__ import annotations

from typing import Any

from . import _native as n
from ._cpp import check, throw
from ._native import Arg, Native

_FILE = "executor/decodingConfig.cpp"
_FACTORIES = (
    "Auto",
    "TopK",
    "TopP",
    "TopKTopP",
    "BeamSearch",
    "Medusa",
    "Lookahead",
    "ExplicitDraftTokens",
    "Eagle",
)


class DecodingMode:
    """How the next token is chosen; made by factories only."""

    _name: str

    def __init__(self, *_: object) -> None:
        raise TypeError("tensorrt_llm.bindings.executor.DecodingMode: No constructor defined!")

    @classmethod
    def _make(cls, name: str) -> DecodingMode:
        mode = object.__new__(cls)
        mode._name = name
        return mode

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodingMode) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    @property
    def name(self) -> str:
        return self._name

    def isTopKorTopP(self) -> bool:
        return self._name in ("TopK", "TopP", "TopKTopP")

    def isTopKandTopP(self) -> bool:
        return self._name == "TopKTopP"

    def isTopK(self) -> bool:
        return self._name in ("TopK", "TopKTopP")

    def isTopP(self) -> bool:
        return self._name in ("TopP", "TopKTopP")


def _add_factories() -> None:
    def factory(name: str) -> Any:
        return staticmethod(lambda: DecodingMode._make(name))

    def predicate(name: str) -> Any:
        return lambda self: self._name == name

    for name in _FACTORIES:
        setattr(DecodingMode, name, factory(name))
        if not hasattr(DecodingMode, f"is{name}") and name != "TopKTopP":
            setattr(DecodingMode, f"is{name}", predicate(name))


_add_factories()
DecodingMode.__module__ = "tensorrt_llm.bindings.executor"


class LookaheadDecodingConfig(Native):
    """The triple (W, N, G). No default constructor, no comparison."""

    _args = (
        Arg("max_window_size", n.int32, read_only=True),
        Arg("max_ngram_size", n.int32, read_only=True),
        Arg("max_verification_set_size", n.int32, read_only=True),
    )

    def _validate(self) -> None:
        w, ngram, g = self._triple()
        check(ngram >= 1, "ngramSize requires >= 1", _FILE)
        check(w >= 1, "windowSize requires >= 1", _FILE)
        if ngram == 1:
            check(g == 0, "ngramSize=1 requires verificationSetSize=0", _FILE)
            check(w == 1, "ngramSize=1 requires windowSize=1", _FILE)
        else:
            check(g >= 0, "verificationSetSize requires >=0", _FILE)

    def _triple(self) -> tuple[int, int, int]:
        stored = self._stored
        return (
            stored["max_window_size"],
            stored["max_ngram_size"],
            stored["max_verification_set_size"],
        )

    def calculate_speculative_resource(self) -> tuple[int, int, int, int]:
        """(tokens of a step, most accepted, drafts of a step, most accepted drafts)."""
        return self.calculate_speculative_resource_tuple(*self._triple())

    @staticmethod
    def calculate_speculative_resource_tuple(
        w: int, n: int, g: int, /
    ) -> tuple[int, int, int, int]:
        drafts = (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1)
        return drafts + 1, n, drafts, n - 1

    @staticmethod
    def get_default_lookahead_decoding_window() -> int:
        """4."""
        return 4

    @staticmethod
    def get_default_lookahead_decoding_ngram() -> int:
        """3."""
        return 3

    @staticmethod
    def get_default_lookahead_decoding_verification_set() -> int:
        """4."""
        return 4


class EagleConfig(Native):
    """Settings of another method; values are kept, nothing runs with them."""

    _args = (
        Arg("eagle_choices", n.optional(n.anything), None, read_only=True),
        Arg("greedy_sampling", n.boolean, True, read_only=True),
        Arg("posterior_threshold", n.optional(n.float32), None, read_only=True),
        Arg("use_dynamic_tree", n.boolean, False, read_only=True),
        Arg("dynamic_tree_max_topK", n.optional(n.int32), None, read_only=True),
    )


class DecodingConfig(Native):
    """The decoding mode and its settings; see the setters for what throws."""

    _args = (
        Arg("decoding_mode", n.optional(n.of(DecodingMode)), None),
        Arg("lookahead_decoding_config", n.optional(n.of(LookaheadDecodingConfig)), None),
        Arg("medusa_choices", n.optional(n.anything), None),
        Arg("eagle_config", n.optional(n.of(EagleConfig)), None),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mode = self._stored["decoding_mode"]
        for name, field, kind in (
            ("LookaheadDecodingConfig is", "lookahead_decoding_config", "Lookahead"),
            ("MedusaChoices are", "medusa_choices", "Medusa"),
            ("EagleConfig is", "eagle_config", "Eagle"),
        ):
            if self._stored[field] is not None:
                check(mode is not None, f"{name} set, but DecodingMode is not set", _FILE)
                text = f"{name} set, but DecodingMode is not set to {kind}"
                check(mode.name == kind, text, _FILE)


def _set_mode(self: DecodingConfig, value: object) -> None:
    if not isinstance(value, DecodingMode):
        raise TypeError("incompatible function arguments: decoding_mode takes a DecodingMode")
    if value.name in ("Medusa", "Lookahead", "ExplicitDraftTokens"):
        raise throw(
            "Decoding mode must not be set with `setDecodingMode` for Medusa, Lookahead or "
            "explicit draft tokens. Please, use setters for the respective configs or set decoding "
            "mode at the DecodingConfig constructor",
            _FILE,
        )
    self._stored["decoding_mode"] = value


def _set_lookahead(self: DecodingConfig, value: object) -> None:
    if not isinstance(value, LookaheadDecodingConfig):
        raise TypeError(
            "incompatible function arguments: lookahead_decoding_config takes a "
            "LookaheadDecodingConfig"
        )
    self._stored["lookahead_decoding_config"] = value
    self._stored["decoding_mode"] = DecodingMode._make("Lookahead")


def _replace_setters() -> None:
    for name, setter in (
        ("decoding_mode", _set_mode),
        ("lookahead_decoding_config", _set_lookahead),
    ):
        setattr(DecodingConfig, name, getattr(DecodingConfig, name).setter(setter))


_replace_setters()
