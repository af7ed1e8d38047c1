"""What `mypy --strict` says of somebody's program: the public API is typed to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[1]
PROGRAM = '''
"""Everything a user touches, with the types that they may count on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from trtla import (
    LLM, AsyncLLM, BeamSettings, Chunk, Completion, DrafterSettings, LookaheadConfig,
    SamplingParams, TokenDrafter, TrtlaError, UsageError, __version__,
)

HOT = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, seed=3, stop="END", n=2)
USER: list[Mapping[str, str]] = [{"role": "user", "content": "Hello"}]


def whole(llm: LLM) -> str:
    done: list[Completion] = llm.generate("Once upon a time", HOT)
    several = llm.generate(["a", "b"], [HOT, HOT], LookaheadConfig(7, 7, 7))
    ids = llm.generate([1, 2, 3], logprobs=5, private=True)
    lengths: list[int] = [len(one.token_ids) for one in several]
    first: float = ids[0].logprobs[0].logprob
    place: tuple[int, int] = (done[0].index, done[0].choice)
    return done[0].text.upper() + f"{lengths} {first} {place}"


def streamed(llm: LLM) -> str:
    text = ""
    for chunk in llm.stream("a", HOT, "auto", drafter=DrafterSettings(("ngram",))):
        text += chunk.text
        if chunk.completion is not None:
            print(chunk.completion.finish_reason)
    return text


def spoken(llm: LLM) -> str:
    (answer, *_) = llm.chat(USER, HOT)
    many = llm.chat([USER, USER], SamplingParams(5))
    beams = llm.beam_search("a", BeamSettings(num_beams=4), 5)
    return answer.text.strip() + many[1].text.strip() + beams[0].text.strip()


def counted(llm: LLM, text: str) -> int:
    if llm.tokenizer is None:
        return 0
    return len(llm.tokenizer.encode(text)) + len(llm.tokenizer.decode([1, 2]))


class Mine:
    def propose(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[-1:]


def drafted(mine: TokenDrafter) -> tuple[LLM, ...]:
    named = LLM("engine", drafter="ideas:Mine", custom_drafters=[Mine])
    return (named, LLM("engine", drafter=Mine), LLM("engine", drafter=["lookahead", mine, Mine()]))


async def awaited() -> list[str]:
    async with AsyncLLM("engine", threads=2, max_batch_size=4) as llm:
        async for chunk in llm.stream("a", HOT):
            part: Chunk = chunk
            print(part.text.upper())
        done = await asyncio.gather(llm.generate("a", HOT), llm.chat(USER))
        return [one.text.upper() for each in done for one in each]


def main() -> None:
    try:
        with LLM("engine", lookahead="auto", threads=2, corpus=["notes.txt"]) as llm:
            print(__version__, whole(llm), streamed(llm), spoken(llm), counted(llm, "a"))
            scores: list[float] = llm.log_probs("a", [1, 2])
            print(scores, llm.stats().new_tokens, llm.limits.max_text_len, llm.description)
    except UsageError as error:
        print(error.hint)
    except TrtlaError as error:
        print(error.message)
    print(asyncio.run(awaited()))
'''
WRONG = """
from trtla import LLM, AsyncLLM, SamplingParams

SamplingParams(max_token=5)
SamplingParams(max_tokens="5")
LLM("engine", thread=2)
AsyncLLM("engine", thread=2)
LLM("engine").generate("a", max_tokens=3)
AsyncLLM("engine").generate("a", max_tokens=3)
LLM("engine").chat("Hello")
LLM("engine", drafter=SamplingParams)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of both programs, a line for each error.

    With trtla's own settings, so that what MYPY_CACHE_DIR keeps of trtla serves here as well.
    """
    folder = tmp_path_factory.mktemp("programs")
    (folder / "right.py").write_text(PROGRAM)
    (folder / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", os.environ.get("MYPY_CACHE_DIR", "mypy-cache")]
    done = subprocess.run(
        [*command, "right.py", "wrong.py"],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode < 2, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_a_program_that_uses_everything_is_clean(said: list[str]) -> None:
    assert [one for one in said if not one.startswith("wrong.py:")] == []


def test_wrong_arguments_are_found(said: list[str]) -> None:
    errors = [one for one in said if one.startswith("wrong.py:")]
    lines = [number for number, line in enumerate(WRONG.split("\n"), 1) if "(" in line]
    assert sorted({int(error.split(":")[1]) for error in errors}) == lines
