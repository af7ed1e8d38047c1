"""Values of slash commands: how each kind is parsed, shown and completed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path
from typing import Any

import click

from trtla.errors import UsageError
from trtla.files import parse_json
from trtla.settings.drafting import DRAFT_PREFIX, DRAFTERS, NGRAM_KINDS, parse_drafter
from trtla.settings.fields import Declared, check_text, shown
from trtla.settings.grammar import Grammar, GrammarKind
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import EXAMPLES, Filters, parse_processor


@dataclass(frozen=True, slots=True)
class Known:
    """Values for completion besides fixed words."""

    triple: str = "7,7,7"
    draft_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """One kind of value."""

    usage: str
    """The form in /help."""
    parse: Callable[[str], Any]
    """Raises UsageError, or click's BadParameter."""
    show: Callable[[Any], str] = str
    """Formats a value as it would be typed."""
    examples: Callable[[Known, str], Iterable[str]] = lambda known, typed: ()
    """Returns completions, including some that do not continue the typed text."""
    list: bool = False
    """True if commas separate several values."""


def _of_click(kind: Any) -> Callable[[str], Any]:
    return lambda text: kind.convert(text, None, None)


def _choice(words: tuple[str, ...]) -> Value:
    kind = click.Choice(words, case_sensitive=False)
    return Value("|".join(words), _of_click(kind), examples=lambda known, typed: words)


def _or_word(value: Value, word: str, empty: Any = None) -> Value:
    return Value(
        f"{value.usage}|{word}",
        lambda text: empty if text.lower() == word else value.parse(text),
        lambda present: word if present == empty else value.show(present),
        lambda known, typed: (*value.examples(known, typed), word),
    )


def _parse_texts(text: str) -> Any:
    if not text.startswith('"'):
        return (text,)
    try:
        return tuple(parse_json(f"[{text}]"))
    except ValueError:
        raise UsageError(
            f"{shown(text)} is not texts in quotes", 'write END, or "END", "\\n"'
        ) from None


def _parse_system(text: str) -> str:
    check_text(text, "the system message")
    return text


def _show_filters(filters: Filters) -> str:
    """Return the shortest processor for these filters."""
    temperature, top_k, top_p = filters
    if temperature == 0:
        return "greedy"
    values = [f"{temperature:g}", *([str(top_k)] if top_k else [])]
    if top_p == 1:
        return " ".join(["topk" if top_k else "multinomial", *values])
    return " ".join(["topknucleus" if top_k else "nucleus", *values, f"{top_p:g}"])


def _parse_file(text: str) -> Path:
    if not text:
        raise UsageError("no file is named", "write a path, such as chat.json")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text} names a user that is not known", "write the path") from None


def _files(known: Known, typed: str) -> list[str]:
    try:
        folder = Path(typed).expanduser() if typed.startswith("~") else typed
        paths = sorted(glob(f"{escape(str(folder))}*"))
    except (OSError, RuntimeError, ValueError):
        return []
    return [f"{path}/" if Path(path).is_dir() else path for path in paths]


_STATE = _choice(("on", "off"))
TOGGLE = Value(
    "[on|off]",
    lambda text: _STATE.parse(text) == "on",
    lambda on: "on" if on else "off",
    _STATE.examples,
)
"""Without a value it switches to the other state."""
_ALL = _choice(("all",))
MORE = Value("[all]", lambda text: bool(text and _ALL.parse(text)), examples=_ALL.examples)
"""The extent of /help."""
WHOLE = Value("N", _of_click(click.INT))
REAL = Value("X", _of_click(click.FLOAT), "{:g}".format)
COLORS = _choice(("accepted", "source"))
TEXTS = _or_word(
    Value("TEXT", _parse_texts, lambda texts: json.dumps(texts, ensure_ascii=False)[1:-1]),
    "none",
    (),
)
SYSTEM = _or_word(Value("TEXT", _parse_system, lambda text: " ".join(text.split())), "off", "")
LOOKAHEAD = _or_word(
    Value(
        "W,N,G|auto",
        lambda text: "auto" if text.lower() == "auto" else LookaheadConfig.parse(text.lower()),
        lambda value: "the default" if value is None else str(value),
        lambda known, typed: (known.triple, "auto"),
    ),
    "off",
    AUTOREGRESSIVE,
)
DRAFTER = Value(
    "NAME,...",
    parse_drafter,
    ",".join,
    lambda known, typed: (*DRAFTERS, *(DRAFT_PREFIX + path for path in known.draft_models)),
    list=True,
)
PROCESSOR = Value(
    "NAME [VALUE...]",
    lambda text: parse_processor(":".join(text.replace(":", " ").split())),
    _show_filters,
    lambda known, typed: (example.replace(":", " ") for example in EXAMPLES),
)
"""(temperature, top_k, top_p)."""
_NGRAM_KIND, _NGRAM_ORDER = _choice(NGRAM_KINDS), Value("N", _of_click(click.INT))


def _parse_storage(text: str) -> tuple[Any, Any]:
    kind, _, order = text.strip().partition(" ")
    return _NGRAM_KIND.parse(kind), _NGRAM_ORDER.parse(order.strip())


NGRAM_STORAGE = Value(
    f"{_NGRAM_KIND.usage} {_NGRAM_ORDER.usage}",
    _parse_storage,
    lambda pair: "{} {}".format(*pair),
    _NGRAM_KIND.examples,
)
"""The kind and the order of n-grams."""
FILE = Value("FILE", _parse_file, examples=_files)
BIASES = _or_word(
    Value(
        "ID:BIAS,...", str, lambda pairs: ",".join(f"{token}:{number:g}" for token, number in pairs)
    ),
    "none",
    (),
)


def _parse_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{shown(text)} is not token ids", "write 17,42") from None


IDS = _or_word(Value("ID,...", _parse_ids, lambda ids: ",".join(map(str, ids))), "none", ())


def grammar_value(kind: GrammarKind, usage: str) -> Value:
    """Return the value of the commands for a kind of grammar; one replaces any other."""
    return _or_word(
        Value(
            usage,
            lambda text: Grammar.typed(kind, text),
            lambda grammar: grammar.text if grammar.kind == kind else "off",
            (lambda known, typed: ()) if kind == "regex" else _files,
        ),
        "off",
    )


def value_of(setting: Declared) -> Value:
    """Return the kind of value of a setting; the settings check its range."""
    if setting.is_texts:
        return TEXTS
    if setting.is_ids:
        return IDS
    if setting.is_biases:
        return BIASES
    if setting.choices:
        return _choice(setting.choices)
    if setting.type is bool:
        return TOGGLE
    number = REAL if setting.type is float else WHOLE
    return (
        _or_word(number, (setting.option.shown or "none").lstrip("-"))
        if setting.optional
        else number
    )
