"""Settings, each declared once: a dataclass field with its range, its help and its other name.

The checks of values, the flags of commands, the keys of prompt files and of saved chats, and the
chat's commands are derived from `option` fields. Functions that check single values are here too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from trtla.errors import UsageError, named, plainly
from trtla.errors import flag_name as flag_name

_KEY = "option"  # of a field's metadata
_LARGEST = 2**63 - 1

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of a setting beside its type and its default."""

    help: str
    rule: str = ""
    """Completes "must be ..." in a refusal; empty: derived from its type and range."""
    least: float = 0
    most: float | None = None
    metavar: str | None = None
    shown: str | None = None
    """The default in the help where it is None."""
    commas: bool = False
    """Texts may be given as one text, separated by commas."""
    chat: str = ""
    """The name of its command in Speculative-Decoding's chat."""
    short: str = ""
    """The letter of its flag's short form."""
    alias: str = ""
    """Another name that is accepted: the one most libraries use."""
    draws: bool = False
    """It decides which of a row's tokens is drawn: temperature and filters."""
    flagless: bool = False
    """It has no flag of its name: commands choose it."""
    at_start: bool = False
    """Requests to a server cannot set it."""
    single: bool = True
    """It is one value, checked by its type; else `help` is all that is declared."""


def option(default: Any, about: str, **more: Any) -> Any:
    """A dataclass field that is a setting; `about` is its help, `more` the rest of `Option`."""
    return field(default=default, metadata={_KEY: Option(about, **more)})


def descriptions(kind: Any) -> dict[str, str]:
    """The help texts of a class's fields, by name, in order."""
    return {item.name: item.metadata[_KEY].help for item in fields(kind) if _KEY in item.metadata}


@dataclass(frozen=True, slots=True)
class Declared:
    """A setting as its class declares it."""

    name: str
    flag: str
    """Its name as a flag, with underscores."""
    type: type
    """int, float, bool, str for a choice or a text, tuple for texts, list for token ids, dict for
    numbers of tokens."""
    choices: tuple[str, ...]
    optional: bool
    default: Any
    option: Option

    @property
    def json_type(self) -> Any:
        """The type in JSON, without null."""
        if self.is_biases:
            return dict[str, float] | list[Any]
        if self.is_ids:
            return list[int]
        return Literal[self.choices] if self.choices else list[str] if self.is_texts else self.type

    @property
    def is_texts(self) -> bool:
        return self.type is tuple

    @property
    def is_ids(self) -> bool:
        return self.type is list

    @property
    def is_biases(self) -> bool:
        return self.type is dict

    def checked(self, value: Any) -> Any:
        """Convert a value to the setting's type; raises UsageError."""
        rule, least = self.rule, self.option.least
        if self.type is bool:
            if not isinstance(value, bool):
                raise wrong(self.flag, value, "true or false")
            return value
        if self.type is int:
            most = _LARGEST if self.option.most is None else self.option.most
            return whole(self.flag, value, rule, least, most)
        if self.type is float:
            most = sys.float_info.max if self.option.most is None else self.option.most
            return real(self.flag, value, rule, least, most)
        if self.is_texts:
            if self.option.commas and isinstance(value, str):
                return tuple(part.strip() for part in value.split(","))
            return texts(self.flag, value, rule)
        if self.is_ids:
            return token_ids(self.flag, value, rule)
        if self.is_biases:
            return biases(self.flag, value, rule, least, self.option.most or sys.float_info.max)
        if (self.choices and value not in self.choices) or not isinstance(value, str):
            raise wrong(self.flag, value, rule)
        check_text(value, self.flag)
        return value

    @property
    def rule(self) -> str:
        """Completes "must be ..." in a refusal."""
        least, most = self.option.least, self.option.most
        if self.option.rule:
            return self.option.rule
        if self.choices:
            return " or ".join(self.choices)
        if self.is_texts:
            return "made of non-empty texts"
        if self.is_ids:
            return "token ids, such as 17 42"
        if self.type is str:
            return "a text"
        if self.type is bool:
            return "true or false"
        kind = "a whole number" if self.type is int else "a number"
        if self.is_biases:
            kind = "token ids, each once, with numbers such as 17:-5,42:2.5"
        upper = most is None or most == math.inf
        return f"{kind}, " + (f"at least {least}" if upper else f"from {least} to {most}")


_DECLARED: dict[type, Mapping[str, Declared]] = {}


def declared(kind: Any) -> Mapping[str, Declared]:
    """The settings of a class by their names, in order.

    A class attribute `FLAG_PREFIX` is put in front of the names of its flags.
    """
    if kind not in _DECLARED:
        hints, prefix = get_type_hints(kind), getattr(kind, "FLAG_PREFIX", "")
        _DECLARED[kind] = {
            item.name: _declared(prefix + item.name, hints[item.name], item)
            for item in fields(kind)
            if _KEY in item.metadata and item.metadata[_KEY].single
        }
    return _DECLARED[kind]


def _declared(flag: str, hint: Any, item: Any) -> Declared:
    union = get_origin(hint) is UnionType or NoneType in get_args(hint)
    members = get_args(hint) if union else (hint,)
    first = next(member for member in members if member is not NoneType)
    choices = get_args(first) if get_origin(first) is Literal else ()
    several = [member for member in members if get_origin(member) not in (None, Literal)]
    kind = tuple if several else str if choices else first
    kind = list if several and get_args(several[0]) == (int,) else kind
    kind = dict if get_origin(first) is Mapping else kind
    default = None if item.default is MISSING else item.default
    return Declared(
        item.name, flag, kind, choices, NoneType in members, default, item.metadata[_KEY]
    )


def check(settings: Any) -> None:
    """Check the settings of an instance under construction, and convert them to their types."""
    for setting in declared(type(settings)).values():
        value = getattr(settings, setting.name)
        value = () if value is None and setting.default == () else value  # stop=None
        if value is not None or not setting.optional:
            try:
                object.__setattr__(settings, setting.name, setting.checked(value))
            except UsageError as error:
                error.argument = setting.name
                raise


def parsed(kind: type[Kind], flags: Mapping[str, Any]) -> Kind:
    """Build a dataclass from a command's flags; fields that are classes of settings included.

    Fields without a flag keep their defaults. A field of the dataclass itself takes precedence
    over a setting of the same flag. A flag that no field takes is a TypeError, as in any call.
    """
    if unread := sorted(flags.keys() - _flags(kind)):
        raise TypeError(f"{kind.__name__} has no field for {', '.join(unread)}")
    return _made(kind, flags)


def _made(kind: type[Kind], flags: Mapping[str, Any]) -> Kind:
    direct, groups = _own_flags(kind), _groups(kind)
    values = {name: flags[flag] for name, flag in direct.items() if flag in flags}
    for setting in declared(kind).values():
        if setting.choices and isinstance(values.get(setting.name), str):  # flags have hyphens
            values[setting.name] = values[setting.name].replace("-", "_")
    left = {flag: value for flag, value in flags.items() if flag not in direct.values()}
    return kind(**values, **{name: _made(part, left) for name, part in groups.items()})


def _groups(kind: Any) -> dict[str, Any]:
    """The fields that are classes of settings."""
    hints = get_type_hints(kind)
    parts = {item.name: hints[item.name] for item in fields(kind)}
    return {name: part for name, part in parts.items() if is_dataclass(part) and declared(part)}


def _own_flags(kind: Any) -> dict[str, str]:
    """The flags of all other fields, by field name."""
    groups = _groups(kind)
    names = {item.name: item.name for item in fields(kind) if item.name not in groups}
    return names | {item.name: item.flag for item in declared(kind).values()}


def _flags(kind: Any) -> set[str]:
    """All flags that are read, those of nested classes of settings included."""
    return {*_own_flags(kind).values()}.union(*map(_flags, _groups(kind).values()))


_SHOWN = 60  # characters of a wrong value that an error repeats


def shown(value: object) -> str:
    """Format a wrong value for an error, shortened."""
    try:
        text = ascii(value) if isinstance(value, (str, bytes)) else repr(value)
    except Exception:  # an integer of thousands of digits, or somebody's __repr__
        text = f"a {type(value).__name__} that cannot be printed"
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def wrong(name: str, value: object, rule: str) -> UsageError:
    """A refusal: NAME is VALUE, --NAME must be RULE."""
    return UsageError(f"{plainly(name)} is {shown(value)}", f"{named(name)} must be {rule}", name)


def is_whole(value: object) -> bool:
    """Return True for an integer of any library, but not for True and False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole(name: str, value: object, rule: str, least: float, most: float = _LARGEST) -> int:
    """An integer from `least` to `most`."""
    if is_whole(value):
        number = int(value)  # type: ignore[call-overload]
        if least <= number <= most:
            return int(number)
    raise wrong(name, value, rule)


def real(
    name: str, value: object, rule: str, least: float, most: float = sys.float_info.max
) -> float:
    """A number from `least` to `most`."""
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an integer
            if least <= (number := float(value)) <= most:
                return number
    raise wrong(name, value, rule)


def texts(name: str, value: object, rule: str) -> tuple[str, ...]:
    """Non-empty texts; a text alone stands for a list of one."""
    if value in ("", ("",), [""]):
        raise UsageError(f"{plainly(name)} is empty", f"{named(name)} must be {rule}", name)
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, (tuple, list)):
        raise wrong(name, value, rule)
    for item in items:
        if not isinstance(item, str) or not item:
            raise wrong(name, value, rule)
        check_text(item, name)
    return tuple(items)


def token_ids(name: str, value: object, rule: str) -> tuple[int, ...]:
    """Token ids, each once, in their order; one alone stands for a list of one."""
    items = (value,) if is_whole(value) else value
    if not isinstance(items, (tuple, list)):
        raise wrong(name, value, rule)
    return tuple(dict.fromkeys(whole(name, item, rule, 0) for item in items))


def biases(
    name: str, value: object, rule: str, least: float, most: float
) -> tuple[tuple[int, float], ...]:
    """Numbers of token ids, ordered by these: a mapping, pairs, or a text such as `17:-5,42:2.5`.

    Numbers of 0 are dropped.
    """
    numbers: dict[int, float] = {}
    try:
        for token, number in _pairs(value):
            token_id = int(token) if isinstance(token, str) else token
            if not is_whole(token_id) or not 0 <= token_id <= _LARGEST or token_id in numbers:
                raise wrong(name, value, rule)
            number = float(number) if isinstance(number, str) else number
            numbers[int(token_id)] = real(name, number, rule, least, most)
    except (TypeError, ValueError):
        raise wrong(name, value, rule) from None
    return tuple(sorted((token, number) for token, number in numbers.items() if number))


def _pairs(value: Any) -> Iterable[Any]:
    if isinstance(value, str):
        return [part.split(":") for part in value.split(",") if part.strip()]
    return list(value.items() if isinstance(value, Mapping) else value)


def check_text(text: str, name: str) -> None:
    """Refuse a text that is not valid Unicode, which no file and no tokenizer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text: {shown(text[error.start])} at character {error.start}",
            "convert it to UTF-8",
        ) from None
