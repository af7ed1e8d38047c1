"""The rotary embedding of a decoder's config.json, in the spellings of transformers 4 and 5."""

from __future__ import annotations

from typing import Any

from trtla.formats.family import FULL, LAYER_TYPES, SLIDING, Family
from trtla.formats.rope_scaling import is_positive, longrope_magnitude

_LONGROPE = dict.fromkeys(("su", "yarn"), "longrope")
"""Its older names, in families that have no other scaling."""
_TRAINED = "original_max_position_embeddings"


def rotary_keys(data: dict[str, Any], family: Family) -> dict[str, Any]:
    """The keys of `rope_parameters` and `rope_scaling`, which comes first, as older files have
    them."""
    rope, scaling = data.get("rope_parameters") or {}, data.get("rope_scaling") or {}
    if not isinstance(rope, dict) or not isinstance(scaling, dict):
        return {}  # it is refused by its type
    found, by_kind = {}, "rope_local_base_freq" in family.reads
    if rope and by_kind != any(kind in rope for kind in LAYER_TYPES):
        raise ValueError(f"rope_parameters {'lacks' if by_kind else 'has'} {FULL} and {SLIDING}")
    if any(kind in scaling for kind in LAYER_TYPES):
        raise ValueError(f"rope_scaling has {FULL} and {SLIDING}")
    if by_kind:
        full, local = (rope.get(kind) or {} for kind in LAYER_TYPES)
        if not isinstance(full, dict):
            raise ValueError(f"rope_parameters has {FULL} {str(full)[:60]}")
        if not isinstance(local, dict) or scaling_kind(local) != "default":
            raise ValueError(f"rope_parameters has {SLIDING} {str(local)[:60]}, which scales")
        found = {"rope_local_base_freq": local.get("rope_theta")}
        rope = {**full, **scaling}
    elif scaling:
        rope = scaling
    found |= {"rope_scaling": rope, "rope_theta": rope.get("rope_theta")}
    return {key: value for key, value in found.items() if value not in (None, {})}


def scaling_kind(scaling: dict[str, Any]) -> Any:
    """The type of a rotary scaling, in either spelling."""
    return scaling.get("rope_type") or scaling.get("type") or "default"


def share_of_heads(data: dict[str, Any], family: Family) -> dict[str, Any]:
    """The rotated share of a head as a key of its own, in families that may have one."""
    scaling = data.get("rope_scaling")
    if not isinstance(scaling, dict) or "partial_rotary_factor" not in family.reads:
        return {}
    share = scaling.get("partial_rotary_factor", data.get("partial_rotary_factor", 1.0))
    kind = str(scaling_kind(scaling))
    kind = _LONGROPE.get(kind, kind)
    scaling = {**scaling, "partial_rotary_factor": 1.0, "rope_type": kind}
    return {"partial_rotary_factor": share, "rope_scaling": scaling}


def checkpoint_scaling(
    scaling: dict[str, Any] | None, positions: int, trained: int | None
) -> dict[str, Any] | None:
    """The scaling, its type in both spellings because readers differ; None if default.

    Args:
        positions: of the model.
        trained: the trained length that stands beside the scaling, and goes before its own.
    """
    if not scaling:
        return None
    keys = {key: value for key, value in scaling.items() if key != "rope_theta"}
    kind = scaling_kind(keys)
    if kind == "default" and keys.get("partial_rotary_factor", 1.0) == 1.0:
        return None
    if trained and kind in ("llama3", "yarn"):
        keys[_TRAINED] = trained
    if kind == "longrope":
        keys = _longrope(keys, positions, trained)
    return {**keys, "type": kind, "rope_type": kind}


def _longrope(scaling: dict[str, Any], positions: int, trained: int | None) -> dict[str, Any]:
    """The scaling, with keys filled that follow from others."""
    length = trained or scaling.get(_TRAINED) or positions
    keys = {**scaling, _TRAINED: length}
    known = is_positive(length) and length > 1 and is_positive(scaling.get("factor") or 1)
    if known and keys.get("attention_factor") is None:
        keys["attention_factor"] = longrope_magnitude(keys, positions)
    return keys
