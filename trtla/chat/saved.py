"""/save and /load: a conversation and its settings as one JSON file.

Only what belongs to the conversation is in it: the model is named, not kept.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from trtla.chat.conversation import Turn
from trtla.chat.settings import ChatSettings
from trtla.errors import UsageError
from trtla.files import read_json, validate, write_whole
from trtla.runtime.request import FinishReason
from trtla.settings.drafting import NgramKind
from trtla.settings.lookahead import LookaheadConfig

_TOGGLES = ("speculative", "target", "ngram", "chat", "debug")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SavedTurn(_Strict):
    """A message and its answer."""

    message: str
    answer: str
    answer_ids: list[int]
    finish_reason: FinishReason


class SavedSettings(_Strict):
    """`ChatSettings`, flat; names as in prompt files."""

    max_output_len: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: list[str]
    lookahead: Literal["auto"] | list[int] | None
    drafter: list[str]
    gamma: int
    egag: bool
    gamma_min: int
    gamma_max: int | None
    ema: float
    ngram_kind: NgramKind
    ngram_order: int
    top_k_filler: int
    stop_if_unknown: bool
    reset_in_between: bool
    rejection: bool
    speculative: bool
    target: bool
    ngram: bool
    chat: bool
    debug: bool


class SavedChat(_Strict):
    """The whole file."""

    schema_version: Literal[1]
    model: str
    vocab_size: int
    settings: SavedSettings
    turns: list[SavedTurn]


@dataclass(frozen=True, slots=True)
class Chat:
    """What a file holds."""

    model: str
    vocab_size: int
    settings: ChatSettings
    turns: tuple[Turn, ...]


def save(path: Path, chat: Chat) -> None:
    """Write a file whole; another chat's may be replaced, other files are not.

    Raises:
        UsageError: the file is something else, or cannot be written.
    """
    if _exists(path):
        _refuse_other(path)
    saved = SavedChat(
        schema_version=1,
        model=chat.model,
        vocab_size=chat.vocab_size,
        settings=_saved_settings(chat.settings),
        turns=[
            SavedTurn(
                message=turn.message,
                answer=turn.answer,
                answer_ids=list(turn.answer_ids),
                finish_reason=turn.finish_reason,
            )
            for turn in chat.turns
        ],
    )
    try:
        write_whole(path, saved.model_dump_json(indent=2) + "\n")
    except (OSError, ValueError) as error:
        raise _unusable(path, "written", error) from None


def load(path: Path, now: ChatSettings) -> Chat:
    """A saved chat; `now` gives what is not saved.

    Raises:
        UsageError: the file is not there, no saved chat, or its settings are not possible.
    """
    if not _exists(path):
        raise UsageError(f"{path} does not exist", "check the path")
    saved = _read(path)
    turns = tuple(_turn(turn) for turn in saved.turns)
    return Chat(saved.model, saved.vocab_size, _settings(saved.settings, now), turns)


def _read(path: Path) -> SavedChat:
    try:
        return validate(SavedChat, read_json(path), str(path))
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise _unusable(path, "read", error) from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise _unusable(path, "opened", error) from None


def _refuse_other(path: Path) -> None:
    try:
        _read(path)
    except UsageError:
        raise UsageError(f"{path} is there and no saved chat", "choose another name") from None


def _unusable(path: Path, what: str, error: Exception) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UsageError(f"{str(path)!r} cannot be {what}: {reason}", "choose another path")


def _saved_settings(settings: ChatSettings) -> SavedSettings:
    triple = settings.lookahead
    bare = list(triple.as_tuple()) if isinstance(triple, LookaheadConfig) else triple
    flat: dict[str, Any] = {name: getattr(settings, name) for name in _TOGGLES}
    for part in (settings.sampling, settings.drafter):
        own = (field.name for field in fields(part))
        flat |= {name: getattr(part, name) for name in own if name in SavedSettings.model_fields}
    flat |= {"stop": list(flat["stop"]), "drafter": list(flat["drafter"]), "lookahead": bare}
    return SavedSettings(**flat)


def _settings(saved: SavedSettings, now: ChatSettings) -> ChatSettings:
    flat: dict[str, Any] = {name: getattr(saved, name) for name in SavedSettings.model_fields}
    flat |= {"stop": tuple(saved.stop), "drafter": tuple(saved.drafter)}
    triple = saved.lookahead
    return replace(
        now,
        sampling=replace(now.sampling, **_own(now.sampling, flat)),
        drafter=replace(now.drafter, **_own(now.drafter, flat)),
        lookahead=LookaheadConfig.parse(triple) if isinstance(triple, list) else triple,
        **{name: flat[name] for name in _TOGGLES},
    )


def _own(part: Any, flat: dict[str, Any]) -> dict[str, Any]:
    return {field.name: flat[field.name] for field in fields(part) if field.name in flat}


def _turn(saved: SavedTurn) -> Turn:
    return Turn(saved.message, saved.answer, tuple(saved.answer_ids), saved.finish_reason)
