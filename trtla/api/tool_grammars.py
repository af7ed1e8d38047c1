"""The grammar of answers that may call tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from trtla.api.call_notations import ControlToken, arguments_schema
from trtla.api.errors import ApiError, refused
from trtla.api.harmony import HarmonySplitter, speaks_harmony
from trtla.api.protocol import ChatBody
from trtla.api.reasoning import ReasoningSplitter, State, marks_reasoning
from trtla.api.tool_formats import ToolFormat, call_format
from trtla.api.tools import Function, NamedTool, callable_tools
from trtla.errors import UsageError
from trtla.llm.grammar_compiling import beginning, can_keep, takes_long
from trtla.llm.prompt import RequestMaker
from trtla.settings.grammar import Grammar
from trtla.settings.messages import Messages, check_messages
from trtla.settings.schemas import loosened

_ANY_OBJECT = {"type": "object", "additionalProperties": True}
_MOST_TRIALS, _SLOW_TRIAL = 400, 50
"""Trials of a request, some 5 ms each, and how many one counts for that has its own process."""


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
    format_ = call_format(llm)
    functions = [tool.function for tool in callable_tools(body.tools, body.tool_choice)]
    if answer is not None and isinstance(format_, ToolFormat) and format_.leads and not must:
        _check_told_apart(answer, format_, functions)
    if llm.limits.fixed_triples:
        if must:
            raise ApiError(
                400,
                "tool_choice has a call forced by a grammar, which engines of TensorRT-LLM do not "
                "apply here; use auto",
                "tool_choice",
            )
        return answer

    make = partial(
        format_.grammar,
        state=thoughts(llm, body, messages),
        must=must,
        several=body.parallel_tool_calls and not isinstance(body.tool_choice, NamedTool),
        control=control_token(llm),
        answer=answer,
    )
    try:
        return _usable(llm, make, functions, loosens=not must)
    except UsageError as error:
        raise refused(error, "tools") from None


def control_token(llm: RequestMaker) -> ControlToken:
    """What finds the ids of a model's control tokens."""
    tokenizer = llm.tokenizer
    assert tokenizer is not None

    def control(name: str) -> int | None:
        token = tokenizer.token_id(name)
        return token if token in tokenizer.control_ids else None

    return control


def _check_told_apart(answer: Grammar, format_: ToolFormat, functions: list[Function]) -> None:
    """Refuse a schema of answers of which one may begin as a call does that no mark shows."""
    calls = {format_.notation.opened(function.name): function.name for function in functions}
    if (call := beginning(replace(answer, whitespace_pattern=""), calls)) is not None:
        raise ApiError(
            400,
            f"{answer.name} of {answer.given_as} has answers that begin as a call of {calls[call]} "
            "does: the model's calls are objects of JSON; omit tools or it, or give a schema of "
            "other keys",
            "tools",
        )


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
    trials = Trials()
    changes = (None, trials.loosened, trials.sure, _opened) if loosens else (None,)
    for change in changes:
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


class Trials:
    """Finds what a grammar can keep of parameters, by trials of their parts.

    Requests with grammars wait for each other. So one has a limited number of trials, whatever is
    known already: beyond them its parts count as what no grammar can keep.
    """

    def __init__(self) -> None:
        self._left = _MOST_TRIALS
        self._known: dict[str, bool] = {}

    def loosened(self, function: Function) -> Function:
        """The function without patterns, references and types that no grammar can keep."""
        loose = loosened(function.parameters, self._keeps)
        changed = function.model_copy(update={"parameters": loose})
        try:
            arguments_schema(changed)
        except UsageError:  # of another type
            return _opened(function)
        return changed

    def sure(self, function: Function) -> Function:
        """The function loosened; with any object as its arguments where that cannot be kept."""
        changed = self.loosened(function)
        return changed if self._keeps(arguments_schema(changed)) else _opened(function)

    def _keeps(self, schema: Mapping[str, Any]) -> bool:
        text = json.dumps(schema, ensure_ascii=False)
        if text not in self._known:
            self._left -= _SLOW_TRIAL if takes_long(text) else 1
            self._known[text] = self._left >= 0 and _can_keep(text)
        return self._known[text]


def _can_keep(schema: str) -> bool:
    try:
        return can_keep(Grammar("json_schema", schema))
    except UsageError:  # too long
        return False


def thoughts(llm: RequestMaker, body: ChatBody, messages: Messages) -> State:
    """The state of the thoughts when the answer begins, by the end of the prompt."""
    tokenizer, tools = llm.tokenizer, bool(body.offered)
    harmony = speaks_harmony(tokenizer, tools=tools)
    if tokenizer is None or not (harmony or marks_reasoning(tokenizer.template_text(tools))):
        return "answering"
    prompt = tokenizer.chat_text(check_messages(messages, "the conversation"), body.rendering)
    splitter = HarmonySplitter if harmony else ReasoningSplitter
    return splitter(prompt, body.begun_text).state
