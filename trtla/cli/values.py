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


class CountType(_Type):
    """A whole number of at least 1; `8k` is 8000 and `8K` is 8192."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number."""
        match = _COUNT.fullmatch(str(value))
        number = int(match[1]) * _FACTOR[match[2]] if match else 0
        if number < 1:
            self.fail(
                f"{value!r} is not a whole number of at least 1, such as 512 or 8k.", param, ctx
            )
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


TRIPLE = TripleType()
COUNT = CountType()
DEVICE = DeviceType()
TEXT = TextType()
