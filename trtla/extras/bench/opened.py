"""Models opened to be measured, and their prompts as token ids.

An `LLM` that is opened here loses its tokenizer, so that no arm pays for text while it is timed,
and its end ids if texts continue past them. Later turns of a question include the turns before with
their answers by plain decoding, since the drafter cannot change a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtla.console import counted
from trtla.data.prompt_sets import Ids, Question
from trtla.measuring.arms import Note
from trtla.measuring.encoding import Encoder, prompt_room, take_tokenizer
from trtla.settings.drafting import NO_DRAFTER
from trtla.settings.executor import ENGINE_OPTIONS, ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.messages import AS_TEXT, Asking, Messages, follow_up
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer
    from trtla.runtime.device import Device

Answer = Callable[[Sequence[Ids], Sequence[int]], Sequence[str]]
"""Answers prompts, whose seeds depend on their positions in the set, the second argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings with which models are opened, one after the other for each device and type."""

    model: str
    options: ExecutorOptions = ENGINE_OPTIONS
    """Options of all models, but for device, type, threads and batch size."""
    devices: tuple[str, ...] = ("auto",)
    dtypes: tuple[str, ...] = ("auto",)
    threads: tuple[int, ...] = ()
    """Empty: one a core."""
    sampling: SamplingParams
    """The output's length and the first seed; filters are set by what is measured."""
    ignore_eos: bool = True
    batch_sizes: tuple[int, ...] = (1,)
    asking: Asking = AS_TEXT
    """The form of prompts: plain texts, or messages in the chat template."""

    def open(self, device: str, dtype: str) -> LLM:
        from trtla.llm.llm import LLM

        size = max(self.batch_sizes)
        options = replace(self.options, device=device, dtype=dtype, max_batch_size=size)
        return LLM(self.model, options)


class OpenedModel:
    """An `LLM` that is used for measuring alone.

    Args:
        dtype: the requested type; auto is the engine's.
    """

    def __init__(self, llm: LLM, setup: Setup, device: Device, dtype: str) -> None:
        from trtla.runtime.models.load import resolve_dtype

        self.llm, self._setup, self.device = llm, setup, device
        self.checkpoint = llm.engine.config.pretrained_config
        self.dtype = resolve_dtype(dtype, self.checkpoint.dtype, device.type)
        self.tokenizer = take_tokenizer(llm)
        self._ends = llm.end_ids
        if setup.ignore_eos:
            llm.end_ids = frozenset()

    def prompts(
        self, questions: Sequence[Question], sampling: SamplingParams, on_note: Note, of: str = ""
    ) -> list[Ids]:
        """Return all turns as ids, cut to their room; the answers to first turns are decoded here.

        Args:
            sampling: of the answers; the prompt at position i has seed + i.
            of: words that name the set in notes, such as " of code".
        """
        encoder = QuestionEncoder(self.tokenizer, self._setup.asking, self.room)
        answer = plain_answers(self.llm, self.tokenizer, sampling, self._ends)
        if any(len(question.turns) > 1 for question in questions):
            on_note(f"plain decoding answers the first turns{of}, which the second ones continue")
        prompts = encoder.questions(questions, answer)
        if encoder.cut:
            cut = counted(encoder.cut, "prompt")
            verb = "is" if encoder.cut == 1 else "are"
            on_note(f"{cut}{of} {verb} cut to {counted(self.room, 'token')}")
        return prompts

    @property
    def room(self) -> int:
        """The most tokens of a prompt; raises `UsageError` if there is no room for any."""
        return prompt_room(self.llm.limits, self._setup.sampling.max_output_len)


class QuestionEncoder(Encoder):
    """An encoder of questions with all their turns."""

    def questions(self, questions: Sequence[Question], answer: Answer) -> list[Ids]:
        """Encode all turns of all questions in order; the turns of a question are neighbours."""
        chats = [self._first(question) for question in questions]
        turns = [len(question.turns) for question in questions]
        starts = [sum(turns[:i]) for i in range(len(turns))]
        prompts = dict(zip(starts, map(self.ids, chats), strict=True))
        for turn in range(1, max(turns, default=0)):
            continued = [i for i, length in enumerate(turns) if turn < length]
            before = [starts[i] + turn - 1 for i in continued]
            answers = answer([prompts[position] for position in before], before)
            for i, position, text in zip(continued, before, answers, strict=True):
                chats[i] = _next(chats[i], text, questions[i].turns[turn])
                prompts[position + 1] = self.ids(chats[i])
        return [prompts[position] for position in sorted(prompts)]

    def _first(self, question: Question) -> str | Messages:
        template = (
            question.is_chat and self._asking.chat is None and self._tokenizer.has_chat_template
        )
        return self._asking.prompt(question.turns[0], chat=template)


def _next(chat: str | Messages, answer: str, question: str) -> str | Messages:
    if isinstance(chat, str):
        return follow_up(chat, answer, question)
    return follow_up(chat, answer, [{"role": "user", "content": question}])


def plain_answers(
    llm: LLM, tokenizer: Tokenizer, sampling: SamplingParams, ends: frozenset[int]
) -> Answer:
    """Return an `Answer` by plain decoding up to an end token; position i has seed + i."""

    def answer(prompts: Sequence[Ids], positions: Sequence[int]) -> list[str]:
        seeded = [replace(sampling, seed=sampling.seed + i) for i in positions]
        done = llm.generate(list(prompts), seeded, AUTOREGRESSIVE, drafter=NO_DRAFTER)
        texts = []
        for prompt, completion in zip(prompts, done, strict=True):
            ids = completion.output_ids
            end = next((i for i, token in enumerate(ids) if token in ends), len(ids))
            texts.append(tokenizer.stream(prompt).push(ids[:end], last=True))
        return texts

    return answer
