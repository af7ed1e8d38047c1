"""`AsyncLLM`: many tasks share a batch, and a text ends when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import trtla
from tests.support.torn import Gate, wait_for
from trtla import (
    LLM,
    AsyncLLM,
    Completion,
    DrafterSettings,
    LookaheadConfig,
    SamplingParams,
    TrtlaError,
    UsageError,
)
from trtla.settings.drafting import NO_DRAFTER

MODEL = Path(trtla.__file__).parent / "assets" / "tiny-llama"
ROOT = Path(trtla.__file__).parents[1]
TEXTS = ["def add(a, b):\n    return", "Once upon a time", "import os\n", "for i in range(10):\n"]
DRAFTERS = [None, NO_DRAFTER, DrafterSettings(("ngram",))]
LONG = SamplingParams(max_tokens=1500)
USER = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def alone():
    """The same model, asked one text at a time."""
    with LLM(MODEL, dtype="float32") as llm:
        yield llm


def opened(**options: Any) -> AsyncLLM:
    return AsyncLLM(MODEL, dtype="float32", max_batch_size=6, **options)


def ran(work: Callable[[AsyncLLM], Awaitable[None]]) -> None:
    """Run a test on a model of its own, which must be idle in the end."""

    async def main() -> None:
        async with opened() as llm:
            await work(llm)
            await idle(llm)

    asyncio.run(asyncio.wait_for(main(), 120))


async def idle(llm: AsyncLLM) -> None:
    """Nothing is in flight, and every block is free, as soon as the thread has had its say."""
    await llm.stats()
    assert not llm.llm.executor._texts
    pool = llm.llm._executor._cache.pool
    assert pool.num_free == pool.num_blocks
    steps = (await llm.stats()).steps
    await asyncio.sleep(0.01)
    assert (await llm.stats()).steps == steps


async def until(happened: Callable[[], object]) -> None:
    """As `wait_for`, while the loop goes on."""
    await asyncio.get_running_loop().run_in_executor(None, wait_for, happened)


def asked_of(llm: AsyncLLM) -> int:
    """How much the model's thread has still to do or is doing."""
    engine = llm.llm.executor
    return len(engine._texts) + engine._commands.qsize()


def asked(index: int) -> tuple[str, SamplingParams]:
    heat = 0.8 * (index % 2)
    return TEXTS[index % 4], SamplingParams(5 + index % 17, heat, top_p=0.9, seed=index)


async def read(llm: AsyncLLM, index: int) -> str:
    text = ""
    async for chunk in llm.stream(*asked(index), drafter=DRAFTERS[index % 3]):
        text += chunk.text
        if chunk.completion is not None:
            assert chunk.completion.text == text
    return text


def test_fifty_streams_are_the_texts_of_each_alone(alone: LLM) -> None:
    async def work(llm: AsyncLLM) -> None:
        gate = Gate(llm.llm, 0, lambda: gate.free < 0 or asked_of(llm) >= 50)
        texts = await asyncio.gather(*(read(llm, index) for index in range(50)))
        stats = await llm.stats()
        assert texts == [alone.generate(*asked(index))[0].text for index in range(50)]
        assert stats.steps < stats.new_tokens / 2, "they did not share a batch"

    ran(work)


def test_random_cancels_leave_nothing_and_change_nothing(alone: LLM) -> None:
    dice = random.Random(11)

    async def work(llm: AsyncLLM) -> None:
        for _ in range(4):
            tasks = [asyncio.ensure_future(read(llm, index)) for index in range(24)]
            doomed = dice.sample(tasks, 12)
            for task in doomed:
                await asyncio.sleep(dice.choice((0, 0, 0.001, 0.01)))
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            for index, (task, text) in enumerate(zip(tasks, done, strict=True)):
                if task in doomed and isinstance(text, asyncio.CancelledError):
                    continue
                assert text == alone.generate(*asked(index))[0].text
            await idle(llm)

    ran(work)


def test_whole_texts_chats_and_choices_are_awaited(alone: LLM) -> None:
    few = SamplingParams(max_tokens=6, temperature=1.0, seed=1, n=2)

    async def work(llm: AsyncLLM) -> None:
        whole, chat = await asyncio.gather(llm.generate(TEXTS, few), llm.chat(USER, few))
        assert told(whole) == told(alone.generate(TEXTS, few))
        assert told(chat) == told(alone.chat(USER, few)) == told(alone.generate([USER], few))
        with pytest.raises(UsageError, match="no list of messages"):
            await llm.chat("Hello", few)
        assert llm.llm.tokenizer is not None

    ran(work)


def told(done: list[Completion]) -> list[tuple[object, ...]]:
    return [(one.index, one.choice, one.text, one.token_ids, one.finish_reason) for one in done]


def test_a_closed_stream_ends_its_text() -> None:
    async def work(llm: AsyncLLM) -> None:
        engine = llm.llm.executor
        gate = Gate(llm.llm, 1, lambda: not engine._commands.empty())
        async for _ in llm.stream(TEXTS, LONG):
            break
        await until(lambda: not engine._texts)
        await idle(llm)
        gate.free = 1
        async with aclosing(llm.stream(TEXTS, LONG)) as stream:
            await anext(stream)
        await idle(llm)
        gate.free = 1
        held = llm.stream(TEXTS, LONG)
        await anext(held)
        del held
        await until(lambda: not engine._texts)
        await idle(llm)
        await llm.stream(TEXTS, LONG).aclose()  # before its first chunk
        assert (await llm.stats()).steps <= 6

    ran(work)


@pytest.mark.parametrize("forwards", [None, 0, 1, 2])
def test_a_cancel_in_the_prefill_ends_it(forwards: int | None) -> None:
    """After so many of its forwards, or before anything was asked."""

    async def work(llm: AsyncLLM) -> None:
        prompt = [token % 200 + 5 for token in range(300)]
        tasks = [asyncio.ensure_future(llm.generate([prompt], SamplingParams(150, seed=i)))
                 for i in range(8)]  # fmt: skip
        gate = Gate(llm.llm, forwards or 0, lambda: not llm.llm.executor._commands.empty())
        if forwards is None:
            await asyncio.sleep(0)
        else:
            await until(gate.reached.is_set)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done)
        await idle(llm)

    ran(work)


def test_what_does_not_fit_is_raised_where_it_is_awaited(alone: LLM) -> None:
    async def work(llm: AsyncLLM) -> None:
        going = asyncio.ensure_future(read(llm, 3))
        for bad in (
            llm.generate("", LONG),
            llm.generate("a", SamplingParams(10**6)),
            llm.generate("a", LONG, LookaheadConfig(9, 9, 9)),
            llm.generate("a", drafter="x"),
        ):
            with pytest.raises(UsageError):
                await bad
        with pytest.raises(UsageError, match=r"AsyncLLM\.generate has no argument max_tokens"):
            llm.generate("a", max_tokens=3)
        assert await going == alone.generate(*asked(3))[0].text

    ran(work)


def test_a_model_that_does_not_open_says_why(tmp_path: Path) -> None:
    async def refused(work: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(UsageError, match="nowhere"):
            await work

    async def main() -> None:
        llm = AsyncLLM(tmp_path / "nowhere")
        await refused(llm.generate("a"))
        await refused(llm.open())
        await llm.close()
        await refused(AsyncLLM(tmp_path / "nowhere").__aenter__())
        with pytest.raises(UsageError, match="AsyncLLM has no argument max_batch"):
            AsyncLLM(MODEL, max_batch=3)
        with pytest.raises(TrtlaError, match="the model is not open"):
            _ = opened().llm

    asyncio.run(main())


def test_steps_that_fail_are_raised_in_all_who_wait(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no memory left")

    async def main() -> None:
        async with opened() as llm:
            tasks = [asyncio.ensure_future(llm.generate(text, LONG)) for text in TEXTS]
            go = threading.Event()
            await until(Gate(llm.llm, 3, go.is_set).reached.is_set)
            llm.llm._executor._stepper.forward = broken
            go.set()
            for one in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(one, TrtlaError)
                assert "no memory left" in str(one)
            with pytest.raises(TrtlaError, match="no memory left"):
                await llm.generate("a")

    asyncio.run(asyncio.wait_for(main(), 120))
    assert "a step failed" in caplog.text


def test_closing_ends_what_runs_and_all_use() -> None:
    async def main() -> None:
        async with opened() as llm:
            tasks = [asyncio.ensure_future(llm.generate(text, LONG)) for text in TEXTS]
            await until(Gate(llm.llm, 3, lambda: llm.llm.executor._ending).reached.is_set)
        for one in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(one, TrtlaError)
            assert "closed" in str(one)
        with pytest.raises(TrtlaError, match="the model is closed"):
            await llm.generate("a")
        await llm.close()
        assert not llm.llm.executor._thread.is_alive()

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_closing_while_the_model_is_opened_ends_all_use(turns: int) -> None:
    async def main() -> None:
        llm, go = opened(), threading.Event()
        new, llm._new = llm._new, lambda: (go.wait(120), new())[1]
        tasks = [asyncio.ensure_future(llm.generate(text)) for text in TEXTS]
        tasks.append(asyncio.ensure_future(llm.stats()))
        for _ in range(turns):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(go.set)  # while it is being closed
        await llm.close()
        for one in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(one, TrtlaError), one
            assert "the model is closed" in str(one)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_closing_while_texts_are_asked_for_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    async def closed_after(submitted: int) -> None:
        llm = opened()
        await llm.open()
        Gate(llm.llm, 3, lambda: llm.llm.executor._ending)
        tasks = [asyncio.ensure_future(llm.generate("abc " * 20, LONG)) for _ in range(50)]
        await until(lambda: asked_of(llm) >= submitted)
        await llm.close()
        for one in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(one, TrtlaError), one
            assert "the model is closed" in str(one)

    for submitted in (0, 1, 20):
        asyncio.run(asyncio.wait_for(closed_after(submitted), 120))
    assert caplog.text == ""


def test_it_is_closed_from_any_event_loop() -> None:
    llm = opened()
    asyncio.run(llm.open())
    asyncio.run(asyncio.wait_for(llm.close(), 120))
    assert not llm.llm.executor._thread.is_alive()


def test_it_belongs_to_one_event_loop() -> None:
    llm = opened()
    with asyncio.Runner() if sys.version_info >= (3, 11) else pytest.skip("3.11") as first:
        first.run(llm.open())
        with pytest.raises(UsageError, match="another event loop"):
            _in_thread(llm.generate("a"))
        first.run(llm.close())


def _in_thread(work: Coroutine[Any, Any, object]) -> object:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@pytest.mark.filterwarnings("ignore")
def test_a_loop_that_is_closed_early_ends_the_texts() -> None:
    llm, loop = opened(), asyncio.new_event_loop()
    stream = llm.stream(TEXTS, LONG)
    loop.run_until_complete(anext(stream))
    loop.close()
    engine = llm.llm.executor
    wait_for(lambda: not engine._texts)
    pool = llm.llm._executor._cache.pool
    assert pool.num_free == pool.num_blocks
    del stream, llm
    gc.collect()
    engine._thread.join(120)
    assert not engine._thread.is_alive()
    wait_for(lambda: not any("trtla-prepare" in one.name for one in threading.enumerate()))


BEGINNING = ("async with model as llm:", "for llm in [model]:")
LEAVING = {
    "nothing": "",
    "returned": "return",
    "raised": "raise SystemExit(0)",
    "left alone": "asyncio.ensure_future(llm.generate('b', LONG)); await asyncio.sleep(0.01)",
}


@pytest.mark.deep(first=1)
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        *((begin, end) for begin in BEGINNING for end in ("nothing", "returned", "raised")),
        ("for llm in [model]:", "left alone"),
    ],
)
def test_a_process_ends_cleanly_right_after(begin: str, end: str) -> None:
    code = f"""
import asyncio
from trtla import AsyncLLM, SamplingParams
LONG = SamplingParams(1500)
model = AsyncLLM({str(MODEL)!r}, dtype="float32")

async def main():
    {begin}
        stream = llm.stream(["a", "def f("], LONG)
        print(len(await anext(stream) and "ok"))
        {LEAVING[end]}

asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


@pytest.mark.deep
def test_a_process_ends_while_the_model_is_opened() -> None:
    code = f"""
import asyncio
from trtla import AsyncLLM

async def main():
    asyncio.ensure_future(AsyncLLM({str(MODEL)!r}).open())
    await asyncio.sleep(0)
    print("left")

asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")
