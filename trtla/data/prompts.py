"""Prompts from the command line, from .txt and .jsonl files and from stdin, each with its settings.

Everything is checked here before a model is loaded. A line's own values win over the flags.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from trtla.errors import UsageError
from trtla.files import parse_jsonl, read_text
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings
from trtla.settings.fields import Kind, check_text, declared
from trtla.settings.lookahead import Lookahead, LookaheadConfig
from trtla.settings.sampling import SamplingParams

STDIN = "-"


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str | None = None
    input_ids: list[int] | None = None
    lookahead: str | list[int] | None = None


def prompt_line(*kinds: type) -> type[_Line]:
    """The model of a line, which may have a key for each setting of these classes."""
    keys: dict[str, Any] = {
        one.name: (one.json_type | str | None if one.is_texts else one.json_type | None, None)
        for kind in kinds
        for one in declared(kind).values()
    }
    return create_model("PromptLine", __base__=_Line, **keys)


PromptLine = prompt_line(SamplingParams, DrafterSettings)
"""One line of a .jsonl prompt file: `text` or `input_ids`, and what differs from the flags."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One prompt with the settings it is decoded with; `name` is what errors call it."""

    name: str
    prompt: str | tuple[int, ...]
    sampling: SamplingParams
    lookahead: Lookahead | None = None
    """None: the default triple, or `auto` where the model was opened with that."""
    drafter: DrafterSettings | None = None
    """None: what the model is opened with."""


def gather(
    texts: Sequence[str],
    file: str | None,
    sampling: SamplingParams,
    lookaheads: Sequence[Lookahead] = (),
    drafter: DrafterSettings = LOOKAHEAD,
) -> list[PromptRequest]:
    """The prompts of --input-text, then those of --input-file; without both, what is piped in.

    Args:
        texts: prompts; `-` stands for all of stdin.
        file: a .txt or .jsonl file, or `-` for stdin.
        sampling: the settings of prompts that bring no others.
        lookaheads: none, one for all prompts, or one a prompt; triples or `auto`.
        drafter: what drafts for prompts that bring nothing of their own.

    Raises:
        UsageError: no prompts, an unusable file or line, or more triples than prompts.
    """
    if file == STDIN and STDIN in texts:
        raise UsageError("stdin is asked for twice", "use - for --input-text or for --input-file")
    requests = [
        PromptRequest(f"text {i}", _stdin_text() if text == STDIN else text, sampling)
        for i, text in enumerate(texts)
    ]
    if file is not None:
        requests += _from_file(file, sampling, drafter)
    if not requests and piped() and (text := _stdin_text()):
        requests = [PromptRequest("stdin", text, sampling)]
    if not requests:
        raise UsageError(
            "there is no prompt", "give --input-text 'Once upon', --input-file FILE or a pipe"
        )
    for request in requests:
        if not request.prompt:
            raise UsageError(f"{request.name} has an empty prompt", "give at least one token")
        if isinstance(request.prompt, str):
            check_text(request.prompt, request.name)
    return _with_lookaheads(requests, lookaheads)


def _with_lookaheads(
    requests: list[PromptRequest], lookaheads: Sequence[Lookahead]
) -> list[PromptRequest]:
    if not lookaheads:
        return requests
    if len(lookaheads) not in (1, len(requests)):
        raise UsageError(
            f"--request-lookahead has {len(lookaheads)} triples for {len(requests)} prompts",
            "give one for all prompts, or one for each",
        )
    wide = list(lookaheads) * len(requests) if len(lookaheads) == 1 else lookaheads
    return [
        r if r.lookahead else replace(r, lookahead=triple)
        for r, triple in zip(requests, wide, strict=True)
    ]


def piped() -> bool:
    """Whether stdin is a pipe or a file: no terminal, and no device such as /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # there is no file behind it
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _stdin_text() -> str:
    """All of stdin without the newline that shells add, one at most."""
    return sys.stdin.read().removesuffix("\n")


def _from_file(
    file: str, sampling: SamplingParams, drafter: DrafterSettings
) -> list[PromptRequest]:
    name = "stdin" if file == STDIN else file
    text = sys.stdin.read() if file == STDIN else read_text(Path(file))
    suffix = Path(file).suffix.lower()
    if file == STDIN:
        suffix = ".jsonl" if text.lstrip().startswith("{") else ".txt"
    if suffix == ".jsonl":
        lines = parse_jsonl(PromptLine, text, name)
        requests = [_from_line(where, line, sampling, drafter) for where, line in lines]
    elif suffix == ".txt":
        requests = [
            PromptRequest(f"line {number} of {name}", line.rstrip("\r"), sampling)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    else:
        raise UsageError(
            f"{file} is neither a .txt nor a .jsonl file", "rename it, or use - (stdin)"
        )
    if not requests:
        raise UsageError(f"{name} holds no prompts", "write one prompt a line")
    return requests


def _from_line(
    where: str, line: _Line, flags: SamplingParams, drafter: DrafterSettings
) -> PromptRequest:
    if (line.text is None) == (line.input_ids is None):
        raise UsageError(f'{where} needs either "text" or "input_ids"', "give exactly one of them")
    try:
        sampling, own = _replaced(flags, line), _replaced(drafter, line)
        lookahead = _lookahead(line)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.hint) from None
    prompt = tuple(line.input_ids or ()) if line.text is None else line.text
    return PromptRequest(where, prompt, sampling, lookahead, None if own is drafter else own)


def _lookahead(line: _Line) -> Lookahead | None:
    if line.lookahead is None:
        return None
    if line.lookahead == "auto":
        return "auto"
    return LookaheadConfig.parse(line.lookahead)


def _replaced(settings: Kind, line: _Line) -> Kind:
    """The settings with the line's own values; the same object where it has none."""
    given = {name: getattr(line, name) for name in declared(type(settings))}
    own = {name: value for name, value in given.items() if value is not None}
    return replace(settings, **own) if own else settings  # type: ignore[type-var]
