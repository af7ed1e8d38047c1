"""Grammars as `llguidance` reads them, for one tokenizer; it is loaded for the first of them."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING

from trtla.errors import UsageError, first_line
from trtla.llm.grammar_compiling import compiled, llguidance, why_not
from trtla.llm.text import Tokenizer
from trtla.runtime.grammar import GrammarStart, GrammarState
from trtla.runtime.grammar_lexer import CompiledGrammar
from trtla.settings.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT = 32
"""Grammars that stay compiled, the last ones used."""
_MOST_FORCED = 1 << 13
"""Fixed tokens at the beginning of a text: all are computed again at each of them."""
_KEPT_TEXTS, _SHORT = 2048, 256
"""Fixed texts whose tokens are remembered, and their longest in bytes: each step asks again for the
same keys and names."""
_LONGEST = 16
"""Bytes of a token that a text is written with where the tokenizer does not write it."""


class _Spelling:
    """A tokenizer as `llguidance` takes it."""

    bos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Sequence[int]) -> None:
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocab_size)]
        self._no_text = tokenizer.control_ids.union(end_ids)
        self.special_token_ids = [one for one in sorted(self._no_text) if one < vocab_size]
        self.eos_token_id = end_ids[0]
        self._bytes = tokenizer.byte_tokens
        self._encode = partial(tokenizer.encode, special=False)
        self._known = lru_cache(_KEPT_TEXTS)(self._ids)

    def __call__(self, text: bytes | str) -> list[int]:
        """The tokens of a text in the middle of another: without a space that some add in front."""
        data = text if isinstance(text, bytes) else text.encode()
        return list((self._known if len(data) <= _SHORT else self._ids)(data))

    def _ids(self, data: bytes) -> Sequence[int]:
        for before in (b"", b"\n"):
            ids = self._encode((before + data).decode())
            if not self._no_text.isdisjoint(ids):  # a control token's name, which is text here
                break
            parts = [self.tokens[token] for token in ids]
            for skipped in range(min(len(ids), 3)):
                if b"".join(parts[skipped:]) == data:
                    return ids[skipped:]
        return self._by_longest(data)

    def _by_longest(self, data: bytes) -> Sequence[int]:
        """The longest tokens one after another, for a text that the tokenizer reads otherwise, such
        as one with a control token's name; none if there are no such tokens."""
        ids: list[int] = []
        at = 0
        while at < len(data):
            parts = (data[at : at + size] for size in range(_LONGEST, 0, -1))
            part = next((part for part in parts if part in self._by_text), b"")
            if not part:
                return ()
            ids.append(self._by_text[part])
            at += len(part)
        return ids

    @cached_property
    def _by_text(self) -> dict[bytes, int]:
        """Tokens by their bytes; a byte's own token only where no other has that text."""
        ids = set(range(len(self.tokens))).difference(self._no_text)
        ordered = sorted(ids, key=lambda token: token not in self._bytes)
        return {self.tokens[token]: token for token in ordered}


class GrammarCompiler:
    """Compiles grammars; any number of threads may use it.

    Args:
        vocab_size: of the model's logits.
        end_ids: the tokens that end a text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._end_ids = tuple(sorted(end_ids))
        self._lock = Lock()
        self._spelling: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, CompiledGrammar | UsageError] = OrderedDict()

    def start(self, grammar: Grammar) -> GrammarStart:
        """Compile a grammar; the result makes its state at the beginning of an output.

        Raises:
            UsageError: the grammar is none, allows no text, or takes too much computing; the model
                has no end token; or llguidance is not installed.
        """
        if not self._end_ids:
            raise UsageError(
                "the model has no end token, with which a text of a grammar would end",
                "omit the grammar, or use a model with an end token",
            )
        spelling = self.prepare()
        with self._lock:
            known = self._compiled.get(grammar)
        if known is None:
            known = _tried(spelling, grammar)
        with self._lock:
            self._compiled[grammar] = known
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        if isinstance(known, UsageError):
            raise known.within("")
        return lambda: GrammarState(known, self._end_ids, self._vocab_size)

    def prepare(self) -> LLTokenizer:
        """Return the tables of the tokenizer, which are computed once: for up to 0.3 s no other
        thread runs."""
        with self._lock:
            self._spelling = self._spelling or self._spelt()
            return self._spelling

    def _spelt(self) -> LLTokenizer:
        library, count = llguidance(), self._vocab_size
        spelling = _Spelling(self._tokenizer, count, self._end_ids)
        wrapped = library.TokenizerWrapper(spelling)
        result: LLTokenizer = library.LLTokenizer(
            wrapped, n_vocab=count, eos_token=list(self._end_ids)
        )
        return result


def _tried(spelling: LLTokenizer, grammar: Grammar) -> CompiledGrammar | UsageError:
    """Compile a grammar, or return why it cannot be used: the next request may have it again."""
    try:
        if why := why_not(grammar):
            return _refusal(grammar, why)
        return CompiledGrammar(partial(_matcher, spelling, grammar))
    except UsageError as error:
        return error


def _matcher(spelling: LLTokenizer, grammar: Grammar, ample: bool) -> LLMatcher:
    try:
        matcher = compiled(grammar, spelling, ample=ample)
    except ValueError as error:
        raise _refusal(grammar, error) from None
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error():
        raise _refusal(grammar, matcher.get_error())
    if not any(mask):
        raise _refusal(grammar, "it allows no text")
    if (forced := len(matcher.compute_ff_tokens())) > _MOST_FORCED:
        raise _refusal(grammar, f"its texts begin with {forced} fixed tokens, above {_MOST_FORCED}")
    return matcher


_PLACE = re.compile(
    r"at (\d+)\(\d+\): (?:invalid regex .* \(in regex\): |failed to compile JSON .*?: )?"
)
_OF_GBNF = "Failed to convert the grammar from GBNF to Lark: "
_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*)\]")
_ONE_OF = re.compile(r"oneOf constraints are not supported.*")


def _refusal(grammar: Grammar, reason: object) -> UsageError:
    text = str(reason).partition("\n<state>")[0]
    place = _PLACE.match(text)
    if place and (grammar.kind != "lark" or grammar.parts):  # nobody has seen the rules
        text = text[place.end() :]
    told = text.rpartition("\nerror: ")[2]  # a regex's faults are drawn above their reason
    if told.startswith("NoExtension"):
        told = "it allows no text that the tokenizer can write"
    name = grammar.part(int(place[1]) if place else 0)
    why, hint = _in_words(first_line(told.removeprefix(_OF_GBNF)))
    return UsageError(f"{name} cannot be used: {why}", hint)


def _in_words(reason: str) -> tuple[str, str]:
    """Return the fault of a grammar and a hint, where llguidance names its own options."""
    if found := _KEYWORDS.search(reason):
        named = found[1]
        return (
            f"no text can be kept to its keyword {named}",
            f"omit {named}, and check the text for it",
        )
    if _ONE_OF.search(reason):
        return "the alternatives of its oneOf cannot be told apart", "use anyOf, which takes any"
    return reason, "correct or simplify it"
