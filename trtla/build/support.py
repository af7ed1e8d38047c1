"""What trtla can convert and run: architectures, activation, rotary scalings, no quantisation.

One check for Hugging Face models, checkpoints and engines, so that all three refuse the same
things.
"""

from __future__ import annotations

from trtla.config import ROPE_TYPES, CheckpointConfig
from trtla.errors import UsageError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")

_SCALING_KEYS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


def check_supported(config: CheckpointConfig, where: str) -> None:
    """Refuse what trtla has no rule for.

    Raises:
        UsageError: the value at fault, prefixed with `where`.
    """
    if config.architecture.replace("LLaMA", "Llama") not in ARCHITECTURES:
        raise UsageError(
            f"{where}: architecture {config.architecture} is not supported",
            f"trtla runs {' and '.join(ARCHITECTURES)}",
        )
    if config.hidden_act != "silu":
        raise UsageError(
            f"{where}: hidden_act {config.hidden_act} is not supported", "trtla runs silu models"
        )
    if config.position_embedding_type != "rope_gpt_neox":
        raise UsageError(
            f"{where}: position_embedding_type {config.position_embedding_type} is not supported",
            "trtla runs rope_gpt_neox models",
        )
    quantised = (config.quantization or {}).get("quant_algo")
    if quantised:
        raise UsageError(
            f"{where}: quant_algo {quantised} is not supported", "convert the unquantised model"
        )
    _check_rope(config, where)


def _check_rope(config: CheckpointConfig, where: str) -> None:
    scaling, kind = config.rotary_scaling or {}, config.rope_type
    if kind not in ROPE_TYPES:
        raise UsageError(
            f"{where}: rope scaling {kind} is not supported", f"trtla runs {', '.join(ROPE_TYPES)}"
        )
    partial = scaling.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise UsageError(
            f"{where}: partial_rotary_factor {partial} is not supported",
            "trtla runs models that rotate whole heads",
        )
    for key in _SCALING_KEYS.get(kind, ()):
        value = scaling.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise UsageError(
                f'{where}: rope scaling {kind} has "{key}" {value!r}', "give a number above 0"
            )
