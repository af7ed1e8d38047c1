"""What a model is asked: texts or messages, and whether texts are put into the chat template.

Messages have OpenAI's form. They are checked and joined here; the model's template renders them in
`trtla.llm.text.Tokenizer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from trtla.errors import UsageError, did_you_mean
from trtla.settings.fields import check, check_text, option, shown

Message = Mapping[str, Any]
"""A role, and a content: a text, or a list of parts `{"type": "text", "text": ...}`.

A `name` says who speaks, to chat templates that use it. None is an assistant's content of no text.
"""
Messages = Sequence[Message]
"""A conversation; the model answers the last message."""

ROLES = ("system", "user", "assistant")
_FORM = 'write {"role": "user", "content": "..."} messages'


def is_conversation(prompt: object) -> TypeGuard[Messages]:
    """Whether a prompt is a list of messages, as its first item says."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence):
        return False
    return len(prompt) > 0 and isinstance(prompt[0], Mapping)


def check_messages(messages: object, name: str) -> tuple[dict[str, str], ...]:
    """The messages with their contents as texts, parts joined by newlines; errors say `name`."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise UsageError(f"{name}: messages is {shown(messages)}, not a list", _FORM)
    if not messages:
        raise UsageError(f"{name}: messages is empty", "give at least one message")
    return tuple(_message(one, f"{name}: messages[{i}]") for i, one in enumerate(messages))


def _message(message: object, name: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise UsageError(f"{name} is {shown(message)}, not a message", _FORM)
    role = message.get("role")
    if role not in ROLES:
        guess = did_you_mean(role, ROLES) if isinstance(role, str) else ""
        what = f"the role {shown(role)}" if "role" in message else "no role"
        raise UsageError(f"{name} has {what}", f"{guess}use {', '.join(ROLES)}")
    for key in message:
        if key not in ("role", "content", "name"):
            raise UsageError(f"{name} ({role}) has the unknown key {shown(key)}", "remove the key")
    if "content" not in message:
        raise UsageError(f"{name} ({role}) has no content", _FORM)
    content = message["content"]
    text = "" if content is None and role == "assistant" else _text(content, f"{name} ({role})")
    found = {"role": str(role), "content": text}
    speaker = message.get("name")
    if speaker is None:
        return found
    if not isinstance(speaker, str):
        raise UsageError(f"{name} ({role}) has the name {shown(speaker)}", "give a text")
    check_text(speaker, name)
    return {**found, "name": speaker}


def _text(content: object, name: str) -> str:
    if isinstance(content, bytes) or not isinstance(content, Sequence):
        raise UsageError(f"{name} has the content {shown(content)}, which is not text", _FORM)
    parts = [content] if isinstance(content, str) else [_part(part, name) for part in content]
    text = "\n".join(parts)
    check_text(text, name)
    return text


def _part(part: object, name: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and len(part) == 2:
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise UsageError(
        f"{name} has the part {shown(part)}, which is not text",
        'write {"type": "text", "text": "..."} parts',
    )


def follow_up(prompt: str | Messages, answer: str, question: str | Messages) -> str | Messages:
    """What the model reads for the next turn: the one before, its answer, and the question.

    A question in messages continues messages. Raw text has each question on a line of its own.
    """
    if isinstance(prompt, str) or isinstance(question, str):
        return f"{prompt}{answer}\n{question}"
    return (*prompt, {"role": "assistant", "content": answer}, *question)


@dataclass(frozen=True, slots=True)
class Asking:
    """How texts are asked: as they are, or each as a user's message in the chat template."""

    chat: bool | None = option(
        None,
        "Ask each text as a user's message in the model's chat template, or as it is. Without "
        "either only Spec-Bench's questions are messages, where the model has a template.",
    )
    system: str | None = option(
        None, "A system message before texts, and before messages without one; implies --chat."
    )

    def __post_init__(self) -> None:
        check(self)
        if self.system is not None and self.chat is False:
            raise UsageError(
                "--system is a message of the chat template, which --no-chat omits",
                "omit one of them",
            )
        if self.system is not None:
            object.__setattr__(self, "chat", True)

    def prompt(self, text: str, *, chat: bool | None = None) -> str | Messages:
        """A text as it is asked; `chat` decides where neither flag is given."""
        if not (chat if self.chat is None else self.chat):
            return text
        return self.messages([{"role": "user", "content": text}])

    def messages(self, messages: Messages) -> Messages:
        """A conversation with the system message in front, unless it has one."""
        if self.system is None or messages[0]["role"] == "system":
            return messages
        return ({"role": "system", "content": self.system}, *messages)


AS_TEXT = Asking()
"""Neither flag."""
