"""`LLM`: tokenizer, engine and executor together; prompts in, text out, whole or streamed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

from trtla.drafting import LOOKAHEAD, DrafterSettings, check_auto
from trtla.errors import UsageError
from trtla.lookahead import Lookahead, refuse_auto
from trtla.runtime.answer import Answer, Chunk, Completion, Piece
from trtla.runtime.beam import BeamSearcher, BeamSettings, BeamText, Hypothesis
from trtla.runtime.drafters.options import DraftOptions
from trtla.runtime.executor import (
    Executor,
    ExecutorStats,
    Output,
    Request,
    SamplingParams,
    open_executor,
)
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.open_model import (
    DEFAULT_LOOKAHEAD,
    draft_engines,
    open_model,
    open_tokenizer,
)
from trtla.runtime.text import StopStrings, TextStream
from trtla.runtime.trtllm_settings import TrtllmSettings

__all__ = ["DEFAULT_LOOKAHEAD", "LLM", "Chunk", "Completion", "Piece", "Prompt"]

Prompt = str | Sequence[int]
"""A text, or token ids for models without a tokenizer."""

T = TypeVar("T")


class LLM:
    """An engine directory or a Hugging Face Llama folder, ready to generate. A context manager."""

    def __init__(
        self,
        model: str | Path,
        *,
        lookahead: Lookahead | None = None,
        tokenizer_dir: str | Path | None = None,
        device: str = "auto",
        dtype: str = "auto",
        max_batch_size: int | None = None,
        trtllm: TrtllmSettings | None = None,
        draft_options: DraftOptions | None = None,
        drafter: DrafterSettings | None = None,
        draft_models: Sequence[str] = (),
    ) -> None:
        """Open the model.

        Args:
            model: an engine directory made by `trtla build`, or a Hugging Face folder, which is
                then converted in memory.
            lookahead: the server's triple; None takes the engine's own, or (7,7,7) for a Hugging
                Face folder. `auto` does so too, and makes requests without a triple adaptive.
            tokenizer_dir: where the tokenizer files are, when not beside the model.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto (the engine's), float32, bfloat16 or float16.
            max_batch_size: requests in flight at once; None takes the engine's limit.
            trtllm: settings of TensorRT-LLM's executor, for engines built for it.
            draft_options: how lookahead drafts on torch engines; None does what TensorRT-LLM does.
            drafter: what drafts for requests that ask for no other (torch engines); None is
                lookahead.
            draft_models: further engines or Hugging Face folders that requests name as draft:PATH.

        Raises:
            UsageError: the folder or the settings are not usable.
            TrtlaError: the engine's backend cannot run here.
        """
        self._adaptive = lookahead == "auto"
        server = None if lookahead == "auto" else lookahead
        self.engine = open_model(Path(model), server)
        if self._adaptive and self.engine.backend == "tensorrt-llm":
            raise refuse_auto(self.engine.name)
        self._drafter = drafter or LOOKAHEAD
        if self._adaptive:
            check_auto(self._drafter, self.engine.name)
        self.tokenizer = open_tokenizer(tokenizer_dir, self.engine)
        self._executor: Executor = open_executor(
            self.engine,
            lookahead=server,
            device=device,
            dtype=dtype,
            max_batch_size=max_batch_size,
            trtllm=trtllm,
            draft_options=draft_options,
            drafter=self._drafter,
            draft_engines=draft_engines(self.engine, self._drafter, draft_models),
        )
        self.end_ids = self.engine.end_ids()  # empty: no token ends a text
        self._ids = count()
        self._inboxes: dict[int, deque[Output]] = {}

    @property
    def limits(self) -> ExecutorLimits:
        """What prompts and settings must fit into."""
        return self._executor.limits

    @property
    def description(self) -> str:
        """What runs the model: library, device, arithmetic."""
        return self._executor.description

    @property
    def is_leader(self) -> bool:
        """False in the serving ranks of an MPI run, which may only `close`: that serves on."""
        return self._executor.is_leader

    def stats(self) -> ExecutorStats:
        """Counters over everything generated so far."""
        return self._executor.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        lookahead: Lookahead | Sequence[Lookahead | None] | None = None,
        *,
        drafter: DrafterSettings | Sequence[DrafterSettings | None] | None = None,
        margins: bool = False,
        names: Sequence[str] | None = None,
    ) -> list[Completion]:
        """Answer all prompts in one in-flight batch; completions in the order of the prompts.

        Args:
            prompts: one prompt or several; a text, or token ids.
            sampling: one for all prompts, or one each.
            lookahead: per-request triples, at most the server's, each step feeding all of them; or
                `auto`: each step feeds what pays of the server's. None is what the LLM was opened
                with. The text is the same in all cases.
            drafter: what drafts for them; None is what the LLM was opened with.
            margins: report the target's top-2 logit margins.
            names: what errors call the prompts.

        Raises:
            UsageError: a prompt or a setting does not fit; nothing has been generated then.
            TrtlaError: the executor gave a prompt up with an error; the message names the prompt.
        """
        chunks = self.stream(
            prompts, sampling, lookahead, drafter=drafter, margins=margins, names=names
        )
        done = [chunk.completion for chunk in chunks if chunk.completion is not None]
        return sorted(done, key=lambda completion: completion.index)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        lookahead: Lookahead | Sequence[Lookahead | None] | None = None,
        *,
        drafter: DrafterSettings | Sequence[DrafterSettings | None] | None = None,
        margins: bool = False,
        names: Sequence[str] | None = None,
    ) -> Iterator[Chunk]:
        """Like `generate`, but yields what each step brings; checks come first."""
        many = _prompts(prompts)
        each_sampling = _one_each(sampling or SamplingParams(), len(many), "sampling settings")
        each_lookahead = _one_each(lookahead, len(many), "lookahead triples")  # type: ignore[arg-type]
        each_drafter = _one_each(drafter, len(many), "drafters")
        labels = names or [f"prompt {index}" for index in range(len(many))]
        answers = [
            self._answer(index, prompt, settings, triple, own, label, margins)
            for index, (prompt, settings, triple, own, label) in enumerate(
                zip(many, each_sampling, each_lookahead, each_drafter, labels, strict=True)
            )
        ]
        for answer in answers:
            self.limits.check(answer.request)
        return self._run({answer.request.request_id: answer for answer in answers})

    def _answer(
        self,
        index: int,
        prompt: Prompt,
        sampling: SamplingParams,
        lookahead: Lookahead | None,
        drafter: DrafterSettings | None,
        name: str,
        margins: bool,
    ) -> Answer:
        ids = self._encode(prompt, name)
        decode, stop = (self.tokenizer.decode if self.tokenizer else None), sampling.stop
        if decode is None and stop:
            raise UsageError(
                f"{name} has a stop string, but the model has no tokenizer",
                "leave stop away, or give --tokenizer-dir",
            )
        check = StopStrings(decode, ids, stop) if decode and stop else None
        settings = drafter or self._drafter
        request = Request(
            next(self._ids),
            ids,
            sampling,
            None if lookahead == "auto" else lookahead,
            self.end_ids,
            check,
            margins,
            name,
            adaptive=lookahead == "auto" or (lookahead is None and self._adapts(settings)),
            drafter=settings,
        )
        if decode is None:
            return Answer(index, request, None, None)
        text = prompt if isinstance(prompt, str) else decode(ids)
        return Answer(index, request, text, TextStream(decode, ids, stop))

    def beam_search(
        self, prompt: Prompt, settings: BeamSettings | None = None, max_output_len: int = 32
    ) -> list[BeamText]:
        """The most probable texts that a beam search finds, the best first; torch engines only.

        Raises:
            UsageError: the prompt does not fit, or the engine is TensorRT-LLM's.
            TrtlaError: the K/V cache has no room for the beams.
        """
        if not isinstance(self._executor, BeamSearcher):
            raise UsageError(
                f"{self.engine.name} is a TensorRT-LLM engine, and trtla builds none with beams",
                "search with a torch engine",
            )
        sampling = SamplingParams(max_output_len=max_output_len)
        ids = self._encode(prompt, "the prompt")
        request = Request(next(self._ids), ids, sampling, end_ids=self.end_ids)
        found = self._executor.beam_search(request, settings or BeamSettings())
        return [self._beam_text(beam) for beam in found]

    def _beam_text(self, beam: Hypothesis) -> BeamText:
        told = beam.tokens[:-1] if beam.finished else beam.tokens
        text = None if self.tokenizer is None else self.tokenizer.decode(told)
        return BeamText(beam.tokens, text, beam.log_prob, beam.finished)

    def _adapts(self, settings: DrafterSettings) -> bool:
        """Whether a request without a triple is adaptive: other drafters have nothing to choose."""
        return self._adaptive and settings.drafter == LOOKAHEAD.drafter

    def _encode(self, prompt: Prompt, name: str) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return tuple(prompt)
        if not prompt:
            raise UsageError(f"{name} has an empty prompt", "give at least one character")
        if self.tokenizer is None:
            raise UsageError(
                f"{name} is a text, but {self.engine.name} has no tokenizer files",
                "give token ids (input_ids in JSONL), or the tokenizer with --tokenizer-dir",
            )
        return self.tokenizer.encode(prompt)

    def _run(self, answers: dict[int, Answer]) -> Iterator[Chunk]:
        inbox: deque[Output] = deque()
        try:
            for request_id, answer in answers.items():
                self._executor.submit(answer.request)
                self._inboxes[request_id] = inbox
            while answers:
                while not inbox:
                    self._advance()
                output = inbox.popleft()
                answer = answers[output.request_id]
                if output.finish_reason is not None:
                    del answers[output.request_id], self._inboxes[output.request_id]
                if output.error is not None:
                    raise output.error
                yield answer.add(output)
        finally:  # the consumer may stop early
            for request_id in answers:
                self._executor.cancel(request_id)
                self._inboxes.pop(request_id, None)

    def _advance(self) -> None:
        """Step the executor; streams that are consumed in turns each get their own outputs."""
        for output in self._executor.poll():
            if output.request_id in self._inboxes:
                self._inboxes[output.request_id].append(output)

    def close(self) -> None:
        """Free the model."""
        self._executor.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    if not len(prompts):
        raise UsageError("there is no prompt", "give at least one")
    return list(prompts)  # type: ignore[arg-type]


def _one_each(value: T | Sequence[T], number: int, what: str) -> list[T]:
    if not isinstance(value, (list, tuple)):
        return [value] * number  # type: ignore[list-item]
    if len(value) != number:
        raise UsageError(
            f"{len(value)} {what} for {number} prompts", "give one for all prompts, or one for each"
        )
    return list(value)
