"""A class as nanobind or pybind11 makes it: fixed names, types and defaults; values are copies.

Wrong names, counts or types are a TypeError ("incompatible ... arguments"). Reading a property that
C++ returns by value gives a copy: changing that copy changes nothing.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from .._version import at_least

REQUIRED: Any = object()
Cast = Callable[[Any], Any]


class Mismatch(Exception):
    """A value that no caster takes."""


@dataclass(frozen=True)
class Arg:
    name: str
    cast: Cast
    default: Any = REQUIRED
    read_only: bool = False
    by_reference: bool = False
    """C++ returns a reference: what is read can be changed in place."""
    is_property: bool = True


class Native:
    """Base of the bound classes; `_args` says what they take."""

    _args: ClassVar[tuple[Arg, ...]] = ()
    _positional: ClassVar[int | None] = None
    """How many may be positional; None: all."""
    _dynamic: ClassVar[bool] = False
    """True when unknown attributes may be set."""
    _stored: dict[str, Any]

    def __init_subclass__(cls) -> None:
        cls.__module__ = "tensorrt_llm.bindings.executor"
        for arg in cls._args:
            if arg.is_property:
                setattr(cls, arg.name, _property(arg))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "_stored", _bind(type(self), args, kwargs))
        self._validate()

    if TYPE_CHECKING:  # the properties are made from `_args`

        def __getattr__(self, name: str) -> Any: ...

    def _validate(self) -> None:
        """Checks of the C++ constructor."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (self._dynamic or name.startswith("_") or hasattr(type(self), name)):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        object.__setattr__(self, name, value)


def _property(arg: Arg) -> property:
    def read(self: Native) -> Any:
        value = self._stored[arg.name]
        return value if arg.by_reference else copy.deepcopy(value)

    def write(self: Native, value: Any) -> None:
        before = self._stored[arg.name]
        try:
            self._stored[arg.name] = copy.deepcopy(arg.cast(value))
        except Mismatch:
            raise TypeError(_refusal(type(self), (arg,), (value,), {})) from None
        try:
            self._validate()
        except RuntimeError:
            self._stored[arg.name] = before
            raise

    return property(read, None if arg.read_only else write)


def _bind(cls: type[Native], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    limit = len(cls._args) if cls._positional is None else cls._positional
    names = {arg.name for arg in cls._args}
    given = dict(zip((arg.name for arg in cls._args), args, strict=False))
    wrong = len(args) > limit or given.keys() & kwargs.keys() or kwargs.keys() - names
    given.update(kwargs)
    stored: dict[str, Any] = {}
    try:
        for arg in cls._args:
            if arg.name not in given and arg.default is REQUIRED:
                raise Mismatch
            default = arg.default() if callable(arg.default) else arg.default
            value = given.get(arg.name, default)
            stored[arg.name] = copy.deepcopy(arg.cast(value))
    except Mismatch:
        wrong = True
    if wrong:
        raise TypeError(_refusal(cls, cls._args, args, kwargs))
    return stored


def _refusal(
    cls: type[Native], accepted: tuple[Arg, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    kind = "function" if at_least(1, 0) else "constructor"
    names = ", ".join(arg.name for arg in accepted)
    given = ", ".join(
        [type(a).__name__ for a in args] + [f"{k}: {type(v).__name__}" for k, v in kwargs.items()]
    )
    return (
        f"__init__(): incompatible {kind} arguments. The following argument types are supported:\n"
        f"    1. {cls.__name__}({names})\n\nInvoked with types: {given}"
    )


def integer(bits: int, *, signed: bool = True) -> Cast:
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)

    def cast(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < high:
            raise Mismatch
        return value

    return cast


int32, uint64, size_t = integer(32), integer(64, signed=False), integer(64, signed=False)


def float32(value: Any) -> float:
    """A C++ float: what comes back is rounded."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Mismatch
    return float(struct.unpack("f", struct.pack("f", value))[0])


def of(*types: type) -> Cast:
    def cast(value: Any) -> Any:
        if not isinstance(value, types):
            raise Mismatch
        return value

    return cast


boolean, text, duration = of(bool), of(str), of(timedelta)


def optional(inner: Cast) -> Cast:
    """std::optional: None, or what `inner` takes."""
    return lambda value: None if value is None else inner(value)


def vector(inner: Cast) -> Cast:
    """std::vector or std::list from any sequence but text."""

    def cast(value: Any) -> list[Any]:
        if isinstance(value, str | bytes) or not hasattr(value, "__getitem__"):
            raise Mismatch
        return [inner(item) for item in value]

    return cast


def anything(value: Any) -> Any:
    return value


def kept(*names: str) -> tuple[Arg, ...]:
    """Arguments of features that are not modelled: neither checked nor used."""
    return tuple(Arg(name, optional(anything), None) for name in names)
