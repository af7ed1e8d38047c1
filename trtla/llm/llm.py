"""`LLM`: tokenizer, engine and executor together; prompts in, text out, whole or streamed."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, overload

from trtla.formats.model import Model
from trtla.llm.answer import Answer, BeamText, Chunk, Completion, Piece, beam_text, chunk_of
from trtla.llm.arguments import conversations, prompt_requests, warn_unread
from trtla.llm.engine_thread import EngineThread, Inbox
from trtla.llm.prompt import ExpectedOutput, Prompt, PromptRequest, RequestMaker
from trtla.machine import process_rank
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import DrafterWatch, Request
from trtla.runtime.stats import ExecutorStats
from trtla.settings.arguments import (
    arguments_of,
    keywords_of,
    later_arguments_of,
    named_arguments,
    typed_as,
)
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ENGINE_OPTIONS, ExecutorOptions, OpenArguments
from trtla.settings.lookahead import DEFAULT_LOOKAHEAD, Lookahead
from trtla.settings.messages import Messages, Rendering, Variables
from trtla.settings.sampling import USUAL_LEN, BeamSettings, SamplingParams

_log = logging.getLogger(__name__)
__all__ = ["DEFAULT_LOOKAHEAD", "LLM", "Chunk", "Completion", "Piece", "Prompt"]


_INSIDE = frozenset(
    (
        *("answers", "answers_to", "decode", "end_ids", "engine", "executor", "force_greedy"),
        *(
            "beams",
            "check_grammar",
            "grammar_start",
            "is_leader",
            "prepare_grammars",
            "request",
            "request_and_text",
            "shown",
            "spell",
        ),
    )
)
"""Attributes of an `LLM` for the rest of the package."""


_INTERRUPTED_S = 0.5
"""Longest wait of an interrupted `with` block for a forward, which then ends by itself."""


class LLM(RequestMaker):
    """An engine directory or a Hugging Face folder, ready to generate. A context manager.

    Every method may be called from any number of threads at the same time: all requests share the
    running batch, which the model's own thread decodes. A failed step is repeated; after three
    failures in a row all open streams raise the error. A stream is read by one thread at a time.
    After `close` open streams raise `TrtlaError`; so does all use in a forked process, where the
    model has to be opened again.

    Args:
        model: an engine directory, or a GGUF file, Hugging Face folder or name on the hub.
        options: for opening it; alternatively their fields as keyword arguments.

    Raises:
        UsageError: the folder or the settings are unusable.
        TrtlaError: the engine's backend cannot run here.
    """

    executor: EngineThread

    @overload
    def __init__(self, model: str | Path | Model, options: ExecutorOptions) -> None: ...
    @overload
    @typed_as(OpenArguments)
    def __init__(self) -> None: ...
    @keywords_of(ExecutorOptions, DraftOptions, DrafterSettings, SamplingParams)
    def __init__(
        self, model: str | Path | Model, options: ExecutorOptions | None = None, **settings: Any
    ) -> None:
        options = replace(options or ENGINE_OPTIONS, **settings)
        from trtla.llm.corpus import Corpus
        from trtla.llm.found_head import opened_drafter, with_found_head
        from trtla.llm.open import open_executor
        from trtla.runtime.threads import set_threads, within_cores

        set_threads(within_cores(options.threads))
        super().__init__(model, options)
        options = with_found_head(self.engine, options)
        if not self._drafts_by_tree(options.drafter):
            changed = options.draft_options.changed
            unread = [f"lookahead_{name}" for name in changed if name in ("nodes", "sources")]
            warn_unread(["corpus", *unread] if options.corpus else unread)
        self._corpus = Corpus(self.engine, self.tokenizer)
        texts = self._corpus.read(options.corpus)
        self._executor = open_executor(self.engine, options)
        self._drafter = opened_drafter(options, self.limits)
        if self.limits.length_note and not process_rank():
            _log.warning("note: %s", self.limits.length_note)
        if texts:
            self._executor.add_texts(texts)
        self.executor = EngineThread(self._executor)
        weakref.finalize(self, self.executor.stop).atexit = False

    def save_corpus(self, path: str | Path) -> None:
        """Write the texts that drafts come from, corpus and outputs, for a later `corpus`.

        The part of a corpus that is too long to draft from is written too.

        Raises:
            UsageError: the path holds another file, or the engine is TensorRT-LLM's.
            TrtlaError: the file cannot be written.
        """
        kept = self.executor.call(lambda executor: executor.kept_texts())
        self._corpus.write(Path(path), kept)

    @property
    def limits(self) -> ExecutorLimits:
        """The limits that prompts and settings must fit."""
        return self._executor.limits

    @property
    def description(self) -> str:
        """The library, device and arithmetic that run the model."""
        return self._executor.description

    @property
    def is_leader(self) -> bool:
        """False in the serving ranks of an MPI run, which may only `close`, which serves on."""
        return self._executor.is_leader

    def stats(self) -> ExecutorStats:
        """Return counters over everything generated so far."""
        return self.executor.stats()

    @named_arguments(SamplingParams, DrafterSettings)
    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        lookahead: Lookahead | Sequence[Lookahead | None] | None = None,
        *,
        drafter: DrafterSettings | str | Sequence[DrafterSettings | str | None] | None = None,
        expected_output: ExpectedOutput | Sequence[ExpectedOutput | None] | None = None,
        logprobs: int | Sequence[int | None] | None = None,
        private: bool | Sequence[bool] = False,
        continue_final_message: bool = False,
        chat_template_kwargs: Variables | None = None,
        margins: bool = False,
        names: Sequence[str] | None = None,
        watch: DrafterWatch | None = None,
    ) -> Iterator[Chunk]:
        """Answer all prompts in one in-flight batch, and yield each step's results; checks come
        first. The text depends neither on the drafter nor on the rest of the batch.

        Args:
            prompts: one prompt or several. A prompt is a text, a list of token ids, or a
                conversation: a list of messages `{"role": "user", "content": "..."}`, rendered by
                the model's chat template. A list whose items are all messages is one conversation;
                a list of such lists is several.
            sampling: one for all prompts, or one each.
            lookahead: per-request triples, at most the default one, each step feeding all of them;
                or `auto`: each step feeds the part of the default one that pays. None: as the LLM
                was opened. The text is the same in all cases.
            drafter: proposes their drafts, named as after --drafter, or `DrafterSettings`; None: as
                the LLM was opened.
            expected_output: a likely output, such as a text that the prompt edits: a source of
                drafts, which changes no text. A text or token ids, for all prompts, or a list of
                one each; torch engines only.
            logprobs: report each output token's log probability at temperature 1 without filters,
                and this many most probable tokens in its place, at most 20; torch engines only.
            private: share nothing of a prompt and its output with other requests: no K/V blocks, no
                texts to draft from, a corpus included.
            continue_final_message: continue the last message of the conversations, the beginning of
                an assistant's, instead of answering it.
            chat_template_kwargs: variables of the chat template for these conversations, such as
                `{"enable_thinking": False}`, instead of those that the LLM was opened with.
            margins: report the target's top-2 logit margins.
            names: of the prompts in errors.
            watch: records every prompt's drafts; torch engines only.

        Raises:
            UsageError: a prompt or a setting does not fit; nothing was generated.
            TrtlaError: the executor gave up a prompt; the message names it.
        """
        requests = prompt_requests(
            prompts, sampling, lookahead, drafter=drafter, expected_output=expected_output,
            logprobs=logprobs, private=private, names=names, margins=margins, watch=watch,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )  # fmt: skip
        return self.decode(requests)

    @arguments_of(stream, SamplingParams, DrafterSettings)
    def generate(self, *prompts: Any, **how: Any) -> list[Completion]:
        """Run `stream` to its end; return completions in the order of the prompts.

        A prompt whose sampling has `n` above 1 has `n` successive completions: `completion.index`
        is the prompt's index, `completion.choice` that among its texts.
        """
        chunks = self.decode(prompt_requests(*prompts, **how), whole=True)
        done = [chunk.completion for chunk in chunks if chunk.completion is not None]
        return sorted(done, key=attrgetter("index", "choice"))

    @later_arguments_of(stream, SamplingParams, DrafterSettings)
    def chat(
        self, messages: Messages | Sequence[Messages], *more: Any, **how: Any
    ) -> list[Completion]:
        """Run `generate` for one conversation or several, and for nothing else."""
        return self.generate(conversations(messages), *more, **how)

    def decode(self, requests: Sequence[PromptRequest], *, whole: bool = False) -> Iterator[Chunk]:
        """Run `stream` for prompts that carry their settings.

        Args:
            whole: only the first and the last chunk of a text have to come at once.
        """
        answers = {answer.request.request_id: answer for answer in self.answers_to(requests)}
        return self._run(answers, whole)

    def answers_to(self, requests: Sequence[PromptRequest]) -> list[Answer]:
        """Return the checked answers that `decode` begins with."""
        answers = [
            answer
            for index, request in enumerate(requests)
            for answer in self.answers(index, request)
        ]
        checked = (answer.request for answer in answers)
        if any(request.expected_ids and not request.adaptive for request in checked):
            warn_unread(["expected_output"])
        return answers

    def beam_search(
        self,
        prompt: Prompt,
        settings: BeamSettings | None = None,
        max_output_len: int = USUAL_LEN,
        *,
        name: str = "the prompt",
    ) -> list[BeamText]:
        """Return the most probable texts of a beam search, best first; torch engines only.

        Raises:
            UsageError: the prompt does not fit, or the engine is TensorRT-LLM's.
            TrtlaError: the K/V cache has no room for the beams, or the logits are not finite.
        """
        sampling = SamplingParams(max_output_len=max_output_len)
        request = self.request(PromptRequest(name, prompt, sampling))
        return self.beams(request, settings or BeamSettings())

    def beams(self, request: Request, settings: BeamSettings) -> list[BeamText]:
        """Run `beam_search` for a request."""
        hypotheses = self.executor.call(lambda executor: executor.beam_search(request, settings))
        return [beam_text(beam, settings, request.input_ids, self.tokenizer) for beam in hypotheses]

    def log_probs(self, prompt: Prompt, output_ids: Sequence[int]) -> list[float]:
        """Return the target's natural log probability of each output token; torch engines only.

        At temperature 1 without filters: exp(-mean) is the output's perplexity.

        Raises:
            UsageError: prompt and output do not fit, or the engine is TensorRT-LLM's.
            TrtlaError: the K/V cache has no room for them, or the logits are not finite.
        """
        if not output_ids:
            return []
        sampling = SamplingParams(max_output_len=len(output_ids))
        request = self.request(PromptRequest("the prompt", prompt, sampling))
        return self.executor.call(lambda executor: executor.log_probs(request, output_ids))

    def _read(
        self, prompt: Prompt, name: str, most: int | None, rendering: Rendering
    ) -> tuple[tuple[int, ...], str | None]:
        self.executor.check()
        return super()._read(prompt, name, most, rendering)

    def _run(self, answers: dict[int, Answer], whole: bool) -> Iterator[Chunk]:
        inbox = Inbox(0.0 if whole else self.executor.coalesce_s)
        try:
            requests = [answer.request for answer in answers.values()]
            self.executor.submit(requests, inbox.put, whole)
            while answers:
                self.executor.check()
                for request_id, event in inbox.take():
                    yield chunk_of(answers, request_id, event)
        finally:  # the consumer may stop early
            self.executor.cancel(answers)

    def __dir__(self) -> list[str]:
        """List the public attributes; the rest is for other parts of the package."""
        return [name for name in super().__dir__() if name not in _INSIDE]

    def close(self) -> None:
        """Free the model after the forward that it may be in."""
        self.executor.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.executor.close(_INTERRUPTED_S if interrupted else None)
