"""The grammars of answers in harmony: a series of messages, and in it a call or a schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtla.api.call_notations import ControlToken, arguments_schema, as_json, with_blanks
from trtla.api.harmony import SIGNS
from trtla.api.reasoning import State
from trtla.api.tools import Function
from trtla.settings.grammar import Grammar

_MESSAGES = """\
again: <|end|> <|start|> "assistant"
thought: <|channel|> "analysis" <|message|> TEXT again
preamble: <|channel|> "commentary" <|message|> TEXT again
final: <|channel|> "final" type? <|message|>
channel: "commentary" | "analysis"
type: BLANK "json" | BLANK? <|constrain|> "json" | BLANK
BLANK: " "
TEXT: /(?s:.*)/"""
"""The rules of messages. No text has a mark: marks are tokens, and no letters are taken for one."""
_WITHIN = "TEXT again "
"""In front of the next message, where the prompt ends within one."""


class Harmony:
    """The format of calls in harmony, where an answer ends with the first one."""

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
        """The grammar of answers with a call of these functions.

        Args:
            state: the part of the message in which the answer begins.
            must: the answer is a call; else it may be a text.
            several: nothing here: an answer has one call.
            control: of the tokenizer.
            answer: that of an answer without a call, of JSON; None: any text, also before a call.
        """
        text = "TEXT" if answer is None else "answer"
        steps = "(thought | preamble)*" if answer is None and not must else "thought*"
        rules = [
            f"start: {_start(state, 'rest', text if not must else '')}",
            f"rest: {steps} {'call' if must else f'(final {text} | call)'}",
            f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}",
        ]
        rules += [_call(number, function) for number, function in enumerate(functions)]
        parts = [f"the parameters of the function {function.name}" for function in functions]
        if answer is not None and not must:
            parts.append(f"{answer.name} of {answer.given_as}")
            rules.append(f"answer: %json {with_blanks(answer)}")
        rules += _MESSAGES.split("\n")
        sources = ("", "", "", *parts, *("",) * (len(rules) - len(parts) - 3))
        return Grammar("lark", _with_tokens(rules, control), given_as="tools", parts=sources)


HARMONY = Harmony()


def behind_messages(grammar: Grammar, state: State, control: ControlToken) -> Grammar:
    """The grammar of a final message in an answer that begins in a state."""
    if state == "answering":
        return grammar
    front = f"front: {_start(state, 'thought* final', '')}"
    return replace(grammar, front=_with_tokens([front, *_MESSAGES.split("\n")], control))


def _start(state: State, rest: str, text: str) -> str:
    """The rule of an answer; `text`: what may be in the message that it begins in, as all of it."""
    if state == "answering" and text:
        return text
    return rest if state == "undecided" else _WITHIN + rest


def _call(number: int, function: Function) -> str:
    """The rule of the calls of one function, whose name is in the channel's part or in front."""
    to = as_json(f" to=functions.{function.name}")
    heads = f"(<|channel|> channel {to} | {to} <|channel|> channel)"
    schema = as_json(arguments_schema(function))
    return f"call_{number}: {heads} type? <|message|> %json {schema}"


def _with_tokens(rules: Sequence[str], control: ControlToken) -> str:
    """The rules with tokens in place of their names outside of schemas."""
    written = []
    for rule in rules:
        head, json, schema = rule.partition("%json")
        for name in SIGNS:
            head = head.replace(name, f"<[{control(name)}]>")
        written.append(head + json + schema)
    return "\n".join(written)
