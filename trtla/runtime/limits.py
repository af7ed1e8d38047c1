"""Limits that requests must fit: lengths, vocabulary, triple, drafts; checked before queueing.

Plain integers, the same for both executors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtla.console import counted
from trtla.errors import PromptTooLong, UsageError, at_start, named
from trtla.runtime.request import Request
from trtla.settings.custom_drafters import check_opened
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings, check_drafts_itself, refuse_texts
from trtla.settings.lookahead import (
    AUTOREGRESSIVE,
    REBUILD,
    LookaheadConfig,
    check_request,
    refuse_auto,
)
from trtla.settings.sampling import SamplingParams

REBUILD_INPUT = "build an engine with a larger --max-input-len"
REBUILD_LONGER = "build an engine with a larger --max-seq-len"
_GAMMA_ROOM = 16  # for single requests, whatever the executor was opened with

MOST_LOGPROBS = 20
"""Most alternatives to list for each output token, as in OpenAI's API."""


def refuse_watch(name: str) -> UsageError:
    """Return the refusal of an executor that does not report its drafts."""
    return UsageError(
        f"{name}: TensorRT-LLM's executor does not report what it drafts in a step",
        "use an engine built with --backend torch, or the Hugging Face folder",
        "pieces",
    )


def distinct_heads(paths: Iterable[str]) -> list[str]:
    """Return the paths without those of a head that an earlier one names."""
    first: dict[str, str] = {}
    for path in paths:
        first.setdefault(_place(path), path)
    return [*first.values()]


def _place(path: str) -> str:
    """The one name of all paths of a folder or file."""
    try:
        return os.path.realpath(os.path.expanduser(path))
    except ValueError:  # a NUL character, of a client's
        return path


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """The limits of requests: `max_input_len` is for prompts, `max_text_len` for whole texts."""

    max_batch_size: int
    max_input_len: int
    max_text_len: int
    max_num_tokens: int
    vocab_size: int
    lookahead: LookaheadConfig
    """The default triple, and the largest one; (1,1,0) on a plain engine."""
    greedy_only: bool = False
    """True if sampling settings would be silently ignored."""
    fixed_triples: bool = False
    """True if every step feeds the whole triple, so that no request can be adaptive."""
    input_len_hint: str = REBUILD_INPUT
    """A hint for prompts that are too long, besides shortening them."""
    text_len_hint: str = REBUILD_LONGER
    """A hint for texts that are too long, besides requesting less output."""
    drafter: DrafterSettings = LOOKAHEAD
    """The drafter of requests that name none."""
    draft_models: tuple[str, ...] = ()
    """Draft models that requests may name as draft:PATH."""
    heads: tuple[str, ...] = ()
    """Trained heads that requests may name as head:PATH."""
    head_problem: str = ""
    """The reason why a head that was found beside the model is not among them."""
    custom_drafters: tuple[str, ...] = ()
    """Drafters of the user's own that requests may name."""
    shares_blocks: bool = False
    """True if K/V blocks are always shared, so that no request can be private."""
    larger_triples: str = REBUILD
    """How to get a larger default triple, for hints."""
    usual_output_len: int | None = None
    """Most output tokens of a request without a limit; None: the rest of the context."""
    length_note: str = ""
    """A note if memory has room for shorter texts only than the model was trained for."""
    max_encoder_len: int | None = None
    """Most `encoder_ids`, which every request must have then; None: there is no encoder."""

    @property
    def max_prompt_len(self) -> int:
        """Most tokens of a prompt, which the encoder reads if there is one."""
        return self.max_input_len if self.max_encoder_len is None else self.max_encoder_len

    def fitted(self, sampling: SamplingParams, prompt_len: int) -> SamplingParams:
        """Return settings whose default length, if they have it, is what a prompt leaves room for
        and at most `usual_output_len`."""
        return sampling.fitted(self.max_text_len - prompt_len, self.usual_output_len)

    @property
    def max_gamma(self) -> int:
        """Most tokens that a request's drafters other than lookahead may propose in a step."""
        return max(_GAMMA_ROOM, self.drafter.most_tokens)

    @property
    def max_draft_len(self) -> int:
        """Most tokens that any request may draft in a step."""
        return self.lookahead.max_draft_len + self.max_gamma

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Tokens that a request feeds in a step with the whole triple, and the most of any."""
        return tuple(sorted({self.lookahead.max_decoding_tokens, 1 + self.max_draft_len}))

    def loaded(self, drafter: DrafterSettings) -> DrafterSettings:
        """Return the settings with the name of the loaded head that another path of it names."""
        if drafter.head is None or drafter.head in self.heads:
            return drafter
        wanted = _place(drafter.head)
        found = next((name for name in self.heads if _place(name) == wanted), None)
        return drafter if found is None else drafter.with_head(found)

    def drafter_of(self, request: Request) -> DrafterSettings:
        """Return a request's drafter settings."""
        return request.drafter or self.drafter

    def triple_of(self, request: Request) -> LookaheadConfig:
        """Return a request's triple; (1,1,0) if lookahead does not draft."""
        if not self.drafter_of(request).uses_lookahead:
            return AUTOREGRESSIVE
        return request.lookahead or self.lookahead

    def check(self, request: Request) -> None:
        """Refuse a request that does not fit, before it is queued."""
        length, name = len(request.input_ids), request.label
        if not length or not request.given_ids:
            raise UsageError(f"{name} has an empty prompt", "give at least one token")
        self._check_encoder(request)
        if length > self.max_input_len:
            separate = self.max_input_len < self.max_text_len
            which = "max_input_len" if separate else "max_seq_len"
            raise PromptTooLong(
                f"{name} is {counted(length, 'token')} long, above {which} {self.max_input_len}",
                f"shorten the prompt, or {self.input_len_hint}",
            )
        wanted = length + request.sampling.max_output_len
        if wanted > self.max_text_len:
            raise PromptTooLong(
                f"{name} needs {length} prompt + {request.sampling.max_output_len} output tokens = "
                f"{wanted}, above max_seq_len {self.max_text_len}",
                f"lower {named('max_output_len')}, or {self.text_len_hint}",
            )
        self._check_sampling(request)
        self._check_logprobs(request)
        self.check_ids(request.known_ids, name)
        self._check_begun(request)
        self.check_ids(request.expected_ids, f"the expected output of {name}")
        if request.lookahead is not None:
            check_request(request.lookahead, self.lookahead, name, self.larger_triples)
        if request.adaptive and self.fixed_triples:
            raise refuse_auto(name)
        if (request.private or request.space) and self.shares_blocks:
            raise UsageError(
                f"{name} is private, and this executor shares K/V blocks between all prompts",
                f"open the model without {at_start('kv_cache_enable_block_reuse')}",
                "private",
            )
        self._check_drafter(request)
        self._check_step(request)

    def _check_begun(self, request: Request) -> None:
        if not request.begun:
            return
        if self.fixed_triples:
            raise UsageError(
                f"{request.label} has output already, and engines of TensorRT-LLM begin texts only",
                "use an engine built with --backend torch, or the Hugging Face folder",
            )
        if len(request.begun) >= request.sampling.max_output_len:
            raise UsageError(
                f"{request.label} has {len(request.begun)} output tokens and asks for "
                f"{request.sampling.max_output_len}",
                "ask for more output",
            )
        self.check_ids(request.begun, f"the output of {request.label}")

    def _check_step(self, request: Request) -> None:
        """Refuse a triple whose window does not fit a step: other drafts are cut, it is not."""
        triple = self.triple_of(request)
        if not request.adaptive and triple.max_decoding_tokens > self.max_num_tokens:
            raise UsageError(
                f"{request.label} feeds up to {triple.max_decoding_tokens} tokens a step with "
                f"lookahead {triple}, above max_num_tokens {self.max_num_tokens}",
                "use a smaller triple, or rebuild with a larger --max-num-tokens",
                "lookahead",
            )

    def _check_encoder(self, request: Request) -> None:
        length, most = len(request.encoder_ids or ()), self.max_encoder_len
        if (request.encoder_ids is None) != (most is None):
            model = "a decoder alone" if most is None else "an encoder-decoder"
            brought = "no encoder_ids" if request.encoder_ids is None else "encoder_ids"
            raise UsageError(
                f"{request.label} brings {brought}, and the model is {model}",
                "let LLM make the request, or give both parts what they read",
            )
        if most is not None and length > most:
            raise PromptTooLong(
                f"{request.label} is {length} tokens long, above the encoder's {most}",
                "shorten the prompt",
            )

    def check_ids(self, ids: Sequence[int], name: str, setting: str | None = None) -> None:
        """Refuse ids outside the vocabulary."""
        bad = next((i for i in ids if not 0 <= i < self.vocab_size), None)
        if bad is not None:
            raise UsageError(
                f"{name} holds token id {bad}, outside the vocabulary of {self.vocab_size}",
                f"use ids from 0 to {self.vocab_size - 1}; a tokenizer belongs to its own model",
                setting,
            )

    def _check_drafter(self, request: Request) -> None:
        settings = self.drafter_of(request)
        if self.fixed_triples:
            check_drafts_itself(settings, request.label)
            if request.watch is not None:
                raise refuse_watch(request.label)
            if request.expected_ids:
                raise refuse_texts(request.label, "an expected output")
        if settings.draft_model not in (None, *self.draft_models):
            raise UsageError(
                f"{request.label} asks for the draft model {settings.draft_model}, which is not "
                "loaded",
                f"open the model with {at_start('drafter')} draft:{settings.draft_model}",
                "drafter",
            )
        if settings.head not in (None, *self.heads):
            raise UsageError(
                f"{request.label} asks for the head {settings.head}, which is not loaded",
                f"open the model with {at_start('drafter')} head:{settings.head}",
                "drafter",
            )
        check_opened(settings.custom, self.custom_drafters, request.label)
        if settings.most_tokens > self.max_gamma:
            raise UsageError(
                f"{request.label} drafts {counted(settings.most_tokens, 'token')}, above "
                f"{self.max_gamma}",
                f"use a smaller {named('gamma')}, or open the model with {at_start('gamma')} "
                f"{settings.most_tokens}",
                "gamma",
            )

    def _check_sampling(self, request: Request) -> None:
        """Refuse sampling that is ignored: the C++ lookahead layer always takes the argmax."""
        sampling = request.sampling
        biased = [token for token, _ in sampling.biases]
        self.check_ids(biased, f"logit_bias of {request.label}", "logit_bias")
        stops = f"stop_token_ids of {request.label}"
        self.check_ids(sampling.stop_ids, stops, "stop_token_ids")
        for name in sampling.beyond if self.fixed_triples else ():
            raise UsageError(
                f"{request.label} has {name}, which engines of TensorRT-LLM do not apply here",
                f"omit {name}, or use an engine built with --backend torch, or the Hugging Face "
                "folder",
                name,
            )
        if self.greedy_only and not sampling.greedy:
            raise UsageError(
                f"{request.label} has temperature {sampling.temperature:g}, but lookahead "
                "decoding in TensorRT-LLM is greedy only and ignores sampling in silence",
                f"use {named('temperature')} 0, an engine built with --lookahead 1,1,0, or "
                "--backend torch",
                "temperature",
            )

    def _check_logprobs(self, request: Request) -> None:
        count = request.logprobs
        if count is not None and not 0 <= count <= MOST_LOGPROBS:
            raise UsageError(
                f"{request.label} has logprobs {count}, not a number from 0 to {MOST_LOGPROBS}",
                "logprobs is how many most probable tokens to list beside each output token",
                "logprobs",
            )
        if count is not None and self.fixed_triples:
            raise UsageError(
                f"{request.label} asks for log probabilities, which engines of TensorRT-LLM do not "
                "report here",
                "use an engine built with --backend torch, or the Hugging Face folder",
                "logprobs",
            )


MAX_CHUNK = 2048
"""Longest stretch of one prompt in a forward; bounds the size of its attention mask."""
