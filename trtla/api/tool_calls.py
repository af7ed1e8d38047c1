"""An answer in its parts, piece by piece: thoughts, text, and calls of functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trtla.api.reasoning import END, ReasoningSplitter, begins_mark, held_back
from trtla.api.strict import Object
from trtla.api.tool_formats import ToolFormat
from trtla.api.tools import call_of

Json = dict[str, Any]


class CallSplitter:
    """Splits the calls off one answer while it arrives; each is returned when it is whole.

    What begins as a call and is none, or is one of another function, which no grammar allows, is
    text. What the answer's end cuts off, be it a mark, is neither.

    Args:
        key: what the ids of the calls are made of.
        parameters: the schemas of the functions' parameters, by name.
    """

    def __init__(self, format_: ToolFormat, key: str, parameters: Mapping[str, Object]) -> None:
        self._format, self._key, self._parameters = format_, key, parameters
        self._head_of_call = format_.name_in_front()
        self._state: Literal["text", "head", "arguments", "tail"] = "text"
        self._held = ""
        """Text whose part is not certain yet."""
        self._opened = ""
        """The mark of the call that is open, and the blanks in front of it."""
        self._name = ""
        """The name of the call whose arguments are read."""
        self._begun = False
        """The answer has shown something since the last call."""
        self._reader = format_.notation.reader({})
        """Of the arguments of the call that is open."""
        self.count = 0
        """Calls so far."""

    @property
    def end(self) -> str:
        """The end of a call, behind its arguments."""
        return self._format.notation.end

    @property
    def is_within(self) -> bool:
        """True between a call's mark and the end of its arguments."""
        return self._state in ("head", "arguments")

    def push(self, text: str, *, last: bool = False, cut: bool = False) -> Json:
        """Add a piece; returns what is now certain, as fields of a message or delta.

        Args:
            last: the answer ends here.
            cut: it does so for another reason than the model's end token.
        """
        self._held += text
        content, calls = "", list[Json]()
        states: set[tuple[str, int, bool]] = set()
        while (progress := (self._state, len(self._held), self._begun)) not in states:
            states.add(progress)
            if self._state == "text":
                content += self._text(last, cut)
            elif self._state == "head":
                content += self._head(last)
            elif self._state == "arguments":
                calls += self._arguments()
            else:
                self._tail(last)
        message: Json = {"content": content} if content else {}
        return message | ({"tool_calls": calls} if calls else {})

    def _text(self, last: bool, cut: bool) -> str:
        """The text in front of a mark, without the blanks between."""
        if self._format.leads:
            return self._leading(last, cut)
        before, mark, behind = self._held.partition(self._format.mark)
        if mark:
            text = before.rstrip()
            self._state, self._held, self._opened = "head", behind, before[len(text) :] + mark
            return self._shown(text)
        kept = held_back(before, self._format.mark)
        if last:
            is_lost = kept == len(before) and self.count and not self._begun
            kept = kept if is_lost or begins_mark(before, self._format.mark, cut) else 0
        self._held = "" if last else before[len(before) - kept :]
        return self._shown(before[: len(before) - kept])

    def _leading(self, last: bool, cut: bool) -> str:
        """A text where calls come at the beginning alone."""
        start, mark = self._held.lstrip(), self._format.mark
        opened = mark if start.startswith(mark) else ""
        if not self._begun and (opened or start.startswith("{")):
            self._state, self._opened, self._held = "head", opened, start[len(opened) :]
            return ""
        if not self._begun and mark.startswith(start):
            if not last:
                return ""
            if begins_mark(start, mark, cut):
                self._held = ""
        text, self._held = self._held, ""
        return self._shown(text)

    def _shown(self, text: str) -> str:
        """A text, which begins with no blanks behind a call."""
        text = text.lstrip() if self.count and not self._begun else text
        self._begun |= bool(text)
        return text

    def _head(self, last: bool) -> str:
        match = self._head_of_call.match(self._held)
        if match is not None and match[1] in self._parameters:
            self._held, self._name = self._held[match.end() :], match[1]
            self._state = "arguments"
            self._reader = self._format.notation.reader(self._parameters[self._name])
            return ""
        if match is None and self._format.may_begin(self._held):
            self._held = "" if last else self._held
            return ""
        self._state, self._begun = "text", True
        return self._opened

    def _arguments(self) -> list[Json]:
        """The call whose arguments have ended, if they have."""
        if (arguments := self._reader.read(self._held)) is None:
            return []
        self._held = self._held[arguments.length :]
        index, self._state = self.count, "tail"
        self.count, self._begun = index + 1, False
        return [call_of(self._key, index, self._name, arguments.json)]

    def _tail(self, last: bool) -> None:
        """Read from behind the arguments to the next call, or to the text behind."""
        _, end, behind = self._held.partition(self._format.notation.end)
        if not end:
            return
        rest, format_ = behind.lstrip(), self._format
        ends = [format_.finish.strip(), format_.close, format_.joint.strip()]
        if any(mark.startswith(rest) for mark in ends):
            self._held = "" if last else self._held
            return
        if ends[2] and rest.startswith(ends[2]):
            self._state, self._held, self._opened = "head", rest[len(ends[2]) :], ""
            return
        for closing in ends[:2]:
            rest = rest.removeprefix(closing)
        self._state, self._held = "text", rest


class AnswerSplitter:
    """Splits one answer into all its parts; each splitter may be missing."""

    def __init__(self, reasoning: ReasoningSplitter | None, calls: CallSplitter | None) -> None:
        self._reasoning, self._calls = reasoning, calls

    @property
    def calls(self) -> bool:
        """True if the answer has called a function, and no call is unfinished."""
        calls = self._calls
        return calls is not None and calls.count > 0 and not calls.is_within

    def behind_calls(self, text: str) -> list[str]:
        """Split a text where calls may end: text behind a call is then returned behind it."""
        if self._calls is None:
            return [text]
        return re.split(f"(?<={re.escape(self._calls.end)})", text)

    def count_thoughts(self, tokens: Sequence[bytes]) -> int:
        """Return the number of an answer's tokens up to the mark behind its thoughts."""
        end, text = END.encode(), b""
        for number, token in enumerate(tokens, 1):
            text = text[-len(end) :] + token
            if end in text:
                return number
        return len(tokens)

    def push(self, text: str, *, last: bool = False, cut: bool = False) -> Json:
        """Add a piece; returns what is now certain, as fields of a message or delta.

        Args:
            last: the answer ends here.
            cut: it does so for another reason than the model's end token.
        """
        parts: Json = {"content": text}
        if self._reasoning is not None:
            parts = self._reasoning.push(text, last=last, cut=cut)._asdict()
        if self._calls is not None:
            calls = self._calls.push(parts["content"], last=last, cut=cut)
            parts |= {"content": "", **calls}
        return {name: part for name, part in parts.items() if part}
