"""Input of a model: texts or messages, and the use of the chat template.

Messages have OpenAI's form. They are checked here; the model's template renders them in
`trtla.llm.text.Tokenizer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

from trtla.errors import UsageError, did_you_mean, named
from trtla.settings.fields import check, check_text, option, shown
from trtla.settings.tool_calls import call_texts, changed_calls, check_calls, check_id

Message = Mapping[str, Any]
"""A role, and a content: a text, or a list of parts `{"type": "text", "text": ...}`.

A `name` says who speaks, to chat templates that use it. None is an assistant's content of no text.
An assistant's `tool_calls` and a tool's `tool_call_id` have OpenAI's form.
"""
Messages = Sequence[Message]
"""A conversation; the model answers the last message."""
Content = str | Sequence[Mapping[str, str]] | None
"""A text, or parts that are texts; None: an assistant's of no text."""
Variables = Mapping[str, Any]
"""Values of JSON for the variables of a chat template, such as {"enable_thinking": false}."""
NO_VARIABLES: Variables = {}

ROLES = ("system", "user", "assistant", "tool")
_FORM = 'write {"role": "user", "content": "..."} messages'


def is_conversation(prompt: object) -> TypeGuard[Messages]:
    """Return True if a prompt is a list of messages, as its first item shows."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence):
        return False
    return len(prompt) > 0 and isinstance(prompt[0], Mapping)


_SET_ELSEWHERE = {
    "messages": "give it as the prompt",
    "add_generation_prompt": "give it beside chat_template_kwargs, in a request of the server",
    "continue_final_message": "give it beside chat_template_kwargs, as a setting of its own",
    "tools": "omit it: tools are a field of the server's requests",
    "documents": "omit it: documents are not supported",
}


def check_variables(value: object, name: str = "chat_template_kwargs") -> None:
    """Refuse what is no JSON object, or sets a variable that has an argument of its own."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(
            f"{name} is {shown(value)}, not an object of JSON",
            'give the template\'s variables, such as {"enable_thinking": false}',
        )
    for key, hint in _SET_ELSEWHERE.items():
        if key in value:
            raise UsageError(f"{name} may not set {key}", hint)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{name} is no JSON: {error}",
            "give texts, numbers, true, false, null, and lists and objects of them",
        ) from None


@dataclass(frozen=True, slots=True)
class Rendering:
    """The end of the model's input behind a conversation, by vLLM's names."""

    add_generation_prompt: bool = True
    """Begin a new answer."""
    continue_final_message: bool = False
    """Continue the last message, which is the beginning of an answer."""
    chat_template_kwargs: Variables = field(default_factory=dict)
    """Variables of the chat template, in place of those that the model was opened with."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The functions that the answer may call, in OpenAI's form."""

    def __post_init__(self) -> None:
        check_variables(self.chat_template_kwargs)
        if self.add_generation_prompt and self.continue_final_message:
            raise UsageError(
                "continue_final_message and add_generation_prompt exclude each other",
                "set one of them to false",
                "continue_final_message",
            )

    @classmethod
    def of(
        cls,
        continue_final_message: object,
        add_generation_prompt: bool | None = None,
        chat_template_kwargs: Variables | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Rendering:
        """From arguments; an answer is asked for unless the last message is continued."""
        if not isinstance(continue_final_message, bool):
            raise UsageError(
                f"continue_final_message is {shown(continue_final_message)}", "give True or False"
            )
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        variables = {} if chat_template_kwargs is None else chat_template_kwargs
        return cls(add_generation_prompt, continue_final_message, variables, tools)

    @property
    def changed(self) -> str:
        """The first setting that differs from the usual; empty: none does."""
        names = (item.name for item in reversed(fields(self)))
        return next((n for n in names if getattr(self, n) != getattr(ANSWER, n)), "")

    def check(self, messages: Messages) -> None:
        """Refuse a last message that nothing sensible can follow."""
        last = messages[-1]["role"]
        if self.continue_final_message and last != "assistant":
            raise UsageError(
                f"the last message is of {last}, and continue_final_message continues an "
                "assistant's",
                "end with the beginning of the answer, or omit continue_final_message",
            )
        if self.add_generation_prompt and last == "assistant":
            raise UsageError(
                "the last message is the assistant's: another answer would begin behind it",
                "set continue_final_message to have it continued, or end with a user's message",
            )


ANSWER, CONTINUED = Rendering(), Rendering(False, True)
_MORE_TEXTS = ("name", "reasoning_content", "reasoning")
_KEYS = ("role", "content", *_MORE_TEXTS)
_KEYS_OF = {"assistant": (*_KEYS, "tool_calls"), "tool": (*_KEYS, "tool_call_id")}


def part_texts(content: Content) -> list[str]:
    """The texts of a content's parts; a text is one part."""
    if content is None or isinstance(content, str):
        return [content or ""]
    return [part["text"] for part in content]


def joined(content: Content) -> str:
    """A content as one text."""
    return "\n".join(part_texts(content))


def text_part(text: str) -> dict[str, str]:
    """A part as OpenAI's API has it."""
    return {"type": "text", "text": text}


def with_text(message: Message, part: int, text: str) -> dict[str, Any]:
    """A message with another text in place of one of its parts."""
    if not isinstance(message["content"], list):
        return {**message, "content": text}
    texts = part_texts(message["content"])
    texts[part] = text
    return {**message, "content": [text_part(item) for item in texts]}


def written(messages: Messages) -> Iterator[str]:
    """All texts that people wrote, names included, in the order that templates mostly have."""
    for message in messages:
        yield from (message[key] for key in _MORE_TEXTS if message.get(key))
        yield from part_texts(message["content"])
        yield from call_texts(message.get("tool_calls", ()))


def rewritten(messages: Messages, change: Callable[[str], str]) -> list[dict[str, Any]]:
    """The messages with every text that people wrote changed."""
    changed = []
    for message in messages:
        texts, new = part_texts(message["content"]), dict(message)
        for part, text in enumerate(texts):
            new = with_text(new, part, change(text)) if text else new
        for key in _MORE_TEXTS:
            if new.get(key):
                new[key] = change(new[key])
        if calls := new.get("tool_calls"):
            new["tool_calls"] = changed_calls(calls, change)
        changed.append(new)
    return changed


def check_messages(messages: object, name: str) -> tuple[dict[str, Any], ...]:
    """The messages with contents that are texts, or lists of parts that are; errors say `name`."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise UsageError(f"{name}: messages is {shown(messages)}, not a list", _FORM)
    if not messages:
        raise UsageError(f"{name}: messages is empty", "give at least one message")
    return tuple(_message(item, f"{name}: messages[{i}]") for i, item in enumerate(messages))


def _message(message: object, name: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UsageError(f"{name} is {shown(message)}, not a message", _FORM)
    role = message.get("role")
    if role not in ROLES:
        guess = did_you_mean(role, ROLES) if isinstance(role, str) else ""
        problem = f"the role {shown(role)}" if "role" in message else "no role"
        raise UsageError(f"{name} has {problem}", f"{guess}use {', '.join(ROLES)}")
    for key in message:
        if key not in _KEYS_OF.get(role, _KEYS):
            raise UsageError(f"{name} ({role}) has the unknown key {shown(key)}", "remove the key")
    calls = message.get("tool_calls") or ()
    if "content" not in message and not calls:
        raise UsageError(f"{name} ({role}) has no content", _FORM)
    content = message.get("content")
    empty = content is None and role == "assistant"
    checked: dict[str, Any] = {
        "role": str(role),
        "content": None if empty else _content(content, f"{name} ({role})"),
        **dict(_more_texts(message, name)),
    }
    if calls:
        checked["tool_calls"] = check_calls(calls, name)
    if "tool_call_id" in message:
        checked["tool_call_id"] = check_id(message["tool_call_id"], name)
    return {key: checked[key] for key in (*message, "content") if key in checked}


def _more_texts(message: Message, name: str) -> Iterator[tuple[str, str]]:
    for key in _MORE_TEXTS:
        text = message.get(key)
        if text is None:
            continue
        if not isinstance(text, str):
            raise UsageError(
                f"{name} ({message['role']}) has the {key} {shown(text)}", "give a text"
            )
        check_text(text, name)
        yield key, text


def _content(content: object, name: str) -> Content:
    if isinstance(content, bytes) or not isinstance(content, Sequence):
        raise UsageError(f"{name} has the content {shown(content)}, which is not text", _FORM)
    checked = content if isinstance(content, str) else [_part(part, name) for part in content]
    check_text(joined(checked), name)
    return checked or ""


def _part(part: object, name: str) -> dict[str, str]:
    form = 'write {"type": "text", "text": "..."} parts'
    if not isinstance(part, Mapping) or part.get("type") != "text":
        raise UsageError(f"{name} has the part {shown(part)}, which is not text", form)
    for key in part:
        if key not in ("type", "text"):
            raise UsageError(f"{name} has a part with the unknown key {shown(key)}", "remove it")
    if not isinstance(part.get("text"), str):
        raise UsageError(f"{name} has the part {shown(part)}, which has no text", form)
    return text_part(part["text"])


def follow_up(prompt: str | Messages, answer: str, question: str | Messages) -> str | Messages:
    """The prompt of the next turn: the one before, its answer, and the question.

    A question in messages continues messages. Raw text has each question on a line of its own.
    """
    if isinstance(prompt, str) or isinstance(question, str):
        return f"{prompt}{answer}\n{question}"
    return (*prompt, {"role": "assistant", "content": answer}, *question)


@dataclass(frozen=True, slots=True)
class Asking:
    """The form of texts as prompts: as they are, or each a user's message in the chat template."""

    chat: bool | None = option(
        None,
        "Ask each text as a user's message in the model's chat template, or as it is. Without "
        "either only questions of Spec-Bench and SPEED-Bench are messages, where the model has a "
        "template.",
    )
    system: str | None = option(
        None, "A system message before texts, and before messages without one; implies --chat."
    )

    def __post_init__(self) -> None:
        check(self)
        if self.system is not None and self.chat is False:
            raise UsageError(
                f"{named('system')} is a message of the chat template, which {named('no_chat')} "
                "omits",
                "omit one of them",
            )
        if self.system is not None:
            object.__setattr__(self, "chat", True)

    def prompt(self, text: str, *, chat: bool | None = None) -> str | Messages:
        """A text as a prompt; `chat` decides where neither flag is given."""
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
