"""The server's counters for Prometheus; names and buckets follow vLLM's.

Each application has a registry of its own, so several can live in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from trtla.api.protocol import FINISH_REASONS
from trtla.llm.decoder import ReplicaCounts
from trtla.runtime.request import Output
from trtla.runtime.stats import COUNTERS, ExecutorStats, HeadTotals, RequestStats

_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_ITL_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_E2E_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_PER_STEP = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
_POSITIONS = 16  # deeper drafts count at the last one


def _gauge(name: str, about: str) -> Gauge:
    return Gauge(f"trtla_{name}", about, registry=None)


def _counter(name: str, about: str, *labels: str) -> Counter:
    return Counter(f"trtla_{name}", about, labels, registry=None)


class ServerMetrics:
    """Counters, gauges and histograms of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shown: set[Gauge | Counter] = set()
        self._running = _gauge("num_requests_running", "Texts in the running batch.")
        self._waiting = _gauge("num_requests_waiting", "Texts that wait for a place in it.")
        self._cache = _gauge("kv_cache_usage_perc", "Share of K/V blocks in use; 1 is full.")
        self._prompt = _counter("prompt_tokens", "Prompt tokens of answered requests.")
        self._generated = _counter("generation_tokens", "Output tokens.")
        self._queries = _counter("prefix_cache_queries", "Prompt tokens looked for.")
        self._counters = {
            name: _counter(counter.prometheus, counter.help)
            for name, counter in COUNTERS.items()
            if counter.prometheus
        }
        self._by_position = _counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted, by place in the draft.",
            "position",
        )
        self._fed_by_source = _counter(
            "spec_decode_num_draft_tokens_per_source", "Nodes of the tree fed.", "source"
        )
        self._accepted_by_source = _counter(
            "spec_decode_num_accepted_tokens_per_source", "Nodes of the tree accepted.", "source"
        )
        self._head_forwards = _counter(
            "spec_decode_num_head_forwards", "Forwards of trained heads."
        )
        self._head_s = _counter(
            "spec_decode_head_seconds", "Seconds in which trained heads drafted."
        )
        self._heads = HeadTotals()
        self._ended = _counter("request_success", "Texts that ended.", "finished_reason")
        self._answers = _counter("http_requests", "HTTP requests answered.", "status")
        shown = (counter for name, counter in self._counters.items() if COUNTERS[name].everywhere)
        self._show(self._prompt, self._generated, *shown)
        self._show(self._by_position, self._ended, self._answers)
        self._first = self._histogram(
            "time_to_first_token_seconds", "From a request to a text's first token.", _TTFT_S
        )
        self._gaps = self._histogram(
            "inter_token_latency_seconds",
            "Between two outputs of a text, of one token or more.",
            _ITL_S,
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "Of a text.", _E2E_S)
        self._per_step = self._histogram(
            "spec_decode_tokens_per_step", "Of each finished text, its prefill aside.", _PER_STEP
        )

        self._replicas: Gauge | None = None
        self._reruns: Counter
        self._counted = 0  # reruns so far

    def _show(self, *metrics: Gauge | Counter) -> None:
        """Include metrics from now on: unknown ones are absent instead of 0."""
        for metric in metrics:
            if metric not in self._shown:
                self._shown.add(metric)
                self.registry.register(metric)

    def _show_drafts(self) -> None:
        """Include metrics of executors that report drafts."""
        known = (
            counter for name, counter in self._counters.items() if not COUNTERS[name].everywhere
        )
        self._show(*known, self._fed_by_source, self._accepted_by_source, self._queries)

    def _histogram(self, name: str, about: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(f"trtla_{name}", about, registry=self.registry, buckets=tuple(buckets))

    def outputs(
        self, outputs: Sequence[Output], since_start: float, since_last: float | None
    ) -> None:
        """Count outputs of a text that arrive together: one, or several of consecutive steps.

        Args:
            since_start: seconds since its request arrived.
            since_last: seconds since the text's last output; None for the first.
        """
        if since_last is None:
            self._first.observe(since_start)
        else:
            for _ in outputs:
                self._gaps.observe(since_last / len(outputs))
        self._generated.inc(sum(len(output.new_tokens) for output in outputs))
        output = outputs[-1]
        if output.finish_reason is not None:
            self._ended.labels(FINISH_REASONS[output.finish_reason]).inc()
            self._whole.observe(since_start)
            self._finish(output.stats)

    def _finish(self, stats: RequestStats) -> None:
        if stats.drafted is not None:
            self._show_drafts()
        for name, counter in self._counters.items():
            counter.inc(getattr(stats, name) or 0)
        if stats.steps:
            self._per_step.observe(stats.tokens_per_step)
        for length in stats.accepted_lengths or ():
            for position in range(min(length, _POSITIONS)):
                self._by_position.labels(position).inc()
        for source, counts in (stats.sources or {}).items():
            self._fed_by_source.labels(source).inc(sum(counts.fed))
            self._accepted_by_source.labels(source).inc(sum(counts.accepted))

    def cancelled(self, count: int) -> None:
        self._ended.labels("abort").inc(count)

    def prompts(self, tokens: int) -> None:
        self._prompt.inc(tokens)
        self._queries.inc(tokens)

    def answered(self, status: int) -> None:
        self._answers.labels(status).inc()

    def count_replicas(self, counts: ReplicaCounts) -> None:
        """Set the number of replicas, and count texts that moved between them."""
        if self._replicas is None:
            about = "Texts that went on in another replica, since theirs was lost."
            self._replicas = _gauge("replicas", "Replicas of the model that run.")
            self._reruns = _counter("replica_reruns", about)
            self._show(self._replicas, self._reruns)
        self._replicas.set(counts.running)
        self._reruns.inc(counts.reruns - self._counted)
        self._counted = counts.reruns

    def _count_heads(self, stats: ExecutorStats) -> None:
        if stats.heads:
            self._show(self._head_forwards, self._head_s)
            now = sum(stats.heads.values(), HeadTotals())
            new, self._heads = now.since(self._heads), now
            self._head_forwards.inc(new.forwards)
            self._head_s.inc(new.seconds)

    def text(self, stats: ExecutorStats | None) -> bytes:
        """Return all metrics for Prometheus; `stats` are the executor's, if available."""
        if stats is not None:
            if stats.drafted is not None:
                self._show_drafts()
            for gauge, value in (
                (self._running, stats.running),
                (self._waiting, stats.waiting),
                (self._cache, stats.kv_cache_usage),
            ):
                if value is not None:
                    self._show(gauge)
                    gauge.set(value)
            self._count_heads(stats)
        return generate_latest(self.registry)
