"""One rank's engine through TensorRT-LLM's Python API, in the order of its commands/build.py.

Everything that the library's classes are called with is here; what is built and where it goes is
decided in trtla.build.trtllm.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trtla.build.trtllm_command import opt_num_tokens, plugin_settings
from trtla.config import BuildConfig
from trtla.trtllm_library import deprecations_once, load

TIMING_CACHE = "model.cache"
"""What `build()` of rank 0 leaves beside the engine; TensorRT-LLM's name for it."""


@dataclass(frozen=True, slots=True)
class RankBuild:
    """All that a process needs to build ranks: plain data, so that a spawned one can have it."""

    checkpoint_dir: Path
    engine_dir: Path
    limits: BuildConfig
    dtype: str

    def build(self, rank: int, gpu: int) -> None:
        """Build `rank{rank}.engine` on a GPU; rank 0 also writes config.json.

        Raises:
            Exception: whatever TensorRT-LLM raises.
        """
        with contextlib.redirect_stdout(sys.stderr), deprecations_once(silent=gpu > 0):
            torch.cuda.set_device(gpu)
            engine = load("builder").build(self._model(rank), self._build_config())
            if engine is None:
                raise RuntimeError("build() returned no engine")
            engine.save(str(self.engine_dir))

    def _model(self, rank: int) -> Any:
        models = load("models")
        config = models.PretrainedConfig.from_json_file(str(self.checkpoint_dir / "config.json"))
        config.set_rank(rank)
        model_class = models.MODEL_MAP[config.architecture]
        return model_class.from_checkpoint(str(self.checkpoint_dir), config=config)

    def _build_config(self) -> Any:
        """The library's BuildConfig, by names that every release from 0.20 to 1.2 has."""
        builder, limits = load("builder"), self.limits
        modes = load("models").SpeculativeDecodingMode
        return builder.BuildConfig(
            max_input_len=limits.max_input_len,
            max_seq_len=limits.max_text_len,  # build() adds max_draft_len itself
            max_batch_size=limits.max_batch_size,
            max_beam_width=limits.max_beam_width,
            max_num_tokens=limits.max_num_tokens,
            opt_num_tokens=opt_num_tokens(limits),
            max_draft_len=limits.max_draft_len,
            speculative_decoding_mode=(
                modes.LOOKAHEAD_DECODING if limits.max_draft_len else modes.NONE
            ),
            gather_context_logits=limits.gather_context_logits,
            # Not "model.cache" in the working directory, which is the default.
            output_timing_cache=str(self.engine_dir / TIMING_CACHE),
            plugin_config=self._plugin_config(),
        )

    def _plugin_config(self) -> Any:
        """A dataclass up to 1.0 and a pydantic model from 1.1 on: both take assignments."""
        config = load("plugin").PluginConfig()
        for name, value in plugin_settings(self.dtype).items():
            setattr(config, name, value)
        # build() makes kv_cache_type PAGED of it. That itself has one enumeration up to 1.1, that
        # of the bindings, and another one later (llmapi/kv_cache_type.py).
        config.paged_kv_cache = True
        return config
