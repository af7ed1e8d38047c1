"""All settings of a chat in one frozen value, and /save and /load: a conversation as a JSON file.

A setting is named by its path, `chat` or `sampling.seed`: commands and saved files use these. A
file holds the conversation only: the model is named, not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Strict, create_model

from trtla.errors import UsageError
from trtla.extras.chat.conversation import Turn
from trtla.files import read_json, validate, write_whole
from trtla.runtime.request import FinishReason
from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER, DrafterSettings
from trtla.settings.fields import declared
from trtla.settings.grammar import Grammar
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig
from trtla.settings.sampling import SamplingParams

_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings that slash commands change."""

    sampling: SamplingParams = _SAMPLING
    drafter: DrafterSettings = LOOKAHEAD
    lookahead: Lookahead | None = None
    """None: the default triple."""
    speculative: bool = True
    """False: answer without drafts."""
    target: bool = False
    """Decode each answer once more without drafts, and compare the speed."""
    ngram: bool = False
    """Likewise with n-grams."""
    chat: bool = True
    """Use the chat template, if the model has one."""
    debug: bool = False
    colors: Literal["accepted", "source"] = "accepted"
    """The colouring of accepted tokens."""
    system: str = ""
    """The system message in the chat template; empty: none, or the template's own."""

    @property
    def plain(self) -> ChatSettings:
        return replace(self, drafter=NO_DRAFTER, lookahead=AUTOREGRESSIVE)

    @property
    def by_ngrams(self) -> ChatSettings:
        drafter = replace(self.drafter, drafter=("ngram",), egag=False, rejection=False)
        return replace(self, drafter=drafter)

    @property
    def for_answers(self) -> ChatSettings:
        return self if self.speculative else self.plain


PARTS: dict[str, Any] = {"sampling": SamplingParams, "drafter": DrafterSettings}
"""The classes of settings in `ChatSettings`, by their fields."""


def read(settings: ChatSettings, path: str) -> Any:
    """Return the value of one setting."""
    part, _, name = path.rpartition(".")
    return getattr(getattr(settings, part) if part else settings, name)


def changed(settings: ChatSettings, values: Mapping[str, Any]) -> ChatSettings:
    """Return the settings with other values at some paths, all at once."""
    by_part: dict[str, dict[str, Any]] = {part: {} for part in ("", *PARTS)}
    for path, value in values.items():
        part, _, name = path.rpartition(".")
        by_part[part][name] = value
    top = by_part.pop("")
    inner = {part: replace(getattr(settings, part), **new) for part, new in by_part.items() if new}
    return replace(settings, **inner, **top)


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


def _keys() -> dict[str, tuple[str, Any]]:
    """Return each key of the file with its setting's path and field; keys as in prompt files."""
    keys: dict[str, tuple[str, Any]] = {}
    for part, kind in PARTS.items():
        for name, setting in declared(kind).items():
            hint = setting.json_type | None if setting.optional else setting.json_type
            keys[name] = (f"{part}.{name}", (hint, ...))
    del keys["allotted_time_ms"]
    keys["grammar"] = ("sampling.grammar", (dict[str, Any] | None, ...))
    top = get_type_hints(ChatSettings) | {"lookahead": Literal["auto"] | list[int] | None}
    del top["system"], top["colors"]  # the latter is this terminal's
    return keys | {key: (key, (hint, ...)) for key, hint in top.items() if key not in PARTS}


_KEYS = _keys()
_FIELDS: dict[str, Any] = {key: field for key, (_, field) in _KEYS.items()}
SavedSettings = create_model("SavedSettings", __base__=_Strict, **_FIELDS)
"""`ChatSettings`, flat, without the system message."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The contents of a file."""

    model: str
    vocab_size: int
    settings: ChatSettings
    turns: tuple[Turn, ...]


def save(path: Path, chat: Chat) -> None:
    """Write a whole file; another chat's may be replaced, other files may not."""
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
            _check_own(path)
        write_whole(path, saved.model_dump_json(indent=2, exclude_defaults=True) + "\n")
    except (OSError, ValueError) as error:
        raise _unusable(path, "written", error) from None


def load(path: Path, now: ChatSettings) -> Chat:
    """Read a saved chat; settings that are not saved come from `now`."""
    saved = _read(path)
    values = {_KEYS[key][0]: value for key, value in saved.settings.items()}
    values["system"] = saved.system
    if isinstance(values["lookahead"], list):
        values["lookahead"] = LookaheadConfig.parse(values["lookahead"])
    turns = tuple(Turn(**dict(turn)) for turn in saved.turns)
    return Chat(saved.model, saved.vocab_size, changed(now, values), turns)


def _settings(chosen: ChatSettings) -> dict[str, Any]:
    return {key: _to_json(read(chosen, path)) for key, (path, _) in _KEYS.items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, Grammar):
        return value.value
    return value.as_tuple() if isinstance(value, LookaheadConfig) else value


def _read(path: Path) -> SavedChat:
    try:
        chat = validate(SavedChat, read_json(path), str(path))
        validate(SavedSettings, chat.settings, f"{path}, settings")
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise _unusable(path, "read", error) from None
    return chat


def _check_own(path: Path) -> None:
    try:
        _read(path)
    except UsageError:
        raise UsageError(f"{path} is there and no saved chat", "choose another name") from None


def _unusable(path: Path, action: str, error: Exception) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UsageError(f"{str(path)!r} cannot be {action}: {reason}", "choose another path")
