"""Conversations in a chat template: contents in a form that it takes, and no question omitted.

Some templates write a content as a text, some walk its parts, some do both, and each may treat the
roles differently. A template is a program, so trials show which it is.
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
"""Renders messages, and the text behind them that the rendering asks for."""
_KEPT = 64
"""Pairs of a role and of variables whose trials are cached."""
_WORD, _STRAY = "trialword7f3c", "straykey9d2e"
_SURE = 12
"""Characters of a text that a template is unlikely to contain itself."""


class Conversations:
    """A model's chat template, for messages that `check_messages` has accepted.

    Args:
        fill: renders the template; it raises any error of it.
    """

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._taken: dict[tuple[str, str], tuple[bool, bool]] = {}

    def text(self, messages: Messages, rendering: Rendering) -> str:
        """Render the conversation as the model reads it, with every user's text in it.

        Raises:
            UsageError: the last message does not fit the rendering, or the template omits one.
        """
        rendering.check(messages)
        text = self.filled_in(messages, rendering)
        if (index := self._left_out(messages, rendering, text)) is not None:
            raise UsageError(
                f"the model's chat template leaves out messages[{index}] (user)",
                "give messages that it takes, or go without it: --no-chat, in a chat /chat off",
            )
        return text

    def filled_in(self, messages: Messages, rendering: Rendering) -> str:
        """Render without the check."""
        if rendering.continue_final_message:
            return self._begun(messages, rendering)
        return self._fill(self._adapted(messages, rendering), rendering)

    def _begun(self, messages: Messages, rendering: Rendering) -> str:
        """Render up to the end of the last text, whose final blanks a stripping template drops."""
        (mark,) = unused("".join(written(messages)), 1)
        beginning = part_texts(messages[-1]["content"])[-1]
        marked = [*messages[:-1], with_text(messages[-1], -1, f"{beginning}{mark} ")]
        rendered = self._fill(self._adapted(marked, rendering), rendering)
        text, separator, rest = rendered.rpartition(mark)
        if beginning.strip() and not rest.startswith(" "):
            text = text.removesuffix(beginning[len(beginning.rstrip()) :])
        if not separator or mark in text or not text.rstrip().endswith(beginning.strip()):
            raise UsageError(
                "the model's chat template changes the last message, which can then not be "
                "continued",
                "omit continue_final_message, or give what it leaves as it is",
            )
        return text

    def _adapted(self, messages: Messages, rendering: Rendering) -> list[dict[str, Any]]:
        return [
            {**message, "content": self._content(message["role"], message["content"], rendering)}
            for message in messages
        ]

    def _content(self, role: str, content: Content, rendering: Rendering) -> Content:
        texts, parts = self._takes(role, rendering)
        several = not isinstance(content, str) and len(content) > 1
        if parts and (several or not texts):
            return [text_part(text) for text in part_texts(content)]
        return joined(content)

    def _takes(self, role: str, rendering: Rendering) -> tuple[bool, bool]:
        """Try whether a role's contents may be texts, and whether parts; once for each role.

        Neither: the template requires other messages next to this one, or rejects the role.
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
        """Return True if the template writes a content's text, and no Python repr of parts."""
        trial: list[dict[str, Any]] = [{"role": role, "content": content}]
        if role != "user":
            question = {"role": "user", "content": self._content("user", "a", rendering)}
            trial = [*trial, question] if role == "system" else [question, *trial, question]
        try:
            text = self._fill(trial, rendering).casefold()
        except (TrtlaError, TemplateStopped):
            raise
        except Exception:  # jinja2's, or any other
            return False
        return _WORD in text and _STRAY not in text

    def _left_out(self, messages: Messages, rendering: Rendering, text: str) -> int | None:
        """Return the index of a user's message that is missing from the prompt, in any form.

        A message that is not there literally counts if other letters in it change the prompt; if
        the trials have not shown that contents are written, each half of it has to count. The last
        question is tried on its own, earlier ones together: few trials for any length.
        """
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        contents = [part_texts(message["content"]) for message in messages]
        question = [index for index in users[-1:] if not _is_surely_there(contents, index, text)]
        earlier = [index for index in users[:-1] if not _is_there(contents[index], text)]
        for indexes in (question, earlier):
            for changed in self._changed(messages, indexes, rendering):
                if self._tried(changed, rendering) == text:
                    return indexes[0]
        return None

    def _changed(
        self, messages: Messages, indexes: list[int], rendering: Rendering
    ) -> Iterator[Messages]:
        """Yield the messages with other letters in some of them."""
        known = any(self._takes("user", rendering))
        for change in (_others,) if known else (_others_first, _others_last):
            changed = [*messages]
            for index in indexes:
                for part, text in enumerate(part_texts(messages[index]["content"])):
                    changed[index] = with_text(changed[index], part, _with_core(text, change))
            if changed != [*messages]:
                yield changed

    def _tried(self, messages: Messages, rendering: Rendering) -> str | None:
        try:
            return self.filled_in(messages, rendering)
        except (RendererLost, TemplateStopped):
            raise
        except Exception:  # whether a template raises depends on the text
            return None


def _core(text: str) -> str:
    """Return the part of a text that stripping templates keep."""
    return text.strip()


def _is_there(content: list[str], text: str) -> bool:
    return all(_core(part) in text for part in content)


def _is_surely_there(contents: list[list[str]], index: int, text: str) -> bool:
    """Return True if a message's texts are in the prompt literally, and not from elsewhere."""
    others = [part for other, parts in enumerate(contents) if other != index for part in parts]
    cores = filter(None, map(_core, contents[index]))
    return all(
        len(core) >= _SURE and text.count(core) > sum(part.count(core) for part in others)
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
