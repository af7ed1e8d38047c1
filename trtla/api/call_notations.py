"""Notations of one call: where its name and its arguments are, and the grammar of both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from trtla.api.strict import Object
from trtla.api.tools import Function
from trtla.errors import UsageError
from trtla.settings.fields import shown
from trtla.settings.grammar import BLANKS, Grammar
from trtla.settings.schemas import fitted, without_notes

NAME = "[A-Za-z0-9_.-]"
"""The characters of a function's name."""
_OF_KEYS = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}
"""Keywords with which a schema without `properties` says what keys an object has."""
ControlToken = Callable[[str], int | None]
"""The id of a control token by its name; None: the name is no control token."""


class Arguments(NamedTuple):
    """The arguments of a call, which are whole."""

    json: str
    length: int
    """The length of the text that they were read from."""


class ArgumentsReader(Protocol):
    """Reads the arguments of one call while they arrive."""

    def read(self, text: str) -> Arguments | None:
        """Return the arguments, once a text that grows has all of them."""


class Notation(Protocol):
    """A way of writing one call."""

    @property
    def head(self) -> str:
        """The expression of a call up to its arguments; its group is the name."""

    @property
    def end(self) -> str:
        """The end of a call, behind its arguments."""

    def may_begin(self, text: str) -> bool:
        """Return True if more text may make this a call up to its arguments."""

    def opened(self, name: str) -> str:
        """A call up to the beginning of its arguments, without blanks."""

    def reader(self, parameters: Object) -> ArgumentsReader:
        """A reader of arguments for these parameters."""

    def rules(self, number: int, function: Function) -> Sequence[str]:
        """The rules of the calls of one function, the first of which is `call_` and its number."""

    def terminals(self) -> Sequence[str]:
        """The rules that those of all functions use."""


@dataclass(frozen=True, slots=True)
class InJson:
    """An object with a function's name and its arguments, in this order."""

    key: str
    """The key of the arguments."""
    end: ClassVar[str] = "}"

    @property
    def head(self) -> str:
        """The expression of a call up to its arguments; its group is the name."""
        return rf'\{{\s*"name"\s*:\s*"({NAME}+)"\s*,\s*"{self.key}"\s*:\s*(?=\{{)'

    def may_begin(self, text: str) -> bool:
        """Return True if more text may make this a call up to its arguments."""
        so_far, head = "".join(text.split()), '{"name":"'
        if len(so_far) <= len(head):
            return head.startswith(so_far)
        called, quote, behind = so_far[len(head) :].partition('"')
        is_name = bool(re.fullmatch(f"{NAME}*", called))
        key = f',"{self.key}":'
        return so_far.startswith(head) and is_name and (not quote or key.startswith(behind))

    def opened(self, name: str) -> str:
        """A call up to the beginning of its arguments, without blanks."""
        return f'{{"name":{as_json(name)},"{self.key}":{{'

    def reader(self, parameters: Object) -> ArgumentsReader:
        """A reader of arguments, which are an object whatever the parameters are."""
        return _ObjectReader()

    def rules(self, number: int, function: Function) -> Sequence[str]:
        """The rule of the calls of one function."""
        head = f'{{"name": {as_json(function.name)}, "{self.key}": '
        return [f'call_{number}: {as_json(head)} %json {as_json(arguments_schema(function))} "}}"']

    def terminals(self) -> Sequence[str]:
        """No rules."""
        return ()


class _ObjectReader:
    """Finds the end of an object of JSON."""

    def __init__(self) -> None:
        self._depth, self._in_text, self._escaped, self._read = 0, False, False, 0

    def read(self, text: str) -> Arguments | None:
        for at in range(self._read, len(text)):
            sign = text[at]
            if self._in_text:
                self._in_text = self._escaped or sign != '"'
                self._escaped = sign == "\\" and not self._escaped
            elif sign == '"':
                self._in_text = True
            elif sign in "{}":
                self._depth += 1 if sign == "{" else -1
                if not self._depth:
                    return Arguments(text[: at + 1], at + 1)
        self._read = len(text)
        return None


def arguments_schema(function: Function) -> Object:
    """The schema of a function's arguments, as its grammar has it."""
    if (kind := function.parameters.get("type", "object")) != "object":
        raise UsageError(
            f"the parameters of the function {function.name} are of type {shown(kind)}",
            "use object",
        )
    return {**_fitted(function.parameters), "x-guidance": guidance(function)}


def guidance(function: Function) -> Object:
    """How the grammar of a function's arguments is made of their schema."""
    return {"whitespace_pattern": BLANKS, "lenient": not function.strict}


def _fitted(parameters: Object) -> Object:
    """The schema of an object, which has no keys where it does not speak of any."""
    keys: Object = {"properties": {}} if _OF_KEYS.isdisjoint(parameters) else {}
    schema: Object = fitted(without_notes({"type": "object", **keys, **parameters}))
    return schema


def as_json(value: object) -> str:
    """The JSON of a value, which is also how rules write a text."""
    return json.dumps(value, ensure_ascii=False)


def with_blanks(answer: Grammar) -> str:
    """A schema with the expression of its blanks."""
    schema = json.loads(answer.text)
    given = schema.get("x-guidance")
    guidance = {**(given if isinstance(given, dict) else {}), "whitespace_pattern": answer.blanks}
    return as_json({**schema, "x-guidance": guidance})
