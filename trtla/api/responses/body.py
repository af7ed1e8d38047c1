"""The body of POST /v1/responses, and the chat that it asks for."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from trtla.api.errors import ApiError
from trtla.api.protocol import LARGEST, PARTS, SWITCHES, ChatBody, Effort, Shared
from trtla.api.reading import FLAT, GROUPED, check_body, read_body
from trtla.api.responses import items
from trtla.api.responses.errors import renamed
from trtla.api.responses.items import Item, messages_of
from trtla.api.strict import AsSent, Object, Strict
from trtla.api.tools import MOST_TOOLS, NAME_RULE, FunctionName, with_parameters
from trtla.settings.fields import shown

_LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""What an answer may have besides its texts; of hosted tools and images there is nothing to add."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
}
"""Fields of OpenAI that are not supported, with the values that request nothing."""
_SEND_ALL = "responses are not stored: send the earlier input and output again, in input"


class FunctionTool(AsSent):
    """A function that may be called. Other keys are for the chat template."""

    model_config = ConfigDict(extra="ignore")
    _parameters = model_validator(mode="before")(with_parameters)
    type: Literal["function"]
    name: FunctionName
    description: str = ""
    parameters: Object = Field({"type": "object", "properties": {}}, description="Their schema.")
    strict: bool = Field(False, description="Refuse keywords of the schema that are not supported.")

    @property
    def chat(self) -> Object:
        """The tool as a chat has it, with the keys that were sent."""
        keys = {key: item for key, item in self.sent.items() if key != "type" and item is not None}
        return {"type": "function", "function": keys}

    @property
    def shown(self) -> Object:
        """The tool in an answer."""
        return {"type": "function", "name": self.name, "description": self.description or None,
                "parameters": self.parameters, "strict": self.strict}  # fmt: skip


class Namespace(AsSent):
    """Functions under a name, which their calls repeat; they are offered by their own names."""

    type: Literal["namespace"]
    name: FunctionName
    description: str = ""
    tools: list[FunctionTool] = Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)

    @property
    def shown(self) -> Object:
        """The namespace in an answer."""
        head = {"type": self.type, "name": self.name, "description": self.description}
        return {**head, "tools": [tool.shown for tool in self.tools]}


def _is_group(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "namespace"


Offered = Annotated[
    Annotated[FunctionTool, Tag(FLAT)] | Annotated[Namespace, Tag(GROUPED)],
    Discriminator(lambda tool: GROUPED if _is_group(tool) else FLAT),
]


class ChosenFunction(Strict):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


class TextSettings(Strict):
    """The text of an answer."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "format": ({"type": "text"},),
        "verbosity": ("medium",),
    }
    format: Object | None = Field(
        None, description="json_object, or json_schema with a schema that the answer follows."
    )

    @property
    def chat(self) -> Object | None:
        """The format as a chat has it: a schema and its name are one level deeper there."""
        form = self.format
        if form is None or form.get("type") != "json_schema":
            return form
        return {"type": "json_schema", "json_schema": {k: form[k] for k in form if k != "type"}}

    @model_validator(mode="after")
    def _has_schema(self) -> TextSettings:
        form = self.format or {}
        if form.get("type") == "json_schema" and form.get("schema") is None:
            raise ValueError(
                'text has a format without a schema; give {"type": "json_schema", "name": "...", '
                '"schema": {...}}'
            )
        return self


class Reasoning(Strict):
    """The thoughts in front of an answer."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "context": ("auto",),
        "generate_summary": ("auto",),
        "mode": ("standard",),
        "summary": ("auto",),
    }
    effort: Effort | None = Field(None, description=SWITCHES)


class StreamSettings(Strict):
    """Contents of a stream besides the answer: nothing is supported."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}


_PARTS: tuple[type[Strict], ...] = (
    *(FunctionTool, Namespace, ChosenFunction, TextSettings, Reasoning, StreamSettings),
    *items.MODELS,
)
_Pair = Annotated[str, Field(max_length=512)]


class ResponseBody(Shared):
    """POST /v1/responses."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {**Shared.neutral, **NEUTRAL}
    nested: ClassVar[tuple[type[Strict], ...]] = _PARTS
    rules: ClassVar[dict[str, str]] = {
        "content": "a text, or a list of parts of the types input_text and output_text",
        "format": 'an object such as {"type": "json_schema", "name": "...", "schema": {...}}',
        "input": "a text, or a list of items, none of them empty",
        "metadata": "at most 16 texts of up to 512 characters, by keys of up to 64",
        "name": NAME_RULE,
        "output": "a text, or a list of parts of the type input_text",
        "tool_choice": 'none, auto, required, or {"type": "function", "name": "..."}',
    }
    instead: ClassVar[dict[str, str]] = {
        "background": "omit it, and keep the connection open",
        "conversation": _SEND_ALL,
        "logprobs": f'use include, with "{_LOGPROBS}"',
        "max_completion_tokens": "use max_output_tokens",
        "max_tokens": "use max_output_tokens",
        "messages": "use input",
        "previous_response_id": _SEND_ALL,
        "prompt": "send its texts in input",
        "reasoning_effort": "use reasoning.effort",
        "response_format": "use text.format",
        "system": "use instructions",
        "system_prompt": "use instructions",
        "truncation": "omit it, and shorten the input where it is too long",
    }
    input: Annotated[
        Annotated[str, Field(min_length=1), Tag("text")]
        | Annotated[list[Item], Field(min_length=1, fail_fast=True), Tag(PARTS)],
        Discriminator(lambda value: PARTS if isinstance(value, list) else "text"),
    ]
    instructions: str | None = Field(None, description="A system message in front of the input.")
    max_output_tokens: int | None = Field(None, ge=1, le=LARGEST)
    max_tool_calls: int | None = Field(
        None, ge=1, le=LARGEST, description="Of hosted tools, of which there are none."
    )
    text: TextSettings | None = None
    reasoning: Reasoning | None = None
    tools: list[Offered] = Field(
        [], max_length=MOST_TOOLS, fail_fast=True, description="Functions that may be called."
    )
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = Field(
        None, description="none, auto, required, or a function by name; None: auto with tools."
    )
    parallel_tool_calls: bool = Field(True, description="False: one call in an answer at most.")
    include: list[Included] = Field([], fail_fast=True)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    metadata: Annotated[dict[Annotated[str, Field(max_length=64)], _Pair], Field(max_length=16)] = (
        Field({}, description="Texts that the answer repeats.")
    )
    client_metadata: Object = Field({}, description="Codex's notes, which request nothing.")
    store: bool | None = Field(None, description="Responses are not stored in either case.")
    stream_options: StreamSettings | None = None
    chat_template_kwargs: dict[str, Any] = Field(
        {}, description="trtla: variables of the chat template, such as enable_thinking."
    )

    @field_validator("tools", mode="before")
    @classmethod
    def _functions_only(cls, tools: Any) -> Any:
        for tool in tools if isinstance(tools, list) else ():
            keys = tool if isinstance(tool, dict) else {}
            kind = keys.get("type")
            if "function" in keys and "name" not in keys:
                raise ValueError(
                    "tools has a function in the form of chats; give "
                    '{"type": "function", "name": "..."}'
                )
            if isinstance(kind, str) and kind not in ("function", "namespace"):
                raise ValueError(
                    f"tools has {shown(kind)}, and only functions are supported; omit that tool, "
                    "or give it as a function"
                )
        return tools

    @model_validator(mode="after")
    def _stream_only(self) -> ResponseBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams; set stream to true")
        return self

    @model_validator(mode="after")
    def _can_be_repeated(self) -> ResponseBody:
        repeated = {
            "text": self.text.format if self.text is not None else None,
            "tools": [tool.shown for tool in self.tools],
        }
        for name, value in repeated.items():
            try:
                json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
            except UnicodeEncodeError:
                raise ValueError(f"{name} has half of a surrogate pair; correct it") from None
            except ValueError:
                raise ValueError(f"{name} has a number beyond JSON's; make it smaller") from None
        return self

    @property
    def functions(self) -> list[tuple[str | None, FunctionTool]]:
        """The functions, each behind the name of its namespace, if any."""
        found: list[tuple[str | None, FunctionTool]] = []
        for tool in self.tools:
            group = tool.tools if isinstance(tool, Namespace) else (tool,)
            found += [(tool.name if isinstance(tool, Namespace) else None, one) for one in group]
        return found

    @property
    def lists_logprobs(self) -> bool:
        """True if the answer lists log probabilities."""
        return _LOGPROBS in self.include or bool(self.top_logprobs)

    @cached_property
    def chat(self) -> ChatBody:
        """The chat that it asks for; raises `ApiError` if that is invalid."""
        shared = {name: getattr(self, name) for name in Shared.model_fields}
        own: Object = {
            "messages": self._messages(),
            "max_tokens": self.max_output_tokens,
            "response_format": None if self.text is None else self.text.chat,
            "chat_template_kwargs": self.chat_template_kwargs,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            **self._logprobs(),
            **self._tools(),
        }
        with renamed():
            return check_body(ChatBody, {**shared, **own})

    def _messages(self) -> list[Object]:
        messages = messages_of(self.instructions, self.input)
        if not messages or messages[-1]["role"] == "assistant":
            what = "ends with an answer" if messages else "has no message"
            raise ApiError(
                400,
                f"input {what}; let it end with a user's message or the output of a function",
                "input",
            )
        return messages

    def _logprobs(self) -> Object:
        if not self.lists_logprobs:
            return {}
        return {"logprobs": True, "top_logprobs": self.top_logprobs or 0}

    def _tools(self) -> Object:
        """Return the tools as a chat has them; without any, a choice between them means nothing."""
        choice: Any = self.tool_choice
        if isinstance(choice, ChosenFunction):
            choice = {"type": "function", "function": {"name": choice.name}}
        if not self.tools and choice in ("auto", "none"):
            choice = None
        how = {"tool_choice": choice, "parallel_tool_calls": self.parallel_tool_calls}
        return {"tools": [tool.chat for _, tool in self.functions], **how}


def read_response(data: bytes) -> ResponseBody:
    """Parse and check a request's body, and the chat that it asks for."""
    body = read_body(ResponseBody, data)
    body.chat  # noqa: B018 (checked here, where long bodies are read)
    return body


_SCHEMAS = "#/components/schemas/"


def described() -> tuple[Object, Object]:
    """Return the request body of the route and its schemas by name, for an OpenAPI document."""
    schema = ResponseBody.model_json_schema(ref_template=_SCHEMAS + "{model}")
    parts = schema.pop("$defs", {})
    name = ResponseBody.__name__
    content = {"application/json": {"schema": {"$ref": _SCHEMAS + name}}}
    return {"required": True, "content": content}, {**parts, name: schema}
