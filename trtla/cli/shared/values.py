"""Types of flag values: counts such as 8k, devices, texts, lists. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from trtla.errors import TrtlaError
from trtla.settings.value_types import LookaheadType, TripleType, ValueType, starting

_COUNT = re.compile(r"(\d{1,12})([kK]?)")
_SIZE = re.compile(r"(\d{1,12}) ?([kKmMgG]?)(i?)[bB]?")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,4})?")
_FACTOR = {"": 1, "k": 1000, "K": 1024}


class CountType(ValueType):
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


class SizeType(ValueType):
    """A number of bytes; `64KiB` is 65536 and `1MB` is 1000000."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number and its unit."""
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size such as 64KiB, 1MiB or 500000.", param, ctx)
        base = 1024 if match[3] else 1000
        return int(match[1]) * int(base ** " KMG".index(match[2].upper() or " "))


class DeviceType(ValueType):
    """auto, cpu, cuda or cuda:N."""

    name = "auto|cpu|cuda"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the name; whether the device is there is seen when the engine is opened."""
        if not _DEVICE.fullmatch(str(value)):
            self.fail(f"{value!r} is none of auto, cpu, cuda, cuda:N.", param, ctx)
        return str(value)


class TextType(ValueType):
    """A text; several in an environment variable are separated by newlines, not by spaces."""

    name = "text"
    envvar_list_splitter = "\n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take it as it is."""
        return str(value)


class ListType(ValueType):
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
SIZE = SizeType()
DEVICE = DeviceType()
TEXT = TextType()
NAMES = ListType(TEXT)
COUNTS = ListType(COUNT)
TOKEN_COUNTS = ListType(TOKENS)
DEVICES = ListType(DEVICE)
NUMBERS = ListType(click.FLOAT)


_TRIPLES = ("3,3,3", "5,5,5", "7,7,7")
_FOLDERS = ("draft_model",)  # beside all names that end with _dir


_NAMES = {
    "compare": ("trtla.bench.arms:PEERS",),
    "prompts": ("trtla.data.prompt_sets:SHIPPED",),
    "categories": ("trtla.data.prompt_sets:SHIPPED", "trtla.bench.ablation_arms:TASKS"),
    "arms": ("trtla.bench.ablation_arms:METHODS",),
    "drafter": ("trtla.settings.drafting:DRAFTERS", "trtla.settings.drafting:DRAFT_PREFIX"),
    "processor": ("trtla.settings.sampling:EXAMPLES",),
    "dataset": ("trtla.data.prompt_sets:CNN_DAILYMAIL",),
    "gpu": ("trtla.tune.plan:GPUS",),
    "grid_ngram_kind": ("trtla.settings.drafting:NGRAM_KINDS",),
    "dtype": ("trtla.settings.executor:DTYPE_NAMES",),
}
"""Where the names are that a flag takes: `module:name`, imported when a shell asks."""


def _names(places: Iterable[str]) -> Iterator[str]:
    for place in places:
        module, _, name = place.partition(":")
        found = getattr(import_module(module), name)
        yield from [found] if isinstance(found, str) else found


_OR_A_FILE = ("prompts", "dataset")
_CHAINS = ("drafter",)  # texts with commas between


def choices(
    param: click.Parameter, ctx: click.Context, incomplete: str
) -> list[CompletionItem] | None:
    """What the shell is offered for a flag's value; None leaves that to the flag's type."""
    name = param.name or ""
    if name.endswith("_dir") or name in _FOLDERS:
        return [CompletionItem(incomplete, type="dir")]
    if isinstance(param.type, click.Choice):
        return None
    if isinstance(param.type, TripleType):
        return starting(_triples(param.type, ctx), incomplete)
    known = _known(param)
    if known is None:
        return None
    found = starting(known, incomplete, part=isinstance(param.type, ListType) or name in _CHAINS)
    if not found and name in _OR_A_FILE:
        return [CompletionItem(incomplete, type="file")]
    return found


def _known(param: click.Parameter) -> Iterable[str] | None:
    inner: Any = param.type.inner if isinstance(param.type, ListType) else param.type
    if isinstance(inner, DeviceType):
        return ("auto", "cpu", "cuda")
    places = _NAMES.get(param.name or "")
    return None if places is None else dict.fromkeys(_names(places))


def _triples(kind: TripleType, ctx: click.Context) -> Sequence[str]:
    """The engine's own first, and auto where it may stand."""
    own = _engines_own(ctx.params.get("engine_dir"))
    auto = ("auto",) if isinstance(kind, LookaheadType) else ()
    return list(dict.fromkeys((*own, *auto, *_TRIPLES)))


def _engines_own(engine_dir: object) -> tuple[str, ...]:
    from trtla.files import read_json, validate
    from trtla.formats.config import EngineManifest

    if isinstance(engine_dir, str):
        path = Path(engine_dir).expanduser() / "trtla.json"
        with suppress(TrtlaError, OSError):
            return (str(validate(EngineManifest, read_json(path), str(path)).triple),)
    return ()
