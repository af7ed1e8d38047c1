"""Request bodies as in OpenAI's API, with trtla's own fields.

An unknown field is refused by name, whatever its value: an answer that silently ignored it would be
wrong. `NEUTRAL` lists values that request nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, create_model, model_validator

from trtla.api.declared import body_fields
from trtla.api.hints import IN_CHATS, IN_COMPLETIONS
from trtla.api.strict import AsSent, Object, Strict
from trtla.api.tools import MOST_TOOLS, CallId, Tool, ToolCall, ToolChoice, checked_choice
from trtla.runtime.request import FinishReason
from trtla.settings.messages import ANSWER, Rendering

_MOST_CHOICES = 128
_MOST_STOPS = 16
MOST_BIASES = 1024
"""Tokens with a bias, and tokens that end a text."""
LARGEST = 2**63 - 1
"""The largest number in a body."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "metadata": ({},),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
}
"""Fields of OpenAI and vLLM that are not supported, with the values that request nothing.

Omitting such a field means the same, and so does `null`, for these fields and supported ones.
"""
FINISH_REASONS: dict[FinishReason, str] = {
    "end_id": "stop",
    "stop_words": "stop",
    "length": "length",
    "timed_out": "timeout",
    "cancelled": "abort",
    "failed": "error",
}
"""The executor's reasons in OpenAI's words; the last three appear in metrics only."""
LABELS = ("user", "safety_identifier", "prompt_cache_key")
"""Fields that identify the caller and request nothing; their texts are accepted and ignored."""


class StreamOptions(Strict):
    """Contents of a stream besides the text."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "continuous_usage_stats": (False,),
        "include_obfuscation": (False,),
    }
    include_usage: bool = Field(False, description="A last chunk with the usage.")


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


PARTS = "parts"
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[TextPart], Field(fail_fast=True), Tag(PARTS)],
    Discriminator(lambda value: PARTS if isinstance(value, list) else "text"),
]
"""A discriminated union, so that an error in a part names the part."""


class Message(AsSent):
    """One message of a conversation; an answer of this API can be sent back as it is."""

    by_client = ("parsed",)
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {"annotations": ([],), "tool_calls": ([],)}
    role: Literal["system", "developer", "user", "assistant", "tool"]
    name: Annotated[str, Field(max_length=64, pattern=r"^[^\s<|\\/>]+$")] | None = Field(
        None, description="Who speaks, for templates that say it."
    )
    content: Content | None = Field(description="None of an assistant is an empty text.")
    reasoning_content: str | None = Field(
        None, description="What an assistant thought, for templates that keep it."
    )
    reasoning: str | None = Field(None, description="The same, under vLLM's and OpenRouter's name.")
    reasoning_details: list[Object] | None = Field(
        None, description="The same, as OpenRouter has it: parts with a text or a summary."
    )
    tool_calls: list[ToolCall] | None = Field(
        None, min_length=1, fail_fast=True, description="Of an assistant, as it was answered."
    )
    tool_call_id: CallId | None = Field(None, description="The call that a tool answers.")

    @model_validator(mode="before")
    @classmethod
    def _calls_need_no_content(cls, data: Any) -> Any:
        calls = isinstance(data, dict) and data.get("tool_calls")
        return {"content": None, **data} if calls else data

    @classmethod
    def _requests(cls, name: str, value: Any) -> bool:
        return name == "content" or super()._requests(name, value)

    @model_validator(mode="after")
    def _check_content(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError("content is null; only an assistant's may be: give a text")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls are of an assistant; give them in its message")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise ValueError(
                "tool_call_id says which call a tool answers; give it in messages of tools"
            )
        return self


class Predicted(Strict):
    """OpenAI's predicted output: a source of drafts, which changes no text."""

    type: Literal["content"]
    content: Content


Text = Annotated[str, Field(min_length=1)]
_Id = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Biases = Annotated[
    dict[_Id, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MOST_BIASES)
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SWITCHES = "For templates with a switch: enable_thinking or reasoning_effort."
Lookahead = Literal["auto"] | Annotated[list[int], Field(min_length=3, max_length=3)]


if TYPE_CHECKING:
    _Declared = Strict
else:
    _Declared = create_model("_Declared", __base__=Strict, **body_fields())


class Shared(_Declared):
    """The fields of requests on every route, besides the settings of the same names."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {"seed": (-1,)}
    labels = LABELS
    nested: ClassVar[tuple[type[Strict], ...]] = ()
    """The models of its parts, whose fields errors name."""
    rules: ClassVar[dict[str, str]] = {}
    """The rules of fields that take several kinds of values."""
    instead: ClassVar[dict[str, str]] = {}
    """Hints for fields that are not supported."""
    model: str | None = Field(None, description="The served model's name, or none.")
    temperature: float | None = Field(
        None, ge=0, le=2, description="None: 1, and 0 where the engine is greedy only."
    )
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=LARGEST, description="trtla: 0 and -1 keep all tokens.")
    logit_bias: Biases = Field({}, description="By token id.")
    seed: int | None = Field(
        None, ge=-LARGEST - 1, le=LARGEST, description="None and -1: a new one each time."
    )
    stop: Text | Annotated[list[Text], Field(max_length=_MOST_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[
        list[Annotated[int, Field(ge=0, le=LARGEST)]],
        Field(max_length=MOST_BIASES, fail_fast=True),
    ] = Field([], description="trtla, as vLLM: tokens that end a text and are not in it.")
    structured_outputs: Object | None = Field(
        None, description="trtla, as vLLM: one of json, json_object, regex, choice and grammar."
    )
    guided_json: Object | str | None = Field(None, description="trtla, as vLLM: a JSON schema.")
    guided_regex: str | None = Field(None, description="trtla, as vLLM: a regular expression.")
    guided_choice: list[str] | None = Field(None, description="trtla, as vLLM: one of these texts.")
    guided_grammar: str | None = Field(None, description="trtla, as vLLM: rules in Lark or GBNF.")
    grammar: Object | str | None = Field(
        None,
        description="trtla: one of json_schema, json_object, regex, choice and lark, as in files; "
        "as a text, rules in Lark or GBNF.",
    )
    stream: bool = False
    ignore_eos: bool = Field(False, description="trtla, as vLLM: end tokens end no text.")
    lookahead: Lookahead | None = Field(
        None, description="trtla: window, n-gram and verification set, or auto; the text is equal."
    )
    drafter: str | None = Field(None, description="trtla: what drafts; the text is equal.")
    cache: Literal["shared", "private"] = Field(
        "shared", description="trtla: private keeps nothing of the request for others."
    )
    metrics: bool = Field(False, description="trtla: answer with times and counts of drafts.")


class Body(Shared):
    """The fields of chats and completions."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Shared.neutral,
        **NEUTRAL,
        "response_format": ({"type": "text"},),
    }
    rules: ClassVar[dict[str, str]] = {
        "content": "a text, or a list of parts of type text",
        "prompt": "a text, token ids, or a list of several of either, none of them empty",
        "tool_choice": 'none, auto, required, or {"type": "function", "function": {"name": "..."}}',
    }
    max_tokens: int | None = Field(None, ge=1, le=LARGEST)
    n: int = Field(1, ge=1, le=_MOST_CHOICES, description="Choices; the i-th has seed + i.")
    response_format: Object | None = Field(
        None, description="json_object, or json_schema with a schema that the answer follows."
    )
    stream_options: StreamOptions | None = None
    prediction: Predicted | None = None
    pieces: bool = Field(False, description="trtla: stream which source drafted which text.")

    @model_validator(mode="after")
    def _stream_only(self) -> Body:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams; set stream to true")
        if self.pieces and not self.stream:
            raise ValueError("pieces is for streams; set stream to true")
        return self


class ChatBody(Body):
    """POST /v1/chat/completions."""

    instead: ClassVar[dict[str, str]] = IN_CHATS
    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, le=LARGEST)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    add_generation_prompt: bool | None = Field(
        None, description="trtla, as vLLM: begin an answer; None: unless a message is continued."
    )
    continue_final_message: bool = Field(
        False, description="trtla, as vLLM: continue the assistant's message that comes last."
    )

    chat_template_kwargs: dict[str, Any] = Field(
        {},
        description="trtla, as vLLM: variables of the chat template, such as enable_thinking.",
    )
    reasoning_effort: Effort | None = Field(None, description=SWITCHES)
    tools: list[Tool] = Field(
        [], max_length=MOST_TOOLS, fail_fast=True, description="Functions that may be called."
    )
    tool_choice: ToolChoice | None = Field(
        None, description="none, auto, required, or a function by name; None: auto with tools."
    )
    parallel_tool_calls: bool = Field(True, description="False: one call in an answer at most.")

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError(
                "continue_final_message and add_generation_prompt exclude each other; set one of "
                "them to false"
            )
        checked_choice(self.tools, self.tool_choice)
        _check_answers(self.messages)
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    @property
    def tops(self) -> int | None:
        """Alternatives listed for each token; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def begun_text(self) -> str:
        """The answer's beginning, if the last message is continued."""
        if not self.continue_final_message:
            return ""
        content = self.messages[-1].content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)

    @property
    def rendering(self) -> Rendering:
        end = self.continue_final_message, self.add_generation_prompt
        tools = tuple(tool.sent for tool in self.offered)
        return Rendering.of(*end, self.chat_template_kwargs, tools)

    @property
    def offered(self) -> list[Tool]:
        """The tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def length(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _check_answers(messages: list[Message]) -> None:
    """Refuse a tool's answer to a call that no message in front of it has, as OpenAI does."""
    called = set[str]()
    for message in messages:
        if message.tool_call_id is not None and message.tool_call_id not in called:
            raise ValueError(
                f"messages has an answer to the call {message.tool_call_id}, which no message in "
                "front of it has; give the id of one of the assistant's tool_calls"
            )
        called.update(call.id for call in message.tool_calls or ())


Ids = Annotated[list[Annotated[int, Field(ge=0, le=LARGEST)]], Field(min_length=1, fail_fast=True)]


class CompletionBody(Body):
    """POST /v1/completions."""

    instead: ClassVar[dict[str, str]] = IN_COMPLETIONS
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
    )
    logprobs: int | None = Field(None, ge=0, le=20)

    rendering: ClassVar[Rendering] = ANSWER

    @property
    def tops(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)
