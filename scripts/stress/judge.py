"""What is wrong with the answers of a round: each against plain decoding of its request alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from stress.models import model_folder
from stress.rounds import Outcome, open_world
from stress.worlds import Request, World
from torch import Tensor
from transformers import AutoModelForCausalLM

from trtla import SamplingParams
from trtla.llm.llm import Completion
from trtla.runtime.sampling.draw import draw_at
from trtla.runtime.sampling.noise import uniform

_ROUNDING = 1e-5
"""Logits of PyTorch's operations differ by about this with the shape of the batch."""


class Plain:
    """Answers of plain decoding, one request at a time; a context manager."""

    def __init__(self, world: World, root: Path) -> None:
        self._world = replace(
            world, triple=(1, 1, 0), batch=1, max_num_tokens=8192, spare_blocks=None,
            reuse=False, options={}, drafts=(),
        )  # fmt: skip
        self._root, self._stack = root, ExitStack()
        self._known: dict[str, Completion] = {}

    def __enter__(self) -> Plain:
        self.llm = self._stack.enter_context(open_world(self._world, self._root))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def answer(self, prompt: Sequence[int], sampling: dict[str, Any], **changes: Any) -> Completion:
        """The completion of a request without a time limit."""
        sampled = {**sampling, **changes, "allotted_time_ms": None}
        key = repr((tuple(prompt), sorted(sampled.items())))
        if key not in self._known:
            [self._known[key]] = self.llm.generate([tuple(prompt)], SamplingParams(**sampled))
        return self._known[key]


class Judge:
    """Compares answers and counts their kinds.

    Attributes:
        counts: how the requests ended.
    """

    def __init__(self, world: World, plain: Plain, root: Path) -> None:
        self._world, self._plain, self._root = world, plain, root
        self.counts: Counter[str] = Counter()

    def wrong(self, request: Request, outcome: Outcome) -> str | None:
        """What is wrong with an answer; None: nothing."""
        if outcome.error is not None and not self._may_fail(outcome.error):
            return outcome.error
        if outcome.completion is None:
            self.counts[outcome.error.partition(":")[0] if outcome.error else "left"] += 1
            return self._cut(request, outcome)
        done = outcome.completion
        self.counts[done.finish_reason] += 1
        if done.finish_reason == "timed_out":
            return self._timed_out(request, done)
        return self._whole(request, outcome, done)

    def _may_fail(self, error: str) -> bool:
        """Errors that say what happened are no wrong answers, where something did happen."""
        disturbed = self._world.interrupts or self._world.callers > 1
        allowed = ("UsageError", "KeyboardInterrupt", *(("TrtlaError",) if disturbed else ()))
        return error.startswith(allowed)

    def _whole(self, request: Request, outcome: Outcome, done: Completion) -> str | None:
        plain = self._plain.answer(request.prompt, request.sampling)
        if done.output_ids != plain.output_ids:
            return self._ids(request, done.output_ids, plain.output_ids)
        if done.finish_reason != plain.finish_reason:
            return f"finish reason {done.finish_reason}, plain {plain.finish_reason}"
        if tuple(outcome.ids) != done.output_ids:
            return f"chunks {outcome.ids}, completion {done.output_ids}"
        return self._text(outcome.text, done.text, plain.text)

    def _text(self, *texts: str | None) -> str | None:
        if not self._world.text or len(set(texts)) == 1:
            return None
        return (
            f"text of the chunks {texts[0]!r}, of the completion {texts[1]!r}, plain {texts[2]!r}"
        )

    def _cut(self, request: Request, outcome: Outcome) -> str | None:
        """What a consumer has seen when it leaves is how the plain answer begins."""
        plain = self._plain.answer(request.prompt, request.sampling)
        if tuple(outcome.ids) != plain.output_ids[: len(outcome.ids)]:
            return self._ids(request, tuple(outcome.ids), plain.output_ids)
        if self._world.text and not (plain.text or "").startswith(outcome.text):
            return f"text so far {outcome.text!r}, plain {plain.text!r}"
        return None

    def _timed_out(self, request: Request, done: Completion) -> str | None:
        if not done.output_ids:
            return self._text("", done.text, "")
        length = len(done.output_ids)
        plain = self._plain.answer(request.prompt, request.sampling, max_output_len=length)
        if done.output_ids != plain.output_ids:
            return self._ids(request, done.output_ids, plain.output_ids)
        return self._text(done.text, done.text, plain.text)

    def _ids(self, request: Request, ours: Sequence[int], plain: Sequence[int]) -> str | None:
        at = next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), None)
        if (
            at is not None
            and not self._compiled
            and self._near(request, plain[:at], {ours[at], plain[at]})
        ):
            self.counts["rounding"] += 1
            return None
        return f"ids {list(ours)}, plain {list(plain)}"

    @property
    def _compiled(self) -> bool:
        return "compiled" in self._plain.llm.description

    def _near(self, request: Request, output: Sequence[int], tokens: set[int]) -> bool:
        """Whether each of the tokens can be drawn from logits that are nearly transformers'."""
        folder = model_folder(self._world.model, self._root)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        ids = torch.tensor([[*request.prompt, *output]])
        with torch.inference_mode():
            logits = model(ids).logits[0, -1:]
        noise = torch.Generator().manual_seed(0)
        near = logits + _ROUNDING * torch.randn((400, logits.shape[1]), generator=noise)
        return tokens <= set(_draws(near, request.sampling, ids.shape[1]))


def _draws(logits: Tensor, sampling: dict[str, Any], position: int) -> list[int]:
    params = SamplingParams(**sampling)
    if params.greedy:
        return [int(token) for token in logits.argmax(-1)]
    noise = uniform(params.seed, position)
    return draw_at(logits.numpy(), params, [noise] * len(logits))
