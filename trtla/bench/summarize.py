"""What `trtla summarize` does: TensorRT-LLM's summarize.py on an engine, plain decoding, and HF.

Articles in, summaries out, with latency, step counts and ROUGE for each side. A side is a function
from a batch of prompts to answers, so that all sides are measured by the same loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from trtla.console import Stages, silent
from trtla.data.cnn_dailymail import CNN_DAILYMAIL, load_rows
from trtla.data.encoder import Encoder
from trtla.data.prompt_sets import Ids
from trtla.errors import CheckFailed, TrtlaError, UsageError
from trtla.files import parse_jsonl, read_text
from trtla.results.documents import Side
from trtla.results.metrics import Metrics
from trtla.results.run import divergence
from trtla.runtime.stats import RequestStats
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.messages import Asking
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trtla.llm.answer import Completion
    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer
    from trtla.runtime.request import FinishReason

ENGINE, PLAIN = "trtla", "trtla_without_lookahead"
"""The sides of our engine: as it drafts, and decoding plainly."""
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_HINT = 'give --dataset PATH.jsonl with {"article", "highlights"} lines'


class Article(BaseModel):
    """One line of a .jsonl data set: CNN/DailyMail's columns."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    article: str
    highlights: str
    id: str | None = None


Generate = Callable[[Sequence[list[int]]], "Sequence[Completion]"]
"""Decodes one batch of prompts."""


@dataclass(slots=True)
class Measured:
    """One way of decoding, measured over all items; latency is the time inside generate."""

    name: str
    latency_s: float = 0.0
    answers: list[Completion] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """Decoded alike for all sides, special tokens omitted."""
    scores: list[dict[str, float]] = field(default_factory=list)

    def figures(self) -> Side:
        """The totals."""
        return Side.fill(
            Metrics.of(self.answers, self.latency_s),
            name=self.name,
            latency_s=self.latency_s,
            **{key: _mean(score[key] for score in self.scores) for key in ROUGE},
        )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def require_extras(dataset: str) -> None:
    """Refuse early when a package of the extra `eval` is missing.

    Raises:
        TrtlaError: rouge-score, or datasets for CNN/DailyMail, is not installed.
    """
    needed = {"rouge_score": "rouge-score"}
    if dataset == CNN_DAILYMAIL:
        needed["datasets"] = "datasets"
    for module, package in needed.items():
        if find_spec(module) is None:
            raise TrtlaError(
                f'summarize needs the "{package}" package', "pip install 'trtla[eval]'"
            )


def load_articles(dataset: str, count: int, seed: int) -> list[Article]:
    """The first `count` articles of a .jsonl file, or of the shuffled CNN/DailyMail test split.

    Raises:
        UsageError: the file or one of its lines is not usable, or the hub cannot be reached.
    """
    if dataset == CNN_DAILYMAIL:
        rows = load_rows("test", count, f"use a local file: {_HINT}", seed)
        return [Article(article=row["article"], highlights=row["highlights"]) for row in rows]
    if Path(dataset).suffix.lower() != ".jsonl":
        raise UsageError(f"dataset {dataset} is neither {CNN_DAILYMAIL} nor a .jsonl file", _HINT)
    articles = [line for _, line in parse_jsonl(Article, read_text(Path(dataset)), dataset)]
    if not articles:
        raise UsageError(f"{dataset} holds no articles", 'write {"article", "highlights"} lines')
    return articles[:count]


def prompt_text(article: str) -> str:
    """An article as summarize.py asks for its summary."""
    return (article + " TL;DR: ").strip().replace(" n't", "n't")


def encode(
    tokenizer: PreTrainedTokenizerBase, articles: Sequence[Article], max_input_length: int
) -> list[list[int]]:
    """Prompts as ids. Long articles lose their beginning: the question at the end must stay."""
    tokenizer.truncation_side = "left"
    return [
        list(
            tokenizer.encode(
                prompt_text(item.article), truncation=True, max_length=max_input_length
            )
        )
        for item in articles
    ]


def encode_chats(
    tokenizer: Tokenizer, articles: Sequence[Article], max_input_length: int, asking: Asking
) -> list[list[int]]:
    """Prompts as users' messages in the chat template; long articles lose their beginning.

    Raises:
        UsageError: there is no template, it fails, or it alone is too long.
    """
    encoder = Encoder(tokenizer, asking, max_input_length)
    return [list(encoder.ids(asking.prompt(prompt_text(item.article)))) for item in articles]


def measure(
    name: str,
    generate: Generate,
    prompts: Sequence[list[int]],
    batch_size: int,
    stages: Stages = silent,
    forget: Callable[[], None] = lambda: None,
) -> Measured:
    """Decode all prompts in batches; the first one once before, outside the timer.

    Args:
        forget: called between: what was drafted from the first one's answer.
    """
    side = Measured(name)
    with stages(f"summarize, {name}", "articles") as progress:
        progress(0, len(prompts))
        generate(prompts[:1])
        forget()
        for at in range(0, len(prompts), batch_size):
            start = time.perf_counter()
            answers = generate(prompts[at : at + batch_size])
            side.latency_s += time.perf_counter() - start
            side.answers += answers
            progress(len(side.answers), len(prompts))
    return side


def engine_side(
    llm: LLM, sampling: SamplingParams, drafter: DrafterSettings | None = None
) -> Generate:
    """Decode with an engine; None takes the drafter that it was opened with."""
    return lambda batch: llm.generate(list(batch), sampling, drafter=drafter)


def hf_side(
    model_dir: str, device: str, dtype: str, engine_dtype: str, output_len: int
) -> Generate:
    """Decode with transformers' greedy generate, in the engine's arithmetic, padded on the left."""
    from trtla.bench.peers import HuggingFace
    from trtla.runtime.models.load import resolve_device, resolve_dtype

    on = resolve_device(device)
    model = HuggingFace(model_dir, on, [resolve_dtype(dtype, engine_dtype, on)])
    greedy = SamplingParams(output_len)

    def generate(batch: Sequence[list[int]]) -> list[Completion]:
        prompts = list(map(tuple, batch))
        outputs = model.decode(prompts, [greedy] * len(prompts)).outputs
        pairs = zip(prompts, outputs, strict=True)
        return [_completion(prompt, output, output_len) for prompt, output in pairs]

    return generate


def _completion(prompt: Ids, output: Ids, output_len: int) -> Completion:
    """An answer of transformers, whose steps feed one token each."""
    from trtla.llm.answer import Completion

    steps = max(len(output) - 1, 0)
    stats = RequestStats(drafter=NO_DRAFTER.name, steps=steps, fed=None, drafted=None)
    reason: FinishReason = "end_id" if len(output) < output_len else "length"
    return Completion(0, None, prompt, output, "", reason, AUTOREGRESSIVE, stats)


def score(side: Measured, tokenizer: PreTrainedTokenizerBase, articles: Sequence[Article]) -> None:
    """Fill in a side's texts and their ROUGE."""
    for answer, item in zip(side.answers, articles, strict=True):
        text = str(tokenizer.decode(list(answer.output_ids), skip_special_tokens=True))
        side.texts.append(text)
        side.scores.append(rouge(text, item.highlights))


def rouge(text: str, reference: str, kinds: Sequence[str] = ROUGE) -> dict[str, float]:
    """ROUGE F-measures x100, as `evaluate`'s rouge by default; needs the package rouge-score."""
    from rouge_score.rouge_scorer import RougeScorer

    found = RougeScorer(list(kinds), use_stemmer=False).score(reference, text)
    return {kind: 100.0 * found[kind].fmeasure for kind in kinds}


def equal_to_plain(sides: Sequence[Measured]) -> int | None:
    """How many summaries have plain decoding's ids, text and reason; None: it did not run."""
    answers = {side.name: side.answers for side in sides}
    if ENGINE not in answers or PLAIN not in answers:
        return None
    pairs = zip(answers[ENGINE], answers[PLAIN], strict=True)
    return sum(divergence(ours, theirs) is None for ours, theirs in pairs)


def items(sides: Sequence[Measured], prompts: Sequence[list[int]]) -> Iterable[dict[str, Any]]:
    """What --output writes: one object an article, with every side's text and scores."""
    for index, prompt in enumerate(prompts):
        found = {
            side.name: {
                "text": side.texts[index],
                "output_tokens": len(side.answers[index].output_ids),
                "steps": side.answers[index].stats.steps,
                **side.scores[index],
            }
            for side in sides
        }
        yield {"index": index, "input_tokens": len(prompt), "sides": found}


def check_rouge1(side: Side, threshold: float) -> None:
    """Compare a side's ROUGE-1 with a threshold.

    Raises:
        CheckFailed: it is below.
    """
    rouge1 = side.rouge1 or 0.0
    if rouge1 < threshold:
        raise CheckFailed(
            f"rouge1 {rouge1:.2f} of {side.name} is below the threshold {threshold:g}",
            "compare with --test-hf: equal scores mean the model, not the engine",
        )
