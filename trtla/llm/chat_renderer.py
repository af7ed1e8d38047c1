"""Conversations in a model's chat template, with messages in the form that it takes.

Some templates write a content as a text, some walk its parts, some do both, and each may treat the
roles differently. A template is a program, so a fixed set of trials shows what it does, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from trtla.errors import TrtlaError, UsageError, first_line, named
from trtla.formats.folder import no_chat_template
from trtla.llm.templates import ChatTemplate, TemplateProcess
from trtla.settings.fields import check_text
from trtla.settings.messages import (
    Content,
    Message,
    Messages,
    Rendering,
    Variables,
    joined,
    part_texts,
    text_part,
    with_text,
)
from trtla.settings.tool_calls import as_object, as_text, with_arguments

_END = "\U0010fffe"
"""A code point that no text may have, behind a text that goes on."""
_TAKES = f"give messages that it takes, correct it, or go without: {named('no_chat')}"
_RULES, _QUESTION, _ANSWER = (
    {"role": role, "content": f"trial{role}"} for role in ("system", "user", "assistant")
)
_CALLED = {"id": "trial7f3c", "function": {"name": "trial", "arguments": {}}, "type": "function"}
_CALL = {"role": "assistant", "content": "", "tool_calls": [_CALLED]}
_RESULT = {"role": "tool", "content": "trialtool", "tool_call_id": "trial7f3c"}
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
_FUNCTION = {"name": "trial", "description": "a", "parameters": _PARAMETERS}
_TOOLS = ({"type": "function", "function": _FUNCTION},)
_THOUGHTS = re.compile(r"^<think>\n.*?(\n</think>\n\n|\Z)", re.DOTALL)
"""As `trtla.api.harmony.Transcript` shows them."""
_VALUE, _STRAY = "trialvalue", "straykey"


class _Rejected(UsageError):
    """A template raised an error."""


class ChatRenderer:
    """Renders conversations in a chat template.

    Args:
        read: reads the template; None if the tokenizer has none.
        folder: the tokenizer's, for errors.
        variables: of the template, for conversations without their own.
    """

    def __init__(
        self, read: Callable[[], ChatTemplate | None], folder: Path, variables: Variables
    ) -> None:
        self._read, self._folder, self._variables = read, folder, variables
        self._process: TemplateProcess | None = None
        self._forms: dict[bool, TemplateForm] = {}

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The template, if the tokenizer has one."""
        return self._read()

    def in_process(self, most_s: float) -> TemplateProcess:
        """Render in a process from now on, which the caller closes, within seconds."""
        self._process = TemplateProcess(self._known(), most_s)
        return self._process

    def adapted(self, messages: Messages, rendering: Rendering) -> list[dict[str, Any]]:
        """Return messages in the form that the template takes.

        Raises:
            UsageError: the last one does not fit the rendering, or the template omits some.
        """
        rendering.check(messages)
        tools = bool(rendering.tools)
        if tools not in self._forms:  # the template may be another one with tools
            trial = partial(self._trial, rendering=Rendering(tools=_TOOLS if tools else ()))
            self._forms[tools] = TemplateForm(trial)
        self._forms[tools].check(messages)
        if "<|channel|>" in self._known().text(tools):
            messages = list(map(_without_thoughts, messages))
        return [self._forms[tools].adapted(message) for message in messages]

    def text(self, messages: Messages, rendering: Rendering) -> str:
        """Render adapted messages, up to where the model continues."""
        render = self._begun if rendering.continue_final_message else self._filled
        text = render(messages, rendering)
        check_text(text, "what the chat template makes")
        return text

    def _begun(self, messages: Messages, rendering: Rendering) -> str:
        """Render up to the end of the last text, whose final blanks a stripping template drops."""
        said = part_texts(messages[-1]["content"])[-1]
        marked = [*messages[:-1], with_text(messages[-1], -1, f"{said}{_END} ")]
        text, separator, rest = self._filled(marked, rendering).rpartition(_END)
        if said.strip() and not rest.startswith(" "):
            text = text.rstrip()
        if not separator or _END in text or not text.rstrip().endswith(said.strip()):
            raise UsageError(
                "the model's chat template changes the last message, which can then not be "
                "continued",
                "omit continue_final_message, or give what it leaves as it is",
            )
        return text

    def _filled(self, messages: Messages, rendering: Rendering) -> str:
        variables = {**self._variables, **rendering.chat_template_kwargs}
        if rendering.tools:
            variables["tools"] = list(rendering.tools)
        render = (self._process or self._known()).render
        try:
            return render(list(messages), rendering.add_generation_prompt, variables)
        except TrtlaError:
            raise
        except Exception as error:  # jinja2's, or any other
            problem = f"the model's chat template fails: {first_line(error)}"
            raise _Rejected(problem, _TAKES) from None

    def _trial(self, messages: Messages, rendering: Rendering) -> str | None:
        try:
            return self._filled(messages, rendering).casefold()
        except _Rejected:
            return None

    def _known(self) -> ChatTemplate:
        if self.template is None:
            raise no_chat_template(self._folder)
        return self.template


class TemplateForm:
    """The form of messages for one template, and what it omits of them.

    Args:
        trial: renders messages, in small letters; None if the template rejects them.
    """

    def __init__(self, trial: Callable[[Messages], str | None]) -> None:
        self._trial = trial
        self._texts, self._parts = set[str](), set[str]()
        """Roles whose contents may be texts, and roles whose contents may be parts."""
        self._lost: dict[str, str] = {}
        """The role that is omitted in conversations with another role, or with itself."""
        self._read("user", (_QUESTION,))
        self._read("assistant", (_QUESTION, _ANSWER, _QUESTION))
        self._objects, self._json = self._arguments_taken()
        self._read("tool", (_QUESTION, _CALL, _RESULT))
        self._read("system", (_RULES, _QUESTION))
        talk = [self.adapted(message) for message in (_QUESTION, _CALL, _RESULT)]
        talk[1]["content"] = None
        self._calls_alone = trial(talk) is not None

    def adapted(self, message: Message) -> dict[str, Any]:
        """Return a message with its content and its calls as the template takes them."""
        content, calls, changed = message["content"], message.get("tool_calls"), dict(message)
        if calls:
            changed["tool_calls"] = with_arguments(calls, self._arguments)
        if content is not None or not (calls and self._calls_alone):
            changed["content"] = self._content(message["role"], content)
        return changed

    def check(self, messages: Messages) -> None:
        """Refuse messages of users and tools that the template omits."""
        said = {message["role"] for message in messages if joined(message["content"]).strip()}
        for message in messages:
            if (lost := self._lost.get(message["role"])) in said:
                raise UsageError(f"the model's chat template leaves out {lost} messages", _TAKES)

    def _content(self, role: str, content: Content) -> Content:
        is_text = content is None or isinstance(content, str)
        if role in self._parts and not (is_text and role in self._texts):
            return [text_part(text) for text in part_texts(content)]
        return joined(content)

    def _arguments(self, arguments: Any) -> Any:
        """Leave arguments as they are where the template takes them so."""
        if isinstance(arguments, str):
            return arguments if self._json or not self._objects else as_object(arguments)
        return arguments if self._objects else as_text(arguments)

    def _read(self, role: str, talk: Messages) -> None:
        """Try contents as texts and as parts, which may not show up as Python writes them."""
        for taken, form in ((self._texts, joined), (self._parts, _stray_part)):
            messages = [
                {**m, "content": form(m["content"])} if m["role"] == role else self.adapted(m)
                for m in talk
            ]
            shown = self._trial(messages) or ""
            if f"trial{role}" in shown and _STRAY not in shown:
                taken.add(role)
        text = self._trial([self.adapted(message) for message in talk])
        for asking in (_QUESTION, _RESULT):
            if text is not None and text.count(asking["content"]) < list(talk).count(asking):
                self._lost[role] = asking["role"]

    def _arguments_taken(self) -> tuple[bool, bool]:
        """Try arguments as an object and as its text: no Python repr and no JSON in a text, unless
        the template writes objects as Python alone."""

        def shown(arguments: Any) -> str:
            calls = with_arguments([_CALLED], lambda _: arguments)
            talk = [self.adapted(_QUESTION), {**_CALL, "tool_calls": calls}, _RESULT]
            return self._trial(talk) or ""

        texts = [shown({"a": _VALUE}), shown(json.dumps({"a": _VALUE}))]
        wrong = re.compile(rf"""('|\\"){_VALUE}""")
        objects, json_ = (_VALUE in text and not wrong.search(text) for text in texts)
        return objects or (not json_ and _VALUE in texts[0]), json_


def _without_thoughts(message: Message) -> Message:
    """An earlier answer without the thoughts in front, which templates of harmony cannot read."""
    content = message["content"]
    if message["role"] != "assistant" or not isinstance(content, str):
        return message
    return with_text(message, 0, _THOUGHTS.sub("", content))


def _stray_part(content: Content) -> list[dict[str, str]]:
    return [{**text_part(joined(content)), _STRAY: ""}]
