"""Output of `trtla build`: the plan of a dry run, what was written, as text or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.console import Console, size
from trtla.formats.chat_templates import stored_template
from trtla.formats.model_folder import ModelFolder
from trtla.settings.lookahead import LookaheadConfig

if TYPE_CHECKING:
    from trtla.build.engine import BuildDescription

SCHEMA_VERSION = 1
_SHOWN = ("backend", "reason", "source_kind", "lookahead", "max_draft_len")
"""Fields of a plan that become keys of its JSON document."""


def show_plan(
    console: Console, plan: BuildDescription, origin: dict[str, str], output: Path
) -> None:
    """Print the plan of a build; the values are the resolved ones."""
    settings = _settings(plan, origin)
    if console.json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "path": str(output),
            **{name: getattr(plan, name) for name in _SHOWN},
            "engine_max_seq_len": plan.build_config.max_seq_len,
            "settings": settings,
            "notes": plan.notes,
            "memory": asdict(plan.memory),
            "files": plan.files,
            "commands": plan.commands,
        }
        console.document(document)
        return
    show_kind(console, plan)
    rows = [(name, item["value"], item["from"]) for name, item in settings.items()]
    console.table(("setting", "value", "from"), rows)
    for note in plan.notes:
        console.out(f"note: {note}")
    _show_memory(console, plan)
    for name in plan.files:
        console.out(f"would write {output / name}")
    if plan.commands:
        console.out("the same engine with TensorRT-LLM alone:")
    for command in plan.commands:
        console.out(command)


def show_written(
    console: Console,
    folder: Path,
    backend: str,
    lookahead: tuple[int, int, int],
    notes: Sequence[str] = (),
) -> None:
    """Print the path of the engine, and the next command."""
    if not console.json:
        console.out(f"wrote {folder}")
        how = "chat" if stored_template(ModelFolder(folder)) else "run -p 'Once upon'"
        console.note(f"next: trtla {how} -m {folder}")
        return
    document = {
        "schema_version": SCHEMA_VERSION,
        "path": str(folder),
        "backend": backend,
        "lookahead": lookahead,
        "max_draft_len": LookaheadConfig(*lookahead).max_draft_len,
        "notes": notes,
    }
    console.document(document)


def show_kind(console: Console, plan: BuildDescription) -> None:
    """Print the triple and the backend."""
    triple = LookaheadConfig(*plan.lookahead)
    kind = "plain engine" if triple.is_autoregressive else f"lookahead {triple.describe()}"
    console.out(f"{kind}, max_draft_len {plan.max_draft_len}")
    console.out(f"backend {plan.backend}: {plan.reason}")


def _settings(plan: BuildDescription, origin: dict[str, str]) -> dict[str, dict[str, Any]]:
    limits = plan.build_config
    values: dict[str, object] = {
        "lookahead": ",".join(map(str, plan.lookahead)),
        "max_batch_size": limits.max_batch_size,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_text_len,
        "max_num_tokens": limits.max_num_tokens,
        "max_draft_len": plan.max_draft_len,
        "gather_context_logits": limits.gather_context_logits,
        "backend": plan.backend,
        "dtype": plan.dtype,
    }
    shown = {name: {"value": value, "from": origin[name]} for name, value in values.items()}
    for name, value in plan.trtllm.items():
        shown[f"trtllm {name}"] = {"value": value, "from": origin["trtllm"]}
    return shown


def _show_memory(console: Console, plan: BuildDescription) -> None:
    memory, limits = plan.memory, plan.build_config
    every = memory.ranks > 1

    def line(label: str, rank: int, total: int, of: str = "") -> None:
        split = f" on the largest of {memory.ranks} ranks, {size(total)} in all" if every else ""
        console.out(f"{label} {size(rank)}{split}{of}")

    batch = limits.max_batch_size
    line("weights", memory.weight_bytes_per_rank, memory.weight_bytes)
    whole = f" for a full batch: {batch} x {limits.max_seq_len} tokens"
    line("KV cache", memory.kv_cache_bytes_per_rank, memory.kv_cache_bytes, whole)
    if plan.max_draft_len:
        part = f" of the KV cache: {batch} x {plan.max_draft_len} tokens"
        drafts = memory.draft_kv_cache_bytes_per_rank, memory.draft_kv_cache_bytes
        line("draft tokens", *drafts, part)
    step = f"{memory.step_tokens} tokens"
    console.out(f"logits {size(memory.logits_bytes)} for a step of a full batch: {step}")
    console.out("activations are not estimated")
