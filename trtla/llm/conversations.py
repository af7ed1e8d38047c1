"""Conversations in a chat template: contents as it takes them, and no question left out.

Some templates write a content as a text, some walk its parts, some do both, and each may treat the
roles differently. Trials say which it is: a template is a program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from trtla.errors import RendererLost, TrtlaError, UsageError
from trtla.llm.chat_text import unused
from trtla.llm.templates import TemplateStopped
from trtla.settings.messages import (
    Content,
    Messages,
    Rendering,
    joined,
    part_texts,
    text_part,
    with_text,
    written,
)

Fill = Callable[[list[dict[str, Any]], Rendering], str]
"""Messages, and what is asked for behind them -> what the template makes of them."""
_KEPT = 64
"""Pairs of a role and of variables whose trials are remembered."""
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
        self._taken: dict[tuple[str, str], tuple[bool, bool]] = {}

    def text(self, messages: Messages, rendering: Rendering) -> str:
        """The conversation as the model reads it; every user's text is in it.

        Raises:
            UsageError: the last message does not fit the rendering, or the template leaves one out.
        """
        rendering.check(messages)
        text = self.filled_in(messages, rendering)
        if (place := self._left_out(messages, rendering, text)) is not None:
            raise UsageError(
                f"the model's chat template leaves out messages[{place}] (user)",
                "give messages that it takes, or go on without it: --no-chat, in a chat /chat off",
            )
        return text

    def filled_in(self, messages: Messages, rendering: Rendering) -> str:
        """`text`, unchecked."""
        if rendering.continue_final_message:
            return self._begun(messages, rendering)
        return self._fill(self._adapted(messages, rendering), rendering)

    def _begun(self, messages: Messages, rendering: Rendering) -> str:
        """Up to the end of the last text; blanks there are dropped where the template strips."""
        (mark,) = unused("".join(written(messages)), 1)
        own = part_texts(messages[-1]["content"])[-1]
        marked = [*messages[:-1], with_text(messages[-1], -1, f"{own}{mark} ")]
        text, found, rest = self._fill(self._adapted(marked, rendering), rendering).rpartition(mark)
        if own.strip() and not rest.startswith(" "):
            text = text.removesuffix(own[len(own.rstrip()) :])
        if not found or mark in text or not text.rstrip().endswith(own.strip()):
            raise UsageError(
                "the model's chat template changes the last message, which can then not be "
                "continued",
                "omit continue_final_message, or give what it leaves as it is",
            )
        return text

    def _adapted(self, messages: Messages, rendering: Rendering) -> list[dict[str, Any]]:
        return [
            {**one, "content": self._content(one["role"], one["content"], rendering)}
            for one in messages
        ]

    def _content(self, role: str, content: Content, rendering: Rendering) -> Content:
        texts, parts = self._takes(role, rendering)
        several = not isinstance(content, str) and len(content) > 1
        if parts and (several or not texts):
            return [text_part(text) for text in part_texts(content)]
        return joined(content)

    def _takes(self, role: str, rendering: Rendering) -> tuple[bool, bool]:
        """Whether a role's contents may be texts, and whether parts; tried once for each role.

        Neither: the template wants other messages beside this one, or none of this role.
        """
        variables = rendering.chat_template_kwargs
        key = role, json.dumps(variables, sort_keys=True)
        if key not in self._taken:
            parts = [{**text_part(_WORD), _STRAY: ""}]
            how = Rendering(chat_template_kwargs=variables)
            if len(self._taken) >= _KEPT:
                self._taken = {}
            self._taken[key] = self._writes(role, _WORD, how), self._writes(role, parts, how)
        return self._taken[key]

    def _writes(self, role: str, content: Content, rendering: Rendering) -> bool:
        """Whether the template writes a content's text, and does not show parts as Python does."""
        trial: list[dict[str, Any]] = [{"role": role, "content": content}]
        if role != "user":
            question = {"role": "user", "content": self._content("user", "a", rendering)}
            trial = [*trial, question] if role == "system" else [question, *trial, question]
        try:
            text = self._fill(trial, rendering).casefold()
        except (TrtlaError, TemplateStopped):
            raise
        except Exception:  # jinja2's, and whatever a template raises
            return False
        return _WORD in text and _STRAY not in text

    def _left_out(self, messages: Messages, rendering: Rendering, text: str) -> int | None:
        """The place of a user's message that is not in the prompt, whatever is done to texts there.

        One that is not found as it is counts where other letters in its place make another prompt;
        if the trials have not shown that contents are written, either half has to count. The last
        question is tried on its own, earlier ones together: few trials, however long the talk.
        """
        asked = [place for place, one in enumerate(messages) if one["role"] == "user"]
        contents = [part_texts(message["content"]) for message in messages]
        question = [place for place in asked[-1:] if not _is_surely_there(contents, place, text)]
        earlier = [place for place in asked[:-1] if not _is_there(contents[place], text)]
        for places in (question, earlier):
            for changed in self._changed(messages, places, rendering):
                if self._tried(changed, rendering) == text:
                    return places[0]
        return None

    def _changed(
        self, messages: Messages, places: list[int], rendering: Rendering
    ) -> Iterator[Messages]:
        """The messages with other letters at some places."""
        known = any(self._takes("user", rendering))
        for change in (_others,) if known else (_others_first, _others_last):
            changed = [*messages]
            for place in places:
                for part, own in enumerate(part_texts(messages[place]["content"])):
                    changed[place] = with_text(changed[place], part, _with_core(own, change))
            if changed != [*messages]:
                yield changed

    def _tried(self, messages: Messages, rendering: Rendering) -> str | None:
        try:
            return self.filled_in(messages, rendering)
        except (RendererLost, TemplateStopped):
            raise
        except Exception:  # what a template raises depends on the text
            return None


def _core(text: str) -> str:
    """What templates leave of a text that they strip."""
    return text.strip()


def _is_there(content: list[str], text: str) -> bool:
    return all(_core(part) in text for part in content)


def _is_surely_there(contents: list[list[str]], place: int, text: str) -> bool:
    """Whether a message's texts are in the prompt as they are, and not from elsewhere."""
    others = [one for at, texts in enumerate(contents) if at != place for one in texts]
    cores = filter(None, map(_core, contents[place]))
    return all(
        len(core) >= _SURE and text.count(core) > sum(one.count(core) for one in others)
        for core in cores
    )


def _with_core(text: str, change: Callable[[str], str]) -> str:
    core = _core(text)
    return text.replace(core, change(core), 1) if core else text


def _others_first(text: str) -> str:
    middle = len(text) // 2
    return _others(text[:middle]) + text[middle:]


def _others_last(text: str) -> str:
    middle = len(text) // 2
    return text[:middle] + _others(text[middle:])


def _others(text: str) -> str:
    return "".join(char if char.isspace() else "z" if char == "q" else "q" for char in text)
