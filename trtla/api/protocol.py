"""Request bodies as in OpenAI's API, with trtla's own fields.

An unknown field is refused by name, whatever its value: an answer that silently ignored it would be
wrong. `NEUTRAL` lists values that request nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    create_model,
    model_validator,
)

from trtla.api.declared import body_fields
from trtla.runtime.request import FinishReason
from trtla.settings.messages import ANSWER, Rendering

_MOST_CHOICES = 128
_MOST_STOPS = 16
MOST_BIASES = 1024
"""Tokens with a bias, and tokens that end a text."""
_LARGEST = 2**63 - 1

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "length_penalty": (1,),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
}
"""Fields of OpenAI's API that are not supported, with the values that request nothing.

Their absence and these values are the same, as is `null` for every known or neutral field.
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


def _equal(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


class Strict(BaseModel):
    """A model without type conversions, infinite numbers and unknown fields."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Values without effect of unsupported fields, which are accepted."""
    labels: ClassVar[tuple[str, ...]] = ()
    """Fields with texts that are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept: dict[str, Any] = {}
        refused = False
        for name, value in data.items():
            unknown = name not in cls.model_fields
            if unknown and refused:  # the first one is enough
                continue
            if cls._requests(name, value):
                kept[name] = value
                refused |= unknown
        return kept

    @classmethod
    def _requests(cls, name: str, value: Any) -> bool:
        if value is None:
            return False
        if name in cls.labels:
            return not isinstance(value, str)
        return not any(_equal(value, neutral) for neutral in cls.neutral.get(name, ()))


class StreamOptions(Strict):
    """Contents of a stream besides the text."""

    neutral = {"continuous_usage_stats": (False,), "include_obfuscation": (False,)}
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


class Message(Strict):
    """One message of a conversation; an answer of this API can be sent back as it is."""

    neutral = {"annotations": ([],), "tool_calls": ([],)}
    role: Literal["system", "developer", "user", "assistant"]
    name: Annotated[str, Field(max_length=64, pattern=r"^[^\s<|\\/>]+$")] | None = Field(
        None, description="Who speaks, for templates that say it."
    )
    content: Content | None = Field(description="None of an assistant is an empty text.")
    reasoning_content: str | None = Field(
        None, description="What an assistant thought, for templates that keep it."
    )

    @classmethod
    def _requests(cls, name: str, value: Any) -> bool:
        return name == "content" or super()._requests(name, value)

    @model_validator(mode="after")
    def _check_content(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError("content is null; only an assistant's may be: give a text")
        return self


class Predicted(Strict):
    """OpenAI's predicted output: a source of drafts, which changes no text."""

    type: Literal["content"]
    content: Content


Object = dict[str, Any]
Text = Annotated[str, Field(min_length=1)]
_Id = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Biases = Annotated[
    dict[_Id, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MOST_BIASES)
]
Lookahead = Literal["auto"] | Annotated[list[int], Field(min_length=3, max_length=3)]


if TYPE_CHECKING:
    _Declared = Strict
else:
    _Declared = create_model("_Declared", __base__=Strict, **body_fields())


class Body(_Declared):
    """The fields of both kinds of requests, besides the settings of the same names."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {**NEUTRAL, "seed": (-1,)}
    labels = LABELS
    model: str | None = Field(None, description="The served model's name, or none.")
    max_tokens: int | None = Field(None, ge=1, le=_LARGEST)
    temperature: float | None = Field(
        None, ge=0, le=2, description="None: 1, and 0 where the engine is greedy only."
    )
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=_LARGEST, description="trtla: 0 and -1 keep all tokens.")
    logit_bias: Biases = Field({}, description="By token id.")
    seed: int | None = Field(
        None, ge=-_LARGEST - 1, le=_LARGEST, description="None and -1: a new one each time."
    )
    stop: Text | Annotated[list[Text], Field(max_length=_MOST_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[
        list[Annotated[int, Field(ge=0, le=_LARGEST)]],
        Field(max_length=MOST_BIASES, fail_fast=True),
    ] = Field([], description="trtla, as vLLM: tokens that end a text and are not in it.")
    n: int = Field(1, ge=1, le=_MOST_CHOICES, description="Choices; the i-th has seed + i.")
    response_format: Object | None = Field(
        None, description="json_object, or json_schema with a schema that the answer follows."
    )
    structured_outputs: Object | None = Field(
        None, description="trtla, as vLLM: one of json, json_object, regex, choice and grammar."
    )
    guided_json: Object | str | None = Field(None, description="trtla, as vLLM: a JSON schema.")
    guided_regex: str | None = Field(None, description="trtla, as vLLM: a regular expression.")
    guided_choice: list[str] | None = Field(None, description="trtla, as vLLM: one of these texts.")
    guided_grammar: str | None = Field(None, description="trtla, as vLLM: rules in Lark or GBNF.")
    grammar: Object | None = Field(
        None,
        description="trtla: one of json_schema, json_object, regex, choice and lark, as in files.",
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    prediction: Predicted | None = None
    ignore_eos: bool = Field(False, description="trtla, as vLLM: end tokens end no text.")
    lookahead: Lookahead | None = Field(
        None, description="trtla: window, n-gram and verification set, or auto; the text is equal."
    )
    drafter: str | None = Field(None, description="trtla: what drafts; the text is equal.")
    cache: Literal["shared", "private"] = Field(
        "shared", description="trtla: private keeps nothing of the request for others."
    )
    metrics: bool = Field(False, description="trtla: answer with times and counts of drafts.")
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

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, le=_LARGEST)
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

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError(
                "continue_final_message and add_generation_prompt exclude each other; set one of "
                "them to false"
            )
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    @property
    def tops(self) -> int | None:
        """Alternatives listed for each token; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def last_text(self) -> str:
        """The last message's content as one text."""
        content = self.messages[-1].content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)

    @property
    def rendering(self) -> Rendering:
        end = self.continue_final_message, self.add_generation_prompt
        return Rendering.of(*end, self.chat_template_kwargs)

    @property
    def length(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


Ids = Annotated[list[Annotated[int, Field(ge=0, le=_LARGEST)]], Field(min_length=1, fail_fast=True)]


class CompletionBody(Body):
    """POST /v1/completions."""

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
