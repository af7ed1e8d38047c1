"""The kinds of trained drafters, by their config.json and the names of their tensors.

Only EAGLE-3 and Medusa heads are read; all others are called by their names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtla.errors import UsageError, named

EAGLE3, MEDUSA = "an EAGLE-3 head", "Medusa heads"
READ = (EAGLE3, MEDUSA)
"""The kinds that trtla reads."""
MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
DRAFT_VOCABULARY = "draft_vocab_size"
_EAGLE = "an EAGLE-1 or EAGLE-2 head"
_LATENT = "an EAGLE-3 head with latent attention (MLA)"
_PARTS = {
    "medusa": MEDUSA,
    "dflash": "a DFlash drafter",
    "dspark": "a DSpark drafter",
    "domino": "a Domino drafter",
    "peagle": "a P-EAGLE head",
    "eagle3deepseek": _LATENT,
    "eagle3": EAGLE3,
    "deepseekmtp": "layers that predict more tokens (MTP)",
    "eagle": _EAGLE,
    "mtp": "layers that predict more tokens (MTP)",
    "nextn": "layers that predict more tokens (MTP)",
    "mlpspeculator": "an MLP speculator",
}
"""Parts of names of classes and types, in small letters -> what has them; the first one counts."""
_STRANGE = {
    "kv_a_proj": _LATENT,
    "kv_b_proj": _LATENT,
    "q_norm.": "an EAGLE-3 head whose queries and keys are normalised",
    "k_norm.": "an EAGLE-3 head whose queries and keys are normalised",
    ".bias": "an EAGLE-3 head with biases",
}
"""Parts of names of tensors -> what has them."""
_ARCHITECTURE = b"general.architecture"
_START = 256  # bytes of a GGUF file that hold its first key and value
_HEADER = 24  # of them before the first key


def drafter_kind(config: Mapping[str, Any]) -> str | None:
    """What a config.json describes, if it is a trained drafter; None: it is none, or says not."""
    speculators = config.get("speculators_model_type")
    listed = config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    for name in (speculators, first, config.get("model_type")):
        if (kind := _named_kind(name)) is not None:
            return kind
    if DRAFT_VOCABULARY in config:  # older heads have the class of a whole Llama
        return EAGLE3
    return MEDUSA if "medusa_num_heads" in config and first is None else None


def folder_kind(path: Path, config: Mapping[str, Any]) -> str | None:
    """The kind of a folder with this config.json, empty if there is none."""
    if any((path / name).is_file() for name in MEDUSA_FILES):
        return MEDUSA
    return drafter_kind(config)


def gguf_kind(architecture: object) -> str | None:
    """What a GGUF file of an architecture holds, if it is a trained drafter."""
    return _named_kind(architecture)


def is_head_file(path: Path) -> bool:
    """Return True if a GGUF file's first entry, which is its architecture, says so."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return False
    with suppress(OSError, struct.error, OverflowError), path.open("rb") as file:
        start = file.read(_START)
        key, at = _text(start, _HEADER)
        return key == _ARCHITECTURE and _text(start, at + 4)[0] == b"eagle3"
    return False


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    """Return a text behind its length, and the place behind it."""
    (length,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + length], at + 8 + length


def kind_by_tensors(names: Iterable[str], kind: str | None) -> str | None:
    """A more exact kind, from the names of tensors; None: a whole model, or no model at all."""
    known = [*names]
    if kind == EAGLE3:
        strange = (what for part, what in _STRANGE.items() if any(part in name for name in known))
        return next(strange, EAGLE3)
    if kind is not None:
        return kind
    if any(name.startswith(("mtp.", "model.mtp.")) for name in known):
        return _PARTS["mtp"]
    if "fc.weight" not in known:
        return None
    return EAGLE3 if any(name.endswith(".hidden_norm.weight") for name in known) else _EAGLE


def refuse_other(path: Path, kind: str | None, architecture: object) -> None:
    """Refuse what is no head that trtla reads."""
    if kind in READ:
        return
    if kind is None:
        raise UsageError(
            f"{path} is a whole model ({architecture}), not a head",
            f"use {named('drafter')} draft:{path}",
        )
    raise UsageError(
        f"{path} holds {kind}, which trtla does not read",
        f"use an EAGLE-3 or Medusa head, or a small model of the same vocabulary: "
        f"{named('drafter')} draft:PATH",
    )


def no_model_but(path: Path, kind: str) -> UsageError:
    """The refusal of a trained drafter in place of a model."""
    hint = "give the model that it drafts for"
    if kind in READ:
        hint += f", and the head with {named('drafter')} head:{path}"
    return UsageError(f"{path} holds {kind}, not a model", hint)


def _named_kind(name: object) -> str | None:
    if not isinstance(name, str):
        return None
    plain = "".join(filter(str.isalnum, name.lower()))
    return next((kind for part, kind in _PARTS.items() if part in plain), None)
