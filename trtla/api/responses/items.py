"""Items of a response's input, and the messages of a chat that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from trtla.api.protocol import PARTS
from trtla.api.strict import Object, Strict
from trtla.api.tools import CallId, FunctionName

_KINDS = ("message", "function_call", "function_call_output", "reasoning")
_STATE = ("id", "status")
"""Fields of items that were answered; they are ignored where an item is sent back."""
_DIRECT: dict[str, tuple[Any, ...]] = {"async": (False,), "caller": ({"type": "direct"},)}


class InputText(Strict):
    """A part of a content; what another model has said to refuse an answer is a text too."""

    by_client = ("annotations", "logprobs", "parsed", "prompt_cache_breakpoint")
    type: Literal["input_text", "output_text", "refusal", "text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read_refusal(cls, part: Any) -> Any:
        if not isinstance(part, dict) or part.get("type") != "refusal":
            return part
        return {"text" if key == "refusal" else key: item for key, item in part.items()}


Texts = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[InputText], Field(fail_fast=True), Tag(PARTS)],
    Discriminator(lambda value: PARTS if isinstance(value, list) else "text"),
]


class InputMessage(Strict):
    """A message; one of the assistant may be an item of an earlier output."""

    by_client = (*_STATE, "phase")
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts


class FunctionCall(Strict):
    """A call of an earlier output."""

    by_client = (*_STATE, "namespace", "parsed_arguments")
    neutral = _DIRECT
    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: str


class FunctionCallOutput(Strict):
    """A function's answer to an earlier call."""

    by_client = (*_STATE, "name", "namespace")
    neutral = _DIRECT
    type: Literal["function_call_output"]
    call_id: CallId
    output: Texts


class Thought(Strict):
    """A text of a reasoning item."""

    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class ReasoningItem(Strict):
    """The thoughts of an earlier output; without a content, its summary."""

    by_client = (*_STATE, "encrypted_content")
    type: Literal["reasoning"]
    summary: list[Thought] = Field([], fail_fast=True)
    content: list[Thought] | None = Field(None, fail_fast=True)

    @property
    def thoughts(self) -> str:
        """Their texts; encrypted ones of another server have none."""
        return "".join(one.text for one in self.content or self.summary)


class OtherItem(Strict):
    """An item that is not supported."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"]


def _kind(value: Any) -> str:
    kind = value.get("type", "message") if isinstance(value, dict) else None
    return kind if kind in _KINDS else "other"


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_kind),
]
MODELS: tuple[type[Strict], ...] = (
    InputText, InputMessage, FunctionCall, FunctionCallOutput, Thought, ReasoningItem,
)  # fmt: skip


def messages_of(instructions: str | None, items: str | Iterable[Item]) -> list[Object]:
    """Return the messages of a chat: the instructions and what follows them.

    Where the input begins with system messages, they and the instructions are one message: many
    templates take a single one.
    """
    if isinstance(items, str):
        messages: list[Object] = [{"role": "user", "content": items}]
    else:
        messages = list(_messages(items))
    if not instructions:
        return messages
    texts = [instructions]
    while messages and messages[0]["role"] in ("system", "developer"):
        texts.append(_text(messages.pop(0)["content"]))
    return [{"role": "system", "content": "\n\n".join(texts)}, *messages]


def _messages(items: Iterable[Item]) -> Iterator[Object]:
    """Yield messages: thoughts, text and calls that follow each other are one answer."""
    answer: Object = {}
    for item in items:
        if isinstance(item, ReasoningItem) and not item.thoughts:
            continue
        new = _part(item)
        if new["role"] == "assistant" and _continues(answer, new):
            _add(answer, new)
            continue
        if answer:
            yield answer
        answer = new if new["role"] == "assistant" else {}
        if not answer:
            yield new
    if answer:
        yield answer


def _part(item: Item) -> Object:
    """Return an item as a message of its own."""
    if isinstance(item, InputMessage):
        return {"role": item.role, "content": _content(item.content, item.role)}
    if isinstance(item, FunctionCallOutput):
        output = _content(item.output, "tool")
        return {"role": "tool", "tool_call_id": item.call_id, "content": output}
    if isinstance(item, FunctionCall):
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    assert isinstance(item, ReasoningItem)
    return {"role": "assistant", "content": None, "reasoning_content": item.thoughts}


def _content(texts: str | list[InputText], role: str) -> str | list[Object]:
    """Return a content of a chat's message; an answer's only part is a text, as it was in one."""
    if isinstance(texts, str):
        return texts
    if role in ("assistant", "tool") and len(texts) == 1:
        return texts[0].text
    return [{"type": "text", "text": part.text} for part in texts]


def _continues(answer: Object, new: Object) -> bool:
    """Return True if an answer goes on: its thoughts come first, and a text ends it."""
    if not answer:
        return False
    only_thoughts = answer["content"] is None and "tool_calls" not in answer
    if only_thoughts or "reasoning_content" in new:
        return only_thoughts
    return "tool_calls" in new or "tool_calls" in answer


def _add(answer: Object, new: Object) -> None:
    if thoughts := new.get("reasoning_content"):
        answer["reasoning_content"] += thoughts
    elif calls := new.get("tool_calls"):
        answer["tool_calls"] = [*answer.get("tool_calls", ()), *calls]
    elif answer["content"] is None:
        answer["content"] = new["content"]
    else:
        answer["content"] = _text(answer["content"]) + _text(new["content"])


def _text(content: str | list[Object]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)
