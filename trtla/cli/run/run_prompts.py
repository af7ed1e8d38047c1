"""The prompts of run: a pipe that is waited for, questions as messages, the length of outputs."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from trtla.cli.shared.engine_check import is_trtllm
from trtla.console import Console
from trtla.settings.drafting import refuse_texts
from trtla.settings.sampling import USUAL_LEN

if TYPE_CHECKING:
    from trtla.data.prompts import PromptRequest
    from trtla.llm.llm import LLM

_WAIT_S = 1.0
"""After which a pipe that has brought nothing is worth a note."""


def announce_stdin(console: Console, *, named: bool) -> None:
    """Note that stdin is read: a pipe that nobody writes to would look like a hang.

    Args:
        named: whether prompts are given elsewhere.
    """
    from trtla.data.prompts import piped

    if named or not piped():
        return
    with suppress(OSError):  # Windows waits for sockets only
        if not select.select([sys.stdin], [], [], _WAIT_S)[0]:
            console.note("note: reads the prompt from stdin; --input-text gives another one")


def check_expected(engine_dir: str, requests: Sequence[PromptRequest]) -> None:
    """Refuse expected outputs where TensorRT-LLM makes the drafts."""
    asked = [request.name for request in requests if request.expected_output]
    if asked and is_trtllm(Path(engine_dir)):
        raise refuse_texts(asked[0], "an expected output")


def as_messages(llm: LLM, requests: list[PromptRequest]) -> list[PromptRequest]:
    """Spec-Bench's questions as messages, where the model has a template."""
    from trtla.data.prompts import as_chats

    tokenizer = llm.tokenizer if any(request.is_chat for request in requests) else None
    return as_chats(requests) if tokenizer and tokenizer.has_chat_template else requests


def sized(llm: LLM, requests: Sequence[PromptRequest]) -> list[PromptRequest]:
    """Requests of the usual length with their shares of the engine's room where that is less."""
    return [_sized(llm, request, requests[i:]) for i, request in enumerate(requests)]


def _sized(llm: LLM, request: PromptRequest, on: Sequence[PromptRequest]) -> PromptRequest:
    """A request of the usual length, with its share of the engine's room if that is less.

    Args:
        on: the request and all behind it, of which its later turns share what is left.
    """
    if request.sampling.max_output_len != USUAL_LEN:  # a line of a file has its own
        return request
    later = takewhile(lambda one: one.turn > request.turn, on[1:])
    asked = [_prompt_len(llm, one) for one in (request, *later)]
    return _at_most(request, (llm.limits.max_text_len - sum(asked)) // len(asked))


def fitted(llm: LLM, request: PromptRequest) -> PromptRequest:
    """A later turn with what its prompt, which holds the turns before, leaves of the room."""
    return _at_most(request, llm.limits.max_text_len - _prompt_len(llm, request))


def _prompt_len(llm: LLM, request: PromptRequest) -> int:
    return len(llm.request(request.prompt, request.sampling, request.name).input_ids)


def _at_most(request: PromptRequest, length: int) -> PromptRequest:
    length = max(1, min(request.sampling.max_output_len, length))
    return replace(request, sampling=replace(request.sampling, max_output_len=length))
