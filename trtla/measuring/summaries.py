"""TensorRT-LLM's summarize.py on an engine, on plain decoding and on Hugging Face.

It summarises articles and reports latency, step counts and ROUGE of each side. Sides are arms of
the measuring engine, which take turns on the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trtla.console import Stages, silent
from trtla.data.prompt_sets import CNN_DAILYMAIL, Ids
from trtla.errors import CheckFailed, TrtlaError, install_hint
from trtla.measuring.arms import Arm, ArmRun, EngineArm, PeerArm
from trtla.measuring.encoding import Encoder
from trtla.results.rows import Cell, Row
from trtla.runtime.loop.scores import perplexity
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings
from trtla.settings.eval_tasks import EvalTask
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.messages import Asking
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer
    from trtla.measuring.turns import CellRuns

ENGINE, PLAIN = "trtla", "trtla_without_lookahead"
"""The sides of our engine: with its drafts, and with plain decoding."""
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def require_extras(dataset: str, task: EvalTask) -> None:
    """Refuse early when a package of the extra `eval` is missing."""
    needed = {} if task.context_only else {"rouge_score": "rouge-score"}
    if dataset == CNN_DAILYMAIL:
        needed["datasets"] = "datasets"
    for module, package in needed.items():
        if find_spec(module) is None:
            raise TrtlaError(f'summarize needs the "{package}" package', install_hint("eval"))


def encode(
    tokenizer: Tokenizer, texts: Sequence[str], max_input_length: int, asking: Asking
) -> list[Ids]:
    """Encode prompts; long ones lose their beginning, since the question is at the end."""
    if asking.chat:
        encoder = Encoder(tokenizer, asking, max_input_length)
        return [encoder.ids(asking.prompt(text)) for text in texts]
    inner = tokenizer.inner
    inner.truncation_side = "left"
    return [
        tuple(inner.encode(text, truncation=True, max_length=max_input_length)) for text in texts
    ]


@dataclass(frozen=True, slots=True)
class SummarySide:
    """The run of an arm over all articles, with texts and scores."""

    name: str
    run: ArmRun
    texts: tuple[str, ...]
    """Texts without special tokens, decoded in the same way for all sides."""
    scores: tuple[dict[str, float], ...]
    """ROUGE of each text; empty without references."""
    perplexities: tuple[float, ...] = ()
    """The perplexity of each prompt with its text, where it is asked for."""

    @property
    def means(self) -> dict[str, float]:
        """Mean scores over the texts."""
        means = {key: fmean(score[key] for score in self.scores) for key in ROUGE if self.scores}
        return means | ({"perplexity": fmean(self.perplexities)} if self.perplexities else {})

    def figures(self, index: int) -> dict[str, float]:
        """The scores of one text."""
        own = {"perplexity": self.perplexities[index]} if self.perplexities else {}
        return (self.scores[index] if self.scores else {}) | own


def engine_arms(llm: LLM, drafter: DrafterSettings) -> list[EngineArm]:
    """Make the arms of our engine: with its drafts, and plain decoding if that differs."""
    arms = [EngineArm(llm, None, drafter, ENGINE)]
    if llm.limits.drafter.max_draft_len(llm.limits.lookahead):
        arms.append(EngineArm(llm, AUTOREGRESSIVE, NO_DRAFTER, PLAIN))
    return arms


def hf_arm(
    model_dir: str,
    device: str,
    dtype: str,
    engine_dtype: str,
    end_ids: frozenset[int] | None = None,
) -> Arm:
    """Make the arm of transformers' greedy generate in the engine's arithmetic.

    Args:
        end_ids: tokens that end a text; None: the model's.
    """
    from trtla.measuring.hugging_face import HuggingFace
    from trtla.runtime.device import resolve_device
    from trtla.runtime.models.load import resolve_dtype

    on = resolve_device(device)
    named = resolve_dtype(dtype, engine_dtype, on.type)
    model = HuggingFace(model_dir, on, [named], end_ids)
    return PeerArm("hugging_face", model.decode)


def measure_sides(
    cell: Cell,
    arms: Sequence[Arm],
    prompts: Sequence[Ids],
    sampling: SamplingParams,
    stages: Stages = silent,
) -> CellRuns:
    """Decode all prompts in batches, the arms in turns; the first prompt once before, untimed."""
    from trtla.measuring.turns import Batch, measure

    starts = range(0, len(prompts), cell.batch_size)
    groups = [prompts[at : at + cell.batch_size] for at in starts]
    works = [(group, [sampling] * len(group)) for group in groups]
    batches = [Batch(1, index, work) for index, work in enumerate(works)]
    done, total = count(1 - len(arms)), len(batches) * len(arms)
    with stages("summarize", "batches") as progress:
        measured = measure(
            cell,
            arms,
            batches,
            on_run=lambda *_: progress(max(0, next(done)), total),
            first=(prompts[:1], [sampling]),
        )
    measured.plain = PLAIN
    return measured


def side(
    name: str,
    run: ArmRun,
    tokenizer: PreTrainedTokenizerBase,
    references: Sequence[str],
    stop_ids: Sequence[int] = (),
) -> SummarySide:
    """Return a run with its texts, which end before any of `stop_ids`, and their ROUGE.

    Args:
        references: one for each text, or none at all.
    """
    shown = [ids[:-1] if ids and ids[-1] in stop_ids else ids for ids in run.outputs]
    texts = [str(tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in shown]
    scores = tuple(map(rouge, texts, references))
    return SummarySide(name, run, tuple(texts), scores)


def perplexities(
    llm: LLM, prompts: Sequence[Ids], measured: CellRuns
) -> dict[tuple[Ids, Ids], float]:
    """Compute the perplexity of prompt and output together, as summarize.py does, by text."""
    runs = [run for (run,) in measured.runs().values()]
    pairs = {pair for run in runs for pair in zip(prompts, run.outputs, strict=True)}
    whole = {pair: pair[0] + pair[1] for pair in pairs}
    return {pair: perplexity(llm.log_probs(ids[:1], ids[1:])) for pair, ids in whole.items()}


def rouge(text: str, reference: str, kinds: Sequence[str] = ROUGE) -> dict[str, float]:
    """Compute ROUGE F-measures x100, as `evaluate`'s rouge does by default, with rouge-score."""
    from rouge_score.rouge_scorer import RougeScorer

    scores = RougeScorer(list(kinds), use_stemmer=False).score(reference, text)
    return {kind: 100.0 * scores[kind].fmeasure for kind in kinds}


def items(sides: Sequence[SummarySide], prompts: Sequence[Ids]) -> Iterator[dict[str, Any]]:
    """Yield the lines of --output: for each article every side's text and scores."""
    for index, prompt in enumerate(prompts):
        by_side = {
            side.name: {
                "text": side.texts[index],
                "output_tokens": len(side.run.outputs[index]),
                "steps": side.run.steps_each[index],
                **side.figures(index),
            }
            for side in sides
        }
        yield {"index": index, "input_tokens": len(prompt), "sides": by_side}


def check_rouge1(row: Row, threshold: float) -> None:
    """Raise `CheckFailed` if a side's ROUGE-1 is below the threshold."""
    rouge1 = row.rouge1 or 0.0
    if not rouge1 >= threshold:
        raise CheckFailed(
            f"rouge1 {rouge1:.2f} of {row.arm} is below the threshold {threshold:g}",
            "compare with hugging_face of --test-hf: equal scores mean the model, not the engine",
        )


def check_perplexity(row: Row, threshold: float) -> None:
    """Raise `CheckFailed` if a side's mean perplexity is above the threshold."""
    mean = row.perplexity or 0.0
    if not mean <= threshold:  # NaN passes no check
        raise CheckFailed(
            f"perplexity {mean:.2f} of {row.arm} is above the threshold {threshold:g}",
            "compare with the unquantised model, or give another --ppl-threshold",
        )
