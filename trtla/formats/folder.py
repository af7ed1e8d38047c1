"""A model's files beside the weights: the tokenizer's, and generation_config.json, of which trtla
applies nothing but end ids by itself."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtla.errors import UsageError, named
from trtla.files import write_json
from trtla.formats.chat_templates import more_templates
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import GENERATION_CONFIG, model_end_ids
from trtla.settings.fields import declared
from trtla.settings.sampling import DRAWN, SamplingParams

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
HEAD_FOLDER = "head"
"""The folder of a model's trained head."""
_ANY_ONE_MAKES_A_TOKENIZER = TOKENIZER_FILES[:3]

_DRAWN = {name: declared(SamplingParams)[name].default for name in DRAWN} | {"temperature": 1.0}
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
"""Options that trtla does not have, and the values that change nothing; null is one of each."""


def tokenizer_dir(folder: Path) -> Path | None:
    """The folder itself if it holds a tokenizer, else None."""
    is_tokenizer = any((folder / name).is_file() for name in _ANY_ONE_MAKES_A_TOKENIZER)
    return folder if is_tokenizer else None


def no_chat_template(folder: Path) -> UsageError:
    """The refusal of messages for such a model."""
    return UsageError(
        f"the tokenizer in {folder} has no chat template",
        f"give texts without {named('chat')}, {named('system')} and messages, an instruct model, "
        f"or {named('chat_template')}",
    )


def side_files(source: Path) -> list[str]:
    """Names of the files that `copy_side_files` makes."""
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    names += [str(path.relative_to(source)) for path in more_templates(source)]
    if (source / GENERATION_CONFIG).is_file() or model_end_ids(ModelFolder(source)):
        names.append(GENERATION_CONFIG)
    return names


def copy_side_files(source: Path, target: Path) -> None:
    """Copy tokenizer files and the generation config.

    End ids that only the model's config.json names are added to the generation config, because the
    checkpoint's own config.json has no place for them.
    """
    names = side_files(source)
    for name in names:
        if name != GENERATION_CONFIG:
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, target / name)
    if GENERATION_CONFIG in names:
        folder = ModelFolder(source)
        generation, ends = folder.object(GENERATION_CONFIG), model_end_ids(folder)
        if ends and not generation.get("eos_token_id"):
            ids = ends[0] if len(ends) == 1 else ends
            generation = {**generation, "eos_token_id": ids}
        write_json(target / GENERATION_CONFIG, generation)


def unapplied(folder: ModelFolder) -> str | None:
    """A sentence about the options of a model's generation config; None: it has only lengths and
    end tokens.

    A broken or absent file counts as saying nothing.
    """
    generation = folder.object(GENERATION_CONFIG)
    known, unknown = _applicable(generation), _unknown(generation)
    parts = []
    if known:
        flags = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in known.items())
        parts.append(
            f"{_listed(known)}, which trtla applies where it is asked for alone: {flags}, or the "
            "fields of these names"
        )
    if unknown:
        parts.append(f"{_listed(unknown)}, which trtla has not")
    where = f"{folder.path.name}/{GENERATION_CONFIG}"
    return f"{where} asks for {'; and for '.join(parts)}" if parts else None


def _applicable(generation: Mapping[str, Any]) -> dict[str, float]:
    """Options that flags can set; `do_sample` alone draws at temperature 1."""
    draws = generation.get("do_sample") is True
    neutral = {**(_DRAWN if draws else {}), **_FLAGS}
    numbers = {name: generation[name] for name in neutral if _is_number(generation.get(name))}
    changes = {name: value for name, value in numbers.items() if value != neutral[name]}
    return {"temperature": 1.0, **changes} if draws else changes


def _unknown(generation: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: generation.get(name) for name in _NEUTRAL if name not in _DRAWN}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value not in _NEUTRAL[name]
    }


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {str(value)[:40]}" for name, value in values.items())


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
