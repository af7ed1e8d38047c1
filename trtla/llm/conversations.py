"""Conversations in a chat template: contents as it takes them, and no question left out.

Some templates write a content as a text, some walk its parts, some do both, and each may treat the
roles differently. Trials say which it is: a template is a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trtla.errors import RendererLost, TrtlaError, UsageError
from trtla.llm.chat_text import unused
from trtla.llm.templates import TemplateStopped
from trtla.settings.messages import (
    Content,
    Ending,
    Messages,
    joined,
    part_texts,
    text_part,
    with_text,
    written,
)

Fill = Callable[[list[dict[str, Any]], bool], str]
"""Messages, and whether an answer is to begin behind them -> what the template makes of them."""
_WORD, _STRAY = "trialword7f3c", "straykey9d2e"
_SURE = 12
"""Characters of a text that no template has of its own."""


class Conversations:
    """A model's chat template, for messages that `check_messages` has let pass.

    Args:
        fill: fills in the template; it raises whatever that does.
    """

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._taken: dict[str, tuple[bool, bool]] = {}

    def text(self, messages: Messages, ending: Ending) -> str:
        """The conversation as the model reads it; every user's text is in it.

        Raises:
            UsageError: the last message does not fit the ending, or the template leaves one out.
        """
        ending.check(messages)
        text = self.filled_in(messages, ending)
        asked = [place for place, one in enumerate(messages) if one["role"] == "user"]
        for place in asked:
            if not self._is_there(messages, place, ending, text, is_question=place == asked[-1]):
                raise UsageError(
                    f"the model's chat template leaves out messages[{place}] (user)",
                    "give messages that it takes, or go on without it: --no-chat, in a chat "
                    "/chat off",
                )
        return text

    def filled_in(self, messages: Messages, ending: Ending) -> str:
        """`text`, unchecked."""
        if ending.continue_final_message:
            return self._begun(messages)
        return self._fill(self._adapted(messages), ending.add_generation_prompt)

    def _begun(self, messages: Messages) -> str:
        """Up to the end of the last text; blanks there are dropped where the template strips."""
        (mark,) = unused("".join(written(messages)), 1)
        own = part_texts(messages[-1]["content"])[-1]
        marked = [*messages[:-1], with_text(messages[-1], -1, f"{own}{mark} ")]
        text, found, rest = self._fill(self._adapted(marked), False).rpartition(mark)
        if not rest.startswith(" "):
            text = text.rstrip()
        if not found or not text.rstrip().endswith(own.strip()):
            raise UsageError(
                "the model's chat template changes the last message, which can then not be "
                "continued",
                "omit continue_final_message, or give what it leaves as it is",
            )
        return text

    def _adapted(self, messages: Messages) -> list[dict[str, Any]]:
        return [{**one, "content": self._content(one["role"], one["content"])} for one in messages]

    def _content(self, role: str, content: Content) -> Content:
        texts, parts = self._takes(role)
        several = not isinstance(content, str) and len(content) > 1
        if parts and (several or not texts):
            return [text_part(text) for text in part_texts(content)]
        return joined(content)

    def _takes(self, role: str) -> tuple[bool, bool]:
        """Whether a role's contents may be texts, and whether parts; tried once for each role."""
        if role not in self._taken:
            parts = [{**text_part(_WORD), _STRAY: ""}]
            taken = self._writes(role, _WORD), self._writes(role, parts)
            if not any(taken):  # it wants other messages beside this one, or none of this role
                return taken
            self._taken[role] = taken
        return self._taken[role]

    def _writes(self, role: str, content: Content) -> bool:
        """Whether the template writes a content's text, and does not show parts as Python does."""
        trial: list[dict[str, Any]] = [{"role": role, "content": content}]
        if role != "user":
            question = {"role": "user", "content": self._content("user", "a")}
            trial = [*trial, question] if role == "system" else [question, *trial, question]
        try:
            text = self._fill(trial, True).casefold()
        except (TrtlaError, TemplateStopped):
            raise
        except Exception:  # jinja2's, and whatever a template raises
            return False
        return _WORD in text and _STRAY not in text

    def _is_there(
        self, messages: Messages, place: int, ending: Ending, text: str, *, is_question: bool
    ) -> bool:
        """Whether a message is in the prompt, whatever the template does to texts.

        A text that is not found as it is counts where other letters in its place make another
        prompt. If the trials have not shown that contents are written, either half has to count.
        """
        message, known = messages[place], any(self._takes("user"))
        for part, own in enumerate(part_texts(message["content"])):
            core = own.strip()
            if core in text and (len(core) >= _SURE or not is_question):
                continue
            for other in filter(None, [_others(core)] if known else _halves_changed(core)):
                changed = with_text(message, part, own.replace(core, other, 1))
                others = [*messages[:place], changed, *messages[place + 1 :]]
                if self._tried(others, ending) == text:
                    return False
        return True

    def _tried(self, messages: Messages, ending: Ending) -> str | None:
        try:
            return self.filled_in(messages, ending)
        except (RendererLost, TemplateStopped):
            raise
        except Exception:  # what a template raises depends on the text
            return None


def _halves_changed(text: str) -> Iterator[str]:
    """The text with other letters in one half of it, then in the other half."""
    middle = len(text) // 2
    for first, last in ((text[:middle], ""), ("", text[middle:])):
        if first + last:
            yield _others(first) + text[len(first) : len(text) - len(last)] + _others(last)


def _others(text: str) -> str:
    return "".join(char if char.isspace() else "z" if char == "q" else "q" for char in text)
