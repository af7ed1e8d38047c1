"""The `trtllm-build` command line that builds the same engine without trtla, to be pasted.

Only flags that trtllm-build has in every release from 0.20 to 1.2 (commands/build.py).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from trtla.build.build_source import BuildSource
from trtla.config import BuildConfig

CONVERT_SCRIPT = "examples/models/core/llama/convert_checkpoint.py"
"""In TensorRT-LLM's repository."""


@dataclass(frozen=True, slots=True)
class TrtllmCommand:
    """What the command lines depend on."""

    source: BuildSource
    output_dir: Path
    limits: BuildConfig
    workers: int = 1

    def lines(self) -> tuple[str, ...]:
        """The command lines, one after the other, quoted for a shell.

        Empty where TensorRT-LLM cannot do it: it has no program that changes a checkpoint's dtype.
        """
        if self.source.is_checkpoint:
            return (_line(self._build(self.source.folder)),)
        if self.source.kind == "checkpoint":
            return ()
        name = self.output_dir.name or "engine"
        checkpoint = self.output_dir.parent / f"{name}-checkpoint"
        return (_line(self._convert(checkpoint)), _line(self._build(checkpoint)))

    def _convert(self, checkpoint: Path) -> list[str]:
        return [
            *("python", CONVERT_SCRIPT),
            *("--model_dir", str(self.source.folder)),
            *("--output_dir", str(checkpoint)),
            *("--dtype", self.source.config.dtype),
        ]

    def _build(self, checkpoint: Path) -> list[str]:
        limits = self.limits
        flags: dict[str, object] = {
            "checkpoint_dir": checkpoint,
            "output_dir": self.output_dir,
            "max_batch_size": limits.max_batch_size,
            "max_input_len": limits.max_input_len,
            "max_seq_len": limits.max_text_len,  # build() adds max_draft_len itself
            "max_beam_width": limits.max_beam_width,
            "max_num_tokens": limits.max_num_tokens,
            "opt_num_tokens": opt_num_tokens(limits),
            **self._speculation(),
            **_flag_values(plugin_settings(self.source.config.dtype)),
            "kv_cache_type": "paged",
            "workers": self.workers,
        }
        pairs = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        gather = ["--gather_context_logits"] if limits.gather_context_logits else []
        return ["trtllm-build", *pairs, *gather]

    def _speculation(self) -> dict[str, object]:
        if not self.limits.max_draft_len:
            return {}
        return {
            "max_draft_len": self.limits.max_draft_len,
            "speculative_decoding_mode": "lookahead_decoding",
        }


def opt_num_tokens(limits: BuildConfig) -> int:
    """What TensorRT tunes for: a step of a full batch. Its own default does not count drafts."""
    return limits.max_batch_size * (limits.max_draft_len + 1)


def plugin_settings(dtype: str) -> dict[str, str | bool]:
    """The fields of TensorRT-LLM's PluginConfig that are not left at their default.

    Both plugins take the dtype of the activations, also for FP8 checkpoints: those products that
    are quantised pass the GEMM plugin by, the other ones (lm_head) and attention are in this dtype.
    """
    return {
        "gpt_attention_plugin": dtype,
        "gemm_plugin": dtype,
        "remove_input_padding": True,
        "context_fmha": True,
        "use_paged_context_fmha": True,
    }


def _flag_values(settings: dict[str, str | bool]) -> dict[str, object]:
    words = {True: "enable", False: "disable"}
    return {
        name: words[value] if isinstance(value, bool) else value for name, value in settings.items()
    }


def _line(parts: list[str]) -> str:
    return " ".join(shlex.quote(part) for part in parts)
