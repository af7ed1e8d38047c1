"""The corpus that drafts may come from: reading and writing texts and kept token ids.

A token file is JSON lines: the first describes the vocabulary, each other one holds a text's ids.
The tokenizer's hash stands for the vocabulary, and distinguishes files of other models.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trtla.errors import TrtlaWarning, UsageError, named
from trtla.files import parse_jsonl, read_text, write_whole, written
from trtla.formats.engine import Engine
from trtla.llm.text import Tokenizer
from trtla.runtime.tree.library import MOST_TOKENS
from trtla.settings.drafting import refuse_texts
from trtla.settings.fields import texts

Ids = tuple[int, ...]
_VERSION = 1
_MARK = '{"trtla_corpus"'
"""The beginning of a token file."""


class _Head(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    trtla_corpus: int
    vocab_size: int
    vocabulary: str | None
    """A hash of the tokenizer's tokens; None: the model had no tokenizer."""


class _Tokens(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ids: list[int]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)  # data sets have other keys as well

    text: str


class Corpus:
    """Reads and writes texts in a model's vocabulary."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._vocab_size = engine.config.pretrained_config.vocab_size
        self._unread: list[str | Ids] = []
        """Texts beyond the number that drafts come from."""

    def read(self, paths: str | Path | Sequence[str | Path]) -> list[Ids]:
        """Return the token ids of texts in text files, .jsonl files and token files, in order.

        Of more than a million tokens the last million are returned, with a `TrtlaWarning`; `write`
        puts the earlier ones before them.
        """
        several = [paths] if isinstance(paths, (str, Path)) else paths
        named = texts("corpus", [str(path) for path in several], "paths")
        if named and self._engine.backend == "tensorrt-llm":
            raise refuse_texts(self._engine.name, "a corpus")
        unread = [text for path in named for text in self._texts(Path(path))]
        kept: list[Ids] = []
        room, cut = MOST_TOKENS, False
        while unread and not cut:
            text = unread.pop()
            ids = self._ids(text)
            first = max(len(ids) - room, 0)
            kept.append(ids[first:])
            cut, room = first > 0, room - len(kept[-1])
            if cut:
                unread.append(ids[:first])
        self._unread = unread
        if cut:
            warnings.warn(
                f"the corpus is longer than {MOST_TOKENS:,} tokens: its last {MOST_TOKENS:,} are "
                "kept, earlier ones are not drafted from",
                TrtlaWarning,
                stacklevel=3,
            )
        return [ids for ids in reversed(kept) if ids]

    def write(self, path: Path, kept: Sequence[Ids]) -> None:
        """Write a token file, whole: texts read but not returned, then `kept`. Only another such
        file may be replaced.
        """
        check_replaced(path)
        head = _Head(
            trtla_corpus=_VERSION, vocab_size=self._vocab_size, vocabulary=self._vocabulary
        )
        every = filter(None, (*map(self._ids, self._unread), *kept))
        lines = [head.model_dump(), *({"ids": ids} for ids in every)]
        with written(path, "choose another path"):
            write_whole(path, "".join(json.dumps(line) + "\n" for line in lines))

    @property
    def _vocabulary(self) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.fingerprint

    def _texts(self, path: Path) -> Iterator[str | Ids]:
        """Yield a file's texts, or the ids of its texts."""
        text = read_text(path)
        if text.startswith(_MARK):
            yield from self._kept(path, text)
            return
        if self._tokenizer is None:
            raise UsageError(
                f"{path} holds text, and the model has no tokenizer files",
                f"give the tokenizer with {named('tokenizer_dir')}, or a file of "
                f"{named('save_corpus')}",
            )
        contents = [text]
        if path.suffix.lower() == ".jsonl":
            contents = [line.text for _, line in parse_jsonl(_Line, text, str(path))]
        if not any(map(str.strip, contents)):
            raise UsageError(
                f"{path} holds no text", 'give a text file, or {"text": "..."} lines in a .jsonl'
            )
        yield from contents

    def _kept(self, path: Path, text: str) -> Iterator[Ids]:
        first, _, lines = text.partition("\n")
        ((_, head),) = parse_jsonl(_Head, first, str(path))
        if head.trtla_corpus != _VERSION:
            raise UsageError(
                f"{path} has format {head.trtla_corpus}, and this release reads {_VERSION}",
                f"write it again with {named('save_corpus')}",
            )
        self._check_vocabulary(path, head)
        for where, line in parse_jsonl(_Tokens, lines, f"{path} after its first line"):
            if not all(0 <= token < self._vocab_size for token in line.ids):
                raise UsageError(
                    f"{where} holds ids outside the vocabulary of {self._vocab_size}",
                    f"write it again with {named('save_corpus')}",
                )
            yield tuple(line.ids)

    def _check_vocabulary(self, path: Path, head: _Head) -> None:
        ours = self._vocabulary
        known = None not in (ours, head.vocabulary)
        if head.vocabulary != ours if known else head.vocab_size != self._vocab_size:
            raise UsageError(
                f"{path} holds token ids of another tokenizer ({head.vocab_size} tokens; this "
                f"model has {self._vocab_size})",
                "use it with the model that it was saved with, or give the texts themselves",
            )

    def _ids(self, text: str | Ids) -> Ids:
        """Encode a text that may occur anywhere in an output."""
        if not isinstance(text, str):
            return text
        return () if self._tokenizer is None else self._tokenizer.encode(text, special=False)


def check_replaced(path: Path) -> None:
    """Refuse a path with anything else than a token file or an empty file."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(_MARK))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"{path} cannot be replaced: {error.strerror}", "choose another path"
        ) from None
    if begins not in (b"", _MARK.encode()):
        raise UsageError(
            f"{path} is there and was not written by {named('save_corpus')}", "choose another path"
        )
