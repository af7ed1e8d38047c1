"""Acceptance: the steps of every triple on every sample, run on the model or replayed without it.

Acceptance depends on the text alone, not on batch, device or speed: runs of many triples share one
in-flight batch, and nothing here looks at a clock but to stop in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from trtla.data.prompt_sets import Ids
from trtla.runtime.draft import Drafter
from trtla.runtime.drafters.lookahead import lookahead_drafter
from trtla.runtime.request import Request
from trtla.settings.drafting import LOOKAHEAD
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.tune.measurements import Measurements
from trtla.tune.replay import Known, Recorder, Steps, learn_run, replay
from trtla.tune.samples import Sample

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Completion

Source = Literal["measured", "replayed", "interpolated"]
"""Where a triple's acceptance comes from: real runs, exact replays, or a guess between those."""
Job = tuple[LookaheadConfig, Sample]


class Acceptance:
    """What is known so far.

    Args:
        samples: the texts' prompts.
        kept: where runs are kept; those there are taken in.
    """

    def __init__(self, samples: Sequence[Sample], kept: Measurements) -> None:
        self.samples = tuple(samples)
        self._kept = kept
        self.known: dict[str, Known] = {}
        """By the sample's name, once its text is there."""
        self._found: dict[tuple[LookaheadConfig, str], tuple[Steps, Source]] = {}
        self._tried: dict[tuple[LookaheadConfig, str], int] = {}
        self._learnt: dict[tuple[str, int], int] = {}
        """Runs that taught what the model says, by sample and N."""
        self._widest: dict[tuple[str, int], int] = {}
        """The widest window among them."""
        self.strays = 0
        """Runs whose text differed in low-precision arithmetic; they teach nothing."""
        self._take_kept()

    def _take_kept(self) -> None:
        by_name = {sample.name: sample for sample in self.samples}
        for name in self._kept.names("run "):
            _, triple, sample = name.split(" ", 2)
            if sample in by_name:
                job = (LookaheadConfig.parse(triple), by_name[sample])
                self._take(job, self._kept.get(name))

    def get(self, triple: LookaheadConfig, sample: Sample) -> tuple[Steps, Source] | None:
        """The steps of a triple on a sample, and where they come from."""
        return self._found.get((triple, sample.name))

    def output(self, sample: Sample) -> Ids:
        """The sample's text."""
        return self.known[sample.name].output

    def run(
        self,
        llm: LLM,
        jobs: Iterable[Job],
        deadline: float,
        on_done: Callable[[Job], None] | None = None,
    ) -> bool:
        """Decode jobs in one in-flight batch, in their order; False: the time was over before.

        Args:
            deadline: on time.monotonic's clock; what has not ended by then is given up.
        """
        left = [job for job in jobs if self.get(*job) is None]
        if not left:
            return True
        recorders: list[Recorder] = []

        def watch(inner: Drafter, request: Request) -> Drafter:
            recorders.append(Recorder(inner))
            return recorders[-1]

        chunks = llm.stream(
            [sample.prompt for _, sample in left],
            [sample.sampling for _, sample in left],
            [triple for triple, _ in left],
            drafter=LOOKAHEAD,
            watch=watch,
        )
        for chunk in chunks:
            if chunk.completion is not None:
                job = left[chunk.index]
                self._keep(job, chunk.completion, recorders[chunk.index])
                if on_done is not None:
                    on_done(job)
            if time.monotonic() > deadline:
                return False
        return True

    def _keep(self, job: Job, done: Completion, seen: Recorder) -> None:
        steps = Steps(
            len(done.output_ids) - 1, done.stats.steps, sum(seen.sizes), tuple(seen.sizes)
        )
        value: dict[str, Any] = {**asdict(steps), "output": done.output_ids, "said": seen.said}
        self._kept.put(f"run {job[0]} {job[1].name}", value)
        self._take(job, value)

    def _take(self, job: Job, value: dict[str, Any]) -> None:
        triple, sample = job
        output = tuple(value["output"])
        known = self.known.get(sample.name)
        if known is None:
            known = Known(output, greedy=sample.sampling.greedy)
            self.known[sample.name] = known
        steps = Steps(value["tokens"], value["steps"], value["fed"], tuple(value["sizes"]))
        self._found[triple, sample.name] = (steps, "measured")
        if output != known.output:
            self.strays += 1
        elif not triple.is_autoregressive:
            learn_run(new_drafter(triple, sample), known, value["said"])
            taught = (sample.name, triple.ngram_size)
            self._learnt[taught] = self._learnt.get(taught, 0) + 1
            self._widest[taught] = max(self._widest.get(taught, 0), triple.window_size)

    def replay(self, triples: Iterable[LookaheadConfig], deadline: float) -> int:
        """Replay what is not known yet and can be, in time; how many became known."""
        found = 0
        for triple in triples:
            if time.monotonic() > deadline:
                break
            found += sum(self._replay(triple, sample) for sample in self.samples)
        return found

    def _replay(self, triple: LookaheadConfig, sample: Sample) -> bool:
        known, place = self.known.get(sample.name), (triple, sample.name)
        taught = (sample.name, triple.ngram_size)
        learnt = self._learnt.get(taught, 0)
        if known is None or place in self._found or self._tried.get(place) == learnt:
            return False
        if triple.window_size > self._widest.get(taught, 1 if triple.ngram_size == 2 else 0):
            return False  # its window would ask for what nobody has asked
        self._tried[place] = learnt
        steps = replay(new_drafter(triple, sample), known.output, known.read)
        if steps is None:
            return False
        self._found[place] = (steps, "replayed")
        return True


def new_drafter(triple: LookaheadConfig, sample: Sample) -> Drafter:
    """The drafter that a request of the sample gets."""
    return lookahead_drafter(triple, Request(0, sample.prompt, sample.sampling))


def plain_jobs(samples: Sequence[Sample]) -> list[Job]:
    """Plain decoding of all samples: the texts."""
    return [(AUTOREGRESSIVE, sample) for sample in samples]
