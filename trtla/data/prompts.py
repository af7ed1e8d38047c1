"""Prompts from the command line, from files and from stdin, each with its settings.

Everything is checked before a model is loaded. A line's own values take precedence over the flags.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, create_model

from trtla.console import counted
from trtla.errors import UsageError
from trtla.files import parse_jsonl, read_text
from trtla.llm.prompt import PromptRequest
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings
from trtla.settings.fields import Kind, check_text, declared, wrong
from trtla.settings.grammar import KINDS
from trtla.settings.lookahead import Lookahead, LookaheadConfig
from trtla.settings.messages import (
    ANSWER,
    AS_TEXT,
    Asking,
    Rendering,
    check_messages,
    is_conversation,
)
from trtla.settings.sampling import SamplingParams

STDIN = "-"
_OF_IDS = (".csv", ".npy", ".npz")
_PROMPTS = ("text", "input_ids", "messages", "turns")
"""The keys of which a line has exactly one."""
_RENDERING = ("continue_final_message", "chat_template_kwargs")
"""The keys of lines with messages."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    instead: ClassVar[dict[str, str]] = {"prompt": "text", **dict.fromkeys(KINDS, "grammar")}
    """The keys for what others call so."""

    text: str | None = None
    input_ids: list[int] | None = None
    messages: list[Any] | None = None
    turns: list[str] | None = None
    question_id: Any = None
    category: Any = None
    reference: Any = None
    lookahead: Any = None
    expected_output: str | list[int] | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    grammar: dict[str, Any] | str | None = None


def prompt_line(*kinds: type) -> type[_Line]:
    """The model of a line, with a key for each setting of these classes."""
    settings = (setting for kind in kinds for setting in declared(kind).values())
    keys: dict[str, Any] = {
        item.name: (item.json_type | str | None if item.is_texts else item.json_type | None, None)
        for item in settings
    }
    return create_model("PromptLine", __base__=_Line, **keys)


PromptLine = prompt_line(SamplingParams, DrafterSettings)
"""One line of a .jsonl prompt file: `text`, `input_ids`, `messages`, or Spec-Bench's `turns`, and
settings that differ from the flags. Spec-Bench's other keys are ignored."""


def gather(
    texts: Sequence[str],
    file: str | None,
    sampling: SamplingParams,
    lookaheads: Sequence[Lookahead] = (),
    drafter: DrafterSettings = LOOKAHEAD,
    asking: Asking = AS_TEXT,
    expected: Sequence[str] = (),
    rendering: Rendering = ANSWER,
) -> list[PromptRequest]:
    """The prompts of --input-text, then those of --input-file; without both, what is piped in.

    Args:
        texts: prompts; `-` stands for all of stdin.
        file: a .txt or .jsonl file, one of token ids (.csv, .npy, .npz), or `-` for stdin.
        sampling: the settings of prompts that have none.
        lookaheads: none, one for all prompts, or one a prompt; triples or `auto`.
        drafter: the drafter of prompts that name none.
        asking: decides whether texts become messages.
        expected: none, one output for all prompts, or one a prompt: a text, `@FILE` for a file's,
            or `-` for all of stdin.
        rendering: the end of the model's input behind a file's conversations.
    """
    if [file, *texts, *expected].count(STDIN) > 1:
        raise UsageError(
            "stdin is asked for twice",
            "use - once, for --input-text, --input-file or --expected-output",
        )
    outputs = [_expected_text(text) for text in expected]
    requests = [
        PromptRequest(f"text {i}", _stdin_text() if text == STDIN else text, sampling)
        for i, text in enumerate(texts)
    ]
    if file is not None:
        requests += _from_file(file, sampling, drafter, rendering)
    if not requests and piped() and (text := _stdin_text()):
        requests = [PromptRequest("stdin", text, sampling)]
    if not requests:
        raise UsageError(
            "there is no prompt",
            "give --input-text 'Once upon', --input-file FILE or a pipe; trtla chat talks",
        )
    for request in requests:
        if not request.prompt:
            raise UsageError(f"{request.name} has an empty prompt", "give at least one token")
        if isinstance(request.prompt, str):
            check_text(request.prompt, request.name)
    requests = [_templated(request, asking) for request in requests]
    requests = _with_each(requests, "lookahead", lookaheads, "--request-lookahead has {} triples")
    return _with_each(requests, "expected_output", outputs, "--expected-output has {} texts")


def _expected_text(value: str) -> str:
    if value.startswith("@"):
        return read_text(Path(value[1:]))
    text = _stdin_text() if value == STDIN else value
    check_text(text, "--expected-output")
    return text


def as_chats(requests: Sequence[PromptRequest]) -> list[PromptRequest]:
    """The requests for a model with a template: questions of chats become messages."""
    chat = Asking(chat=True)
    return [_templated(request, chat) if request.is_chat else request for request in requests]


def _templated(request: PromptRequest, asking: Asking) -> PromptRequest:
    """Apply the flags to a prompt; only a first turn gets a system message."""
    prompt = request.prompt
    if isinstance(prompt, str):
        if asking.chat is None:
            return request
        form = replace(asking, system=None) if request.turn else asking
        return replace(request, prompt=form.prompt(prompt), is_chat=False)
    if is_conversation(prompt):
        return replace(request, prompt=asking.messages(prompt))
    if asking.chat:
        raise UsageError(
            f"{request.name} has token ids, which no chat template takes",
            "give text or messages, or omit --chat and --system",
        )
    return request


def _with_each(
    requests: list[PromptRequest], key: str, values: Sequence[Any], message: str
) -> list[PromptRequest]:
    """The requests with a flag's values, one for all or one each, where they have none."""
    if not values:
        return requests
    if len(values) not in (1, len(requests)):
        raise UsageError(
            f"{message.format(len(values))} for {counted(len(requests), 'prompt')}",
            "give one for all prompts, or one for each",
        )
    wide = list(values) * len(requests) if len(values) == 1 else values
    return [
        replace(request, **{key: value}) if getattr(request, key) is None else request
        for request, value in zip(requests, wide, strict=True)
    ]


def piped() -> bool:
    """Return True if stdin is a pipe, a file or a socket: no terminal, no device like /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # there is no file behind it
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _stdin_text() -> str:
    """All of stdin without one final newline, which shells add."""
    return sys.stdin.read().removesuffix("\n")


def _from_file(
    file: str, sampling: SamplingParams, drafter: DrafterSettings, rendering: Rendering
) -> list[PromptRequest]:
    name = "stdin" if file == STDIN else file
    if Path(file).suffix.lower() in _OF_IDS:
        return _from_ids(Path(file), sampling)
    text = sys.stdin.read() if file == STDIN else read_text(Path(file))
    suffix = Path(file).suffix.lower()
    if file == STDIN:
        suffix = ".jsonl" if text.lstrip().startswith("{") else ".txt"
    if suffix == ".jsonl":
        lines = parse_jsonl(PromptLine, text, name)
        requests = [
            request
            for where, line in lines
            for request in _from_line(where, line, sampling, drafter, rendering)
        ]
    elif suffix == ".txt":
        requests = [
            PromptRequest(f"line {number} of {name}", line.rstrip("\r"), sampling)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    else:
        raise UsageError(
            f"{file} is no file of prompts",
            "name a .txt or .jsonl file, or token ids in .csv, .npy or .npz; - is stdin",
        )
    if not requests:
        raise UsageError(f"{name} holds no prompts", "write one prompt a line")
    return requests


def _from_ids(path: Path, sampling: SamplingParams) -> list[PromptRequest]:
    from trtla.data.id_files import id_rows

    padded = path.suffix.lower() != ".csv"
    requests = [PromptRequest(name, ids, sampling, padded=padded) for name, ids in id_rows(path)]
    if not requests:
        raise UsageError(f"{path} holds no prompts", "write one prompt's token ids a row")
    return requests


def with_stops(
    requests: Sequence[PromptRequest], lists: Sequence[tuple[str, ...]]
) -> list[PromptRequest]:
    """The requests with a list of stop texts each, where their lines have none; no list: as they
    are."""
    if lists and len(lists) != len(requests):
        raise UsageError(
            f"--stop-words is given {len(lists)} times for {counted(len(requests), 'prompt')}",
            "give it once for all prompts, or once for each",
        )
    return [
        replace(request, sampling=replace(request.sampling, stop=stop))
        if stop and not request.sampling.stop
        else request
        for request, stop in zip(requests, lists or [()] * len(requests), strict=True)
    ]


def _from_line(
    where: str, line: _Line, flags: SamplingParams, drafter: DrafterSettings, rendering: Rendering
) -> Iterator[PromptRequest]:
    if sum(getattr(line, name) is not None for name in _PROMPTS) != 1:
        raise UsageError(
            f'{where} needs either "text", "input_ids", "messages" or "turns"',
            "give exactly one of them",
        )
    try:
        sampling, line_drafter = _replaced(flags, line), _replaced(drafter, line)
        if "grammar" in line.model_fields_set:  # null: none, whatever the flags say
            sampling = replace(sampling, grammar=line.grammar)
        lookahead = _lookahead(line)
    except UsageError as error:
        raise error.within(f"{where}: ") from None
    line_rendering = _own_rendering(where, line, rendering)
    how = (sampling, lookahead, None if line_drafter is drafter else line_drafter)
    expected = line.expected_output
    request = partial(
        PromptRequest, expected_output=tuple(expected) if isinstance(expected, list) else expected
    )
    if line.messages is not None:
        yield request(where, check_messages(line.messages, where), *how, rendering=line_rendering)
    elif line.turns is None:
        prompt = tuple(line.input_ids or ()) if line.text is None else line.text
        yield request(where, prompt, *how)
    else:
        for turn, text in enumerate(line.turns or [""]):  # an empty prompt is refused
            name = f"turn {turn + 1} of {where}" if turn else where
            yield request(name, text, *how, turn=turn, is_chat=True)


def _own_rendering(where: str, line: _Line, flags: Rendering) -> Rendering:
    present = [name for name in _RENDERING if getattr(line, name) is not None]
    if present and line.messages is None:
        raise UsageError(
            f"{where} has {present[0]}, which is for messages", 'omit it, or give "messages"'
        )
    continued, variables = line.continue_final_message, line.chat_template_kwargs
    if continued is None:
        continued = flags.continue_final_message
    try:
        return Rendering.of(continued, chat_template_kwargs=variables) if present else flags
    except UsageError as error:
        raise error.within(f"{where}: ") from None


def _lookahead(line: _Line) -> Lookahead | None:
    if line.lookahead is None:
        return None
    if line.lookahead == "auto":
        return "auto"
    if not isinstance(line.lookahead, str | list):
        raise wrong("lookahead", line.lookahead, "a triple such as [7,7,7], or auto")
    return LookaheadConfig.parse(line.lookahead)


def _replaced(settings: Kind, line: _Line) -> Kind:
    """The settings with the line's own values; the same object where it has none."""
    values = {name: getattr(line, name) for name in declared(type(settings))}
    changes = {name: value for name, value in values.items() if value is not None}
    return replace(settings, **changes) if changes else settings  # type: ignore[type-var]
