"""Harmony, OpenAI's format of answers in messages, each with a channel, as gpt-oss writes them.

The marks between the messages are control tokens. A text that is split here has a sign for each,
which no decoder makes of letters: what merely spells a mark stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from trtla.api.call_notations import NAME, InJson
from trtla.api.reasoning import BEGIN, END, State
from trtla.api.strict import Object
from trtla.api.tools import call_of
from trtla.llm import stops
from trtla.llm.text import Tokenizer

Json = dict[str, Any]
_NAMES = ("start", "channel", "constrain", "message", "end", "return", "call")
SIGNS = {f"<|{name}|>": sign for name, sign in zip(_NAMES, stops.SIGNS, strict=True)}
"""The sign of each mark."""
_, _CHANNEL, _CONSTRAIN, _MESSAGE = list(SIGNS.values())[:4]
_ANY = f"[{stops.SIGNS}]"
_PIECE = re.compile(f"{_ANY}|{_ANY.replace('[', '[^')}+")
_ANALYSIS = re.compile(rf"{_CHANNEL}\s*analysis\b")
_RECIPIENT = re.compile(rf"\bto=(?:functions\.)?({NAME}+)")
_NO_HEADER = re.compile(rf"\s*(?!{_ANY}|to=|to?$)\S")
"""An answer that begins without a mark."""
_ASKED = "<|start|>assistant"
_JOINT = "\n\n"
"""Between two messages that are the same part of an answer."""


def speaks_harmony(tokenizer: Tokenizer | None, *, tools: bool) -> bool:
    """Return True if a chat template has these marks, and all of them are control tokens."""
    if tokenizer is None or "<|channel|>" not in (text := tokenizer.template_text(tools)):
        return False
    return "<|message|>" in text and {*map(tokenizer.token_id, SIGNS)} <= tokenizer.control_ids


class HarmonySplitter:
    """Splits one answer while it arrives, its calls when they are whole.

    Thoughts are what the channel `analysis` has, and text what the others have. A message to one of
    the functions is a call. The headers of messages, and a call that is not whole or no JSON, are
    no part of the answer.

    Args:
        prompt: the conversation as the model reads it, which may end within a message.
        begun: the last message, if the answer continues it.
        key: what the ids of the calls are made of.
        parameters: the schemas of the functions' parameters, by name.
    """

    def __init__(
        self,
        prompt: str = "",
        begun: str = "",
        key: str = "",
        parameters: Mapping[str, Object] | None = None,
    ) -> None:
        self._key, self._names = key, frozenset(parameters or ())
        self._part, self._header = "", ""
        """What the open message is; empty: its header is read."""
        self._shown, self._joint = set[str](), ""
        """The parts that have a text, and what is in front of more of the open one."""
        self._called, self._held = "", ""
        """The name of the function of a call, and its arguments so far."""
        self._reader, self._count = InJson("").reader({}), 0
        tail = prompt.rpartition(_ASKED)[2] if _ASKED in prompt else ""
        self.push(f"{_CHANNEL}final{_MESSAGE}" if begun else _signed(tail))
        self._shown.clear()
        self._first = deepcopy(self)

    @property
    def state(self) -> State:
        """The part that is next."""
        states: dict[str, State] = {"": "undecided", "reasoning_content": "thinking"}
        return states.get(self._part, "answering")

    @property
    def calls(self) -> bool:
        """True if the answer has called a function, and no call is unfinished."""
        return self._count > 0 and self._part != "call"

    def behind_calls(self, text: str) -> list[str]:
        """Split a text where messages may end."""
        return re.split(f"(?<={_ANY})", text)

    def push(self, text: str, *, last: bool = False, cut: bool = False) -> Json:
        """Add a piece; returns what it adds to the answer, as fields of a message or delta.

        The end of an answer changes nothing: a sign is never cut, so no text is held back.
        """
        found: Json = {}
        for piece in _PIECE.findall(text):
            for name, part in self._read(piece).items():
                found[name] = found[name] + part if name in found else part
        return found

    def _read(self, piece: str) -> Json:
        """Read a sign, or a text between two of them."""
        if piece == _MESSAGE:
            self._part = self._part or self._opened()
        elif re.match(_ANY, piece):
            goes_on = not self._part and piece in (_CHANNEL, _CONSTRAIN)
            self._part, self._header = "", self._header + piece if goes_on else piece
        elif self._part:
            return self._body(piece)
        else:
            self._header += piece
            if _NO_HEADER.match(self._header):
                self._part = "content"
                return self._body(self._header)
        return {}

    def _opened(self) -> str:
        """The part of the message behind the header."""
        self._called, self._held = "", ""
        recipient = _RECIPIENT.search(self._header)
        if recipient is not None and recipient[1] in self._names:
            self._called, self._reader = recipient[1], InJson("").reader({})
            return "call"
        part = "reasoning_content" if _ANALYSIS.search(self._header) else "content"
        self._joint = _JOINT if part in self._shown else ""
        return part

    def _body(self, piece: str) -> Json:
        if self._part == "call":
            return self._call(piece)
        if self._part == "called":
            return {}
        joint, self._joint = self._joint, ""
        self._shown.add(self._part)
        return {self._part: joint + piece}

    def _call(self, piece: str) -> Json:
        self._held += piece
        if (arguments := self._reader.read(self._held)) is None:
            return {}
        self._part = "called"
        try:
            json.loads(arguments.json)
        except ValueError:
            return {}
        call = call_of(self._key, self._count, self._called, arguments.json.strip())
        self._count += 1
        return {"tool_calls": [call]}

    def count_thoughts(self, tokens: Sequence[bytes]) -> int:
        """Return the number of an answer's tokens up to the last of its thoughts."""
        splitter, last = deepcopy(self._first), 0
        for number, token in enumerate(tokens, 1):
            name = token.decode(errors="replace")
            if "reasoning_content" in splitter.push(SIGNS.get(name, name)):
                last = number
        return last


def _signed(text: str) -> str:
    """A text with signs in place of the names of marks."""
    for name, sign in SIGNS.items():
        text = text.replace(name, sign)
    return text


class Transcript:
    """An answer as one text, with its thoughts as other models mark them.

    Args:
        splitter: of the answer, before its first piece.
    """

    def __init__(self, splitter: HarmonySplitter) -> None:
        self._splitter, self._thinks = deepcopy(splitter), False

    def push(self, text: str) -> str:
        """Add a piece, with signs; returns it without them."""
        return "".join(map(self._shown, self._splitter.behind_calls(text)))

    def _shown(self, text: str) -> str:
        parts = self._splitter.push(text)
        thoughts, content = (str(parts.get(key, "")) for key in ("reasoning_content", "content"))
        mark = ""
        if thoughts and not self._thinks:
            mark = f"{BEGIN}\n"
        elif content and self._thinks:
            mark = f"\n{END}\n\n"
        self._thinks = bool(thoughts) or (self._thinks and not content)
        return mark + thoughts + content
