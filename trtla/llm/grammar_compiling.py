"""Compiling grammars by `llguidance`, first in a process that it may end or keep busy."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, install_hint
from trtla.runtime.grammar_lexer import AMPLE_FUEL, STEP_FUEL
from trtla.settings.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_MOST_STATES = 50_000
"""The most states of a grammar's lexer, some 0.6 kB each."""
_STEP_ITEMS = 50_000
"""The most items of a parser for one mask."""
_MOST_ITEMS = 2000
"""The most items of a parser's row beside the grammar's own alternatives, such as a schema's keys:
a rule that repeats from the right makes ever more of them."""
_HARMLESS = 2000
"""Characters up to which only a word lets a grammar take long."""
_WORD = "multipleOf"
_JSON = "%json"
"""In which users may write the word with escapes."""
_MOST_S = 1
_MOST_BYTES = 1 << 30
_STACK_BYTES = 6 << 20
"""Less than any thread has that compiles."""


def llguidance() -> Any:
    """Import the library, which is an extra."""
    try:
        import llguidance
    except ImportError:
        raise UsageError(
            "a grammar needs the package llguidance, which is not installed",
            install_hint("structured"),
        ) from None
    return llguidance


def compiled(
    grammar: Grammar, spelling: LLTokenizer | None = None, *, ample: bool = False
) -> LLMatcher:
    """Compile a grammar, for a tokenizer of bytes without another.

    An error may be raised as `ValueError`, and may be the matcher's.

    Args:
        ample: with the limits that decide if a mask takes too much.
    """
    library = llguidance()
    spelling = spelling or library.LLTokenizer("byte")
    text = _behind(grammar, _written(library, grammar))
    limits = library.LLParserLimits(
        step_lexer_fuel=AMPLE_FUEL if ample else STEP_FUEL,
        step_max_items=_STEP_ITEMS << ample,
        max_lexer_states=_MOST_STATES << ample,
        max_items_in_row=_MOST_ITEMS + len(text) // 2,
        verbose_errors=True,  # they have the fuel that was burnt
    )
    matcher: LLMatcher = library.LLMatcher(spelling, text, log_level=0, limits=limits)
    return matcher


def _written(library: Any, grammar: Grammar) -> str:
    if grammar.kind in ("json_schema", "json_object"):
        how = {"whitespace_pattern": grammar.blanks}
        return str(library.LLMatcher.grammar_from_json_schema(grammar.text, overrides=how))
    if grammar.kind == "choice":  # as one terminal: rules may have 2000 alternatives
        texts = " | ".join(map(json.dumps, json.loads(grammar.text)))
        return f"start: TEXT\nTEXT: {texts}"
    if grammar.kind == "regex":
        return str(library.grammar_from("regex", with_ascii(grammar.text)))
    return str(library.grammar_from("grammar", grammar.text))


_PIECE = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL)
_ASCII = {r"\d": "0-9", r"\w": "0-9A-Za-z_"}


def with_ascii(pattern: str) -> str:
    """The expression with digits and words of ASCII, as in a schema's `pattern`: llguidance's are
    those of all scripts."""
    written, depth = [], 0
    for piece in _PIECE.findall(pattern):
        own = _ASCII.get(piece, "")
        written.append((own if depth else f"[{own}]") if own else piece)
        depth += piece.startswith("[") - (piece == "]" and depth > 0)
    return "".join(written)


def _behind(grammar: Grammar, written: str) -> str:
    """The rules behind what is in front: other rules, or a mark and at most two blanks."""
    if not (grammar.behind or grammar.front):
        return written
    is_lark = grammar.kind in ("lark", "choice")
    parts = [{"lark_grammar": written}] if is_lark else json.loads(written)["grammars"]
    opened, mark = (
        re.escape(mark).replace("/", r"\/") for mark in (grammar.opened, grammar.behind)
    )
    start = f"start: {'@rest | ' if opened else ''}front BLANKS @rest"
    front = f"{start}\nfront[lazy]: /{opened}(?s:.*){mark}/\nBLANKS: /[\\n ]{{0,2}}/"
    if grammar.front:
        front = f"start: front @rest\n{grammar.front}"
    parts[0]["name"] = "rest"
    return json.dumps({"grammars": [{"name": "front", "lark_grammar": front}, *parts]})


def takes_long(text: str) -> bool:
    """Return True if a grammar of this text may take long to compile."""
    return len(text) > _HARMLESS or _WORD in text or _JSON in text


def why_not(grammar: Grammar) -> str:
    """Return why a grammar cannot be compiled; empty: it may have an error, but can be tried."""
    if not takes_long(grammar.text.replace(_JSON, "") if grammar.parts else grammar.text):
        return ""
    path = f"import sys; sys.path[:] = {sys.path!r}"
    done = subprocess.run(
        [sys.executable, "-c", f"{path}; from {__name__} import main; main()"],
        input=json.dumps(
            [grammar.kind, grammar.text, grammar.whitespace_pattern, grammar.parts]
        ).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a terminal's Ctrl-C is not for it
        check=False,
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it takes more than {_MOST_S} s to compile"
    return "it is too large, or nested too deeply" if done.returncode else ""


@lru_cache(1024)
def can_keep(grammar: Grammar) -> bool:
    """Return True if texts can be kept to a grammar, for a tokenizer of bytes."""
    if why_not(grammar):
        return False
    try:
        matcher = compiled(grammar)
        return any(matcher.compute_bitmask()) and not matcher.is_error()
    except ValueError:
        return False


def beginning(grammar: Grammar, texts: Iterable[str]) -> str | None:
    """Return the first of these texts that one of a grammar may begin with; None: there is none,
    or the grammar cannot be compiled."""
    if why_not(grammar):
        return None
    try:
        matcher = compiled(grammar)
        return next((text for text in texts if _takes(matcher.deep_copy(), text.encode())), None)
    except ValueError:
        return None


def _takes(matcher: LLMatcher, data: bytes) -> bool:
    return bool(matcher.try_consume_tokens(list(data)) == len(data))


def main() -> None:
    """Compile the grammar that comes on stdin for a tokenizer of bytes."""
    kind, text, pattern, parts = json.load(sys.stdin)
    grammar = Grammar(kind, text, whitespace_pattern=pattern, parts=tuple(parts))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(spent.ru_utime + spent.ru_stime) + 1 + _MOST_S
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with suppress(ValueError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK_BYTES)
    trial = threading.Thread(target=compiled, args=(grammar,))
    trial.start()
    trial.join()
