"""Grammars of outputs: a JSON schema, a regular expression, a choice of texts, or Lark rules."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, get_args

from trtla.errors import UsageError, did_you_mean
from trtla.files import read_text
from trtla.settings.fields import check_text, shown
from trtla.settings.schemas import fitted

if TYPE_CHECKING:
    from pydantic import BaseModel

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)
LONGEST = 1 << 16
"""Characters of a grammar, at most: longer ones delay other requests with each of their tokens."""
SETTINGS: dict[str, GrammarKind] = {
    "json_schema": "json_schema",
    "regex": "regex",
    "grammar": "lark",
}
"""The flags and chat commands that take a grammar, and its kind."""
_NAMES: dict[GrammarKind, str] = {
    "json_schema": "the JSON schema",
    "json_object": "json_object",
    "regex": "the regular expression",
    "choice": "the choice",
    "lark": "the grammar",
}
BLANKS = r" |\n{1,2}[ \t]{0,20}"
"""Blanks between the parts of JSON by default, besides none: as llama.cpp has them. Without a bound
some models write nothing else any more."""
_BLANK = r"[ \n\r\t]|\\[nrt]|\\x(?:20|09|0[aAdD])"
_OF_BLANKS = re.compile(
    rf"(?:{_BLANK}|\[(?:{_BLANK})+\]|\((?:\?:)?|[)|?*+]|\{{\d{{1,2}}(?:,\d{{0,2}})?\}}){{0,100}}"
)
"""Expressions for JSON's four blanks alone."""
_RULES = "give an expression such as [0-9]+, or rules such as root ::= [0-9]+"
_SCHEMA = 'give one such as {"type": "object"}'
_EXAMPLE = 'give one such as {"regex": "[0-9]+"} or {"json_schema": {"type": "object"}}'


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar of whole outputs; an end token may come only where it allows an end."""

    kind: GrammarKind
    text: str
    """The schema or the list of choices as JSON, the expression, or the rules."""
    given_as: str = field(default="grammar", compare=False)
    """The setting or the request's field that it comes from."""
    behind: str = ""
    """A mark, in front of which is any text: the end of thoughts."""
    opened: str = ""
    """A mark with which that text begins, and without which there is none; empty: it has begun."""
    front: str = ""
    """The rules of what is in front of the text, the first of which has this name."""
    parts: tuple[str, ...] = field(default=(), compare=False)
    """The source of each line of the rules, for errors; empty for the user's own rules."""
    whitespace_pattern: str | None = None
    """The expression of blanks between the parts of JSON; empty: none; None: `BLANKS`."""

    def __post_init__(self) -> None:
        check_text(self.text, self.name)
        number, text = max(enumerate(self._limited, start=1), key=lambda line: len(line[1]))
        if len(text) > LONGEST:
            has = "have" if self.parts else "has"
            raise UsageError(
                f"{self.part(number)} {has} {len(text)} characters, above {LONGEST}",
                "shorten it",
                self.given_as,
            )
        if self.whitespace_pattern is not None:
            self._check_pattern(self.whitespace_pattern)

    @property
    def _limited(self) -> list[str]:
        """The texts with a limit: lines of rules that were made of several things, or all of it."""
        return self.text.split("\n") if self.parts else [self.text]

    def _check_pattern(self, pattern: object) -> None:
        if self.kind not in ("json_schema", "json_object"):
            raise UsageError(f"whitespace_pattern is for JSON, not {self.name}", "omit it")
        if not _is_of_blanks(pattern):
            raise UsageError(
                f"whitespace_pattern is {shown(pattern)}, not an expression for blanks of JSON",
                r"give one such as [ \n]{0,2}, or an empty one for none",
            )

    @classmethod
    def of(cls, value: object) -> Grammar:
        """Make one from an object of JSON with one key, a kind (beside those of JSON may be
        `whitespace_pattern`), from rules as a text, or from a class with a JSON schema, such as
        pydantic's.

        Raises:
            UsageError: it is neither.
        """
        if isinstance(value, Grammar):
            return value
        if isinstance(value, str):
            return cls("lark", _rules("lark", value))
        if _is_model(value):
            return cls("json_schema", _schema(value))
        rules = dict(value) if isinstance(value, Mapping) else {}
        pattern = rules.pop("whitespace_pattern", None)
        if len(rules) != 1:
            raise UsageError(f"grammar is {shown(value)}, not an object of one key", _EXAMPLE)
        ((kind, rule),) = rules.items()
        if kind not in KINDS:
            guess = did_you_mean(str(kind), KINDS)
            raise UsageError(f"grammar has the unknown key {shown(kind)}", f"{guess}{_EXAMPLE}")
        text = _TEXTS[kind](rule) if kind in _TEXTS else _rules(kind, rule)
        return cls(kind, text, whitespace_pattern=pattern)

    @classmethod
    def typed(cls, kind: GrammarKind, value: str) -> Grammar:
        """Make one from a word of a command: a file with the rules, or these; a regex itself."""
        return cls.of({kind: value if kind == "regex" else _file_or_text(value, kind)})

    @property
    def name(self) -> str:
        """The kind of grammar, for sentences."""
        return f"the grammar of {self.given_as}" if self.parts else _NAMES[self.kind]

    def part(self, line: int) -> str:
        """Return the source of a line of the rules, for sentences; lines count from 1."""
        return (*self.parts[line - 1 : line], "")[0] or self.name

    @property
    def blanks(self) -> str:
        """The expression of blanks between the parts of JSON."""
        return BLANKS if self.whitespace_pattern is None else self.whitespace_pattern

    @property
    def value(self) -> dict[str, Any]:
        """The object of JSON that `of` takes."""
        is_json = self.kind in ("json_schema", "choice")
        rule = json.loads(self.text) if is_json else self.text
        pattern = self.whitespace_pattern
        blanks = {} if pattern is None else {"whitespace_pattern": pattern}
        return {self.kind: True if self.kind == "json_object" else rule, **blanks}


def _is_of_blanks(pattern: object) -> bool:
    if not isinstance(pattern, str) or not _OF_BLANKS.fullmatch(pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _file_or_text(value: str, kind: GrammarKind) -> str:
    """A file's text; a value that is no file's name is the text itself."""
    is_json = value.lstrip().startswith(("{", "[")) or value.strip() in ("true", "false", "null")
    is_text = is_json or any(mark in value for mark in (":", "\n"))
    if is_text and not os.path.isfile(value):  # `Path.is_file` raises for a text as long as these
        return value
    itself = "schema itself, which begins with {" if kind == "json_schema" else "rules themselves"
    if not value:
        raise UsageError(f"{_NAMES[kind]} is empty", f"give a file, or the {itself}")
    try:
        return read_text(Path(value))
    except UsageError as error:
        raise UsageError(error.message, f"{error.hint}, or give the {itself}") from None


def _is_model(value: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(value, type) and hasattr(value, "model_json_schema")


def _schema(value: object) -> str:
    if _is_model(value):
        value = value.model_json_schema()
    given = value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the JSON schema is not JSON: {error}", _SCHEMA) from None
    if value is False:
        raise UsageError("the JSON schema is false, which allows no text", _SCHEMA)
    if value is True:  # anything, which llguidance has as an object alone
        value = {}
    if not isinstance(value, Mapping):
        raise UsageError(f"the JSON schema is {shown(given)}, not an object", _SCHEMA)
    try:
        text = json.dumps(fitted(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is no JSON: {error}", _SCHEMA) from None
    return text


def _any_object(value: object) -> str:
    if value is not True:
        raise UsageError(f"json_object is {shown(value)}", "give true, or omit it")
    return '{"type":"object"}'


def _choice(value: object) -> str:
    texts = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise UsageError(
            f"choice is {shown(value)}, not a list of texts that are not empty",
            'give some, such as ["yes", "no"]',
        )
    return json.dumps(list(texts), ensure_ascii=False)


def _rules(kind: GrammarKind, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{_NAMES[kind]} is {shown(value)}, not a text", _RULES)
    if not value:
        raise UsageError(f"{_NAMES[kind]} is empty", _RULES)
    return value


_TEXTS = {"json_schema": _schema, "json_object": _any_object, "choice": _choice}
