"""Tools of a request: functions that the model may call, which of them, and calls sent back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from trtla.api.strict import AsSent, Object, Strict
from trtla.errors import did_you_mean
from trtla.settings.fields import shown
from trtla.settings.tool_calls import CALL_ID, FUNCTION_NAME

MOST_TOOLS = 128
_ID_DIGITS = 9
"""The length of a call's id, which Mistral's templates require."""
_SCHEMAS = ("input_schema", "inputSchema")
"""Names that other APIs have for the schema of a function's parameters."""
NAME_RULE = "a name of at most 64 letters, digits, _, - and ."
FunctionName = Annotated[str, Field(pattern=FUNCTION_NAME)]
CallId = Annotated[str, Field(pattern=CALL_ID)]


def with_parameters(data: Any) -> Any:
    """Refuse a function whose parameters have another name, as it would be called without any."""
    if isinstance(data, dict) and "parameters" not in data:
        guesses = ((key, did_you_mean(str(key), ("parameters",))) for key in data)
        named = next((key for key, guess in guesses if guess or key in _SCHEMAS), None)
        if named is not None:
            raise ValueError(f"{shown(named)} of a function is not supported; use parameters")
    return data


class Function(Strict):
    """A function; its arguments follow the schema of its parameters.

    Other keys, such as `return`, are for the chat template.
    """

    model_config = ConfigDict(extra="ignore")
    _parameters = model_validator(mode="before")(with_parameters)
    name: FunctionName
    description: str = ""
    parameters: Object = Field({"type": "object", "properties": {}}, description="Their schema.")
    strict: bool = Field(False, description="Refuse keywords of the schema that are not supported.")


class Tool(AsSent):
    """A tool; functions are the one kind. Other keys are for the chat template."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["function"]
    function: Function

    @model_validator(mode="before")
    @classmethod
    def _is_nested(cls, data: Any) -> Any:
        if isinstance(data, dict) and "name" in data and "function" not in data:
            raise ValueError(
                'a function has the form of responses; give {"type": "function", "function": '
                '{"name": "..."}}'
            )
        return data


class NamedFunction(Strict):
    """A function by its name."""

    name: FunctionName


class NamedTool(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(AsSent):
    """A function and its arguments, which are JSON."""

    by_client = ("parsed_arguments",)
    name: FunctionName
    arguments: str


class ToolCall(AsSent):
    """A call of an earlier answer."""

    by_client = ("index",)
    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def sent(self) -> Object:
        """The call as the client sent it."""
        return {**super().sent, "function": self.function.sent}


def checked_choice(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Refuse tools of one name, and a choice that they do not have; raises `ValueError`."""
    names = [tool.function.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"tools has two functions named {name}; rename one")
    if choice not in (None, "none") and not tools:
        raise ValueError("tool_choice is for tools, and there are none; give tools, or omit it")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise ValueError(
            f"tool_choice names {choice.function.name}, which is not in tools; use "
            f"{' or '.join(names)}"
        )


def callable_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> list[Tool]:
    """The tools that may be called; with a named function it alone."""
    named = choice.function.name if isinstance(choice, NamedTool) else None
    return [tool for tool in tools if named in (None, tool.function.name)]


def call_of(key: str, index: int, name: str, arguments: str) -> Object:
    """One call of an answer, as OpenAI has it; `key`: what the ids of its calls are made of."""
    digest = hashlib.blake2b(f"{key}-{index}".encode()).hexdigest()
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": digest[:_ID_DIGITS], "type": "function", "function": function}
