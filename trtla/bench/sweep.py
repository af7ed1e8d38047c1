"""The cells of a benchmark one after the other: models opened, arms made, prompts cut, rounds run.

Nothing here prints; `on_note` and `on_round` tell how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import torch

from trtla.bench.arms import Arm, engine_arms
from trtla.bench.figures import Hardware, rows, tokens_per_s
from trtla.bench.opened import OpenedModel, read_bandwidth
from trtla.bench.peer_names import HUGGING_FACE, LLAMA_CPP
from trtla.bench.rounds import Cell, Measured, OnRound, measure
from trtla.data.prompt_sets import Ids, PromptSet, batches, encode, fit
from trtla.errors import UsageError
from trtla.formats.engine import Engine, engine_from_hugging_face
from trtla.llm.llm import LLM
from trtla.runtime.models.llama import weight_bytes
from trtla.runtime.models.load import resolve_device, set_threads
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings, DraftOptions
from trtla.settings.executor import TrtllmSettings
from trtla.settings.lookahead import Lookahead, LookaheadConfig, check_request
from trtla.settings.sampling import Filters, SamplingParams

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to measure: every combination of the lists is a cell."""

    model: str
    server: LookaheadConfig | None
    """The triple to open the model with; None is the engine's own."""
    triples: tuple[Lookahead, ...]
    """Empty: the engine's own, where lookahead drafts."""
    peers: tuple[str, ...]
    hf_model_dir: str | None
    assistant_dir: str | None
    tokenizer_dir: str | None
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int, ...]
    """Empty: PyTorch's own number."""
    batch_sizes: tuple[int, ...]
    prompt_lens: tuple[int, ...]
    """Empty: the prompts' own lengths."""
    filters: tuple[Filters, ...]
    sampling: SamplingParams
    """The output's length and the first seed; the filters are those of the cell."""
    rounds: int
    ignore_eos: bool
    trtllm: TrtllmSettings | None = None
    draft_options: DraftOptions | None = None
    drafters: tuple[DrafterSettings, ...] = ()
    """Arms beside plain decoding; empty: lookahead."""
    draft_models: tuple[str, ...] = ()
    draft_device: str | None = None
    """Where they run; None: where the model does. `draft_dtype` likewise."""
    draft_dtype: str | None = None


@dataclass(slots=True)
class Results:
    """Rows for the table, and what every cell was measured with."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    executors: list[str] = field(default_factory=list)


def run_sweep(
    sweep: Sweep, sets: Sequence[PromptSet], on_note: Note, on_round: OnRound
) -> Results | None:
    """Measure everything; None in the serving ranks of mpirun.

    Raises:
        UsageError: a triple, a batch size or a prompt does not fit the engine.
    """
    results = Results()
    for name, dtype in product(sweep.devices, sweep.dtypes):
        device = resolve_device(name)
        threads = sweep.threads or (torch.get_num_threads(),)
        bandwidth = {count: _bandwidth(device, count) for count in threads}
        with _open(sweep, name, dtype) as llm:
            if not llm.is_leader:
                return None
            _Bench(sweep, llm, device, dtype, on_note).run(results, sets, bandwidth, on_round)
    return results


def _bandwidth(device: torch.device, threads: int) -> float:
    set_threads(threads)
    return read_bandwidth(device)


def _open(sweep: Sweep, device: str, dtype: str) -> LLM:
    return LLM(
        sweep.model,
        lookahead=sweep.server,
        tokenizer_dir=sweep.tokenizer_dir,
        device=device,
        dtype=dtype,
        max_batch_size=max(sweep.batch_sizes),
        trtllm=sweep.trtllm,
        draft_options=sweep.draft_options,
        drafter=max(sweep.drafters, key=lambda one: one.most_tokens, default=None),
        draft_models=sweep.draft_models,
        draft_device=sweep.draft_device,
        draft_dtype=sweep.draft_dtype,
    )


class _Bench:
    """One opened model with its arms."""

    def __init__(
        self, sweep: Sweep, llm: LLM, device: torch.device, dtype: str, on_note: Note
    ) -> None:
        self._sweep, self._llm, self._device, self._on_note = sweep, llm, device, on_note
        self._check_temperatures()
        self._opened = OpenedModel(llm, device, dtype, ignore_eos=sweep.ignore_eos)
        self._checkpoint, self._dtype = self._opened.checkpoint, self._opened.dtype
        self._arms = self._make_arms()

    def _check_temperatures(self) -> None:
        """Refuse sampling now: the cells without it come first."""
        hot = max(temperature for temperature, _, _ in self._sweep.filters)
        if hot > 0 and self._llm.limits.greedy_only:
            raise UsageError(
                f"the temperatures have {hot:g}, but lookahead decoding in TensorRT-LLM is greedy "
                "only",
                "use --temperature 0",
            )

    def _make_arms(self) -> list[Arm]:
        limit = self._llm.limits.lookahead
        for triple in self._sweep.triples:
            if triple != "auto":
                check_request(triple, limit, "--lookahead")
        drafters, triples = self._sweep.drafters, self._sweep.triples
        if not triples and (not drafters or LOOKAHEAD.drafter in (d.drafter for d in drafters)):
            triples = (limit,)
        arms = engine_arms(self._llm, triples, drafters)
        peers = {arm.name: arm for arm in (*self._hugging_face_arms(), *self._llama_cpp_arms())}
        return arms + [peers[name] for name in self._sweep.peers]

    def _hugging_face_arms(self) -> list[Arm]:
        names = [name for name in self._sweep.peers if name in HUGGING_FACE]
        if not names:
            return []
        from trtla.bench.peers import HuggingFace, peer_arms

        folder = self._sweep.hf_model_dir or self._sweep.model
        inner = HuggingFace(folder, self._device, self._dtype, self._llm.end_ids)
        return peer_arms(names, inner, self._sweep.assistant_dir)

    def _llama_cpp_arms(self) -> list[Arm]:
        names = [name for name in self._sweep.peers if name in LLAMA_CPP]
        if not names:
            return []
        from trtla.bench.llama_cpp import LlamaCpp, LlamaCppArm

        engine = readable_engine(self._llm.engine, self._sweep.hf_model_dir)
        dtype = self._opened.dtype_name
        if self._checkpoint.fp8 or self._checkpoint.fp8_kv_cache:
            self._on_note(f"llama.cpp has no FP8: its weights, keys and values are {dtype}")
        inner = LlamaCpp(engine, self._device, self._dtype, self._llm.end_ids)
        return [LlamaCppArm(name, inner) for name in names]

    def run(
        self,
        results: Results,
        sets: Sequence[PromptSet],
        bandwidth: dict[int, float],
        on_round: OnRound,
    ) -> None:
        """Measure the cells of this device and type."""
        results.executors.append(self._llm.description)
        size = weight_bytes(self._checkpoint, self._dtype)  # peers know no FP8
        for cell, prompts in self._cells(sets, tuple(bandwidth)):
            set_threads(cell.threads)
            measured = self._measure(cell, prompts, on_round)
            hardware = Hardware(size, bandwidth[cell.threads])
            results.rows += rows(measured, hardware)
            results.cells.append(_describe(measured, hardware, prompts))

    def _cells(
        self, sets: Sequence[PromptSet], threads: Sequence[int]
    ) -> Iterator[tuple[Cell, list[Ids]]]:
        sweep = self._sweep
        encoded = {chosen.category: encode(self._opened.tokenizer, chosen) for chosen in sets}
        lengths = sweep.prompt_lens or (None,)
        shape = (str(self._device), self._opened.dtype_name)
        for count, batch_size, length, (temperature, top_k, top_p), category in product(
            threads, sweep.batch_sizes, lengths, sweep.filters, encoded
        ):
            cell = Cell(*shape, count, batch_size, length, temperature, category, top_k, top_p)
            yield cell, self._fit(encoded[category], length, category)

    def _fit(self, prompts: Sequence[Ids], length: int | None, category: str) -> list[Ids]:
        room = self._opened.room(self._sweep.sampling.max_output_len)
        fitted = fit(prompts, length, room)
        cut = sum(len(a) < len(b) for a, b in zip(fitted, prompts, strict=True))
        if cut and length is None:
            self._on_note(f"{cut} prompts of {category} are cut to {room} tokens")
        return fitted

    def _measure(self, cell: Cell, prompts: Sequence[Ids], on_round: OnRound) -> Measured:
        arms = [arm for arm in self._arms if arm.takes(cell.batch_size)]
        for arm in self._arms:
            if arm not in arms:
                self._on_note(f"{arm.name} does not take batches of {cell.batch_size}")
        filters = {name: getattr(cell, name) for name in ("temperature", "top_k", "top_p")}
        sampling = replace(self._sweep.sampling, **filters)
        work = batches(prompts, cell.batch_size)
        return measure(cell, arms, work, sampling, self._sweep.rounds, on_round)


def readable_engine(engine: Engine, hf_model_dir: str | None) -> Engine:
    """The engine, or the model it was made from where TensorRT-LLM compiled its weights."""
    if engine.backend == "tensorrt-llm" and hf_model_dir is not None:
        return engine_from_hugging_face(hf_model_dir)
    return engine


def _describe(measured: Measured, hardware: Hardware, prompts: Sequence[Ids]) -> dict[str, Any]:
    """A cell for the JSON document: the samples behind the medians, and the order they came in."""
    return {
        **asdict(measured.cell),
        "prompts": len(prompts),
        "mean_prompt_tokens": sum(map(len, prompts)) / len(prompts),
        "weight_bytes": hardware.weight_bytes,
        "read_bandwidth_gb_per_s": hardware.read_bandwidth / 1e9,
        "order": measured.order,
        "tokens_per_s": {k: list(map(tokens_per_s, runs)) for k, runs in measured.runs.items()},
    }
