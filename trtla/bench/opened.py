"""Models opened to be measured, and what they are asked as token ids.

An `LLM` that is opened here loses its tokenizer, so that no arm pays for text while it is timed,
and its end ids where texts go on behind them. Later turns hold the turn before and its answer, by
plain decoding, since the drafter cannot change a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtla.bench.arms import Note
from trtla.console import counted
from trtla.data.prompt_sets import Ids, Question
from trtla.errors import UsageError
from trtla.llm.chat_text import ChatText
from trtla.settings.drafting import NO_DRAFTER
from trtla.settings.executor import ENGINE_OPTIONS, ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.messages import AS_TEXT, Asking, Messages, follow_up, joined
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    import torch

    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer
    from trtla.runtime.limits import ExecutorLimits

Answer = Callable[[Sequence[Ids], Sequence[int]], Sequence[str]]
"""Answers prompts; it is also given their places in the set, on which their seeds depend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What models are opened with; one after the other for each device and type."""

    model: str
    options: ExecutorOptions = ENGINE_OPTIONS
    """The options of all models, but for device, type, threads and batch size."""
    devices: tuple[str, ...] = ("auto",)
    dtypes: tuple[str, ...] = ("auto",)
    threads: tuple[int, ...] = ()
    """Empty: PyTorch's own number."""
    sampling: SamplingParams
    """The output's length and the first seed; what is measured has its own filters."""
    ignore_eos: bool = True
    batch_sizes: tuple[int, ...] = (1,)
    asking: Asking = AS_TEXT
    """Whether texts are put into the chat template."""

    def open(self, device: str, dtype: str) -> LLM:
        from trtla.llm.llm import LLM

        size = max(self.batch_sizes)
        options = replace(self.options, device=device, dtype=dtype, max_batch_size=size)
        return LLM(self.model, options)


class OpenedModel:
    """An `LLM` from which measuring takes over; it is used for nothing else.

    Args:
        dtype: the type that was wanted; auto is the engine's.
    """

    def __init__(self, llm: LLM, setup: Setup, device: torch.device, dtype: str) -> None:
        import torch

        from trtla.runtime.models.load import resolve_dtype

        self.llm, self._setup, self.device = llm, setup, device
        self.checkpoint = llm.engine.config.pretrained_config
        named = resolve_dtype(dtype, self.checkpoint.dtype, device.type)
        self.dtype: torch.dtype = getattr(torch, named)
        self.tokenizer = take_tokenizer(llm)
        self._ends = llm.end_ids
        if setup.ignore_eos:
            llm.end_ids = frozenset()

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def prompts(
        self, questions: Sequence[Question], sampling: SamplingParams, on_note: Note, of: str = ""
    ) -> list[Ids]:
        """All turns as ids, cut to their room; first turns are answered here for the later ones.

        Args:
            sampling: of the answers; the prompt at place i has seed + i.
            of: whose prompts they are, for notes.
        """
        encoder = Encoder(self.tokenizer, self._setup.asking, self.room)
        answer = plain_answers(self.llm, self.tokenizer, sampling, self._ends)
        if any(len(one.turns) > 1 for one in questions):
            on_note(f"plain decoding answers the first turns{of}, which the second ones continue")
        found = encoder.questions(questions, answer)
        if encoder.cut:
            cut = counted(encoder.cut, "prompt")
            verb = "is" if encoder.cut == 1 else "are"
            on_note(f"{cut}{of} {verb} cut to {counted(self.room, 'token')}")
        return found

    @property
    def room(self) -> int:
        """Tokens that a prompt may have; raises `UsageError` where there are none."""
        return prompt_room(self.llm.limits, self._setup.sampling.max_output_len)


def prompt_room(limits: ExecutorLimits, length: int) -> int:
    """Tokens that a prompt may have beside an output of a length; refuses if there are none."""
    room = min(limits.max_input_len, limits.max_text_len - length)
    if room < 1:
        raise UsageError(
            f"--max-output-len {length} leaves no room for a prompt: prompt and output "
            f"together may have {limits.max_text_len} tokens",
            f"lower --max-output-len, or {limits.text_len_hint}",
        )
    return room


def take_tokenizer(llm: LLM) -> Tokenizer:
    """The model's tokenizer, taken away from it: no arm pays for text."""
    tokenizer, llm.tokenizer = llm.tokenizer, None
    if tokenizer is None:
        raise UsageError(
            f"{llm.engine.name} has no tokenizer files", "give them with --tokenizer-dir"
        )
    return tokenizer


class Encoder:
    """Makes token ids of what is asked.

    Args:
        asking: whether texts are messages.
        room: most tokens of a prompt; None: any number.
    """

    def __init__(
        self, tokenizer: Tokenizer, asking: Asking = AS_TEXT, room: int | None = None
    ) -> None:
        self.cut = 0
        """Prompts that were cut so far."""
        self._tokenizer, self._asking, self._room = tokenizer, asking, room

    def ids(self, prompt: str | Messages) -> Ids:
        """A prompt's ids. What has no room loses its beginning; the chat template stays whole."""
        ids = self._tokenizer.prompt_ids(prompt)
        if self._room is None or len(ids) <= self._room:
            return ids
        self.cut += 1
        return ids[-self._room :] if isinstance(prompt, str) else self._shortened(prompt, ids)

    def questions(self, questions: Sequence[Question], answer: Answer) -> list[Ids]:
        """All turns of all questions, in their order; the turns of a question are neighbours."""
        chats = [self._first(one) for one in questions]
        turns = [len(one.turns) for one in questions]
        places = [sum(turns[:i]) for i in range(len(turns))]
        found = dict(zip(places, map(self.ids, chats), strict=True))
        for turn in range(1, max(turns, default=0)):
            going_on = [i for i, length in enumerate(turns) if turn < length]
            before = [places[i] + turn - 1 for i in going_on]
            answers = answer([found[place] for place in before], before)
            for i, place, text in zip(going_on, before, answers, strict=True):
                chats[i] = _next(chats[i], text, questions[i].turns[turn])
                found[place + 1] = self.ids(chats[i])
        return [found[place] for place in sorted(found)]

    def _first(self, question: Question) -> str | Messages:
        template = (
            question.is_chat and self._asking.chat is None and self._tokenizer.has_chat_template
        )
        return self._asking.prompt(question.turns[0], chat=template)

    def _shortened(self, messages: Messages, ids: Ids) -> Ids:
        """Contents lose their beginning, that of the first message first; system messages none."""
        kept, room = list(messages), self._room or 0
        for place, message in enumerate(messages):
            words = "" if message["role"] == "system" else joined(message["content"])
            content = self._tokenizer.encode_chat(ChatText(words, ()))
            keep = len(content)
            while keep and len(ids) > room:
                keep = max(0, keep - (len(ids) - room))
                text = self._tokenizer.decode(content[len(content) - keep :])
                kept[place] = {**message, "content": text}
                ids = self._tokenizer.prompt_ids(kept)
        if len(ids) > room:
            raise UsageError(
                f"the chat template takes {len(ids)} tokens without any text, and there is room "
                f"for {room}",
                "shorten --system or the output, or rebuild with larger limits",
            )
        return ids


def _next(chat: str | Messages, answer: str, question: str) -> str | Messages:
    if isinstance(chat, str):
        return follow_up(chat, answer, question)
    return follow_up(chat, answer, [{"role": "user", "content": question}])


def plain_answers(
    llm: LLM, tokenizer: Tokenizer, sampling: SamplingParams, ends: frozenset[int]
) -> Answer:
    """Answers of plain decoding up to an end token; the prompt at place i has seed + i."""

    def answer(prompts: Sequence[Ids], places: Sequence[int]) -> list[str]:
        own = [replace(sampling, seed=sampling.seed + place) for place in places]
        done = llm.generate(list(prompts), own, AUTOREGRESSIVE, drafter=NO_DRAFTER)
        texts = []
        for prompt, one in zip(prompts, done, strict=True):
            ids = one.output_ids
            end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
            texts.append(tokenizer.stream(prompt).push(ids[:end], last=True))
        return texts

    return answer
