"""The ablation itself: every case decoded by all arms in turn, each row written as it comes.

Plain decoding is the first of a case's arms and the base of the others' speed-up and equality. A
case that an interruption left half-done is decoded plainly once more for that, without a new row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from trtla.bench.ablation_arms import AblationArm, Grid, arms
from trtla.bench.ablation_cases import Case, TaskPrompt, cases
from trtla.bench.ablation_csv import RowFile, grouped, means, means_path, means_text
from trtla.bench.ablation_decode import Decoder, open_decoder
from trtla.bench.ablation_rows import Cells, Decoded, as_cells, figures, run_id
from trtla.data.prompt_sets import Ids, fit
from trtla.files import write_whole
from trtla.runtime.stats import accepted_per_pos
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import Processor, SamplingParams

OnRow = Callable[[Cells, int, int], None]
"""Called with a new row, its number from 1, and the number of rows in all."""
OnNote = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ablation:
    """What to measure: every combination of devices, types, prompts, processors, repeats, arms."""

    model: str
    tokenizer_dir: str | None
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    threads: int | None
    """None: PyTorch's own number."""
    server: LookaheadConfig | None
    """The triple to open the model with; None is the engine's own."""
    grid: Grid
    prompts: tuple[TaskPrompt, ...]
    processors: tuple[Processor, ...]
    repeats: int
    seed: int
    max_output_len: int
    ignore_eos: bool
    output: Path
    draft_device: str | None = None
    """Where draft models run; None: where the model does. `draft_dtype` likewise."""
    draft_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Ablated:
    """An ablation's rows, and what no cell holds."""

    rows: list[Cells]
    accepted_lengths: dict[str, tuple[int, ...] | None]
    """Of each step, by run_id; rows that were there before this run have none."""

    def summary(self) -> list[Cells]:
        """The means over all tasks, one row an arm, setting and processor."""
        return means(_without_tasks(self.rows))

    def accepted_per_pos(self) -> list[list[float] | None]:
        """For each row of the summary: item i is the share of steps accepted at depth i + 1."""
        return [
            accepted_per_pos(self.accepted_lengths.get(row["run_id"]) for row in members)
            for members in grouped(_without_tasks(self.rows))
        ]


def _without_tasks(rows: Sequence[Cells]) -> Iterator[Cells]:
    return ({**row, "task": ""} for row in rows)


def run_ablation(ablation: Ablation, on_row: OnRow, on_note: OnNote) -> Ablated:
    """Measure what the output file does not hold yet; write the means.

    Raises:
        UsageError: the file, a setting or a prompt does not fit.
    """
    table = RowFile(ablation.output)
    done: dict[str, Cells] = {}  # lists that name a thing twice give each row once
    lengths: dict[str, tuple[int, ...] | None] = {}
    for device, dtype in product(ablation.devices, ablation.dtypes):
        with open_decoder(ablation, device, dtype) as decoder:
            turns = _Turns(ablation, decoder, table, on_row, on_note)
            done |= {row["run_id"]: row for row in turns.run()}
            lengths |= turns.accepted_lengths
    rows = list(done.values())
    write_whole(means_path(ablation.output), means_text(rows))
    return Ablated(rows, lengths)


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A case's prompt as ids."""

    case: Case
    ids: Ids
    sampling: SamplingParams


class _Turns:
    """All cases on one opened model."""

    def __init__(
        self,
        ablation: Ablation,
        decoder: Decoder,
        table: RowFile,
        on_row: OnRow,
        on_note: OnNote,
    ) -> None:
        self._ablation, self._decoder, self._table = ablation, decoder, table
        self._on_row, self._on_note = on_row, on_note
        self._arms = arms(ablation.grid, decoder.triple)
        self._prompts = list(self._fitted())
        self._warm: set[int] = set()
        self.accepted_lengths: dict[str, tuple[int, ...] | None] = {}
        """By run_id, of new rows."""

    def run(self) -> list[Cells]:
        """The rows of all cases, new ones and those that were there."""
        rows: list[Cells] = []
        total = len(self._prompts) * len(self._arms)
        turns = product(self._prompts, self._arms)
        if kept := sum(self._name(*turn) in self._table for turn in turns):
            self._on_note(f"{kept} of {total} rows are there already")
        for prompt in self._prompts:
            for row, is_new in self._case(prompt):
                rows.append(row)
                if is_new:
                    self._on_row(row, len(rows), total)
        return rows

    def _name(self, prompt: _Prompt, arm: AblationArm) -> str:
        return run_id(self._settings(prompt, arm))

    def _case(self, prompt: _Prompt) -> Iterator[tuple[Cells, bool]]:
        """A prompt's rows, and whether they are new."""
        plain: Decoded | None = None
        for arm in self._arms:
            settings, name = self._settings(prompt, arm), self._name(prompt, arm)
            if name in self._table:
                yield self._table.rows[name], False
                continue
            if plain is None:
                plain = self._decode(self._arms[0], prompt)
            found = plain if arm is self._arms[0] else self._decode(arm, prompt)
            row = as_cells({**settings, "run_id": name, **figures(found, plain)})
            self.accepted_lengths[name] = found.accepted_lengths
            self._table.append(row)
            yield row, True

    def _decode(self, arm: AblationArm, prompt: _Prompt) -> Decoded:
        if id(arm) not in self._warm:  # an arm's first forwards are slower than the rest
            self._warm.add(id(arm))
            self._decoder.warm_up(arm, prompt.ids, prompt.sampling)
        found = self._decoder.decode(arm, prompt.ids, prompt.sampling)
        return self._decoder.judged(found, prompt.ids, prompt.case.prompt.reference)

    def _settings(self, prompt: _Prompt, arm: AblationArm) -> dict[str, object]:
        """All that a row depends on; those that are columns become its cells."""
        case = prompt.case
        return {
            "method": arm.method,
            **arm.cells,
            **self._decoder.cells,
            **_processor_cells(case.processor),
            "seed": case.seed,
            "repeat": case.repeat,
            "task": case.prompt.task,
            "prompt_id": case.prompt.prompt_id,
            "prompt_tokens": len(prompt.ids),
            "model_dir": self._ablation.model,
            "prompt_ids": prompt.ids,
            "max_output_len": self._ablation.max_output_len,
            "ignore_eos": self._ablation.ignore_eos,
            "drafting": asdict(arm.drafting),
            **_draft_place(self._ablation),
            "lookahead": str(arm.lookahead),
        }

    def _fitted(self) -> Iterator[_Prompt]:
        ablation = self._ablation
        room = self._decoder.room(ablation.max_output_len)
        encoded = [self._decoder.encode(prompt.text) for prompt in ablation.prompts]
        short = dict(zip(ablation.prompts, fit(encoded, None, room), strict=True))
        if cut := sum(map(len, encoded)) - sum(map(len, short.values())):
            self._on_note(f"prompts longer than {room} tokens lose their beginning, {cut} tokens")
        for case in cases(ablation.prompts, ablation.processors, ablation.repeats, ablation.seed):
            temperature, top_k, top_p = case.processor.filters
            sampling = SamplingParams(ablation.max_output_len, temperature, top_k, top_p, case.seed)
            yield _Prompt(case, short[case.prompt], sampling)


def _draft_place(ablation: Ablation) -> dict[str, object]:
    """What is given of a draft model's device and type: rows of files without them stay known."""
    place = {"draft_device": ablation.draft_device, "draft_dtype": ablation.draft_dtype}
    return {name: value for name, value in place.items() if value is not None}


def _processor_cells(chosen: Processor) -> dict[str, object]:
    """Filters that are off stay empty."""
    return {
        "processor": chosen.name,
        "temperature": chosen.temperature,
        "top_k": chosen.top_k or None,
        "top_p": chosen.top_p if chosen.top_p < 1.0 else None,
    }
