"""Calls in tags, of which each argument has one: `<function=f>`, `<parameter=key>`, its value.

The value of a text is the text itself, without quotes and escapes. So it ends where the tag behind
it is followed by another argument or by the call's end, and may have such a tag alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtla.api.call_notations import (
    NAME,
    Arguments,
    ArgumentsReader,
    arguments_schema,
    as_json,
    guidance,
)
from trtla.api.strict import Object
from trtla.api.tagged_values import (
    as_argument,
    list_of,
    parts_of,
    properties_of,
    resolved,
    types_of,
    values_of,
)
from trtla.api.tools import Function
from trtla.errors import UsageError
from trtla.llm.grammar_compiling import with_ascii
from trtla.settings.fields import shown

_PLAIN = {
    "$defs", "$id", "$schema", "additionalProperties", "definitions", "properties", "required",
    "type", "x-guidance",
}  # fmt: skip
"""Keywords of objects that a grammar of tags keeps."""
_TEXT = {"const", "enum", "maxLength", "minLength", "pattern", "type"}
"""Keywords of texts that it keeps."""
_COMBINED = {"$ref", "anyOf", "oneOf", "type"}
"""Keywords that it keeps of texts and of the other types beside them."""
_LISTED = {"$ref", "anyOf", "const", "enum", "oneOf", "type"}
"""Keywords that it keeps of values that a schema lists."""
_BLANKS = r"[ \t\r\n]*"
_BLANK = re.compile(_BLANKS)


@dataclass(frozen=True, slots=True)
class InTags:
    """The tags of a call: those of its function and of each argument."""

    function: str = "<function="
    argument: str = "<parameter="
    closing: str = ">"
    """Behind the name in a tag that opens."""
    argument_end: str = "</parameter>"
    end: str = "</function>"

    @property
    def head(self) -> str:
        """The expression of a call up to its arguments; its group is the name."""
        return f"{re.escape(self.function)}({NAME}+){re.escape(self.closing)}"

    def may_begin(self, text: str) -> bool:
        """Return True if more text may make this a call up to its arguments."""
        name = text[len(self.function) :]
        begun = text.startswith(self.function) and re.fullmatch(f"{NAME}*", name) is not None
        return begun or self.function.startswith(text)

    def opened(self, name: str) -> str:
        """A call up to the beginning of its arguments, without blanks."""
        return f"{self.function}{name}{self.closing}"

    def reader(self, parameters: Object) -> ArgumentsReader:
        """A reader of arguments for these parameters."""
        return _TagReader(self, parameters)

    def rules(self, number: int, function: Function) -> Sequence[str]:
        """The rules of the calls of one function, the first of which is `call_` and its number."""
        return _FunctionRules(self, number, function).all()

    def terminals(self) -> Sequence[str]:
        """The rules of texts, which end with the beginning of the next argument or of the end."""
        more, last = self.behind(self.argument), self.behind(self.end)
        return [
            "to_more[lazy]: TO_MORE",
            f"TO_MORE: /(?s:.*){more}/ & ~/(?s:.*){last}(?s:.*)/",
            "to_end[lazy]: TO_END",
            f"TO_END: /(?s:.*){last}/ & ~/(?s:.*){more}(?s:.*)/",
        ]

    def behind(self, follows: str) -> str:
        """The expression of a value's end with what follows it."""
        return f"{_expression(self.argument_end)}{_BLANKS}{_expression(follows)}"


class _TagReader:
    """Reads arguments in tags one after the other, and makes JSON of them."""

    def __init__(self, tags: InTags, parameters: Object) -> None:
        self._tags, self._root = tags, parameters
        self._schemas = properties_of(parameters, parameters)
        self._others = resolved(parameters, parameters).get("additionalProperties")
        opened, closing = re.escape(tags.argument), re.escape(tags.closing)
        self._opened = re.compile(f"{opened}(.*?){closing}", re.DOTALL)
        self._found: dict[str, str] = {}
        self._at, self._searched = 0, 0
        """Where the next argument begins, and from where on its value may end."""

    def read(self, text: str) -> Arguments | None:
        """Return the arguments, once a text that grows has all of them."""
        while True:
            start = _behind_blanks(text, self._at)
            if text.startswith(self._tags.end, start):
                return Arguments(self._json(), start)
            opened = self._opened.match(text, start)
            if opened is None:
                return None
            schema = self._schemas.get(opened[1], self._others)
            end = self._end(text, opened.end(), schema)
            if end is None:
                return None
            value = _bare(text[opened.end() : end])
            self._found[opened[1]] = as_argument(value, schema, self._root)
            self._at = end + len(self._tags.argument_end)

    def _end(self, text: str, start: int, schema: Any) -> int | None:
        """The end of a value: a tag with another argument or the call's end behind it, outside the
        texts of JSON."""
        tag, follow = self._tags.argument_end, (self._tags.argument, self._tags.end)
        longest = max(map(len, follow))
        is_json = "string" not in types_of(schema, self._root)
        at = text.find(tag, max(start, self._searched))
        while at >= 0:
            begin = _behind_blanks(text, at + len(tag))
            behind = text[begin : begin + longest]
            if behind.startswith(follow):
                if not (is_json and _in_text(text[start:at])):
                    return at
            elif any(one.startswith(behind) for one in follow):
                break
            at = text.find(tag, at + 1)
        self._searched = at if at >= 0 else max(start, len(text) - len(tag) + 1)
        return None

    def _json(self) -> str:
        pairs = (f"{as_json(key)}: {value}" for key, value in self._found.items())
        return "{" + ", ".join(pairs) + "}"


def _behind_blanks(text: str, start: int) -> int:
    """Where the blanks that begin there end."""
    blanks = _BLANK.match(text, start)
    return start if blanks is None else blanks.end()


def _in_text(value: str) -> bool:
    """Return True if more of this JSON would be inside a text."""
    return re.sub(r"\\.", "", value, flags=re.DOTALL).count('"') % 2 == 1


def _bare(value: str) -> str:
    """A value without the line breaks that separate it from its tags."""
    return value.removeprefix("\n").removesuffix("\n")


class _FunctionRules:
    """Makes the rules of one function's calls: its arguments in the order of the schema."""

    def __init__(self, tags: InTags, number: int, function: Function) -> None:
        self._tags, self._number, self._function = tags, number, function
        self._root = arguments_schema(function)
        self._schema = resolved(self._root, self._root)
        if function.strict and (odd := sorted(self._schema.keys() - _PLAIN)):
            raise self._refused(f"have {odd[0]}", "give their properties alone")
        self._required = [str(one) for one in list_of(self._schema, "required")]
        known = properties_of(self._schema, self._root)
        self._keys = {**known, **{name: {} for name in self._required if name not in known}}
        self._others = self._schema.get("additionalProperties", False)
        self._rules: list[str] = []

    def _refused(self, problem: str, hint: str) -> UsageError:
        name = self._function.name
        return UsageError(
            f"the parameters of the function {name} {problem}, which calls in tags cannot keep to",
            hint,
        )

    def all(self) -> list[str]:
        """All rules."""
        head = as_json(self._tags.opened(self._function.name) + "\n")
        call = f"call_{self._number}: {head} {self._next(0)}"
        for index, (key, schema) in enumerate(self._keys.items()):
            self._argument(index, key, schema)
        if self._is_open:
            self._other()
        return [call, *self._rules]

    @property
    def _is_open(self) -> bool:
        return self._others is not False

    def _ends(self, index: int) -> bool:
        """Return True if arguments may end in front of the one with this index."""
        return not set(self._required).intersection([*self._keys][index:])

    def _goes_on(self, index: int) -> bool:
        return index < len(self._keys) or self._is_open

    def _next(self, index: int) -> str:
        """What follows a call's head, or a value and the tag behind it."""
        more = f"{as_json(self._tags.argument)} {self._name(index)}"
        parts = [more] if self._goes_on(index) else []
        parts += [as_json(self._tags.end)] if self._ends(index) else []
        return f"({' | '.join(parts)})"

    def _name(self, index: int) -> str:
        """The rule of arguments from one on, behind the beginning of its tag."""
        return f"from_{self._number}_{index if index < len(self._keys) else 'on'}"

    def _argument(self, index: int, key: str, schema: Any) -> None:
        closing = self._tags.closing
        if closing in key or "\n" in key or not key:
            raise self._refused(f"have the key {shown(key)}", f"rename it, without {closing}")
        value = self._value(schema, index)
        skipped = key not in self._required and self._goes_on(index + 1)
        more = f" | {self._name(index + 1)}" if skipped else ""
        opened = as_json(f"{key}{closing}\n")
        self._rules.append(f"{self._name(index)}: {opened} {value}{more}")

    def _other(self) -> None:
        """The rules of arguments that the schema does not name."""
        number, closing = self._number, self._tags.closing
        known = "|".join(map(_expression, self._keys))
        but = f" & ~/{known}/" if known else ""
        schema = self._others if isinstance(self._others, Mapping) else {}
        value = self._value(schema, len(self._keys))
        self._rules += [
            f"from_{number}_on: OTHER_{number} {as_json(closing + chr(10))} {value}",
            f"OTHER_{number}: /[^{_expression(closing)}\\n]{{1,64}}/{but}",
        ]

    def _value(self, schema: Any, index: int) -> str:
        """A value with all that follows it."""
        follows = min(index + 1, len(self._keys))
        found = resolved(schema, self._root)
        types, values = types_of(found, self._root), values_of(found)
        if schema is False and self._function.strict:
            raise self._refused("have a key that no value is valid for", "omit it")
        if values is not None and not self._end_early(values):
            return f"({self._listed(found, values)}) {self._next(follows)}"
        if "string" not in types:
            return f"({self._in_json(found, types)}) {as_json(self._closed)} {self._next(follows)}"
        self._check(found)
        if types == {"string"} and (limits := _limits(found, _expression(self._closed))):
            name = f"text_{self._number}_{index}"
            self._rules += [
                f"{name}[lazy]: {name.upper()}",
                f"{name.upper()}: {limits}{self._apart}",
            ]
            return f"{name} {self._next(follows)}"
        parts = [f"to_more {self._name(follows)}"] if self._goes_on(follows) else []
        parts += ["to_end"] if self._ends(follows) else []
        return f"({' | '.join(parts)})"

    @property
    def _closed(self) -> str:
        """The end of a value as templates write it."""
        return f"\n{self._tags.argument_end}\n"

    @property
    def _apart(self) -> str:
        """The part of an expression that has a value end where it is read to end."""
        ends = "|".join(map(self._tags.behind, (self._tags.argument, self._tags.end)))
        return f" & ~/(?s:.*)({ends})(?s:.*)/"

    def _in_json(self, schema: Object, types: frozenset[str]) -> str:
        names = [name for name in ("$defs", "definitions") if name in self._root]
        defined: Object = {name: self._root[name] for name in names}  # references lead there
        whole: Object = {**defined, **schema, "x-guidance": guidance(self._function)}
        is_plain = schema.keys() <= _COMBINED
        words = ["None"] * ("null" in types) + ["True", "False"] * ("boolean" in types)
        return " | ".join([f"%json {as_json(whole)}", *map(as_json, words if is_plain else ())])

    def _end_early(self, values: Sequence[Any]) -> bool:
        """Return True if a listed text would be read to end inside itself."""
        tag = self._tags.argument_end
        early = any(isinstance(one, str) and tag in one for one in values)
        if early and self._function.strict:
            raise self._refused(f"have a value with {tag}", "omit it")
        return early

    def _listed(self, schema: Object, values: Sequence[Any]) -> str:
        """Values, each with its end: one may begin as another does."""
        if self._function.strict and (odd := sorted(schema.keys() - _LISTED)):
            raise self._refused(f"have values with {odd[0]}", "omit it")
        texts = [one if isinstance(one, str) else as_json(one) for one in values]
        return " | ".join(as_json(text + self._closed) for text in texts)

    def _check(self, schema: Object) -> None:
        """Refuse what a strict function asks for of texts and is not kept."""
        parts = list(parts_of(schema, self._root)) if self._function.strict else []
        kept = _TEXT if len(parts) == 1 else _COMBINED
        for part in parts:
            if odd := sorted(part.keys() - kept):
                raise self._refused(f"have texts with {odd[0]}", "omit it")


def _limits(schema: Object, end: str) -> str:
    """The expressions of texts with limits and of their end; empty: there are no limits."""
    found = []
    if isinstance(pattern := schema.get("pattern"), str):
        found.append(_searched(pattern))
    sizes = (schema.get("minLength"), schema.get("maxLength"))
    least, most = (size if isinstance(size, int) else None for size in sizes)
    if least is not None or most is not None:
        found.append(f"(?s:.{{{least or 0},{'' if most is None else most}}})")
    return " & ".join(f"/{one}{end}/" for one in found)


def _searched(pattern: str) -> str:
    """An expression for texts in which a schema's pattern is found."""
    start = "" if pattern.startswith("^") else "(?s:.*)"
    stop = "" if pattern.endswith("$") and not pattern.endswith(r"\$") else "(?s:.*)"
    bare = pattern.removeprefix("^")
    bare = bare if stop else bare[:-1]
    return _on_one_line(f"{start}({with_ascii(bare)}){stop}".replace("/", r"\/"))


def _expression(text: str) -> str:
    """An expression for a text, in rules."""
    signs = (sign if sign.isspace() else re.escape(sign) for sign in text)
    return _on_one_line("".join(signs).replace("/", r"\/"))


def _on_one_line(expression: str) -> str:
    return expression.replace("\n", r"\n").replace("\r", r"\r")
