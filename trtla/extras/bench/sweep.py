"""A sweep over the cells of a benchmark: models, arms, prompts and rounds of each in turn.

With an output, decodings go to a table, which the same command continues.

Progress goes to `on_note` and `on_round`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path

from trtla.console import Progress, Stages, counted, silent
from trtla.data.prompt_sets import Ids, PromptSet, batches, fit
from trtla.errors import UsageError
from trtla.extras.bench.appending import Appending
from trtla.extras.bench.bandwidth import read_bandwidth
from trtla.extras.bench.decoding_table import DecodingTable
from trtla.extras.bench.documents import MeasuredCell
from trtla.extras.bench.keys import engine_facts
from trtla.extras.bench.opened import OpenedModel, Setup
from trtla.extras.bench.peers import HUGGING_FACE, LLAMA_CPP, gguf_of
from trtla.extras.bench.rounds import Watch, rounds_of, together
from trtla.extras.bench.scores import TextScores
from trtla.extras.bench.summary import summary
from trtla.extras.bench.ways import Way
from trtla.formats.config import DTYPE_BYTES
from trtla.formats.gguf.folder import model_name
from trtla.formats.gguf.header import is_gguf
from trtla.formats.support import plain_bytes
from trtla.llm.llm import LLM
from trtla.machine import cpu, look
from trtla.measuring.arms import Arm, Note
from trtla.measuring.hardware import Hardware
from trtla.measuring.turns import (
    Batch,
    CellRuns,
    OnRound,
    Work,
    measure,
    rows,
)
from trtla.results.rows import Cell, Row
from trtla.runtime.device import Device, resolve_device
from trtla.runtime.threads import num_threads, set_threads
from trtla.settings.drafting import LOOKAHEAD
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import declared
from trtla.settings.lookahead import LookaheadConfig, check_request
from trtla.settings.sampling import Filters

_WARM_UP_TOKENS = 8
_NOT_IN_KEYS = (
    *("device", "dtype", "threads", "lookahead", "draft_models", "drafter", "custom_drafters"),
    *("heads", "find_head"),
)
"""Executor options that are part of a cell or of an arm; decodings depend on the others as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Setup):
    """Settings of a benchmark: every combination of the lists is a cell.

    With an output round i has seed + i, arms warm up on a few tokens, and texts are scored.
    """

    ways: tuple[Way, ...]
    """Arms of our engine, plain decoding first; duplicates count once."""
    peers: tuple[str, ...] = ()
    hf_model_dir: str | None = None
    assistant_dir: str | None = None
    sets: tuple[PromptSet, ...]
    prompt_lens: tuple[int, ...] = ()
    """Empty: the prompts' own lengths."""
    filters: tuple[Filters, ...]
    rounds: int
    output: Path | None = None
    """The table of decodings; None: there is none."""


@dataclass(slots=True)
class Results:
    """Rows of the table, and the circumstances of every cell."""

    rows: list[Row] = field(default_factory=list)
    cells: list[MeasuredCell] = field(default_factory=list)
    executors: list[str] = field(default_factory=list)
    bandwidth: dict[int, float] = field(default_factory=dict)
    """Bytes a second that the machine reads, by number of threads."""


def run_sweep(
    sweep: Sweep, results: Results, on_note: Note, on_round: OnRound, stages: Stages = silent
) -> Results | None:
    """Measure everything; None in the serving ranks of mpirun.

    Args:
        results: is filled, and returned. An interrupt leaves the rows of whole rounds there.
    """
    for name, dtype in product(sweep.devices, sweep.dtypes):
        device, bandwidth = resolve_device(name), dict[int, float]()
        for count in sweep.threads or (num_threads(),):
            set_threads(count)
            bandwidth[count] = read_bandwidth(device)
        with sweep.open(name, dtype) as llm:
            if not llm.is_leader:
                return None
            bench = _OpenedBench(sweep, llm, device, dtype, on_note)
            with stages("bench", "decodings") as progress:
                bench.run(results, bandwidth, on_round, progress)
    return results


class _OpenedBench:
    def __init__(self, sweep: Sweep, llm: LLM, device: Device, dtype: str, on_note: Note) -> None:
        self._sweep, self._llm, self._on_note = sweep, llm, on_note
        self._wanted_dtype = dtype
        self._check_temperatures()
        self._opened = OpenedModel(llm, sweep, device, dtype)
        self._arms = self._make_arms()
        self._prompts: dict[tuple[str, Filters], list[Ids]] = {}
        self._references: dict[Ids, str] = {}

    def _check_temperatures(self) -> None:
        hot = max(filters.temperature for filters in self._sweep.filters)
        if hot > 0 and self._llm.limits.greedy_only:
            raise UsageError(
                f"the temperatures have {hot:g}, but lookahead decoding in TensorRT-LLM is greedy "
                "only",
                "use --temperature 0",
            )

    def _make_arms(self) -> list[Arm]:
        limit, arms = self._llm.limits.lookahead, list[Arm]()
        for way in self._sweep.ways:
            if isinstance(way.lookahead, LookaheadConfig):
                check_request(way.lookahead, limit, "--lookahead", self._llm.limits.larger_triples)
            elif limit.is_autoregressive and way.drafter == LOOKAHEAD:
                continue  # auto is then plain decoding, the first arm
            arms.append(way.arm(self._llm))
        peers = {arm.name: arm for arm in (*self._hugging_face_arms(), *self._llama_cpp_arms())}
        distinct = {arm.key: arm for arm in arms}
        return [*distinct.values(), *(peers[name] for name in self._sweep.peers)]

    def _hugging_face_arms(self) -> list[Arm]:
        names = [name for name in self._sweep.peers if name in HUGGING_FACE]
        if not names:
            return []
        from trtla.extras.bench.hf_arms import peer_arms, peer_dtypes
        from trtla.measuring.hugging_face import HuggingFace

        named, device = self._sweep.hf_model_dir, self._opened.device
        folder = named if named and not is_gguf(Path(named)) else self._sweep.model
        stored, run = self._opened.checkpoint.dtype, self._opened.dtype
        dtypes = peer_dtypes(self._wanted_dtype, run, stored, device)
        inner = HuggingFace(folder, device, dtypes, self._llm.end_ids)
        return peer_arms(names, inner, self._sweep.assistant_dir)

    def _llama_cpp_arms(self) -> list[Arm]:
        names = [name for name in self._sweep.peers if name in LLAMA_CPP]
        if not names:
            return []
        from trtla.extras.bench.llama_cpp import llama_cpp_arms

        file = gguf_of(self._sweep.model, self._sweep.hf_model_dir)
        ends, dtype = self._llm.end_ids, self._opened.dtype
        return llama_cpp_arms(names, file, self._opened.device, ends, dtype, self._on_note)

    def run(
        self, results: Results, bandwidth: dict[int, float], on_round: OnRound, progress: Progress
    ) -> None:
        results.executors.append(self._llm.description)
        results.bandwidth |= bandwidth
        number = DTYPE_BYTES[self._opened.dtype]
        size = plain_bytes(self._opened.checkpoint, number)  # peers have no FP8
        hardware = {count: Hardware(size, speed) for count, speed in bandwidth.items()}
        cells = list(self._cells(tuple(bandwidth)))
        watch = Watch(
            {arm.label: self._decodings(arm, cells) for arm in self._arms}, progress, self._on_note
        )
        if self._sweep.output is None:
            self._measure(cells, hardware, on_round, watch, results)
        else:
            self._append(cells, hardware, watch, results, self._sweep.output)

    def _measure(
        self,
        cells: Sequence[tuple[Cell, list[Ids]]],
        hardware: Mapping[int, Hardware],
        on_round: OnRound,
        watch: Watch,
        results: Results,
    ) -> None:
        """Measure the cells one after another; an interrupt leaves the rounds that were whole."""
        all_runs: list[CellRuns] = []
        latest: list[CellRuns] = []

        def saw_round(runs: CellRuns, number: int) -> None:
            latest[:] = [replace(runs, turns=list(runs.turns))]
            on_round(runs, number)

        try:
            for cell, prompts in cells:
                set_threads(cell.threads)
                work = self._batches(cell, prompts)
                arms = self._taking(cell)
                all_runs.append(measure(cell, arms, work, saw_round, watch.saw))
                latest.clear()
        finally:
            for runs in [*all_runs, *latest]:
                speed = hardware[runs.cell.threads]
                results.cells.append(_describe(runs, speed, dict(cells)[runs.cell]))
            self._add_rows(results, [*all_runs, *latest], hardware)

    def _append(
        self,
        cells: Sequence[tuple[Cell, list[Ids]]],
        hardware: Mapping[int, Hardware],
        watch: Watch,
        results: Results,
        output: Path,
    ) -> None:
        """Measure what the table lacks; an interrupt leaves the rows of whole turns."""
        score = TextScores(self._opened, self._references).of
        work = [(cell, self._batches(cell, prompts), self._taking(cell)) for cell, prompts in cells]
        whole = sum(len(batches) * len(arms) for _, batches, arms in work)
        with DecodingTable(output) as table:
            appending = Appending(table, *self._facts())
            if count := sum(appending.present(*each) for each in work):
                self._on_note(f"{count} of {whole} decodings are in {output}")
            try:
                for cell, batches, arms in work:
                    set_threads(cell.threads)
                    first, speed = self._short(batches[0].work), hardware[cell.threads]
                    appending.measure(cell, arms, batches, first, speed, score, watch)
            finally:
                results.rows += summary(appending.rows())

    def _facts(self) -> tuple[dict[str, object], dict[str, object], dict[str, str]]:
        """Return the circumstances of all decodings, those of peers, and columns of the table."""
        sweep, found = self._sweep, look()
        names = (name for name in declared(ExecutorOptions) if name not in _NOT_IN_KEYS)
        gpus = [gpu.name for gpu in found.gpus] if self._opened.device.type == "cuda" else []
        machine = ", ".join([f"{cpu().model}, {counted(cpu().cores, 'core')}", *gpus])
        facts = {
            "machine": machine,
            "engine": engine_facts(self._llm.engine),
            "options": {name: getattr(sweep.options, name) for name in names},
            "ends": sweep.ignore_eos,
        }
        peers: dict[str, object] = {"folder": sweep.hf_model_dir, "assistant": sweep.assistant_dir}
        return facts, peers, {"machine": machine, "model": model_name(sweep.model)}

    def _taking(self, cell: Cell) -> list[Arm]:
        """Return the arms that take the cell's batches, with a note for each other one."""
        for arm in self._arms:
            if not arm.takes(cell.batch_size):
                self._on_note(f"{arm.name} does not take batches of {cell.batch_size}")
        return [arm for arm in self._arms if arm.takes(cell.batch_size)]

    def _add_rows(
        self,
        results: Results,
        all_runs: Sequence[CellRuns],
        hardware: Mapping[int, Hardware],
    ) -> None:
        for measured in (*all_runs, *together(all_runs)):
            results.rows += rows(measured, hardware[measured.cell.threads])

    def _batches(self, cell: Cell, prompts: Sequence[Ids]) -> list[Batch]:
        filters = Filters(cell.temperature, cell.top_k, cell.top_p)
        sampling = replace(self._sweep.sampling, **filters._asdict())
        work, reseed = batches(prompts, cell.batch_size), self._sweep.output is not None
        return rounds_of(work, sampling, self._sweep.rounds, reseed=reseed)

    @staticmethod
    def _short(work: Work) -> Work:
        prompts, sampling = work
        most = min(_WARM_UP_TOKENS, sampling[0].max_output_len)
        return prompts, [replace(params, max_output_len=most) for params in sampling]

    def _decodings(self, arm: Arm, cells: Sequence[tuple[Cell, list[Ids]]]) -> int:
        """Count the batches that an arm decodes, with one in each cell that warms it up."""
        return sum(
            1 + self._sweep.rounds * len(batches(prompts, cell.batch_size))
            for cell, prompts in cells
            if arm.takes(cell.batch_size)
        )

    def _cells(self, threads: Sequence[int]) -> Iterator[tuple[Cell, list[Ids]]]:
        sweep = self._sweep
        lengths = sweep.prompt_lens or (None,)
        for count, batch_size, length, filters, chosen in product(
            threads, sweep.batch_sizes, lengths, sweep.filters, sweep.sets
        ):
            cell = Cell(
                device=str(self._opened.device),
                dtype=self._opened.dtype,
                threads=count,
                batch_size=batch_size,
                prompt_len=length,
                category=chosen.category,
                **filters._asdict(),
                executor=self._opened.llm.description,
            )
            yield cell, fit(self._encoded(chosen, filters), length, self._opened.room)

    def _encoded(self, chosen: PromptSet, filters: Filters) -> list[Ids]:
        """Return a set's prompts: second turns include answers, which depend on the filters."""
        key = (chosen.category, filters)
        if key not in self._prompts:
            sampling = replace(self._sweep.sampling, **filters._asdict())
            of = f" of {chosen.category}"
            prompts = self._opened.prompts(chosen.questions, sampling, self._on_note, of)
            self._prompts[key], turns = prompts, iter(prompts)
            for question in chosen.questions:
                *_, last = islice(turns, len(question.turns))
                if question.reference is not None:
                    self._references[last] = question.reference
        return self._prompts[key]


def _describe(measured: CellRuns, hardware: Hardware, prompts: Sequence[Ids]) -> MeasuredCell:
    return MeasuredCell.fill(
        measured.cell,
        measured,
        hardware,
        prompts=len(prompts),
        mean_prompt_tokens=sum(map(len, prompts)) / len(prompts),
        read_bandwidth_gb_per_s=hardware.read_bandwidth / 1e9,
        tokens_per_s={k: [run.tokens_per_s for run in runs] for k, runs in measured.runs().items()},
    )
