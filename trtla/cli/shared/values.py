"""Types of flag values: triples, counts such as 8k, devices, texts, lists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from trtla.errors import UsageError, flag_name
from trtla.files import JsonError, parse_json
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.messages import Variables, check_variables

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,4})?")


class ValueType(click.ParamType):  # type: ignore[type-arg]  # generic in new releases of click only
    """The base of all of trtla's own types."""


class TripleType(ValueType):
    """A lookahead triple `7,7,7` or `[7,7,7]`; its errors name the flag."""

    name = "W,N,G"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> LookaheadConfig:
        try:
            return LookaheadConfig.parse(value)
        except UsageError as error:
            flag = "lookahead" if param is None else max(param.opts, key=len)
            raise UsageError(*error.spelt(flag_name, lambda name: flag)) from None


class LookaheadType(TripleType):
    """A triple, or `auto`."""

    name = "W,N,G|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto":
            return value
        try:
            return super().convert(value, param, ctx)
        except UsageError as error:
            if not str(value).isalpha():  # a word, such as none
                raise
            hint = "write auto, or window,ngram,verification, such as 7,7,7"
            others = [] if ctx is None else [param.name for param in ctx.command.params]
            if "no_lookahead" in others:
                hint += "; --no-lookahead decodes without drafts"
            raise UsageError(error.message, hint) from None


class BiasesType(ValueType):
    """Numbers of token ids, `17:-5,42:2.5`; `none` for no numbers. The settings check them."""

    name = "ID:BIAS,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return () if value == "none" else value  # for a preset it may be a mapping


class UnitType(ValueType):
    """A number of at least `least` with a unit behind it, in its own spelling or in small letters;
    `rule` completes the error "VALUE is not ..."."""

    def __init__(
        self, name: str, units: Mapping[str, int], rule: str, least: int = 1, *, whole: bool = True
    ) -> None:
        self.name, self._units, self._rule, self._least = name, units, rule, least
        self._number = re.compile(r"(\d{1,12})" if whole else r"(\d{1,6}(?:\.\d{1,3})?)")
        self._kind = int if whole else float

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):  # a default
            return value
        text = str(value).strip()
        match = self._number.match(text)
        unit = text[match.end() :].lstrip() if match else ""
        factor = self._units.get(unit, self._units.get(unit.lower()))
        number = self._kind(match[1]) * factor if match and factor else None
        if number is None or number < self._least:
            self.fail(f"{value!r} is not {self._rule}.", param, ctx)
        return number


class DeviceType(ValueType):
    """auto, cpu, cuda or cuda:N; opening the engine checks that it exists."""

    name = "auto|cpu|cuda"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not _DEVICE.fullmatch(str(value)):
            self.fail(f"{value!r} is none of auto, cpu, cuda, cuda:N.", param, ctx)
        return str(value)


class NumberType(click.types.FloatParamType):
    """A number, with a plain name in the help and in errors."""

    name = "number"


class TextType(ValueType):
    """A text; several in an environment variable are separated by newlines, not by spaces."""

    name = "text"
    envvar_list_splitter = "\n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


class VariablesType(ValueType):
    """The variables of a chat template, an object of JSON."""

    name = "json"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Variables:
        flag = "--chat-template-kwargs"
        try:
            variables: Variables = value if isinstance(value, Mapping) else parse_json(value)
        except JsonError as error:
            raise UsageError(
                f"{flag} is {value!r}, which is not JSON: {error}",
                f"give {flag} '{{\"enable_thinking\": false}}'",
            ) from None
        check_variables(variables, flag)
        return variables


class ListType(ValueType):
    """A comma list `1,4,8`, every part of one type; spaces around commas are dropped."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name = f"{inner.name},..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(parts):
            self.fail(f"{value!r} is not a list such as a,b,c.", param, ctx)
        return tuple(self.inner.convert(part, param, ctx) for part in parts)


TRIPLE = TripleType()
LOOKAHEAD = LookaheadType()
_WHOLE, _THOUSANDS = "a whole number of at least 1", {"": 1, "k": 1000, "K": 1024}
COUNT = UnitType("count", _THOUSANDS, _WHOLE)
TOKENS = UnitType("count", _THOUSANDS, f"{_WHOLE}, such as 512 or 8k")
_BYTES = {
    f"{prefix}{binary}{byte}": (1024 if binary else 1000) ** power
    for power, prefix in enumerate(("", "k", "m", "g"))
    for binary in ("", "i")
    for byte in ("", "b")
}
SIZE = UnitType("size", _BYTES, "a size such as 64KiB, 1MiB or 500000", 0)
"""Bytes."""
DEVICE = DeviceType()
TEXT = TextType()
VARIABLES = VariablesType()
NAMES = ListType(TEXT)
COUNTS = ListType(COUNT)
NUMBER = NumberType()
NUMBERS = ListType(NUMBER)

QUANTISED = ("fp8", "int8", "int4", "w4a16_awq", "w8a16", "w4a16")
"""Types of weights that convert alone writes."""


class Dtype(click.Choice):  # type: ignore[type-arg]
    """A type to compute in, which is none that quantises weights."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in QUANTISED:
            flag = param.opts[0] if param else "--dtype"
            raise UsageError(
                f"{flag} {value} quantises weights, which trtla convert does",
                f"run trtla convert MODEL -o CKPT --dtype {value}, and trtla build CKPT -o ENGINE",
            )
        return str(super().convert(value, param, ctx))
