"""What a model's generation_config.json asks for beside lengths and end tokens, in a sentence.

trtla decodes as it is asked to: nothing of this is applied by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtla.formats.folder import GENERATION_CONFIG, json_object

_DRAWN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Read where `do_sample` is true, and the values that change nothing."""
_FLAGS = {"repetition_penalty": 1.0, "num_beams": 1}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "diversity_penalty": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "penalty_alpha": (0,),
    "sequence_bias": ({}, []),
    "suppress_tokens": ([],),
    "typical_p": (1,),
}
"""What trtla has not, and the values that change nothing; null is one of each."""


def unapplied(folder: Path) -> str | None:
    """What a folder's file asks for, in a sentence; None: nothing but lengths and end tokens.

    A broken or absent file counts as saying nothing.
    """
    found = json_object(folder / GENERATION_CONFIG)
    asked, unknown = _asked(found), _unknown(found)
    parts = []
    if asked:
        flags = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in asked.items())
        parts.append(
            f"{_listed(asked)}, which trtla applies where it is asked for alone: {flags}, or the "
            "fields of these names"
        )
    if unknown:
        parts.append(f"{_listed(unknown)}, which trtla has not")
    where = f"{folder.name}/{GENERATION_CONFIG}"
    return f"{where} asks for {'; and for '.join(parts)}" if parts else None


def _asked(found: Mapping[str, Any]) -> dict[str, float]:
    """What flags can ask for; drawing at temperature 1 is something that is asked for."""
    draws = found.get("do_sample") is True
    neutral = {**(_DRAWN if draws else {}), **_FLAGS}
    given = {name: found[name] for name in neutral if _is_number(found.get(name))}
    own = {name: value for name, value in given.items() if value != neutral[name]}
    return {"temperature": 1.0, **own} if draws else own


def _unknown(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: found[name]
        for name, neutral in _NEUTRAL.items()
        if found.get(name) is not None and found[name] not in neutral
    }


def _listed(asked: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {str(value)[:40]}" for name, value in asked.items())


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
