"""Formats of function calls, as models' chat templates show them, and their grammars.

A grammar has the frame of a format with fixed blanks, as templates write it, and in it the schema
of each function's parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtla.api.call_notations import ControlToken, InJson, Notation, as_json, with_blanks
from trtla.api.errors import ApiError
from trtla.api.harmony import speaks_harmony
from trtla.api.harmony_grammars import HARMONY, Harmony
from trtla.api.reasoning import BEGIN, END, State
from trtla.api.tagged_calls import InTags
from trtla.api.tools import Function
from trtla.llm.prompt import RequestMaker
from trtla.settings.grammar import Grammar

_END = END.replace("/", r"\/")
_THOUGHTS = {"undecided": rf"\s*{BEGIN}(?s:.*){_END}", "thinking": f"(?s:.*){_END}"}
_NO_THOUGHTS = rf" & ~/\s*{BEGIN}(?s:.*)/"
_STARTS = {"undecided": "rest | thoughts BLANKS rest", "thinking": "thoughts BLANKS rest"}
_ANY = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format of calls: a frame, and the notation of each call in it."""

    mark: str
    """In front of the calls, or of each one."""
    begin: str
    """Between mark and call."""
    notation: Notation
    """The way of writing a call."""
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
    shown_by: tuple[str, ...] = ()
    """The parts that a chat template with this format has."""
    not_beside: tuple[str, ...] = ()
    """The parts of templates with another format."""

    def name_in_front(self) -> re.Pattern[str]:
        """The pattern of a call up to its arguments; its group is the name."""
        return re.compile(rf"\s*(?:{re.escape(self.begin.strip())}\s*)?{self.notation.head}")

    def may_begin(self, text: str) -> bool:
        """Return True if more text may make this a call up to its arguments, behind the mark."""
        start = text.lstrip()
        return self.notation.may_begin(start.removeprefix(self.begin.strip()).lstrip())

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
        for number, function in enumerate(functions):
            added = self.notation.rules(number, function)
            parts += (f"the parameters of the function {function.name}",) * len(added)
            rules += added
        if answer is not None and not must:
            parts += (f"{answer.name} of {answer.given_as}",)
            rules.append(f"answer: %json {with_blanks(answer)}")
        rules += self.notation.terminals()
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
        """The rules of texts without calls; one in front of a mark ends with it.

        None has the mark's letters: who reads the text could not tell them from the mark.
        """
        mark = re.escape(self.mark).replace("/", r"\/")
        if self.leads:
            return [rf"TEXT: /([^\s{{]{_ANY})?/ & ~/{mark}{_ANY}/{but}"]
        text = f"TEXT: /{_ANY}/ & ~/{_ANY}{mark}{_ANY}/{but}"
        if not marks_text:
            return [text]
        return [
            text,
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


def _terminal(text: str, control: ControlToken) -> str:
    """A text in a rule: the token if it is a control token."""
    token = control(text) if text else None
    return "" if not text else as_json(text) if token is None else f"<[{token}]>"


HERMES = ToolFormat(
    "<tool_call>",
    "\n",
    InJson("arguments"),
    "\n",
    "</tool_call>",
    joint="\n",
    marks_each=True,
    shown_by=("<tool_call>",),
    not_beside=("<function=",),
)
QWEN_CODER = replace(
    HERMES, notation=InTags(), shown_by=("<tool_call>", "<function=", "<parameter="), not_beside=()
)
MISTRAL = ToolFormat(
    "[TOOL_CALLS]",
    "[",
    InJson("arguments"),
    "]",
    joint=", ",
    shown_by=("[TOOL_CALLS]",),
    not_beside=("[ARGS]",),
)
GRANITE = replace(
    MISTRAL,
    mark="<|tool_call|>",
    shown_by=("<|tool_call|>",),
    not_beside=("<|/tool_call|>",),  # Phi-4's have both
)
LLAMA_3 = ToolFormat(
    "<|python_tag|>",
    "",
    InJson("parameters"),
    "",
    leads=True,
    shown_by=('"parameters": ', '"name": '),
)
_FORMATS = (HERMES, QWEN_CODER, MISTRAL, GRANITE, LLAMA_3)


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template has; None: none of these, or it writes no tools."""
    for one in _FORMATS if "tools" in template else ():
        if all(part in template for part in one.shown_by) and not any(
            part in template for part in one.not_beside
        ):
            return one
    return None


def call_format(llm: RequestMaker) -> ToolFormat | Harmony:
    """The format of a model's calls; raises `ApiError` if its template has none that is known."""
    return HARMONY if speaks_harmony(llm.tokenizer, tools=True) else tool_format(llm)


def tool_format(llm: RequestMaker) -> ToolFormat:
    """The format of calls of a model that does not speak harmony."""
    template = "" if llm.tokenizer is None else llm.tokenizer.template_text(tools=True)
    if (known := format_of(template)) is not None:
        return known
    raise ApiError(
        400,
        "the model's chat template has no calls of tools as Qwen (Hermes, Coder), Llama 3, "
        "Mistral, Granite and gpt-oss write them; omit tools, or serve a model that is trained for "
        "them",
        "tools",
        "unsupported_parameter",
    )
