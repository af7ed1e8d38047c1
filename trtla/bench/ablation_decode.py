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

from trtla.bench.ablation_arms import NEEDS_DRAFT_MODEL, AblationArm, arms
from trtla.bench.ablation_rows import Decoded
from trtla.bench.opened import OpenedModel, peak_bytes, reset_peak
from trtla.data.prompt_sets import Ids
from trtla.errors import TrtlaError
from trtla.llm.llm import LLM, Chunk
from trtla.runtime.loop.scores import perplexity
from trtla.runtime.models.load import resolve_device, set_threads
from trtla.runtime.stats import DraftTotals
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.bench.ablation import Ablation

_WARM_UP_TOKENS = 8


@contextmanager
def open_decoder(ablation: Ablation, device: str, dtype: str) -> Iterator[Decoder]:
    """The model, and the draft model beside it where an arm needs one.

    Raises:
        UsageError: a folder, a device or a type is not usable, or the models do not go together.
    """
    set_threads(ablation.threads)
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
        draft_device=ablation.draft_device,
        draft_dtype=ablation.draft_dtype,
    ) as llm:
        yield Decoder(ablation, llm, device, dtype)


def _room(made: Sequence[AblationArm]) -> DrafterSettings | None:
    """A chain as long as the longest of all arms, for which the executor then has memory."""
    most = max(arm.drafting.most_tokens for arm in made)
    return DrafterSettings(("lookahead", "ngram"), most) if most else None


class Decoder:
    """An opened model that decodes one prompt at a time."""

    def __init__(self, ablation: Ablation, llm: LLM, device: str, dtype: str) -> None:
        opened = OpenedModel(llm, resolve_device(device), dtype, ignore_eos=ablation.ignore_eos)
        self._llm, self._device, self._tokenizer = llm, opened.device, opened.tokenizer
        self._perplexities: dict[tuple[Ids, Ids], float] = {}
        self.room = opened.room
        """Tokens that a prompt may have, by max_output_len; raises where there are none."""
        self.triple: LookaheadConfig = llm.limits.lookahead
        self.cells: dict[str, object] = {
            "model": Path(ablation.model).resolve().name,
            "backend": llm.engine.backend,
            "device": str(self._device),
            "dtype": opened.dtype_name,
            "use_cache": True,
        }
        """What all rows of this model have alike."""

    def encode(self, text: str) -> Ids:
        """A text as ids."""
        return self._tokenizer.encode(text)

    def warm_up(self, arm: AblationArm, ids: Ids, sampling: SamplingParams) -> None:
        """Decode a few tokens untimed."""
        few = min(_WARM_UP_TOKENS, sampling.max_output_len)
        self.decode(arm, ids, replace(sampling, max_output_len=few))

    def decode(self, arm: AblationArm, ids: Ids, sampling: SamplingParams) -> Decoded:
        """Decode a prompt, timed."""
        reset_peak(self._device)
        drafts = self._llm.stats().draft_models
        before, last, first_s, start = replace(drafts), None, 0.0, time.perf_counter()
        for chunk in self._stream(arm, ids, sampling):
            last, first_s = chunk, first_s or time.perf_counter() - start
        time_s = time.perf_counter() - start
        figures = drafts.since(before) if arm.drafting.draft_model else None
        return _decoded(last, (time_s, first_s), peak_bytes(self._device), figures)

    def judged(self, found: Decoded, ids: Ids, reference: str | None) -> Decoded:
        """A prompt's decoding with what its text is worth, which is not timed."""
        scored = None
        if reference is not None:
            scored = rouge_l(self._tokenizer.decode(found.output_ids), reference)
        return replace(found, rouge_l=scored, perplexity=self._perplexity(ids, found.output_ids))

    def _perplexity(self, ids: Ids, output_ids: Ids) -> float | None:
        """The target's own, at temperature 1 without filters; None where it does not tell.

        Arms write the same texts: each is scored once.
        """
        if self._llm.engine.backend == "tensorrt-llm":
            return None
        key = (ids, output_ids)
        if key not in self._perplexities:
            self._perplexities[key] = perplexity(self._llm.log_probs(*key))
        return self._perplexities[key]

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
        accepted_lengths=done.stats.accepted_lengths,
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
