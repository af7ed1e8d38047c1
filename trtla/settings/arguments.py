"""Keyword arguments of Python: other names of settings, and suggestions for unknown names.

Flags have the same: `Option.alias` in `trtla.settings.fields`, and the command line's hints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from trtla.errors import UsageError, closest
from trtla.settings.fields import declared, descriptions, shown

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Kind = TypeVar("Kind")
_OF_CALLS = ("drafter", "expected_output", "logprobs", "lookahead", "private")
"""Arguments of `LLM.generate` that are settings of a request in other libraries, or may be."""


def named_arguments(*settings: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Refuse unknown keyword arguments of a function with a hint: the argument that was probably
    meant, or the class among `settings` that has a setting of that name.
    """

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        known = frozenset(signature(work).parameters)
        name = work.__qualname__.removesuffix(".__init__")

        @wraps(work)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for argument in kwargs:
                if argument not in known:
                    raise _unknown(name, argument, known, settings)
            return work(*args, **kwargs)

        return checked

    return decorate


def keywords_of(kind: type, *settings: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a function the fields of a dataclass as its keyword arguments, in place of `**name`;
    `named_arguments` comes with it."""

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        every = signature(work).parameters.values()
        mine = [item for item in every if item.kind != item.VAR_KEYWORD]
        more = [
            item.replace(default=None) if is_dataclass(item.default) else item
            for item in signature(kind).parameters.values()
        ]
        signed = Signature(mine + more, return_annotation=None)
        work.__signature__ = signed  # type: ignore[attr-defined]
        about = (f"    {name}: {text}" for name, text in descriptions(kind).items())
        work.__doc__ = "\n".join((work.__doc__ or "", "", "Args:", *about))
        return named_arguments(*settings)(work)

    return decorate


def typed_as(
    arguments: Callable[P, object],
) -> Callable[[Callable[[S], None]], Callable[Concatenate[S, P], None]]:
    """For type checkers: an overload of `__init__` takes the arguments of a class."""
    return lambda init: init  # type: ignore[return-value]


def arguments_of(
    method: Callable[Concatenate[Any, P], object], *settings: type
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Give a method the arguments of another one in place of `*args, **kwargs`; `named_arguments`
    comes with it.
    """
    return lambda function: _with_arguments(function, method, settings)


def later_arguments_of(
    method: Callable[Concatenate[Any, Any, P], object], *settings: type
) -> Callable[[Callable[Concatenate[Any, S, ...], T]], Callable[Concatenate[Any, S, P], T]]:
    """`arguments_of` behind the first one, which is the method's own."""
    return lambda function: _with_arguments(function, method, settings)


def _with_arguments(
    function: Callable[..., T], method: Callable[..., object], settings: Iterable[type]
) -> Callable[..., T]:
    """`function`, whose arguments behind those that it names are those of `method`."""
    mine, theirs = signature(function), signature(method).parameters.values()
    named = [item for item in mine.parameters.values() if item.kind == item.POSITIONAL_OR_KEYWORD]
    function.__signature__ = mine.replace(  # type: ignore[attr-defined]
        parameters=[*named, *list(theirs)[len(named) :]]
    )
    return named_arguments(*settings)(function)


def named_settings(kind: type[Kind]) -> type[Kind]:
    """Have a class of settings accept their other names, and refuse unknown ones."""
    make: Callable[..., None] = kind.__init__
    order = [item.name for item in fields(kind) if item.init]  # type: ignore[arg-type]
    others = {item.option.alias: item.name for item in declared(kind).values() if item.option.alias}

    @wraps(make)
    def checked(self: object, /, *args: Any, **kwargs: Any) -> None:
        for argument in kwargs:
            if argument not in order and argument not in others:
                raise _unknown(kind.__name__, argument, (*order, *others), ())
        values = dict(zip(order, args, strict=False)) | kwargs
        for other in others.keys() & kwargs.keys():
            name, value = others[other], kwargs.pop(other)
            if name not in values:
                kwargs[name] = value
            elif values[name] != value:
                both = f"{name} is {shown(values[name])} and {other} is {shown(value)}"
                raise UsageError(f"{both}, and both are names of one setting", "give one of them")
        make(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[assignment]
    return kind


def _unknown(where: str, word: str, known: Iterable[str], settings: Iterable[type]) -> UsageError:
    names = sorted({*known} - {"self"})
    meant = closest(word, names)
    if word in _OF_CALLS:
        hint = f"it is an argument of LLM.generate; there are {', '.join(names)}"
    elif meant:
        hint = f"did you mean {meant}? there are {', '.join(names)}"
    else:
        matches = ((kind.__name__, closest(word, _names(kind))) for kind in settings)
        other = next(
            (f"it is a setting: {kind}({name}=...); " for kind, name in matches if name), ""
        )
        hint = f"{other}there are {', '.join(names)}"
    return UsageError(f"{where} has no argument {word}", hint)


def _names(kind: type) -> list[str]:
    options = declared(kind).values()
    return [item.name for item in options] + [o.option.alias for o in options if o.option.alias]
