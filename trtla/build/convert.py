"""Conversion of a Hugging Face folder or a GGUF file to a TensorRT-LLM checkpoint, streamed and
atomic.

The keys of config.json are those of TensorRT-LLM's PretrainedConfig (models/modeling_utils.py).
"""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

from trtla.build.quantize import Calibration, Fp8Source
from trtla.build.rounding import (
    ALGORITHMS,
    AwqSource,
    RoundedSource,
    integer_config,
    weight_only_config,
)
from trtla.errors import TORCH, UsageError, require
from trtla.files import write_json
from trtla.formats.atomic import atomic_directory, check_target
from trtla.formats.checkpoint import Progress, write_ranks
from trtla.formats.config import CheckpointConfig, Quantization
from trtla.formats.folder import copy_side_files
from trtla.formats.gguf.folder import model_folder, model_inputs, weight_file
from trtla.formats.hf import HFModel
from trtla.formats.source import checkpoint_config, config_json, in_type
from trtla.formats.tensors import TensorSource
from trtla.runtime.models.rounding import INTEGERS
from trtla.trtllm.rules import check_family

_log = logging.getLogger(__name__)


def convert(
    model_dir: str | Path,
    output_dir: str | Path,
    *,
    dtype: str = "auto",
    unrounded: str = "auto",
    tp_size: int = 1,
    pp_size: int = 1,
    group_size: int | None = None,
    calibration: Calibration | None = None,
    fp8_kv_cache: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Convert a model to a TensorRT-LLM checkpoint; return its path.

    Args:
        model_dir: a folder with config.json and weights, see `HFModel`, or a GGUF file.
        output_dir: absent or empty, or a checkpoint or engine to be replaced with `force`.
        dtype: float16, bfloat16, float32, which dequantise the blocks of a GGUF file, or auto: the
            model's, except float16 for float32, and blocks as they are. int8 and int4 round the
            linear weights, the rest is as with auto; int4 has int8 for embedding and lm_head. For
            TensorRT-LLM: w4a16_awq rounds the layers' linear weights to int4; for w8a16 and w4a16
            the library rounds them when it builds.
        unrounded: the type of what integer dtypes leave as it is; auto as above.
        tp_size, pp_size: tensor and pipeline parallel ranks; one file for each pair.
        group_size: inputs that share a scale: for int8 and int4 32 (the default), 64 or 128, for
            w4a16_awq 64 or 128 (the default).
        calibration: with int8, int4 and w4a16_awq, errors are weighted by the activations of the
            model on it. With a type of activations it makes an FP8 checkpoint, with activation
            scales from running the model on it; `dtype` is then the type of activations and of the
            unquantised weights. A folder that is FP8 already keeps its scales, without a
            calibration.
        fp8_kv_cache: let the executor cache keys and values in FP8 too; needs a calibration, or a
            folder with such scales.
        force: replace an existing checkpoint or engine, at the very end.
        progress: called with (bytes done, bytes in total).

    Raises:
        UsageError: the model, the split or the output folder is unusable; nothing was written.
        TrtlaError: the disk is full, permission is missing, or a layer's activations give no FP8
            scale; nothing is left behind.
    """
    source, target = model_folder(model_dir), Path(output_dir)
    inputs = (Path(model_dir), *model_inputs(source))
    check_target(target, force=force, sources=inputs)
    model = HFModel.open(source)
    config, weights = _checkpoint(
        source, model, (dtype, unrounded), (tp_size, pp_size), group_size, calibration, fp8_kv_cache
    )
    with closing(model), atomic_directory(target, force=force, sources=inputs) as folder:
        write_ranks(folder, config, weights, progress)
        copy_side_files(source, folder)
        write_json(folder / "config.json", config_json(config))
    return target


def _checkpoint(
    source: Path,
    model: HFModel,
    dtypes: tuple[str, str],
    parallel: tuple[int, int],
    group_size: int | None,
    calibration: Calibration | None,
    fp8_kv_cache: bool,
) -> tuple[CheckpointConfig, TensorSource]:
    """The checkpoint's config, and the source of its weights.

    Args:
        dtypes: (dtype, unrounded).
        parallel: (tp_size, pp_size).
    """
    dtype, unrounded = dtypes
    integer = dtype in INTEGERS or dtype in ALGORITHMS
    if model.config.fp8 and not integer:
        _keep_scales(source, model, fp8_kv_cache)
        calibration = None
    _check_dtype(source, model, dtype, rounds=integer or calibration is not None)
    config = checkpoint_config(model.config, unrounded if integer else dtype, *parallel)
    weights: TensorSource = in_type(model, model.config, config)
    if fp8_kv_cache and (integer or calibration is None) and not config.fp8_kv_cache:
        raise UsageError("an FP8 K/V cache needs scales", "convert with --dtype fp8")
    if integer:
        config, weights = _integers(model, config, dtype, group_size, calibration)
    elif calibration is not None:
        config = _with_fp8(config, cache=fp8_kv_cache)
        require("calibration", *TORCH)
        from trtla.build.activations import calibrate

        weights = Fp8Source(model, config, calibrate(source, model.config, calibration))
    return config, weights


def _keep_scales(source: Path, model: HFModel, fp8_kv_cache: bool) -> None:
    """Note that nothing is calibrated; refuse a cache that the folder has no scales for."""
    if fp8_kv_cache and not model.config.fp8_kv_cache:
        raise UsageError(
            f"{source} is FP8 already, without scales of an FP8 K/V cache",
            "omit --kv-cache-dtype, or convert the unquantised model",
        )
    _log.warning("note: %s is FP8 already: its scales are kept, nothing is calibrated", source.name)


def _with_fp8(config: CheckpointConfig, *, cache: bool) -> CheckpointConfig:
    kept = "FP8" if cache else None
    fp8 = Quantization(quant_algo="FP8", kv_cache_quant_algo=kept, exclude_modules=["lm_head"])
    return config.model_copy(update={"quantization": fp8})


def _integers(
    model: HFModel,
    config: CheckpointConfig,
    dtype: str,
    group_size: int | None,
    calibration: Calibration | None,
) -> tuple[CheckpointConfig, TensorSource]:
    """Return config and source of an integer dtype; sizes are checked before texts are read."""
    ours = dtype in INTEGERS
    if ours:
        config = integer_config(config, dtype, 32 if group_size is None else group_size)
    else:
        config = weight_only_config(config, dtype, group_size)
    if not ours and config.awq_group_size is None:
        if calibration is not None:
            raise UsageError(
                f"{dtype} needs no calibration: TensorRT-LLM rounds its weights", "omit it"
            )
        return config, model
    importance = {}
    if calibration is not None:
        if config.num_experts:
            raise UsageError(
                "calibration of a mixture of experts is not supported: few texts reach all experts",
                "omit --calib-data: int8 and int4 then weigh all inputs alike",
            )
        require("calibration", *TORCH)
        from trtla.build.activations import mean_squares

        importance = mean_squares(model.path, model.config, calibration)
    if ours:
        return config, RoundedSource(model, config.block_types, importance)
    return config, AwqSource(model, config, importance)


def _check_dtype(source: Path, model: HFModel, dtype: str, *, rounds: bool) -> None:
    """Refuse to round twice, and TensorRT-LLM's types for families that it is not known to run."""
    if dtype not in INTEGERS and not (dtype == "auto" and model.config.block_types):
        check_family(model.config)
    if rounds and model.quantized:
        raise UsageError(
            f"{weight_file(source) or source} is quantised already "
            f"({', '.join(model.quantized)}), and "
            "quantising twice loses more than either does",
            "omit --dtype to keep its weights, or convert the unquantised model",
        )
