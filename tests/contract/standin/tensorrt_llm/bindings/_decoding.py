"""DecodingMode, LookaheadDecodingConfig, DecodingConfig; TensorRT-LLM decodingConfig.cpp."""

# ruff: noqa: N802

from __future__ import annotations

from functools import partial
from typing import Any

from . import _native as n
from ._cpp import check, throw
from ._native import Arg, Native

_FILE = "executor/decodingConfig.cpp"
_MODES = ("Auto", "TopK", "TopP", "TopKTopP", "BeamSearch", "Medusa", "Lookahead", "Eagle")


class DecodingMode:
    """How the next token is chosen; made by factories only."""

    name: str

    def __init__(self, *_: object) -> None:
        raise TypeError("tensorrt_llm.bindings.executor.DecodingMode: No constructor defined!")

    @classmethod
    def _make(cls, name: str) -> DecodingMode:
        mode = object.__new__(cls)
        mode.name = name
        return mode

    def isLookahead(self) -> bool:
        return self.name == "Lookahead"


for _mode in _MODES:
    setattr(DecodingMode, _mode, partial(DecodingMode._make, _mode))
DecodingMode.__module__ = "tensorrt_llm.bindings.executor"


class LookaheadDecodingConfig(Native):
    """The triple (W, N, G). No default constructor, no comparison."""

    _args = (
        Arg("max_window_size", n.int32, read_only=True),
        Arg("max_ngram_size", n.int32, read_only=True),
        Arg("max_verification_set_size", n.int32, read_only=True),
    )

    def _validate(self) -> None:
        w, ngram, g = self._stored.values()
        check(ngram >= 1, "ngramSize requires >= 1", _FILE)
        check(w >= 1, "windowSize requires >= 1", _FILE)
        if ngram == 1:
            check(g == 0, "ngramSize=1 requires verificationSetSize=0", _FILE)
            check(w == 1, "ngramSize=1 requires windowSize=1", _FILE)
        else:
            check(g >= 0, "verificationSetSize requires >=0", _FILE)

    def calculate_speculative_resource(self) -> tuple[int, int, int, int]:
        """(tokens of a step, most accepted, drafts of a step, most accepted drafts)."""
        return self.calculate_speculative_resource_tuple(*self._stored.values())

    @staticmethod
    def calculate_speculative_resource_tuple(
        w: int, n: int, g: int, /
    ) -> tuple[int, int, int, int]:
        drafts = (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1)
        return drafts + 1, n, drafts, n - 1


class DecodingConfig(Native):
    """The decoding mode and its settings; see the setters for what throws."""

    _args = (
        Arg("decoding_mode", n.optional(n.of(DecodingMode)), None),
        Arg("lookahead_decoding_config", n.optional(n.of(LookaheadDecodingConfig)), None),
        *n.kept("medusa_choices", "eagle_config"),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mode = self._stored["decoding_mode"]
        if self._stored["lookahead_decoding_config"] is not None:
            text = "LookaheadDecodingConfig is set, but DecodingMode is not set"
            check(mode is not None, text, _FILE)
            check(mode.isLookahead(), f"{text} to Lookahead", _FILE)


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
        raise TypeError("incompatible function arguments: lookahead_decoding_config")
    self._stored["lookahead_decoding_config"] = value
    self._stored["decoding_mode"] = DecodingMode._make("Lookahead")


for _name, _setter in (("decoding_mode", _set_mode), ("lookahead_decoding_config", _set_lookahead)):
    setattr(DecodingConfig, _name, getattr(DecodingConfig, _name).setter(_setter))
