"""The flags of `trtla tune`, and the type of its budget."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import click

from trtla.cli.shared.options import (
    ENDS,
    MODEL,
    PATH,
    chat_flags,
    json_flag,
    length_flag,
    model_flag,
    options_of,
    place_flags,
    setting,
    stack,
    switch,
    tokenizer_flag,
)
from trtla.cli.shared.values import COUNT, COUNTS, NAMES, TEXT, TOKENS
from trtla.settings.executor import ExecutorOptions
from trtla.settings.messages import Asking
from trtla.settings.sampling import SamplingParams
from trtla.settings.value_types import ValueType

_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|m|h)?")
_FACTOR = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class DurationType(ValueType):
    """A time such as `90s`, `2m` or `1h`, in seconds; a bare number is seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the time."""
        match = _DURATION.fullmatch(str(value).strip())
        seconds = float(match[1]) * _FACTOR[match[2]] if match else 0.0
        if seconds < 1.0:
            self.fail(f"{value!r} is not a time of at least 1s, such as 90s, 2m or 1h.", param, ctx)
        return seconds


@dataclass(frozen=True, slots=True)
class TuneFlags:
    """The command's flags as click parsed them."""

    engine_dir: str | None
    model_dir: str | None
    options: ExecutorOptions
    backend: str
    gpu: str | None
    prompts: tuple[str, ...]
    num_prompts: int
    asking: Asking
    batch_sizes: tuple[int, ...] | None
    sampling: SamplingParams
    budget: float
    rounds: int
    output_dir: str
    write: str | None
    force: bool
    dry_run: bool


tune_flags = stack(
    model_flag(
        "Model",
        required=False,
        help="What to tune: an engine made by trtla build, whose triple is the limit, or a Hugging "
        "Face Llama folder, which takes any.",
    ),
    tokenizer_flag("Model"),
    place_flags,
    setting(
        "--backend",
        section="TensorRT-LLM engines",
        type=click.Choice(["auto", "torch", "tensorrt-llm"]),
        default="auto",
        help="tensorrt-llm: which triple to build an engine of TensorRT-LLM with; auto: the "
        "engine's.",
    ),
    setting(
        "--model-dir",
        section="TensorRT-LLM engines",
        type=MODEL,
        help="The model itself, whose texts show the acceptance: a Hugging Face folder, a "
        "checkpoint, or a torch engine.",
    ),
    setting(
        "--gpu",
        section="TensorRT-LLM engines",
        type=TEXT,
        metavar="h200|h100|a100|l40s|...",
        show_default="the one that is here",
        help="Take the costs from this GPU's published peaks: a bound, not a measurement.",
    ),
    setting(
        "--prompts",
        basic=True,
        section="Prompts",
        type=NAMES,
        default="code,chat,summarization",
        help="Shipped sets, .jsonl files with {category, text} lines, the category being optional, "
        "or in Spec-Bench's format, or .txt files with a prompt a line.",
    ),
    setting(
        "--num-prompts",
        section="Prompts",
        type=COUNT,
        default=4,
        help="Most prompts of a category.",
    ),
    chat_flags,
    length_flag(type=TOKENS, default=96, help="Tokens to write."),
    options_of(
        SamplingParams, "Sampling", but=ENDS, seed={"help": "Prompt i samples with seed + i."}
    ),
    setting(
        "--batch-sizes",
        section="Search",
        type=COUNTS,
        show_default="those of 1,4,16 that the engine takes",
        help="Prompts decoded together; the first is what the recommendation is for.",
    ),
    setting(
        "--budget",
        basic=True,
        section="Search",
        type=DurationType(),
        default="2m",
        help="Time to measure for, such as 90s, 2m or 1h; what was measured is kept, and the same "
        "command goes on from there.",
    ),
    setting(
        "--rounds",
        section="Search",
        type=COUNT,
        default=15,
        help="Turns of every verified triple, at most; three in any case, more within the budget.",
    ),
    setting(
        "--output-dir",
        section="Output",
        type=PATH,
        default="tune-results",
        help="Folder for measurements and tune.json.",
    ),
    setting(
        "--write",
        basic=True,
        section="Output",
        type=PATH,
        metavar="PRESET.yaml",
        help="Write the recommendation as a preset for --config.",
    ),
    switch("--force", section="Output", help="Replace the file of --write."),
    switch(
        "--dry-run", section="Output", help="Check everything and show the plan; measure nothing."
    ),
    json_flag("Print the JSON document, which is also written to tune.json.", section="Output"),
)
