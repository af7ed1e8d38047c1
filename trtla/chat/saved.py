"""/save and /load: a conversation and its settings as one JSON file.

Only what belongs to the conversation is in it: the model is named, not kept.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Strict, create_model

from trtla.chat.conversation import Turn
from trtla.chat.settings import PARTS, ChatSettings, changed, read
from trtla.errors import UsageError
from trtla.files import read_json, validate, write_whole
from trtla.runtime.request import FinishReason
from trtla.settings.fields import declared
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import BEYOND


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SavedTurn(_Strict):
    """A `Turn`."""

    message: str
    answer: str
    answer_ids: Annotated[tuple[int, ...], Strict(False)]
    finish_reason: FinishReason


class SavedChat(_Strict):
    """The whole file."""

    schema_version: Literal[1]
    model: str
    vocab_size: int
    settings: dict[str, Any]
    """`SavedSettings`."""
    turns: list[SavedTurn]
    system: str = ""
    """Omitted where there is none, as in files of releases that had none."""


def _keys() -> dict[str, tuple[str, Any]]:
    """Key in the file -> path of the setting, and its field; keys are names as in prompt files."""
    keys: dict[str, tuple[str, Any]] = {}
    for part, kind in PARTS.items():
        for one in declared(kind).values():
            hint = one.json_type | None if one.optional else one.json_type
            # A file may lack settings that there were not when it was written.
            default = None if part == "drafter" or one.name in BEYOND else ...
            keys[one.name] = (f"{part}.{one.name}", (hint, default))
    del keys["allotted_time_ms"]
    own = get_type_hints(ChatSettings) | {"lookahead": Literal["auto"] | list[int] | None}
    del own["system"], own["colors"]  # the latter is this terminal's
    return keys | {key: (key, (hint, ...)) for key, hint in own.items() if key not in PARTS}


_KEYS = _keys()
_FIELDS: dict[str, Any] = {key: field for key, (_, field) in _KEYS.items()}
SavedSettings = create_model("SavedSettings", __base__=_Strict, **_FIELDS)
"""`ChatSettings`, flat, but for the system message."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What a file holds."""

    model: str
    vocab_size: int
    settings: ChatSettings
    turns: tuple[Turn, ...]


def save(path: Path, chat: Chat) -> None:
    """Write a file whole; another chat's may be replaced, other files are not."""
    saved = SavedChat(
        schema_version=1,
        model=chat.model,
        vocab_size=chat.vocab_size,
        settings=_settings(chat.settings),
        turns=[SavedTurn(**asdict(turn)) for turn in chat.turns],
        system=chat.settings.system,
    )
    try:
        if path.exists():
            _refuse_other(path)
        write_whole(path, saved.model_dump_json(indent=2, exclude_defaults=True) + "\n")
    except (OSError, ValueError) as error:
        raise _unusable(path, "written", error) from None


def load(path: Path, now: ChatSettings) -> Chat:
    """A saved chat; `now` gives what is not saved."""
    saved = _read(path)
    values = {_KEYS[key][0]: value for key, value in saved.settings.items()}
    values["system"] = saved.system
    if isinstance(values["lookahead"], list):
        values["lookahead"] = LookaheadConfig.parse(values["lookahead"])
    turns = tuple(Turn(**dict(turn)) for turn in saved.turns)
    return Chat(saved.model, saved.vocab_size, changed(now, values), turns)


def _settings(chosen: ChatSettings) -> dict[str, Any]:
    """All that chats have had from the first, and of what came later what asks for something."""
    kept = set(_KEYS) - set(BEYOND) | set(chosen.sampling.beyond)
    return {key: _to_json(read(chosen, path)) for key, (path, _) in _KEYS.items() if key in kept}


def _to_json(value: Any) -> Any:
    return value.as_tuple() if isinstance(value, LookaheadConfig) else value


def _read(path: Path) -> SavedChat:
    try:
        chat = validate(SavedChat, read_json(path), str(path))
        validate(SavedSettings, chat.settings, f"{path}, settings")
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise _unusable(path, "read", error) from None
    return chat


def _refuse_other(path: Path) -> None:
    try:
        _read(path)
    except UsageError:
        raise UsageError(f"{path} is there and no saved chat", "choose another name") from None


def _unusable(path: Path, what: str, error: Exception) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UsageError(f"{str(path)!r} cannot be {what}: {reason}", "choose another path")
