"""The quantisation that a Hugging Face folder's own files declare.

Static FP8 with a scale for each tensor, as modelopt, compressed-tensors and `fp8` write it, is
TensorRT-LLM's FP8. Everything else is refused by its name, before any weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trtla.errors import UsageError
from trtla.formats.config import BLOCK_SIZES, CheckpointConfig, Quantization
from trtla.formats.model_folder import CONFIG, ModelFolder
from trtla.formats.plan import fp8_groups
from trtla.formats.shapes import linear_weights
from trtla.formats.stored_form import MXFP4, stored_forms
from trtla.formats.stored_mxfp4 import block_types
from trtla.formats.support import check_experts

_KEYS: dict[str, dict[str, str]] = {
    "quantization_config": {},
    "compression_config": {"quant_method": "compressed-tensors"},
}
"""Keys of config.json that declare a quantisation, and what is implied."""
_BESIDE = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""Files beside config.json that declare a quantisation, and the method of each."""
_HINT = (
    "give the unquantised model, which trtla convert --dtype fp8, int8 or int4 quantises, or its "
    "FP8 with static scales per tensor"
)
_MIXTURE_HINT = (
    "give the unquantised model, which trtla convert --dtype int8 or int4 quantises, or a GGUF "
    "file of it"
)
_EXCLUDED = ("ignore", "exclude_modules", "ignored_layers", "modules_to_not_convert")
"""Names of the list of modules that are not quantised."""
_TENSORS = (
    *("qweight", "qzeros", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv"),
    *("weight_scale_2", "input_scale", "absmax", "quant_map", "SCB", "codebooks", "W_q", "scales"),
)
"""Last parts of tensors' names that only quantised weights have."""
_PER_TENSOR = (None, "tensor", "per_tensor")


def quantization_name(folder: ModelFolder) -> str | None:
    """The name of a folder's quantisation, such as `modelopt FP8`; None: it has none."""
    found = _declared(folder)
    return None if found is None else _name(found[1])


def read_quantization(folder: ModelFolder, config: CheckpointConfig) -> Quantization:
    """The quantisation of the checkpoint that a folder converts to; raises `UsageError` for one
    that TensorRT-LLM's FP8 is not."""
    if (found := _declared(folder)) is None:
        return config.quantization
    path, declared = found
    if _is_cache_alone(declared):
        return config.quantization
    if _method(declared) == "mxfp4" and config.moe_bias:
        return _mxfp4(path, config)
    if why := _unlike_fp8(declared):
        text = _name(declared) + (f", {why}" if why != _name(declared) else "")
        hint = _MIXTURE_HINT if config.num_experts else _HINT
        raise UsageError(f"{path}: the weights are quantised ({text})", hint)
    cache = "FP8" if _caches_fp8(declared) else None
    own = Quantization(quant_algo="FP8", kv_cache_quant_algo=cache, exclude_modules=["lm_head"])
    check_experts(config.model_copy(update={"quantization": own}), str(path))
    _check_excluded(path, declared, config)
    return own


def _mxfp4(path: Path, config: CheckpointConfig) -> Quantization:
    """The blocks of a gpt-oss, whose experts alone are quantised."""
    size, _ = BLOCK_SIZES[MXFP4]
    for inputs in (config.hidden_size, config.moe_intermediate_size):
        if inputs % size:
            said = f"{path}: MXFP4 has blocks of {size}, not {inputs} inputs"
            raise UsageError(said, _MIXTURE_HINT)
    return Quantization(block_types=block_types(linear_weights(config)))


def undeclared(folder: Path, names: Iterable[str]) -> UsageError | None:
    """The refusal of quantised weights that no file beside them describes; None: they are plain."""
    name = next((name for name in names if name.rpartition(".")[2] in _TENSORS), None)
    if name is None:
        return None
    return UsageError(
        f"{folder}: the weights are quantised (tensor {name}), and neither config.json nor "
        f"{' nor '.join(_BESIDE)} says how",
        f"copy the file that the model has beside its weights; {_HINT}",
    )


def _declared(folder: ModelFolder) -> tuple[Path, dict[str, Any]] | None:
    """Return the quantisation in config.json, else in a file beside it, and that file's path."""
    said = folder.object(CONFIG)
    for key, implied in _KEYS.items():
        if (found := said.get(key)) is not None:
            return folder.path / CONFIG, {
                **implied,
                **_flat(found if isinstance(found, dict) else {}),
            }
    for name, method in _BESIDE.items():
        if not (folder.path / name).is_file():
            continue
        content = folder.read(name)
        found = {"quant_method": method, **_flat(content if isinstance(content, dict) else {})}
        if any(found.get(key) for key in ("quant_algo", "kv_cache_quant_algo", "bits", "w_bit")):
            return folder.path / name, found
    return None


def _is_cache_alone(declared: dict[str, Any]) -> bool:
    """Return True for scales of an FP8 K/V cache beside weights that are not quantised."""
    if not _caches_fp8(declared) or any(_cache(declared)):
        return False
    kinds = ("quant_algo", "config_groups", "bits", "w_bit")
    known = _method(declared) in ("modelopt", "compressed-tensors")
    return known and not any(declared.get(key) for key in kinds)


def _flat(declared: dict[str, Any]) -> dict[str, Any]:
    """One level of keys: modelopt has its own below `quantization`."""
    inner = declared.get("quantization")
    return {**declared, **inner} if isinstance(inner, dict) else declared


def _method(declared: dict[str, Any]) -> str:
    return str(declared.get("quant_method") or "an unnamed method")


def _name(declared: dict[str, Any]) -> str:
    """Method and kind: `modelopt NVFP4`, `compressed-tensors pack-quantized`, `gptq 4 bits`."""
    if _is_cache_alone(declared):
        return f"{_method(declared)} FP8 K/V cache"
    bits = declared.get("bits", declared.get("w_bit"))
    bitsandbytes = {"load_in_4bit": "4 bits", "load_in_8bit": "8 bits"}
    kinds = [declared.get(key) for key in ("quant_algo", "format", "fmt")]
    kinds += [f"{bits} bits" if bits else None]
    kinds += [name for key, name in bitsandbytes.items() if declared.get(key) is True]
    return " ".join([_method(declared), *(str(kind) for kind in kinds if kind)][:2])


def _unlike_fp8(declared: dict[str, Any]) -> str | None:
    """The first thing in which it is not static FP8 with a scale for each tensor, if any."""
    checks = {"modelopt": _modelopt, "compressed-tensors": _groups, "fp8": _plain_fp8}
    check = checks.get(_method(declared))
    if check is None:
        return _name(declared)
    return next((why for why in (*check(declared), *_cache(declared)) if why), None)


def _modelopt(declared: dict[str, Any]) -> Iterator[str | None]:
    if declared.get("quant_algo") != "FP8":
        yield _name(declared)
    if declared.get("config_groups"):
        yield from _groups({"format": "float-quantized", **declared})


def _groups(declared: dict[str, Any]) -> Iterator[str | None]:
    """The groups of compressed-tensors."""
    groups = declared.get("config_groups")
    if declared.get("format") not in ("float-quantized", "naive-quantized", None):
        yield _name(declared)
    sparsity = declared.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format") not in (None, "dense"):
        yield f"sparse as {sparsity['format']}"
    if not isinstance(groups, dict) or not groups:
        yield "without config_groups"
        return
    for group in groups.values():
        for key in ("weights", "input_activations"):
            part = group.get(key) if isinstance(group, dict) else None
            yield _scheme(key.replace("_", " "), part)


def _scheme(what: str, scheme: Any) -> str | None:
    """Return what makes a scheme of compressed-tensors other than FP8 with one static scale."""
    if not isinstance(scheme, dict):
        return f"{what} not quantised"
    if scheme.get("type") != "float" or scheme.get("num_bits") != 8:
        return f"{what} of {scheme.get('num_bits')} bits, {scheme.get('type')}"
    if scheme.get("dynamic"):
        return f"dynamic scales of {what}"
    if (strategy := scheme.get("strategy")) not in _PER_TENSOR:
        return f"scales per {strategy} of {what}"
    return "scales per group" if scheme.get("group_size") else None


def _plain_fp8(declared: dict[str, Any]) -> Iterator[str | None]:
    if block := declared.get("weight_block_size"):
        yield f"scales per block {block}"
    if declared.get("fmt") not in (None, "e4m3", "float8_e4m3fn"):
        yield f"numbers of {declared['fmt']}"
    if (scheme := declared.get("activation_scheme")) != "static":
        yield f"{scheme or 'dynamic'} scales of activations"


def _cache(declared: dict[str, Any]) -> Iterator[str | None]:
    """Yield the parts of a K/V cache that TensorRT-LLM's FP8 cache lacks."""
    algorithm, scheme = declared.get("kv_cache_quant_algo"), declared.get("kv_cache_scheme")
    if algorithm not in (None, "FP8"):
        yield f"K/V cache of {algorithm}"
    if isinstance(scheme, dict):
        yield _scheme("K/V cache", scheme)
    elif scheme not in (None, "static"):
        yield f"{scheme} scales of the K/V cache"


def _caches_fp8(declared: dict[str, Any]) -> bool:
    return bool(declared.get("kv_cache_quant_algo") or declared.get("kv_cache_scheme"))


def _check_excluded(path: Path, declared: dict[str, Any], config: CheckpointConfig) -> None:
    """Refuse a model that is FP8 in some of its layers' linears only."""
    lists = [found for key in _EXCLUDED if isinstance(found := declared.get(key), list)]
    patterns = [pattern for found in lists for pattern in found if isinstance(pattern, str)]
    forms = stored_forms(config, gguf=False)
    weights = [weight for group in fp8_groups(config).values() for weight in group]
    names = [n.removesuffix(".weight") for w in weights for n in (w, forms[w].name)]
    for pattern in patterns:
        excluded = next((name for name in names if _matches(pattern, name, path)), None)
        if excluded is not None:
            raise UsageError(
                f"{path}: {excluded} is left unquantised by {pattern!r}, and TensorRT-LLM's FP8 "
                "has all linears of the layers",
                "give the unquantised model, which trtla convert --dtype fp8 quantises",
            )


def _matches(pattern: str, name: str, path: Path) -> bool:
    """Match as modelopt (fnmatch) and compressed-tensors (names, `re:`) do."""
    if not pattern.startswith("re:"):
        return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
    try:
        return re.match(pattern[3:], name) is not None
    except re.error:
        raise UsageError(
            f"{path}: {pattern!r} is no regular expression", "copy the file again"
        ) from None
