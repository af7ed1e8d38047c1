"""Token ids to text, piece by piece: the tokenizer, incremental decoding and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trtla.arguments import check_text
from trtla.build.hugging_face import load_tokenizer
from trtla.errors import UsageError, first_line
from trtla.runtime.tokenizer_json import open_tokenizer_json

Decode = Callable[[Sequence[int]], str]
"""Ids to text without special tokens and without any tidying of spaces."""

_CONTEXT = 6  # prompt tokens decoded along, so that the first piece keeps its leading space
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # what decoders show for an unfinished UTF-8 sequence


class Tokenizer:
    """A Hugging Face tokenizer, reduced to what generation needs."""

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer files of a folder; raises `UsageError` when they cannot be used."""
        self._folder = folder
        self._plain = open_tokenizer_json(folder)
        if self._plain is None:
            _ = self.inner  # a folder that cannot be used is told now

    @cached_property
    def inner(self) -> Any:
        """The tokenizer in transformers, loaded when it is asked for."""
        return load_tokenizer(self._folder)

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Ids of a text; `special`: with the special tokens that the model wants in front.

        Raises:
            UsageError: the text cannot be encoded in UTF-8.
        """
        check_text(text, "the text")
        if self._plain is not None:
            return tuple(self._plain.encode(text, add_special_tokens=special).ids)
        ids = self.inner.encode(text, add_special_tokens=special, verbose=False)
        return tuple(ids)  # lengths are checked by limits

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        if self._plain is not None:
            return str(self._plain.decode(list(ids), skip_special_tokens=True))
        text = self.inner.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    @cached_property
    def has_chat_template(self) -> bool:
        """Whether the model comes with a chat template; transformers is loaded if one is likely."""
        return _may_have_template(self._folder) and bool(self.inner.chat_template)

    def chat_text(self, messages: Sequence[dict[str, str]]) -> str:
        """Messages (role, content) in the chat template, up to where the next answer begins.

        Raises:
            UsageError: the template cannot be filled in with them.
        """
        try:
            text = self.inner.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # jinja2's, and whatever a template raises
            raise UsageError(
                f"the chat template in {self._folder} fails: {first_line(error)}",
                "go on without it: /chat off",
            ) from None
        return str(text)


def _may_have_template(folder: Path) -> bool:
    if any(folder.glob("chat_template*")):
        return True
    try:
        return '"chat_template"' in (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


class TextStream:
    """The text of one output, growing as tokens come.

    Pieces are final: an unfinished UTF-8 sequence and anything that may still become a stop string
    are held back, and the text ends before the stop string.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self._ids = list(prompt[-_CONTEXT:])
        self._start = 0  # decoding starts here, some tokens before the first new one
        self._read = len(self._ids)
        self._text = ""
        self._sent = 0

    def push(self, ids: Sequence[int], *, last: bool = False) -> str:
        """Add tokens; returns the text that is now certain. With `last` all of it."""
        self._ids += ids
        self._extend(last)
        end = len(self._text) - (0 if last else self._held_back())
        if last:
            end = min([end, *(at for s in self._stop if (at := self._text.find(s)) >= 0)])
        piece = self._text[self._sent : end]
        self._sent = max(self._sent, end)
        return piece

    def _extend(self, last: bool) -> None:
        before = self._decode(self._ids[self._start : self._read])
        after = self._decode(self._ids[self._start :])
        if len(after) <= len(before) or (after.endswith(_BROKEN) and not last):
            return
        self._text += after[len(before) :]
        self._start, self._read = self._read, len(self._ids)

    def _held_back(self) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop), len(self._text)), longest, -1):
                if self._text.endswith(stop[:length]):
                    longest = length
                    break
        return longest


class StopStrings:
    """Says whether the text of an output holds a stop string, looking at its end only."""

    def __init__(self, decode: Decode, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self._prompt = list(prompt[-_CONTEXT:])
        # A token has at least one byte, so this many tokens hold every stop string that ends in the
        # last.
        self._tail = max(len(s.encode()) for s in stop) + _CONTEXT

    def __call__(self, ids: list[int]) -> bool:
        if len(ids) > self._tail:
            text = self._decode(ids[-self._tail :])
        else:
            text = TextStream(self._decode, self._prompt, ()).push(ids, last=True)
        return any(stop in text for stop in self._stop)
