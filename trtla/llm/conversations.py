"""Conversations in a chat template: contents in a form that it takes, and no question omitted.

Some templates write a content as a text, some walk its parts, some do both, and each may treat the
roles differently. A template is a program, so trials show which it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from trtla.errors import RendererLost, TrtlaError, UsageError, named
from trtla.llm.chat_text import unused
from trtla.llm.templates import TemplateStopped
from trtla.settings.messages import (
    Content,
    Message,
    Messages,
    Rendering,
    joined,
    part_texts,
    text_part,
    with_text,
    written,
)
from trtla.settings.tool_calls import as_object, as_text, with_arguments

Fill = Callable[[list[dict[str, Any]], Rendering], str]
"""Renders messages, and the text behind them that the rendering asks for."""
_KEPT = 64
"""Pairs of a role and of variables whose trials are cached."""
_WORD, _STRAY = "trialword7f3c", "straykey9d2e"
_CALLS, _NO_TEXT, _CALLS_ALONE = "calls", "no text", "calls alone"
"""In place of a role: the arguments of an assistant's calls, as objects and as texts; its messages
without a content, and those with calls instead."""
_TOOL = {"type": "function", "function": {"name": "trial", "description": "a", "parameters": {}}}
_ASKING = ("user", "tool")
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
        self._writes_tools = False

    def text(self, messages: Messages, rendering: Rendering) -> str:
        """Render the conversation as the model reads it, with every user's text in it.

        Raises:
            UsageError: the last message does not fit the rendering, or the template omits one.
        """
        rendering.check(messages)
        text = self.filled_in(messages, rendering)
        self._check_tools(messages, rendering, text)
        if (index := self._left_out(messages, rendering, text)) is not None:
            raise UsageError(
                f"the model's chat template leaves out messages[{index}] "
                f"({messages[index]['role']})",
                f"give messages that it takes, or go without it: {named('no_chat')}, in a chat "
                "/chat off",
            )
        return text

    def _check_tools(self, messages: Messages, rendering: Rendering, text: str) -> None:
        """Refuse tools if the template writes the same without, also for a question alone."""
        if not rendering.tools or self._writes_tools:
            return
        bare = replace(rendering, tools=())
        question = [self._question(bare)]
        same = self._trial(question, bare) == self._trial(question, rendering)
        if same and self._tried(messages, bare) == text:
            raise UsageError(
                "the model's chat template leaves out tools",
                "omit tools, or use another model",
                "tools",
            )
        self._writes_tools = True

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
        return [self._message(message, rendering) for message in messages]

    def formed(self, messages: Messages, rendering: Rendering) -> list[dict[str, Any]]:
        """The messages with arguments of calls as they are, where the template takes them so; else
        as an object, or as its JSON."""
        return [self._with_calls(message, rendering) for message in messages]

    def _with_calls(self, message: Message, rendering: Rendering) -> dict[str, Any]:
        if not (calls := message.get("tool_calls")):
            return dict(message)
        objects, texts = self._takes(_CALLS, rendering)

        def form(arguments: Any) -> Any:
            if isinstance(arguments, str):
                return as_object(arguments) if objects and not texts else arguments
            return arguments if objects else as_text(arguments)

        return {**message, "tool_calls": with_arguments(calls, form)}

    def _message(self, message: Message, rendering: Rendering) -> dict[str, Any]:
        if message["content"] is None:
            kind = _CALLS_ALONE if message.get("tool_calls") else _NO_TEXT
            absent, _ = self._takes(kind, rendering)
            return dict(message) if absent else {**message, "content": ""}
        content = self._content(message["role"], message["content"], rendering)
        return {**message, "content": content}

    def _content(self, role: str, content: Content, rendering: Rendering) -> Content:
        texts, parts = self._takes(role, rendering)
        if parts and not (texts and isinstance(content, str)):
            return [text_part(text) for text in part_texts(content)]
        return joined(content)

    def _takes(self, role: str, rendering: Rendering) -> tuple[bool, bool]:
        """Try whether a role's contents may be texts, and whether parts; once for each role.

        Neither: the template requires other messages next to this one, or rejects the role.
        """
        variables, tools = rendering.chat_template_kwargs, [_TOOL] * bool(rendering.tools)
        key = role, json.dumps([variables, tools], sort_keys=True)
        if key not in self._taken:
            how = Rendering(chat_template_kwargs=variables, tools=tools)
            found = self._trials(role, how)
            if len(self._taken) >= _KEPT:
                self._taken = {}
            self._taken[key] = found
        return self._taken[key]

    def _trials(self, role: str, how: Rendering) -> tuple[bool, bool]:
        if role == _CALLS:
            return self._trials_of_calls(how)
        if role in (_NO_TEXT, _CALLS_ALONE):
            calling, answer = self._called({"a": _WORD}, how)
            silent = {"role": "assistant", "content": None}
            asked = [{**calling, "content": None}, answer] if role == _CALLS_ALONE else [silent]
            question = self._question(how)
            return bool(self._trial([question, *asked, question], how)), True
        parts = [{**text_part(_WORD), _STRAY: ""}]
        return self._writes(role, _WORD, how), self._writes(role, parts, how)

    def _trials_of_calls(self, how: Rendering) -> tuple[bool, bool]:
        """Try arguments as an object and as its text: no Python repr and no JSON in a text, unless
        the template writes objects as Python alone."""
        forms: list[Any] = [{"a": _WORD}, json.dumps({"a": _WORD})]
        written = [self._trial([self._question(how), *_called(form)], how) for form in forms]
        wrong = (f"'{_WORD}", f'\\"{_WORD}')
        objects, texts = (_WORD in one and not any(w in one for w in wrong) for one in written)
        return objects or (not texts and _WORD in written[0]), texts

    def _writes(self, role: str, content: Content, rendering: Rendering) -> bool:
        """Return True if the template writes a content's text, and no Python repr of parts."""
        trial: list[dict[str, Any]] = [{"role": role, "content": content}]
        question = self._question(rendering) if role != "user" else {}
        if role == "system":
            trial = [*trial, question]
        elif role == "tool":
            calling, answer = self._called({}, rendering)
            trial = [question, calling, {**answer, "content": content}]
        elif role != "user":
            trial = [question, *trial, question]
        text = self._trial(trial, rendering)
        return _WORD in text and _STRAY not in text

    def _called(self, arguments: Any, rendering: Rendering) -> list[dict[str, Any]]:
        """Return a call as the template takes it, and its answer."""
        calling, answer = _called(arguments)
        calling = self._message(self._with_calls(calling, rendering), rendering)
        return [calling, answer]

    def _question(self, rendering: Rendering) -> dict[str, Any]:
        return {"role": "user", "content": self._content("user", "a", rendering)}

    def _trial(self, messages: list[dict[str, Any]], rendering: Rendering) -> str:
        """Return a trial's text in small letters; empty if the template rejects it."""
        try:
            return self._fill(messages, rendering).casefold()
        except (TrtlaError, TemplateStopped):
            raise
        except Exception:  # jinja2's, or any other
            return ""

    def _left_out(self, messages: Messages, rendering: Rendering, text: str) -> int | None:
        """Return the index of a user's or tool's message that the prompt lacks, in any form.

        A message that is not there literally counts if other letters in it change the prompt; if
        the trials have not shown that contents are written, each half of it has to count. The last
        question is tried on its own, earlier ones together: few trials for any length.
        """
        users = [index for index, message in enumerate(messages) if message["role"] in _ASKING]
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


def _called(arguments: Any) -> list[dict[str, Any]]:
    """Return a call and its answer."""
    function = {"name": "trial", "arguments": arguments}
    call = {"id": "trial7f3c", "type": "function", "function": function}
    answer = {"role": "tool", "tool_call_id": "trial7f3c", "content": "a"}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, answer]


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
