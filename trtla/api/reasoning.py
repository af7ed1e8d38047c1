"""Answers in two parts, split piece by piece: the model's reasoning and its content.

Models that think write so between `<think>` and `</think>`, in front of the answer, as their chat
templates show. Blanks around both parts belong to neither.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

BEGIN, END = "<think>", "</think>"
State = Literal["undecided", "thinking", "answering"]


class Parts(NamedTuple):
    """The two parts of a text, or of a piece of one."""

    reasoning_content: str
    content: str


def marks_reasoning(template: str) -> bool:
    """Return True for a chat template that marks thoughts so."""
    return BEGIN in template and END in template


class ReasoningSplitter:
    """Splits one answer while it arrives.

    Args:
        prompt: the conversation as the model reads it, which may end with either mark.
        begun: the last message, if the answer continues it.
    """

    def __init__(self, prompt: str, begun: str = "") -> None:
        self.state: State = "undecided"
        """The part that is next."""
        before = begun or prompt.rstrip()
        opened, closed = before.rfind(BEGIN), before.rfind(END)
        if begun or before.endswith((BEGIN, END)):
            self.state = "thinking" if opened > closed else "answering"
        self._held = ""
        """Text that the next piece may make part of a mark, or of the blanks around it."""
        self._begun = bool(begun) or self.state == "answering"
        """The part that is open has shown something."""

    def push(self, text: str, *, last: bool = False, cut: bool = False) -> Parts:
        """Add a piece; returns the text that is now certain of each part, with `last` all of it.

        Args:
            last: the answer ends here.
            cut: it does so for another reason than the model's end token.
        """
        self._held += text
        if self.state == "undecided" and not self._decide(last, cut):
            return Parts("", "")
        reasoning = self._thoughts(last, cut) if self.state == "thinking" else ""
        content = self._answer() if self.state == "answering" else ""
        return Parts(reasoning, content)

    def _decide(self, last: bool, cut: bool) -> bool:
        """Return True once it is known whether thoughts come first."""
        start = self._held.lstrip()
        if start.startswith(BEGIN):
            self.state, self._held = "thinking", start[len(BEGIN) :]
        elif last or not BEGIN.startswith(start):
            if BEGIN.startswith(start) and begins_mark(start, BEGIN, cut):
                self._held = ""
            self.state, self._begun = "answering", True  # nothing is in front of it
        return self.state != "undecided"

    def _thoughts(self, last: bool, cut: bool) -> str:
        thoughts, end, content = self._held.partition(END)
        if end:
            self.state, self._held = "answering", content
            thoughts, begun, self._begun = thoughts.rstrip(), self._begun, False
            return thoughts if begun else thoughts.lstrip()
        certain = thoughts[: len(thoughts) - held_back(thoughts, END)]
        if last and not begins_mark(thoughts, END, cut):
            certain = thoughts.rstrip()
        self._held = "" if last else thoughts[len(certain) :]
        if not self._begun:
            certain = certain.lstrip()
            self._begun = bool(certain)
        return certain

    def _answer(self) -> str:
        text, self._held = self._held, ""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text


def held_back(text: str, mark: str) -> int:
    """The length of an end that may be blanks in front of a mark, or its beginning."""
    return len(text) - len(text[: len(text) - _part(text, mark)].rstrip())


def begins_mark(text: str, mark: str, cut: bool) -> bool:
    """Return True if a text's end is the beginning of a mark: one sign only if the end is cut."""
    return _part(text, mark) > (0 if cut else 1)


def _part(text: str, mark: str) -> int:
    """The length of a mark's beginning at the end of a text."""
    return next(size for size in range(len(mark) - 1, -1, -1) if text.endswith(mark[:size]))
