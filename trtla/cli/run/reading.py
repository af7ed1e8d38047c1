"""The progress of reading long prompts at a terminal, by what a step of so many tokens costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from trtla.console import Console, Progress, counted

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.prompt import PromptRequest

_WORTH_S = 2.0
"""The expected time above which the progress is shown."""
_TICK_S = 0.5


@contextmanager
def reading(
    console: Console, llm: LLM, requests: Sequence[PromptRequest]
) -> Iterator[Callable[[], None]]:
    """Show that the prompts of a first turn are read; the yielded function ends it."""
    tokens = sum(len(llm.request(one).given_ids) for one in requests if not one.turn)
    seconds = llm.executor.call(lambda executor: executor.step_seconds(tokens, 1))
    if not seconds or seconds < _WORTH_S:
        yield lambda: None
        return
    label = f"reading {counted(tokens, 'token')}"
    with console.progress(label, "s, as expected") as progress:
        ended = Event()
        thread = Thread(target=_tick, args=(progress, seconds, ended), daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            thread.join()

        try:
            yield end
        finally:
            end()


def _tick(progress: Progress, expected: float, ended: Event) -> None:
    began = time.monotonic()
    while not ended.wait(_TICK_S):
        done = round(time.monotonic() - began)
        progress(done, max(round(expected), done + 1))
    done = round(time.monotonic() - began)
    progress(done, done)
