"""An engine in memory, straight from a Hugging Face folder: nothing is written.

Apart from builder.py, because running a model needs none of what writes engines.
"""

from __future__ import annotations

from pathlib import Path

from trtla import __version__
from trtla.build.engine_folder import Engine
from trtla.build.hf import HFModel
from trtla.build.settings import BuildSettings, plan_build_config
from trtla.config import CheckpointConfig, EngineConfig


def engine_from_hugging_face(
    path: str | Path, settings: BuildSettings | None = None, dtype: str = "auto"
) -> Engine:
    """An engine in memory: nothing is written, `weights()` converts on the fly.

    Here `auto` keeps the stored dtype: the float16 rule of `convert` is for TensorRT-LLM's files.

    Raises:
        UsageError: the folder or the settings are not usable.
    """
    asked, model = settings or BuildSettings(), HFModel.open(path)
    config = _with_dtype(model.config, dtype)
    engine = EngineConfig(
        version=__version__,
        pretrained_config=config,
        build_config=plan_build_config(asked, config),
    )
    return Engine(Path(path), engine, None, model, asked.lookahead)


def _with_dtype(config: CheckpointConfig, dtype: str) -> CheckpointConfig:
    if dtype == "auto":
        return config
    from trtla.build.convert import checkpoint_config

    return checkpoint_config(config, dtype)
