"""Runs of load as rows, their JSON document, and what stands around their tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy

from trtla.bench.load_client import StreamedAnswer
from trtla.bench.load_runs import LoadResult, LoadRun, LoadTest
from trtla.console import counted
from trtla.results.bench_documents import (
    EVERY_CATEGORY,
    FailureCount,
    LoadDocument,
    Row,
)
from trtla.results.documents import SCHEMA_VERSION
from trtla.runtime.stats import tokens_per_step

_REASONS = 5
"""Different reasons of failures that are kept."""


def row(run: LoadRun) -> Row:
    """The figures of a run."""
    done = [one for one in run.answers.values() if one.error is None]
    rate, seconds = run.load.request_rate, run.duration_s
    inputs = [one.input_tokens for one in done]
    known = None if None in inputs else sum(one for one in inputs if one is not None)
    written = sum(one.output_tokens for one in done)
    both = None if known is None else known + written
    reasons = Counter(one.error for one in run.answers.values() if one.error is not None)
    return Row.fill(
        run.load,
        run.filters,
        arm=str(run.load),
        category=EVERY_CATEGORY,
        request_rate="inf" if rate == math.inf else rate,
        requests=len(run.requests),
        completed=len(done),
        failed=len(run.answers) - len(done),
        time_s=seconds,
        total_input_tokens=known,
        output_tokens=written,
        request_throughput=_each_second(len(done), seconds),
        tokens_per_s=_each_second(written, seconds),
        total_token_throughput=None if both is None else _each_second(both, seconds),
        **_spread("ttft_ms", [one.ttft_s for one in done]),
        **_spread("tpot_ms", [one.tpot_s for one in done]),
        **_spread("itl_ms", [gap for one in done for gap in one.gaps_s]),
        **_spread("e2el_ms", [one.e2el_s for one in done]),
        **_drafting(done),
        failures=tuple(
            FailureCount(reason=reason, count=number)
            for reason, number in list(reasons.items())[:_REASONS]
        ),
    )


def _each_second(number: int, seconds: float) -> float | None:
    return number / seconds if seconds > 0 else None


def _spread(name: str, seconds: Iterable[float | None]) -> dict[str, float | None]:
    """Mean, median, standard deviation and 99th percentile as numpy has them, as vLLM's are."""
    known = [1000 * one for one in seconds if one is not None]
    figures: dict[str, Callable[[list[float]], Any]] = {
        "mean": numpy.mean,
        "median": numpy.median,
        "std": numpy.std,
        "p99": partial(numpy.percentile, q=99),
    }
    return {f"{key}_{name}": float(one(known)) if known else None for key, one in figures.items()}


def _drafting(done: Sequence[StreamedAnswer]) -> dict[str, Any]:
    """Sums of what `trtla serve` reports of its drafts; nothing of other servers."""
    if not done or any(one.metrics is None for one in done):
        return {}
    found: dict[str, int | None] = {}
    for name in ("steps", "drafted", "accepted"):
        values = [(one.metrics or {}).get(name) for one in done]
        whole = [value for value in values if isinstance(value, int)]
        found[name] = sum(whole) if len(whole) == len(values) else None
    steps, drafted, accepted = found.values()
    decoded = sum(one.output_tokens - 1 for one in done if one.output_tokens)
    return {
        **found,
        "acceptance_rate": accepted / drafted if drafted and accepted is not None else None,
        "tokens_per_step": None if steps is None else tokens_per_step(decoded, steps),
    }


def document(test: LoadTest, measured: LoadResult, found: dict[str, Any]) -> dict[str, Any]:
    """The JSON document, with the environment that was found."""
    answers = [one for run in measured.runs for one in run.answers.values() if one.error is None]
    server = measured.server
    settings = {
        "url": server.url,
        "model": server.model,
        "owned_by": server.owned_by,
        "endpoint": server.endpoint,
        "prompts": min(len(test.prompts), len(measured.runs) * test.requests),
        "max_output_len": test.sampling.max_output_len,
        "seed": test.sampling.seed,
        "arrivals_seed": test.arrivals_seed,
        "extra_body": dict(server.extra),
        "tokens_from": "chunks" if any(one.usage is None for one in answers) else "usage",
    }
    checked = measured.checked
    more = {} if checked is None else {"checked_texts": checked}
    return LoadDocument(
        schema_version=SCHEMA_VERSION,
        environment=found,
        settings=settings,
        interrupted=measured.interrupted,
        rows=tuple(map(row, measured.runs)),
        **more,
    ).document()


def head(test: LoadTest, measured: LoadResult, found: dict[str, Any]) -> str:
    """The circumstances in a few lines."""
    server = measured.server
    owner = f" (owned by {server.owned_by})" if server.owned_by else ""
    return "\n".join(
        (
            f"`{found['command']}`",
            "",
            f"- server: {server.url}, {server.model}{owner}, {server.endpoint}",
            f"- client: trtla {found['trtla']} ({found['commit'] or 'no checkout'}), Python "
            f"{found['python']}, {counted(found['cores'], 'core')} of {found['cpu']}",
            f"- a run: {counted(test.requests, 'request')}, at most "
            f"{counted(test.sampling.max_output_len, 'token')} each; times are medians (p99) in ms",
        )
    )


def remarks(measured: LoadResult, rows: Sequence[Row]) -> list[str]:
    """What failed, and what the check of texts found."""
    said = [
        f"{one.arm}: {failed.count} failed: {failed.reason}"
        for one in rows
        for failed in one.failures
    ]
    if (checked := measured.checked) is not None:
        said.append(f"texts as alone: {checked.equal} of {checked.texts}")
    return said
