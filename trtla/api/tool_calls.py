"""An answer in its parts, piece by piece: thoughts, text, and calls of functions."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from trtla.api.reasoning import ReasoningSplitter
from trtla.api.tool_formats import ToolFormat

Json = dict[str, Any]
_ID_DIGITS = 9
"""Of a call's id: as many as Mistral's templates require."""


class CallSplitter:
    """Splits the calls off one answer while it arrives.

    What begins as a call and is none, which no grammar allows, is text.

    Args:
        key: what the ids of the calls are made of.
    """

    def __init__(self, format_: ToolFormat, key: str) -> None:
        self._format, self._key = format_, key
        self._name = format_.name_in_front()
        self._state: Literal["text", "head", "arguments", "tail"] = "text"
        self._held = ""
        """Text whose part is not certain yet."""
        self._opened = ""
        """The mark of the call that is open, and the blanks in front of it."""
        self._begun = False
        """The answer has shown something."""
        self._depth, self._in_text, self._escaped = 0, False, False
        self.count = 0
        """Calls so far."""

    def push(self, text: str, *, last: bool = False) -> Json:
        """Add a piece; returns what is now certain, as fields of a message or delta."""
        self._held += text
        content, calls = "", dict[int, Json]()
        states: set[tuple[str, int, bool]] = set()
        while (progress := (self._state, len(self._held), self._begun)) not in states:
            states.add(progress)
            if self._state == "text":
                content += self._text(last)
            elif self._state == "head":
                content += self._head(last, calls)
            elif self._state == "arguments":
                self._arguments(calls)
            else:
                self._tail(last)
        message: Json = {"content": content} if content else {}
        return message | ({"tool_calls": list(calls.values())} if calls else {})

    def _text(self, last: bool) -> str:
        """The text in front of a mark, without the blanks between."""
        if self._format.leads:
            return self._leading(last)
        before, mark, behind = self._held.partition(self._format.mark)
        if mark:
            text = before.rstrip()
            self._state, self._held, self._opened = "head", behind, before[len(text) :] + mark
            return self._shown(text)
        kept = _held_back(before, mark=self._format.mark)
        if last and kept and kept == len(before) and self.count and not self._begun:
            self._held = ""  # the next call's mark, cut off
            return ""
        kept = 0 if last else kept
        self._held = before[len(before) - kept :]
        return self._shown(before[: len(before) - kept])

    def _leading(self, last: bool) -> str:
        """A text where calls come at the beginning alone."""
        start, mark = self._held.lstrip(), self._format.mark
        opened = mark if start.startswith(mark) else ""
        if not self._begun and (opened or start.startswith("{")):
            self._state, self._opened, self._held = "head", opened, start[len(opened) :]
            return ""
        if not self._begun and not last and mark.startswith(start):
            return ""
        text, self._held = self._held, ""
        return self._shown(text)

    def _shown(self, text: str) -> str:
        """A text, which begins with no blanks behind a call."""
        text = text.lstrip() if self.count and not self._begun else text
        self._begun |= bool(text)
        return text

    def _head(self, last: bool, calls: dict[int, Json]) -> str:
        match = self._name.match(self._held)
        if match is not None:
            self._held, self._state = self._held[match.end() :], "arguments"
            index, self.count, self._begun = self.count, self.count + 1, False
            digest = hashlib.blake2b(f"{self._key}-{index}".encode()).hexdigest()
            function = {"name": match[1], "arguments": ""}
            identity = {"index": index, "id": digest[:_ID_DIGITS], "type": "function"}
            calls[index] = {**identity, "function": function}
        is_open = match is not None or self._format.may_begin(self._held)
        if match is not None or (is_open and not last):
            return ""
        if is_open and self.count and not self._begun:  # the next call, cut off
            self._held = ""
            return ""
        self._state, self._begun = "text", True
        return self._opened

    def _arguments(self, calls: dict[int, Json]) -> None:
        end = self._end_of_object()
        piece, self._held = self._held[:end], self._held[end:]
        if piece:
            index = self.count - 1
            call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
            call["function"]["arguments"] += piece

    def _end_of_object(self) -> int:
        """The length of what is held that belongs to the arguments."""
        for at, sign in enumerate(self._held):
            if self._in_text:
                self._in_text = self._escaped or sign != '"'
                self._escaped = sign == "\\" and not self._escaped
            elif sign == '"':
                self._in_text = True
            elif sign in "{}":
                self._depth += 1 if sign == "{" else -1
                if not self._depth:
                    self._state = "tail"
                    return at + 1
        return len(self._held)

    def _tail(self, last: bool) -> None:
        """Read from behind the arguments to the next call, or to the text behind."""
        _, brace, behind = self._held.partition("}")
        if not brace:
            return
        rest, format_ = behind.lstrip(), self._format
        ends = [format_.finish.strip(), format_.close, format_.joint.strip()]
        if any(end.startswith(rest) for end in ends):
            self._held = "" if last else self._held
            return
        if ends[2] and rest.startswith(ends[2]):
            self._state, self._held, self._opened = "head", rest[len(ends[2]) :], ""
            return
        for end in ends[:2]:
            rest = rest.removeprefix(end)
        self._state, self._held = "text", rest


def _held_back(text: str, mark: str) -> int:
    """The length of an end that may be blanks in front of the mark, or its beginning."""
    part = next(size for size in range(len(mark) - 1, -1, -1) if text.endswith(mark[:size]))
    return len(text) - len(text[: len(text) - part].rstrip())


class AnswerSplitter:
    """Splits one answer into all its parts; each splitter may be missing."""

    def __init__(self, reasoning: ReasoningSplitter | None, calls: CallSplitter | None) -> None:
        self._reasoning, self._calls = reasoning, calls

    @property
    def calls(self) -> bool:
        """True once the answer has called a function."""
        return self._calls is not None and self._calls.count > 0

    def push(self, text: str, *, last: bool = False) -> Json:
        """Add a piece; returns what is now certain, as fields of a message or delta."""
        parts: Json = {"content": text}
        if self._reasoning is not None:
            parts = self._reasoning.push(text, last=last)._asdict()
        if self._calls is not None:
            parts |= {"content": "", **self._calls.push(parts["content"], last=last)}
        return {name: part for name, part in parts.items() if part}
