"""Questions as token ids: in the chat template or raw, cut to their room, turn after turn.

A later turn holds the turn before and its answer. The drafter cannot change a text, so the answers
of plain decoding are those of every arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trtla.data.prompt_sets import Ids, Question
from trtla.errors import UsageError
from trtla.llm.chat_text import ChatText
from trtla.settings.drafting import NO_DRAFTER
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.messages import AS_TEXT, Asking, Messages, follow_up

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer
    from trtla.settings.sampling import SamplingParams

Answer = Callable[[Sequence[Ids], Sequence[int]], Sequence[str]]
"""Answers prompts; it is also given their places in the set, on which their seeds depend."""


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

    def questions(self, questions: Sequence[Question], answer: Answer | None = None) -> list[Ids]:
        """All turns of all questions, in their order; the turns of a question are neighbours.

        Args:
            answer: answers what later turns continue; None: first turns only.
        """
        chats = [self._first(one) for one in questions]
        turns = [len(one.turns) if answer else 1 for one in questions]
        places = [sum(turns[:i]) for i in range(len(turns))]
        found = dict(zip(places, map(self.ids, chats), strict=True))
        for turn in range(1, max(turns, default=0)):
            going_on = [i for i, length in enumerate(turns) if turn < length]
            before = [places[i] + turn - 1 for i in going_on]
            assert answer is not None
            answers = answer([found[place] for place in before], before)
            for i, place, text in zip(going_on, before, answers, strict=True):
                chats[i] = self._next(chats[i], text, questions[i].turns[turn])
                found[place + 1] = self.ids(chats[i])
        return [found[place] for place in sorted(found)]

    def _first(self, question: Question) -> str | Messages:
        template = (
            question.is_chat and self._asking.chat is None and self._tokenizer.has_chat_template
        )
        return self._asking.prompt(question.turns[0], chat=template)

    def _next(self, chat: str | Messages, answer: str, question: str) -> str | Messages:
        if isinstance(chat, str):
            return follow_up(chat, answer, question)
        return follow_up(chat, answer, [{"role": "user", "content": question}])

    def _shortened(self, messages: Messages, ids: Ids) -> Ids:
        """Contents lose their beginning, that of the first message first; system messages none."""
        kept, room = list(messages), self._room or 0
        for place, message in enumerate(messages):
            words = "" if message["role"] == "system" else message["content"]
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


def plain_answers(
    llm: LLM, tokenizer: Tokenizer, sampling: SamplingParams, ends: frozenset[int]
) -> Answer:
    """Answers of plain decoding up to an end token; the prompt at place i has seed + i."""

    def answer(prompts: Sequence[Ids], places: Sequence[int]) -> list[str]:
        own = [replace(sampling, seed=sampling.seed + place) for place in places]
        done = llm.generate(list(prompts), own, AUTOREGRESSIVE, drafter=NO_DRAFTER)
        spoken = [_before_end(one.output_ids, ends) for one in done]
        return [
            tokenizer.stream(prompt).push(ids, last=True)
            for prompt, ids in zip(prompts, spoken, strict=True)
        ]

    return answer


def _before_end(ids: Ids, ends: frozenset[int]) -> Ids:
    end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[:end]
