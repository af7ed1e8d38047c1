"""One `LLM` used from many threads, by finalisers, while it is closed, and after a fork."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import trtla
from tests.support.torn import PROMPTS, Opened, Threads, expected, rest
from trtla import LLM, LookaheadConfig, SamplingParams, TrtlaError
from trtla.llm import shared_executor
from trtla.runtime.draft import NoDrafter
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
PLAIN = LookaheadConfig(1, 1, 0)
TEXTS = [
    "def add(a, b):\n    return",
    "Once upon a time",
    "import os\nimport sys\n",
    "for i in range(10):\n    print(",
]
DRAFTERS = [None, NO_DRAFTER, DrafterSettings(("ngram",)), DrafterSettings(("prompt-lookup",), 6)]

__all__ = ["expected"]


@pytest.fixture(autouse=True)
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset_backoff-up that is lost stays lost."""
    monkeypatch.setattr(shared_executor, "_LOOK_AGAIN_S", 3600.0)


def sampling(index: int) -> SamplingParams:
    return SamplingParams(10 + 7 * (index % 3), 0.8 * (index % 2), top_p=0.9, seed=index)


@pytest.mark.parametrize("compiled", ["1", "0"])
def test_threads_that_share_a_model_each_get_their_own_text(monkeypatch, compiled) -> None:
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    triple = LookaheadConfig(3, 3, 3)
    with LLM(SHIPPED, lookahead=triple, dtype="float32", max_batch_size=5) as llm:
        jobs = [(TEXTS[i % len(TEXTS)], sampling(i), DRAFTERS[i // 3 % 4]) for i in range(16)]
        want = [llm.generate(text, own, PLAIN)[0].output_ids for text, own, _ in jobs]
        scores = [llm.log_probs(text, ids) for (text, _, _), ids in zip(jobs, want, strict=True)]
        beams = llm.beam_search(TEXTS[0], max_output_len=5)

        def work(first: int) -> None:
            for index in range(first, len(jobs), 8):
                text, own, drafter = jobs[index]
                (done,) = llm.generate(text, own, drafter=drafter)
                assert done.output_ids == want[index]
                assert sum(done.stats.step_lengths) == len(done.output_ids)
                assert llm.log_probs(text, done.output_ids) == scores[index]
                assert llm.beam_search(TEXTS[0], max_output_len=5) == beams
                assert llm.stats().steps > 0
                next(llm.stream(text, own))  # and no more of it

        threads, before = Threads(), llm.stats().new_tokens
        for first in range(8):
            threads.start(work, first)
        threads.join()
        assert llm.generate(TEXTS[0], sampling(0))[0].output_ids == want[0]
        pool = llm._executor._cache.pool
        assert pool.num_free == pool.num_blocks
        assert llm.stats().new_tokens - before >= sum(map(len, want))


def test_threads_wake_each_other_when_they_have_read_enough(monkeypatch, expected) -> None:
    """Whoever steps goes away after one chunk: the turn is never left with nobody."""
    opened, threads = Opened(monkeypatch), Threads()

    def work(name: str) -> None:
        for _ in range(12):
            got: list[int] = []
            assert rest(opened.stream(name), got).output_ids == tuple(got) == expected[name]
            next(opened.stream(name, NO_DRAFTER))

    for name in (*PROMPTS, *PROMPTS):
        threads.start(work, name)
    threads.join()
    opened.settled(0)


def test_outputs_that_wait_are_read_without_a_step(monkeypatch, expected) -> None:
    opened = Opened(monkeypatch)
    slow, got = opened.stream("other"), []
    got += next(slow).token_ids
    rest(opened.stream("broken", NO_DRAFTER), [])

    def no_step(feeds: object) -> None:
        raise AssertionError("stepped")

    opened.executor._stepper.forward = no_step
    assert rest(slow, got).output_ids == tuple(got) == expected["other"]


def test_a_stream_that_dies_within_a_step_changes_nothing_there(monkeypatch, expected) -> None:
    """The garbage collector runs finalisers anywhere, also in the thread that steps."""
    opened = Opened(monkeypatch)
    forward = opened.executor._stepper.forward
    for when in range(6):
        other, dying = opened.stream("other", NO_DRAFTER), [opened.stream("broken", NO_DRAFTER)]
        next(dying[0])
        dying.append(dying)  # type: ignore[arg-type]  # a cycle, for the collector
        left = [dying]
        del dying
        got = list(next(other).token_ids)
        end = len(opened.model.fed) + when

        def collecting(feeds, left=left, end=end):
            if len(opened.model.fed) == end:
                left.clear()
                gc.collect()
            return forward(feeds)

        opened.executor._stepper.forward = collecting
        assert rest(other, got).output_ids == tuple(got) == expected["other"]
        assert not left
        opened.settled(0)


def test_closing_ends_streams_of_other_threads_with_an_error() -> None:
    llm = LLM(SHIPPED, lookahead=PLAIN, dtype="float32", max_batch_size=2)
    threads, reading = Threads(), [threading.Event() for _ in range(4)]

    def read_on(mine: threading.Event) -> None:
        while True:
            for _ in llm.stream(TEXTS[0], SamplingParams(40)):
                mine.set()

    def read(mine: threading.Event) -> None:
        with pytest.raises(TrtlaError, match="the executor is closed"):
            read_on(mine)

    for mine in reading:
        threads.start(read, mine)
    assert all(mine.wait(60) for mine in reading)
    llm.close()
    threads.join()
    with pytest.raises(TrtlaError, match="the executor is closed"):
        llm.generate(TEXTS[0])
    assert llm.description.startswith("torch on")
    llm.close()


def test_a_model_that_is_used_within_its_own_step_says_so(monkeypatch, expected) -> None:
    opened = Opened(monkeypatch)

    class Asking(NoDrafter):
        def observe(self, greedy: object, committed: object) -> None:
            opened.llm.generate([[1]], SamplingParams(1))

    with pytest.raises(TrtlaError, match="used from within one of its own steps"):
        rest(opened.llm.stream([[1, 2]], SamplingParams(4), watch=lambda *_: Asking()), [])
    assert rest(opened.stream("other"), []).output_ids == expected["other"]
    opened.settled(0)


def test_texts_are_encoded_in_threads(tmp_path) -> None:
    """Both ways: from tokenizer.json alone, and through transformers."""
    from trtla.llm.text import Tokenizer

    plain, full = Tokenizer(SHIPPED), Tokenizer(SHIPPED)
    full._plain, threads = None, Threads()
    want = [plain.encode(text * 20) for text in TEXTS]

    def work() -> None:
        for tokenizer in (plain, full):
            for text, ids in zip(TEXTS * 5, want * 5, strict=True):
                assert tokenizer.encode(text * 20) == ids
                assert tokenizer.decode(ids) == text * 20

    for _ in range(8):
        threads.start(work)
    threads.join()


def in_a_fork(work: Callable[[], Iterator[str]]) -> list[str]:
    """What a forked child says, each line at once; it is killed where it hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for line in work():
                os.write(write, f"{line}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    end = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < end:
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return [*pipe.read().splitlines(), *([] if ended else ["hangs"])]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_is_told_to_open_the_model_anew(monkeypatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # what the child does not have
    try:
        llm = LLM(SHIPPED, lookahead=PLAIN, dtype="float32", max_batch_size=2)
        want = llm.generate(TEXTS[0], SamplingParams(6))[0].output_ids
        begun = llm.stream(TEXTS[1], SamplingParams(9))
        next(begun)
        uses: list[Callable[[], object]] = [
            lambda: llm.generate(TEXTS[0]),
            lambda: llm.generate([[1, 2]]),
            lambda: list(begun),
            lambda: llm.encode("x"),
            lambda: llm.log_probs([1], [2]),
            lambda: llm.beam_search([1]),
            lambda: llm.stats(),
            lambda: llm._executor.poll(),
        ]

        def child() -> Iterator[str]:
            for use in uses:
                try:
                    use()
                    yield "no error"
                except TrtlaError as error:
                    yield error.message.partition(" (")[0]
            llm.close()
            llm._executor.close()
            gc.collect()
            yield "closed"

        said = in_a_fork(child)
        assert said == ["the model was opened in another process"] * len(uses) + ["closed"]
        assert llm.generate(TEXTS[0], SamplingParams(6))[0].output_ids == want
        assert list(begun)[-1].completion is not None
        llm.close()
    finally:
        torch.set_num_threads(before)


def test_what_a_chunk_accepted_is_right_when_it_is_read_later(monkeypatch) -> None:
    opened = Opened(monkeypatch)
    triple = LookaheadConfig(3, 3, 2)  # auto would draft from the first answer
    alone = [(c.token_ids, c.accepted) for c in opened.stream("other", triple=triple)]
    later = opened.stream("other", triple=triple)
    read = [next(later)]
    assert rest(opened.stream("broken", NO_DRAFTER), [])  # the other's outputs wait meanwhile
    read += later
    assert [(c.token_ids, c.accepted) for c in read] == alone
    assert sum(c.accepted for c in read) > 0
