"""One decoding of one arm on an opened model, timed: the only file of the ablation that decodes.

The tokenizer is taken away from the model, so that no arm pays for text while it is timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trtla.bench.ablation_arms import NEEDS_DRAFT_MODEL, AblationArm, arms
from trtla.bench.ablation_rows import Decoded
from trtla.bench.hardware import peak_bytes, reset_peak
from trtla.bench.prompt_sets import Ids
from trtla.bench.sweep import take_tokenizer
from trtla.drafting import DrafterSettings
from trtla.errors import TrtlaError, UsageError
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.runtime.device import resolve_device, resolve_dtype
from trtla.runtime.drafters.gamma_policy import DraftTotals
from trtla.runtime.executor import SamplingParams
from trtla.runtime.llm import LLM, Chunk

if TYPE_CHECKING:
    from trtla.bench.ablation import Ablation

_WARM_UP_TOKENS = 8


@contextmanager
def open_decoder(ablation: Ablation, device: str, dtype: str) -> Iterator[Decoder]:
    """The model, and the draft model beside it where an arm needs one.

    Raises:
        UsageError: a folder, a device or a type is not usable, or the models do not go together.
    """
    if ablation.threads is not None:
        torch.set_num_threads(ablation.threads)
    drafts = set(NEEDS_DRAFT_MODEL).intersection(ablation.grid.methods)
    draft_model = ablation.grid.draft_model if drafts else None
    with LLM(
        ablation.model,
        lookahead=ablation.server,
        tokenizer_dir=ablation.tokenizer_dir,
        device=device,
        dtype=dtype,
        max_batch_size=1,
        drafter=_room(arms(ablation.grid, AUTOREGRESSIVE)),
        draft_models=[draft_model] if draft_model else [],
    ) as llm:
        yield Decoder(ablation, llm, device, dtype)


def _room(made: Sequence[AblationArm]) -> DrafterSettings | None:
    """A chain as long as the longest of all arms, for which the executor then has memory."""
    most = max(arm.drafting.most_tokens for arm in made)
    return DrafterSettings(("lookahead", "ngram"), most) if most else None


class Decoder:
    """An opened model that decodes one prompt at a time."""

    def __init__(self, ablation: Ablation, llm: LLM, device: str, dtype: str) -> None:
        self._llm, self._device = llm, resolve_device(device)
        checkpoint = llm.engine.config.pretrained_config
        arithmetic = resolve_dtype(dtype, checkpoint.dtype, self._device)
        self._tokenizer = take_tokenizer(llm)
        if ablation.ignore_eos:
            llm.end_ids = frozenset()
        self.triple: LookaheadConfig = llm.limits.lookahead
        self.cells: dict[str, object] = {
            "model": Path(ablation.model).resolve().name,
            "backend": llm.engine.backend,
            "device": str(self._device),
            "dtype": str(arithmetic).removeprefix("torch."),
            "use_cache": True,
        }
        """What all rows of this model have alike."""

    def room(self, max_output_len: int) -> int:
        """Tokens that a prompt may have.

        Raises:
            UsageError: there are none.
        """
        limits = self._llm.limits
        room = min(limits.max_input_len, limits.max_text_len - max_output_len)
        if room < 1:
            raise UsageError(
                f"--max-output-len {max_output_len} leaves no room for a prompt: prompt and output "
                f"together may have {limits.max_text_len} tokens",
                "lower --max-output-len, or rebuild with a larger --max-seq-len",
            )
        return room

    def encode(self, text: str) -> Ids:
        """A text as ids."""
        return self._tokenizer.encode(text)

    def warm_up(self, arm: AblationArm, ids: Ids, sampling: SamplingParams) -> None:
        """Decode a few tokens untimed."""
        few = min(_WARM_UP_TOKENS, sampling.max_output_len)
        self.decode(arm, ids, replace(sampling, max_output_len=few))

    def decode(
        self, arm: AblationArm, ids: Ids, sampling: SamplingParams, reference: str | None = None
    ) -> Decoded:
        """Decode a prompt; a text with a reference is scored, untimed."""
        reset_peak(self._device)
        drafts = self._llm.stats().draft_models
        before, last, first_s, start = replace(drafts), None, 0.0, time.perf_counter()
        for chunk in self._stream(arm, ids, sampling):
            last, first_s = chunk, first_s or time.perf_counter() - start
        time_s = time.perf_counter() - start
        figures = drafts.since(before) if arm.drafting.draft_model else None
        found = _decoded(last, (time_s, first_s), peak_bytes(self._device), figures)
        if reference is None:
            return found
        return replace(found, rouge_l=rouge_l(self._tokenizer.decode(found.output_ids), reference))

    def _stream(self, arm: AblationArm, ids: Ids, sampling: SamplingParams) -> Iterator[Chunk]:
        return self._llm.stream([ids], [sampling], [arm.lookahead], drafter=[arm.drafting])


def _decoded(
    last: Chunk | None, times: tuple[float, float], peak: int, drafts: DraftTotals | None
) -> Decoded:
    if last is None or last.completion is None:
        raise TrtlaError("a decoding of the ablation ended without a result")
    done = last.completion
    return Decoded(
        done.output_ids,
        done.finish_reason,
        done.stats.steps,
        done.stats.drafted,
        done.stats.accepted,
        *times,
        peak,
        drafter_forwards=drafts.forwards if drafts else None,
        mean_gamma=drafts.mean_gamma if drafts else None,
        mean_entropy=drafts.mean_entropy if drafts else None,
    )


def rouge_l(text: str, reference: str) -> float | None:
    """ROUGE-L's F-measure x100, as `trtla summarize` has it; None without rouge-score."""
    if find_spec("rouge_score") is None:
        return None
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    return 100.0 * float(scorer.score(reference, text)["rougeL"].fmeasure)
