"""Formats of function calls, as models' chat templates show them, and their grammars.

A grammar has the frame of a format with fixed blanks, as templates write it, and in it the schema
of each function's parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtla.api.errors import ApiError
from trtla.api.reasoning import BEGIN, END, State
from trtla.api.strict import Object
from trtla.api.tools import Function
from trtla.errors import UsageError
from trtla.llm.prompt import RequestMaker
from trtla.settings.fields import shown
from trtla.settings.grammar import BLANKS, Grammar
from trtla.settings.schemas import fitted, without_notes

_END = END.replace("/", r"\/")
_THOUGHTS = {"undecided": rf"\s*{BEGIN}(?s:.*){_END}", "thinking": f"(?s:.*){_END}"}
_NO_THOUGHTS = rf" & ~/\s*{BEGIN}(?s:.*)/"
_STARTS = {"undecided": "rest | thoughts BLANKS rest", "thinking": "thoughts BLANKS rest"}
_ANY = "(?s:.*)"
_OF_KEYS = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}
"""Keywords with which a schema without `properties` says what keys an object has."""
ControlToken = Callable[[str], int | None]
"""The id of a control token by its name; None: the name is no control token."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format of calls: a mark, and objects of JSON with a function's name and arguments."""

    mark: str
    """In front of the calls, or of each one."""
    begin: str
    """Between mark and call."""
    key: str
    """The key of the arguments."""
    finish: str
    """Behind the call, or the last one."""
    close: str = ""
    """The mark behind that."""
    joint: str = ""
    """Between two calls; empty: an answer has one."""
    marks_each: bool = False
    """The marks are around each call."""
    leads: bool = False
    """A call is the whole answer, with the mark or without."""

    def name_in_front(self) -> re.Pattern[str]:
        """The pattern of a call up to its arguments; its group is the name."""
        begin = rf"(?:{re.escape(self.begin.strip())}\s*)?"
        name = r'"([A-Za-z0-9_.-]+)"'
        return re.compile(rf'\s*{begin}\{{\s*"name"\s*:\s*{name}\s*,\s*"{self.key}"\s*:\s*(?=\{{)')

    def may_begin(self, text: str) -> bool:
        """Return True if more text may make this a call up to its arguments, behind the mark."""
        so_far, name = "".join(text.split()), '{"name":"'
        begin = self.begin.strip()
        begin = begin if begin and so_far[:1] in ("", begin) else ""
        head, rest = f"{begin}{name}", so_far[len(begin) + len(name) :]
        if not rest:
            return head.startswith(so_far)
        called, quote, behind = rest.partition('"')
        is_name = bool(re.fullmatch(r"[A-Za-z0-9_.-]*", called))
        key = f',"{self.key}":'
        return so_far.startswith(head) and is_name and (not quote or key.startswith(behind))

    def grammar(
        self,
        functions: Sequence[Function],
        *,
        state: State,
        must: bool,
        several: bool,
        control: ControlToken,
        answer: Grammar | None = None,
    ) -> Grammar:
        """The grammar of answers with calls of these functions.

        Args:
            state: where the thoughts are when the answer begins.
            must: the answer is a call, or several; else it may be a text, or begin with one.
            several: it may have more than one call.
            control: of the tokenizer.
            answer: that of an answer without a call, of JSON; None: any text, also before calls.
        """
        mark = _terminal(self.mark, control)
        marks_text = mark.startswith('"')
        rules = [
            f"start: {_STARTS.get(state, 'rest')}",
            f"rest: {'calls' if must else self._either(marks_text, answer)}",
            f"calls: {f'({mark})?' if self.leads else mark} behind",
            f"behind: {self._behind(mark, control, several)}",
            f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}",
        ]
        parts = ("",) * len(rules)
        parts += tuple(f"the parameters of the function {function.name}" for function in functions)
        rules += [self._rule(number, function) for number, function in enumerate(functions)]
        if answer is not None and not must:
            parts += (f"{answer.name} of {answer.given_as}",)
            rules.append(f"answer: %json {_with_blanks(answer)}")
        if state in _THOUGHTS:
            rules += [f"thoughts[lazy]: /{_THOUGHTS[state]}/", r"BLANKS: /[\n ]{0,2}/"]
        if not must and answer is None:
            rules += self._texts(marks_text, _NO_THOUGHTS if state == "undecided" else "")
        return Grammar("lark", "\n".join(rules), given_as="tools", parts=parts)

    def _either(self, marks_text: bool, answer: Grammar | None) -> str:
        if answer is not None:
            return "answer | calls"
        if self.leads:
            return "TEXT | calls"
        return "TEXT | head behind" if marks_text else "TEXT | TEXT calls"

    def _texts(self, marks_text: bool, but: str) -> list[str]:
        """The rules of texts without calls; one in front of a mark ends with it."""
        if self.leads:
            return [rf"TEXT: /([^\s{{]{_ANY})?/{but}"]
        if not marks_text:
            return [f"TEXT: /{_ANY}/{but}"]
        mark = re.escape(self.mark).replace("/", r"\/")
        return [
            f"TEXT: /{_ANY}/ & ~/{_ANY}{mark}{_ANY}/{but}",
            f"head[lazy]: HEAD\nHEAD: /{_ANY}{mark}/{but}",
        ]

    def _behind(self, mark: str, control: ControlToken, several: bool) -> str:
        """The grammar behind the first mark."""
        begin, joint = _terminal(self.begin, control), _terminal(self.joint, control)
        end = f"{_terminal(self.finish, control)} {_terminal(self.close, control)}"
        if not (several and self.joint):
            return f"{begin} call {end}"
        if self.marks_each:
            return f"{begin} call {end} ({joint} {mark} {begin} call {end})*"
        return f"{begin} call ({joint} call)* {end}"

    def _rule(self, number: int, function: Function) -> str:
        head = f'{{"name": {_json(function.name)}, "{self.key}": '
        return f'call_{number}: {_json(head)} %json {_json(arguments_schema(function))} "}}"'


def arguments_schema(function: Function) -> Object:
    """The schema of a function's arguments, as its grammar has it."""
    if (kind := function.parameters.get("type", "object")) != "object":
        raise UsageError(
            f"the parameters of the function {function.name} are of type {shown(kind)}",
            "use object",
        )
    guidance = {"whitespace_pattern": BLANKS, "lenient": not function.strict}
    return {**_fitted(function.parameters), "x-guidance": guidance}


def _fitted(parameters: Object) -> Object:
    """The schema of an object, which has no keys where it does not speak of any."""
    keys: Object = {"properties": {}} if _OF_KEYS.isdisjoint(parameters) else {}
    schema: Object = fitted(without_notes({"type": "object", **keys, **parameters}))
    return schema


def _with_blanks(answer: Grammar) -> str:
    """A schema with the expression of its blanks."""
    schema = json.loads(answer.text)
    given = schema.get("x-guidance")
    guidance = {**(given if isinstance(given, dict) else {}), "whitespace_pattern": answer.blanks}
    return _json({**schema, "x-guidance": guidance})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _terminal(text: str, control: ControlToken) -> str:
    """A text in a rule: the token if it is a control token."""
    token = control(text) if text else None
    return "" if not text else _json(text) if token is None else f"<[{token}]>"


HERMES = ToolFormat(
    "<tool_call>", "\n", "arguments", "\n", "</tool_call>", joint="\n", marks_each=True
)
MISTRAL = ToolFormat("[TOOL_CALLS]", "[", "arguments", "]", joint=", ")
GRANITE = ToolFormat("<|tool_call|>", "[", "arguments", "]", joint=", ")
LLAMA_3 = ToolFormat("<|python_tag|>", "", "parameters", "", leads=True)


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template has; None: none of these, or it writes no tools."""
    if "tools" not in template:
        return None
    if HERMES.mark in template and "<function=" not in template:
        return HERMES
    if MISTRAL.mark in template and "[ARGS]" not in template:
        return MISTRAL
    if GRANITE.mark in template and "<|/tool_call|>" not in template:  # Phi-4's have both
        return GRANITE
    if '"parameters": ' in template and '"name": ' in template:
        return LLAMA_3
    return None


def known_format(llm: RequestMaker) -> ToolFormat:
    """The format of a model's calls; raises `ApiError` if its template has none that is known."""
    template = "" if llm.tokenizer is None else llm.tokenizer.template_text(tools=True)
    if (known := format_of(template)) is not None:
        return known
    raise ApiError(
        400,
        "the model's chat template has no calls of tools as Qwen (Hermes), Llama 3, Mistral and "
        "Granite 3 write them; omit tools, or start with a --chat-template that has them",
        "tools",
        "unsupported_parameter",
    )
