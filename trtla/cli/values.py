"""Types of flag values: lookahead triples, counts such as 8k, devices, texts. Imports no torch."""

from __future__ import annotations

import re
from typing import Any

import click

from trtla.errors import UsageError
from trtla.lookahead import LookaheadConfig

_COUNT = re.compile(r"(\d{1,12})([kK]?)")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,4})?")
_FACTOR = {"": 1, "k": 1000, "K": 1024}


def flag_name(param: click.Parameter | None, fallback: str = "value") -> str:
    """The long spelling of an option, `--max-batch-size`."""
    return max(param.opts, key=len) if param is not None else fallback


class _Type(click.ParamType):  # type: ignore[type-arg]  # generic in new releases of click only
    """The base of all types here."""


class TripleType(_Type):
    """A lookahead triple `7,7,7` or `[7,7,7]`."""

    name = "W,N,G"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> LookaheadConfig:
        """Parse and check the triple."""
        try:
            return LookaheadConfig.parse(value)
        except UsageError as error:
            message = error.message.replace("lookahead", flag_name(param, "lookahead"), 1)
            raise UsageError(message, error.hint) from None


class LookaheadType(TripleType):
    """A triple, or `auto`."""

    name = "W,N,G|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse and check what is not `auto`."""
        return value if value == "auto" else super().convert(value, param, ctx)


class CountType(_Type):
    """A whole number of at least 1; `8k` is 8000 and `8K` is 8192."""

    name = "count"

    def __init__(self, example: str = "") -> None:
        self.example = example
        """What an error ends with."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number."""
        match = _COUNT.fullmatch(str(value))
        number = int(match[1]) * _FACTOR[match[2]] if match else 0
        if number < 1:
            self.fail(f"{value!r} is not a whole number of at least 1{self.example}.", param, ctx)
        return number


class DeviceType(_Type):
    """auto, cpu, cuda or cuda:N."""

    name = "auto|cpu|cuda"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the name; whether the device is there is seen when the engine is opened."""
        if not _DEVICE.fullmatch(str(value)):
            self.fail(f"{value!r} is none of auto, cpu, cuda, cuda:N.", param, ctx)
        return str(value)


class TextType(_Type):
    """A text; several in an environment variable are separated by newlines, not by spaces."""

    name = "text"
    envvar_list_splitter = "\n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take it as it is."""
        return str(value)


class ListType(_Type):
    """A comma list `1,4,8`, every part of one type."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name = f"{inner.name},..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Convert every part; spaces around commas are dropped."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(parts):
            self.fail(f"{value!r} is not a list such as a,b,c.", param, ctx)
        return tuple(self.inner.convert(part, param, ctx) for part in parts)


TRIPLE = TripleType()
LOOKAHEAD = LookaheadType()
COUNT = CountType()
TOKENS = CountType(", such as 512 or 8k")
DEVICE = DeviceType()
TEXT = TextType()
NAMES = ListType(TEXT)
COUNTS = ListType(COUNT)
TOKEN_COUNTS = ListType(TOKENS)
DEVICES = ListType(DEVICE)
NUMBERS = ListType(click.FLOAT)
