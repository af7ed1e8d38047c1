"""From prompts to requests: what of an `LLM` needs no weights, and may stand where none are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from os import PathLike
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.folder import unapplied
from trtla.llm.answer import Answer, new_answer
from trtla.llm.open import is_adaptive, open_model, open_tokenizer
from trtla.llm.prompt import ExpectedOutput, Prompt, PromptRequest, expected_ids, prompt_ids
from trtla.machine import process_rank
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import DrafterWatch, Request
from trtla.settings.drafting import DrafterSettings
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import shown
from trtla.settings.lookahead import Lookahead
from trtla.settings.sampling import SamplingParams

_log = logging.getLogger(__name__)


class RequestMaker:
    """A model's tokenizer and configuration; who has an executor of it says what fits.

    Args:
        model: as for `LLM`, and so the options.
    """

    force_greedy = False
    """Answer requests of OpenAI's API greedily, whatever temperature, top_k and top_p they have."""

    def __init__(self, model: str | Path, options: ExecutorOptions) -> None:
        if not isinstance(model, (str, PathLike)):
            raise UsageError(
                f"model is {shown(model)}, not the path of a folder",
                "give an engine directory or a Hugging Face folder, such as LLM('engine')",
            )
        self._drafter, self._auto = options.drafter, options.lookahead == "auto"
        self.engine = open_model(Path(model), options.triple)
        note = None if process_rank() else unapplied(self.engine.path)
        if note:
            _log.warning("note: %s", note)
        self._adaptive = is_adaptive(self.engine, options.lookahead)
        self.tokenizer = open_tokenizer(self.engine, options)
        self.end_ids = self.engine.end_ids()  # empty: no token ends a text
        self._ids = count()

    @property
    def limits(self) -> ExecutorLimits:
        """What prompts and settings must fit into."""
        raise NotImplementedError

    @property
    def description(self) -> str:
        """What runs the model: library, device, arithmetic."""
        raise NotImplementedError

    @property
    def lookahead(self) -> Lookahead:
        """What requests that name nothing else are decoded with: `auto`, or a triple."""
        return "auto" if self._adaptive else self.limits.lookahead

    def _drafts_by_tree(self, drafter: DrafterSettings) -> bool:
        """Whether the candidate tree drafts for requests that name nothing else."""
        return self._adaptive and (self._auto or drafter.uses_lookahead)

    def answers(
        self,
        index: int,
        one: PromptRequest,
        margins: bool = False,
        watch: DrafterWatch | None = None,
    ) -> list[Answer]:
        """One prompt's answers at their beginning, checked; whoever decodes them adds outputs."""
        how = (one.lookahead, one.drafter, one.expected_output)
        request = self.request(one.prompt, one.sampling, one.name, *how)
        request = replace(
            request, margins=margins, watch=watch,
            logprobs=one.logprobs, private=one.private, space=one.space,
        )  # fmt: skip
        self.limits.check(request)
        return [
            new_answer(index, own, one.prompt, self.tokenizer, choice)
            for choice, own in enumerate(self._choices(request))
        ]

    def _choices(self, request: Request) -> Iterator[Request]:
        first, *others = request.sampling.choices()
        yield replace(request, sampling=first)
        for sampling in others:
            yield replace(request, sampling=sampling, request_id=next(self._ids))

    def spell(self, token: int) -> bytes:
        """The bytes of a token; none without a tokenizer."""
        return b"" if self.tokenizer is None else self.tokenizer.token_bytes(token)

    def request(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        name: str,
        lookahead: Lookahead | None = None,
        drafter: DrafterSettings | None = None,
        expected_output: ExpectedOutput | None = None,
    ) -> Request:
        """A prompt as a request, without stop strings; `limits.check` reports whether it fits."""
        start, encoder_ids = self.engine.request_ids(self.encode(prompt, name))
        sampling = sampling.fitted(self.limits.max_text_len - len(start))
        drafting = drafter or self._drafter
        by_default = lookahead is None and self._drafts_by_tree(drafting)
        return Request(
            next(self._ids),
            start,
            sampling,
            None if lookahead == "auto" else lookahead,
            self.end_ids,
            name=name,
            adaptive=lookahead == "auto" or by_default,
            drafter=drafting,
            encoder_ids=encoder_ids,
            expected_ids=expected_ids(expected_output, name, self.tokenizer, self.engine.name),
        )

    def encode(
        self, prompt: Prompt, name: str = "the prompt", most: int | None = None
    ) -> tuple[int, ...]:
        """A prompt's token ids; `name` is what errors call it.

        Args:
            most: a text that cannot be so few tokens is refused before it is encoded.
        """
        return prompt_ids(prompt, name, self.tokenizer, self.engine.name, most)
