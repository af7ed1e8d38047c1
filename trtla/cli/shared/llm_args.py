"""The YAML file of TensorRT-LLM's LLM API, as trtllm-serve and trtllm-bench read it, as a preset.

Its keys become those of the command; what has no counterpart is named in one refusal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trtla.errors import UsageError
from trtla.settings.fields import shown
from trtla.settings.lookahead import LookaheadConfig

Settings = dict[str, Any]

_SPECULATIVE = "speculative_config"
_SIZES = {"max_window_size": 4, "max_ngram_size": 3, "max_verification_set_size": 4}
"""Keys of the triple, in its order, with TensorRT-LLM's defaults."""
_NESTED = ("build_config", "kv_cache_config", "scheduler_config")
_COUNTERPARTS = {
    "build_config.gather_context_logits": "gather_context_logits",
    "build_config.max_batch_size": "max_batch_size",
    "build_config.max_input_len": "max_input_len",
    "build_config.max_num_tokens": "max_num_tokens",
    "build_config.max_seq_len": "max_seq_len",
    "enable_chunked_prefill": "enable_chunked_context",
    "kv_cache_config.dtype": "kv_cache_dtype",
    "kv_cache_config.enable_block_reuse": "kv_cache_enable_block_reuse",
    "kv_cache_config.free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction",
    "scheduler_config.capacity_scheduler_policy": "scheduler_policy",
    "tensor_parallel_size": "tp_size",
    "tokenizer": "tokenizer_dir",
}
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "backend": ("tensorrt", "trt"),
    "build_config.max_beam_width": (1,),
    "guided_decoding_backend": ("llguidance", "xgrammar"),
    "kv_cache_config.dtype": ("auto",),
    "max_beam_width": (1,),
    "pipeline_parallel_size": (1,),
    "tensor_parallel_size": (1,),
    "trust_remote_code": (False,),
}
"""Values that say what holds here anyway."""
_KNOWN = {key.partition(".")[0] for key in (*_COUNTERPARTS, *_WITHOUT_EFFECT)} | {_SPECULATIVE}
_OTHERS = {
    "auto": "write lookahead: auto, which drafts what pays",
    "draft_target": "write drafter: draft:PATH, the path of the draft model",
    "ngram": "write drafter: prompt-lookup, or drafter: ngram for counted n-grams",
}
"""What serves in place of other decoding types, in lower case."""
_ELSE = "write lookahead: auto, or drafter: draft:PATH for a draft model of the same vocabulary"


def as_preset(settings: Settings, names: Collection[str], where: str, command: str) -> Settings:
    """Return a file's settings with the command's keys in place of the LLM API's.

    Args:
        names: the keys that the command has.
    """
    if not _KNOWN.difference(names).intersection(settings):
        return settings
    found: Settings = {}
    keys: dict[str, str] = {}
    lost: list[str] = []
    for key, value in _flat(settings, where):
        name = "lookahead" if key == _SPECULATIVE else _COUNTERPARTS.get(key, key)
        low = value.lower() if isinstance(value, str) else value
        if key not in names and low in _WITHOUT_EFFECT.get(key, ()):
            continue
        if key == _SPECULATIVE:
            value = triple(value, where)
        if name not in names:
            lost.append(key)
        elif name in found and found[name] != _as_ours(name, value):
            raise UsageError(
                f"{where}: {key} is {shown(value)}, and {keys[name]} is {shown(found[name])} "
                "there as well",
                "give one of them",
            )
        else:
            found[name], keys[name] = _as_ours(name, value), key
    if lost:
        raise UsageError(
            f"{where} has {', '.join(lost)}, for which {command} has no setting",
            "remove them from the file",
        )
    return found


def triple(config: Any, where: str) -> list[int]:
    """Return the sizes of a `speculative_config` of the type Lookahead."""
    if not isinstance(config, Mapping) or not isinstance(config.get("decoding_type"), str):
        raise UsageError(
            f"{where}: {_SPECULATIVE} is {shown(config)}, without a decoding_type",
            "write decoding_type: Lookahead in it, or lookahead: [7, 7, 7] in its place",
        )
    kind = config["decoding_type"]
    if kind.lower() != "lookahead":
        raise UsageError(
            f"{where}: decoding_type {kind} is not read here",
            _OTHERS.get(kind.lower().replace("-", "_"), _ELSE),
        )
    given = {key: value for key, value in config.items() if value is not None}
    unknown = [key for key in given if key != "decoding_type" and key not in _SIZES]
    if unknown:
        raise UsageError(
            f"{where}: {_SPECULATIVE} has {', '.join(map(str, unknown))}",
            f"the keys of lookahead are {', '.join(_SIZES)}",
        )
    sizes = [given.get(key, default) for key, default in _SIZES.items()]
    try:
        return list(LookaheadConfig(*sizes).as_tuple())
    except UsageError as error:
        raise error.within(f"{where}: {_SPECULATIVE}: ") from None


def _flat(settings: Settings, where: str) -> Iterator[tuple[str, Any]]:
    """Yield keys with values, those of the nested parts as `part.key`; null is not given."""
    for key, value in settings.items():
        if key in _NESTED and value is not None:
            if not isinstance(value, Mapping):
                raise UsageError(
                    f"{where}: {key} is {shown(value)}, not keys with values",
                    "write key: value lines below it",
                )
            inner = {f"{key}.{name}": part for name, part in value.items()}
            yield from ((name, part) for name, part in inner.items() if part is not None)
        elif value is not None:
            yield key, value


def _as_ours(name: str, value: Any) -> Any:
    """Return a value as the command writes it, such as guaranteed-no-evict."""
    if name == "scheduler_policy" and isinstance(value, str):
        return value.lower().replace("_", "-")
    return value
