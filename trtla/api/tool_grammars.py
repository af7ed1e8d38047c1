"""The grammar of answers that may call tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trtla.api.errors import ApiError, refused
from trtla.api.protocol import ChatBody
from trtla.api.reasoning import ReasoningSplitter, State, marks_reasoning
from trtla.api.tool_formats import arguments_schema, known_format
from trtla.api.tools import Function, NamedTool, callable_tools
from trtla.errors import UsageError
from trtla.llm.grammar_compiling import can_keep
from trtla.llm.prompt import RequestMaker
from trtla.settings.grammar import Grammar
from trtla.settings.messages import Messages, check_messages
from trtla.settings.schemas import loosened

_ANY_OBJECT = {"type": "object", "additionalProperties": True}


def tool_grammar(
    llm: RequestMaker, body: ChatBody, messages: Messages, answer: Grammar | None
) -> Grammar | None:
    """Make the grammar of a body with tools; None: the executor takes none, and none is needed.

    Args:
        answer: the grammar that the body asks for, if any: an answer has calls or follows it.
    """
    if answer is not None and answer.kind not in ("json_schema", "json_object"):
        raise ApiError(
            400, "tools exclude a grammar that is no JSON schema; omit one of them", "tools"
        )
    must = body.tool_choice not in (None, "auto")
    format_, tokenizer = known_format(llm), llm.tokenizer
    if answer is not None and format_.leads and not must:
        raise ApiError(
            400,
            "the model's calls begin as JSON does: tools exclude a schema of the answer; omit one",
            "tools",
        )
    assert tokenizer is not None
    if llm.limits.fixed_triples:
        if must:
            raise ApiError(
                400,
                "tool_choice has a call forced by a grammar, which engines of TensorRT-LLM do not "
                "apply here; use auto",
                "tool_choice",
            )
        return answer

    def control(name: str) -> int | None:
        token = tokenizer.token_id(name)
        return token if token in tokenizer.control_ids else None

    make = partial(
        format_.grammar,
        state=thoughts(llm, body, messages),
        must=must,
        several=body.parallel_tool_calls and not isinstance(body.tool_choice, NamedTool),
        control=control,
        answer=answer,
    )
    functions = [tool.function for tool in callable_tools(body.tools, body.tool_choice)]
    try:
        return _usable(llm, make, functions, loosens=not must)
    except UsageError as error:
        raise refused(error, "tools") from None


def _usable(
    llm: RequestMaker,
    make: Callable[[list[Function]], Grammar],
    functions: list[Function],
    *,
    loosens: bool,
) -> Grammar:
    """The grammar; where it cannot be kept, one with looser arguments of functions not strict.

    Raises:
        UsageError: it still cannot be kept, or may not be loosened.
    """
    for change in (None, _loosened, _opened) if loosens else (None,):
        try:
            grammar = make([f if f.strict or change is None else change(f) for f in functions])
            llm.check_grammar(grammar)
            return grammar
        except UsageError as error:
            refusal = error
    raise refusal


def _opened(function: Function) -> Function:
    """The function with any object as its arguments."""
    return function.model_copy(update={"parameters": _ANY_OBJECT})


def _loosened(function: Function) -> Function:
    """The function without what no grammar can keep of its parameters."""
    if _keeps_arguments(function):
        return function
    loose = {"parameters": loosened(function.parameters, _keeps)}
    changed = function.model_copy(update=loose)
    return changed if _keeps_arguments(changed) else _opened(function)


def _keeps_arguments(function: Function) -> bool:
    try:
        return _keeps(arguments_schema(function))
    except UsageError:  # of another type
        return False


def _keeps(schema: Mapping[str, Any]) -> bool:
    try:
        return can_keep(Grammar("json_schema", json.dumps(schema, ensure_ascii=False)))
    except UsageError:  # too long
        return False


def thoughts(llm: RequestMaker, body: ChatBody, messages: Messages) -> State:
    """The state of the thoughts when the answer begins, by the end of the prompt."""
    tokenizer, tools = llm.tokenizer, bool(body.offered)
    if tokenizer is None or not marks_reasoning(tokenizer.template_text(tools)):
        return "answering"
    prompt = tokenizer.chat_text(check_messages(messages, "the conversation"), body.rendering)
    return ReasoningSplitter(prompt, body.begun_text).state
