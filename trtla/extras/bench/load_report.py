"""Runs of load as rows, their JSON document, and the lines around their tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy

from trtla.console import counted
from trtla.extras.bench.documents import EVERY_CATEGORY, LoadDocument
from trtla.extras.bench.load_client import StreamedAnswer
from trtla.extras.bench.load_runs import LoadResult, LoadRun, LoadTest
from trtla.results.documents import SCHEMA_VERSION
from trtla.results.rows import FailureCount, Row
from trtla.runtime.stats import tokens_per_step

_REASONS = 5
"""Distinct reasons of failures that are kept."""


def row(run: LoadRun) -> Row:
    """Return the figures of a run."""
    done = [answer for answer in run.answers.values() if answer.error is None]
    rate, seconds = run.load.request_rate, run.duration_s
    inputs = [answer.input_tokens for answer in done]
    known = None if None in inputs else sum(filter(None, inputs))
    written = sum(answer.output_tokens for answer in done)
    both = None if known is None else known + written
    errors = (answer.error for answer in run.answers.values())
    reasons = Counter(error for error in errors if error is not None)
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
        **_spread("ttft_ms", [answer.ttft_s for answer in done]),
        **_spread("tpot_ms", [answer.tpot_s for answer in done]),
        **_spread("itl_ms", [gap for answer in done for gap in answer.gaps_s]),
        **_spread("e2el_ms", [answer.e2el_s for answer in done]),
        **_drafting(done),
        failures=tuple(
            FailureCount(reason=reason, count=number)
            for reason, number in list(reasons.items())[:_REASONS]
        ),
    )


def _each_second(number: int, seconds: float) -> float | None:
    return number / seconds if seconds > 0 else None


def _spread(name: str, seconds: Iterable[float | None]) -> dict[str, float | None]:
    """Return mean, median, standard deviation and 99th percentile by numpy, as in vLLM."""
    times = [1000 * value for value in seconds if value is not None]
    figures: dict[str, Callable[[list[float]], Any]] = {
        "mean": numpy.mean,
        "median": numpy.median,
        "std": numpy.std,
        "p99": partial(numpy.percentile, q=99),
    }
    return {
        f"{key}_{name}": float(figure(times)) if times else None for key, figure in figures.items()
    }


def _drafting(done: Sequence[StreamedAnswer]) -> dict[str, Any]:
    """Sum the counters of drafts that `trtla serve` reports; other servers report none."""
    if not done or any(answer.metrics is None for answer in done):
        return {}
    counters: dict[str, int | None] = {}
    for name in ("steps", "drafted", "accepted"):
        values = [(answer.metrics or {}).get(name) for answer in done]
        whole = [value for value in values if isinstance(value, int)]
        counters[name] = sum(whole) if len(whole) == len(values) else None
    steps, drafted, accepted = counters.values()
    decoded = sum(answer.output_tokens - 1 for answer in done if answer.output_tokens)
    return {
        **counters,
        "acceptance_rate": accepted / drafted if drafted and accepted is not None else None,
        "tokens_per_step": None if steps is None else tokens_per_step(decoded, steps),
    }


def document(test: LoadTest, measured: LoadResult, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON document of all runs."""
    answers = [answer for run in measured.runs for answer in run.answers.values()]
    reported = all(answer.usage is not None for answer in answers if answer.error is None)
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
        "tokens_from": "usage" if reported else "chunks",
    }
    checked = measured.checked
    more = {} if checked is None else {"checked_texts": checked}
    return LoadDocument(
        schema_version=SCHEMA_VERSION,
        environment=environment,
        settings=settings,
        interrupted=measured.interrupted,
        rows=tuple(map(row, measured.runs)),
        **more,
    ).document()


def head(test: LoadTest, measured: LoadResult, environment: dict[str, Any]) -> str:
    """Describe the circumstances in a few lines."""
    server = measured.server
    commit = environment["commit"] or "no checkout"
    cores = counted(environment["cores"], "core")
    owner = f" (owned by {server.owned_by})" if server.owned_by else ""
    return "\n".join(
        (
            f"`{environment['command']}`",
            "",
            f"- server: {server.url}, {server.model}{owner}, {server.endpoint}",
            f"- client: trtla {environment['trtla']} ({commit}), Python {environment['python']}, "
            f"{cores} of {environment['cpu']}",
            f"- a run: {counted(test.requests, 'request')}, at most "
            f"{counted(test.sampling.max_output_len, 'token')} each; times are medians (p99) in ms",
        )
    )


def remarks(measured: LoadResult, rows: Sequence[Row]) -> list[str]:
    """List the failures and the result of the check of texts."""
    lines = [
        f"{row.arm}: {failed.count} failed: {failed.reason}"
        for row in rows
        for failed in row.failures
    ]
    if (checked := measured.checked) is not None:
        lines.append(f"texts as alone: {checked.equal} of {checked.texts}")
    return lines
