"""The ablation: all arms take turns on every case; a row is on disk before the next begins.

Plain decoding is the first of a case's arms and the base of the others' speed-up and equality. A
case that an interruption left half-done is decoded plainly once more for that, without a new row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trtla.bench.ablation_arms import Case, cells_of
from trtla.bench.arms import ArmRun, EngineArm, Note, Way
from trtla.bench.journal import Measurements, fingerprint
from trtla.bench.opened import OpenedModel, Setup
from trtla.bench.summarize import rouge
from trtla.bench.tables import (
    COLUMNS,
    Cells,
    csv_lines,
    figures_of,
    grouped,
    means,
    means_path,
    means_text,
    row_of,
)
from trtla.bench.turns import alternate, torch_device
from trtla.data.prompt_sets import Ids, Question
from trtla.errors import UsageError
from trtla.files import write_whole, written
from trtla.results.bench_documents import AblationRow
from trtla.results.metrics import SHORT_TEXT, add
from trtla.runtime.loop.scores import perplexity
from trtla.runtime.threads import set_threads
from trtla.settings.sampling import SamplingParams

_WARM_UP_TOKENS = 8
OnRow = Callable[[Cells, int, int], None]
"""Called with a new row, how many rows there are then, and how many there will be."""
Watched = Callable[[int], AbstractContextManager[OnRow]]
"""Called, for every opened model, with the number of rows that were there before."""
_RUN = TypeAdapter(ArmRun)
_OPTIONS = ("kv_cache_dtype", "draft_device", "draft_dtype")
"""What of the executor's options a row depends on, beside its columns."""
_SUMMED = ("accepted_per_pos", "fed_per_step", "sources")
"""Figures of all decodings of a setting together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationPlan(Setup):
    """What to measure: in every device and type, all arms on every case."""

    arms: tuple[Way, ...]
    """The first is plain decoding."""
    cases: tuple[Case, ...]
    output: Path


@dataclass(frozen=True, slots=True)
class Ablated:
    """An ablation's rows by run_id, and the runs behind them."""

    rows: dict[str, Cells] = field(default_factory=dict)
    runs: dict[str, ArmRun] = field(default_factory=dict)

    def overall(self) -> list[AblationRow]:
        """The means over all tasks, one row an arm, setting and processor."""
        found = []
        for members in grouped([{**row, "task": ""} for row in self.rows.values()]):
            whole = add(self.runs[row["run_id"]] for row in members)
            values = {name: cell or None for name, cell in means(members)[0].items()}
            summed = {name: getattr(whole, name) for name in _SUMMED}
            found.append(AblationRow.model_validate({**values, **summed}))
        return found


def _is_row(value: Any) -> bool:
    with suppress(KeyError, TypeError, ValueError):
        return set(value["row"]) == set(COLUMNS) and bool(_RUN.validate_python(value["run"]))
    return False


class _Rows:
    """The CSV file of rows: a view of the journal beside it, which has the runs too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.journal = Measurements(
            path.with_suffix(".jsonl"), fingerprint({"columns": COLUMNS}), "--output", _is_row
        )
        header = csv_lines(COLUMNS, [], header=True)
        try:
            there = path.read_text(encoding="utf-8") if path.exists() else ""
            if not header.startswith(there) and not there.startswith(header):
                raise UsageError(f"{path} is not an ablation's table", "give another --output")
            if len(there) > len(header) and not self.journal.entries:
                raise UsageError(
                    f"{path} has rows, and {self.journal.path}, which they are kept in, has none",
                    "give another --output, or move the file away",
                )
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or error
            raise UsageError(f"{path} cannot be used: {cause}", "give another --output") from None
        kept = [value["row"] for value in self.journal.entries.values()]
        with written(path, "give another --output"):
            write_whole(path, csv_lines(COLUMNS, kept, header=True))

    def append(self, row: Cells, run: ArmRun) -> None:
        self.journal.put(row["run_id"], {"row": row, "run": _RUN.dump_python(run, mode="json")})
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(csv_lines(COLUMNS, [row]))


def run_ablation(plan: AblationPlan, watched: Watched, on_note: Note) -> Ablated:
    """Measure what the output file does not hold yet; write the means."""
    table, found = _Rows(plan.output), Ablated()
    set_threads(next(iter(plan.threads), None))
    for device, dtype in product(plan.devices, plan.dtypes):
        with plan.open(device, dtype) as llm:
            model = OpenedModel(llm, plan, torch_device(device), dtype)
            _Decoder(plan, model, table, found).run(watched, on_note)
    write_whole(means_path(plan.output), means_text(found.rows.values()))
    return found


class _Decoder:
    def __init__(
        self, plan: AblationPlan, model: OpenedModel, table: _Rows, found: Ablated
    ) -> None:
        self._plan, self._model, self._table, self._found = plan, model, table, found
        own = model.llm.limits.lookahead
        self._arms = {
            way.arm(model.llm): way
            for way in (replace(way, lookahead=way.lookahead or own) for way in plan.arms)
        }
        self._warm: set[EngineArm] = set()
        self._perplexities: dict[tuple[Ids, Ids], float] = {}

    def run(self, watched: Watched, on_note: Note) -> None:
        cases = self._plan.cases
        prompts = dict.fromkeys(case.prompt for case in cases)
        questions = [Question((prompt.text,), prompt.is_chat) for prompt in prompts]
        encoded = self._model.prompts(questions, self._plan.sampling, on_note)
        ids = dict(zip(prompts, encoded, strict=True))
        work = [(case, ids[case.prompt], self._names(case, ids[case.prompt])) for case in cases]
        names = {name for _, _, named in work for name in named.values()}
        if kept := len(names & self._table.journal.entries.keys()):
            on_note(f"{kept} of {len(names)} rows are there already")
        with watched(kept) as on_row:
            for done, row in enumerate(self._new_rows(work), kept + 1):
                on_row(row, done, len(names))
        tokens = [int(row["new_tokens"]) for row in self._found.rows.values()]
        if (short := sum(count < SHORT_TEXT for count in tokens)) > 0:
            on_note(f"{short} of {len(tokens)} rows say nothing: their texts ended at once")

    def _names(self, case: Case, ids: Ids) -> dict[EngineArm, str]:
        """The run_id of each arm's row."""
        settings = ((arm, self._settings(own, case, ids)) for arm, own in self._arms.items())
        return {arm: fingerprint(one) for arm, one in settings}

    def _new_rows(self, work: Iterable[tuple[Case, Ids, dict[EngineArm, str]]]) -> Iterator[Cells]:
        begun: object = None
        for case, ids, named in work:
            if (case.processor, case.repeat) != begun:
                begun = (case.processor, case.repeat)
                for arm in self._arms:
                    arm.begin_round()
            yield from self._case(case, ids, named)
            for name in named.values():
                kept = self._table.journal.get(name)
                self._found.rows[name] = kept["row"]
                self._found.runs[name] = _RUN.validate_python(kept["run"])

    def _case(self, case: Case, ids: Ids, names: dict[EngineArm, str]) -> Iterator[Cells]:
        """Decode and write the rows of a case that are missing."""
        kept = self._table.journal.entries
        missing = {name: arm for arm, name in names.items() if name not in kept}
        if not missing:
            return
        first = next(iter(self._arms))
        wanted = list(dict.fromkeys((first, *missing.values())))
        sampling = case.sampling(self._plan.sampling)
        self._warm_up(wanted, ids, sampling)
        plain: ArmRun | None = None
        for arm, run in alternate(wanted, [([ids], [sampling])], self._model.device):
            plain = plain or run
            if names[arm] in missing:
                yield self._write(arm, case, ids, run, plain)

    def _warm_up(self, wanted: Sequence[EngineArm], ids: Ids, sampling: SamplingParams) -> None:
        """An arm's first forwards are slower than the others."""
        few = replace(sampling, max_output_len=min(_WARM_UP_TOKENS, sampling.max_output_len))
        for arm in wanted:
            if arm not in self._warm:
                self._warm.add(arm)
                arm.warm_up([ids], [few])
                arm.begin_round()

    def _write(self, arm: EngineArm, case: Case, ids: Ids, run: ArmRun, plain: ArmRun) -> Cells:
        output_ids, reference, scored = run.outputs[0], case.prompt.reference, None
        if reference is not None and find_spec("rouge_score") is not None:
            text = self._model.tokenizer.decode(output_ids)
            scored = rouge(text, reference, ("rougeL",))["rougeL"]
        figures = figures_of(run, plain, ids, scored, self._perplexity(ids, output_ids))
        row = row_of(self._settings(self._arms[arm], case, ids), figures)
        self._table.append(row, run)
        return row

    def _perplexity(self, ids: Ids, output_ids: Ids) -> float | None:
        """The target's own, at temperature 1 without filters; None where it is not reported.

        Arms write the same texts: each is scored once, and none while it is timed.
        """
        if self._model.llm.engine.backend == "tensorrt-llm":
            return None
        key = (ids, output_ids)
        if key not in self._perplexities:
            self._perplexities[key] = perplexity(self._model.llm.log_probs(*key))
        return self._perplexities[key]

    def _settings(self, way: Way, case: Case, ids: Ids) -> dict[str, object]:
        """All that a row depends on; those that are columns become its cells."""
        plan = self._plan
        return {
            **cells_of(way),
            "model": Path(plan.model).resolve().name,
            "backend": self._model.llm.engine.backend,
            "device": str(self._model.device),
            "dtype": self._model.dtype_name,
            "use_cache": True,
            **case.cells,
            "prompt_tokens": len(ids),
            "model_dir": plan.model,
            "prompt_ids": ids,
            "max_output_len": plan.sampling.max_output_len,
            "ignore_eos": plan.ignore_eos,
            "drafting": asdict(way.drafter),
            "draft_options": way.options and asdict(way.options),
            "options": {name: getattr(plan.options, name) for name in _OPTIONS},
            "lookahead": str(way.lookahead),
        }
