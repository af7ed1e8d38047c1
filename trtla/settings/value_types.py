"""Types of values that people type, for flags and for the chat's commands: triples, completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from trtla.errors import UsageError
from trtla.settings.lookahead import LookaheadConfig


class ValueType(click.ParamType):  # type: ignore[type-arg]  # generic in new releases of click only
    """The base of all types of trtla's own."""


class TripleType(ValueType):
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


class BiasesType(ValueType):
    """Numbers of token ids, `17:-5,42:2.5`; `none` is no number. The settings check them."""

    name = "ID:BIAS,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As it is, which for a preset may be a mapping."""
        return () if value == "none" else value


def flag_name(param: click.Parameter | None, fallback: str = "value") -> str:
    """The long spelling of an option, `--max-batch-size`."""
    return max(param.opts, key=len) if param is not None else fallback


def starting(known: Iterable[str], incomplete: str, *, part: bool = False) -> list[CompletionItem]:
    """The names that continue what is typed.

    Args:
        part: what is typed is a comma list; its last item is completed, and no name comes twice.
    """
    before, comma, last = incomplete.rpartition(",") if part else ("", "", incomplete)
    taken = before.split(",")
    return [
        CompletionItem(before + comma + name)
        for name in known
        if name.startswith(last) and name not in taken and not (comma and name == "none")
    ]
