"""A conversation as turns: the prompt that they make, and the file that keeps them."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, did_you_mean
from trtla.extras.chat.settings import NAMES, ChatSettings, changed, read
from trtla.files import read_json, write_whole, written
from trtla.settings.fields import shown
from trtla.settings.grammar import Grammar
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.messages import Asking, Messages, check_messages, follow_up

if TYPE_CHECKING:
    from trtla.llm.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer."""

    message: str
    answer: str


def prompt_of(turns: Sequence[Turn], message: str, settings: ChatSettings) -> str | Messages:
    """Return the prompt for the answer to a message: messages, or one text without a template."""
    first, *later = [*(turn.message for turn in turns), message]
    prompt = Asking(settings.chat, settings.system or None).prompt(first)
    for turn, text in zip(turns, later, strict=True):
        prompt = follow_up(prompt, turn.answer, [_user(text)] if settings.chat else text)
    return prompt


def fitted(
    turns: Sequence[Turn], message: str, tokenizer: Tokenizer, settings: ChatSettings, room: int
) -> tuple[tuple[int, ...], int]:
    """Return ids of at most `room` tokens, and the number of oldest turns that do not fit.

    Neither the message nor the system message is ever cut: if they alone are too long, so is the
    result.
    """

    def without(dropped: int) -> tuple[int, ...]:
        return tokenizer.prompt_ids(prompt_of(turns[dropped:], message, settings))

    ids, dropped = without(0), 0
    if len(ids) > room and turns:
        numbers = range(len(turns))
        dropped = bisect_left(numbers, True, lo=1, key=lambda count: len(without(count)) <= room)
        ids = without(dropped)
    return ids, dropped


def save(path: Path, turns: Sequence[Turn], settings: ChatSettings, usual: ChatSettings) -> None:
    """Write messages, and the settings that differ from the usual ones; replace only such files."""
    values = {name: read(settings, name) for name in NAMES if name != "system"}
    different = {name: _plain(v) for name, v in values.items() if v != read(usual, name)}
    messages = [{"role": "system", "content": settings.system}] if settings.system else []
    for turn in turns:
        messages += [_user(turn.message), {"role": "assistant", "content": turn.answer}]
    data = {"messages": messages, "settings": different}
    with written(path, "choose another path"):
        if path.exists():
            load(path)
        write_whole(path, json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def load(path: Path) -> tuple[list[Turn], ChatSettings]:
    """Read the turns and the settings of a saved chat; raises UsageError for any other file."""
    try:
        data = read_json(path)
    except UsageError as error:
        raise UsageError(error.message, "choose another path") from None
    if not isinstance(data, dict) or not isinstance(data.get("settings"), dict):
        raise UsageError(f"{path} is not a saved chat", "choose another path")
    messages = data.get("messages")
    checked = list(check_messages(messages, str(path))) if messages != [] else []
    has_system = bool(checked) and checked[0]["role"] == "system"
    system = checked.pop(0)["content"] if has_system else ""
    roles, texts = ([message[key] for message in checked] for key in ("role", "content"))
    if roles != ["user", "assistant"] * (len(roles) // 2) or not all(map(_is_text, texts)):
        raise UsageError(f"{path}: the messages are not questions with answers", "correct the file")
    turns = [Turn(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
    values = {**_settings(data["settings"], path), "system": system}
    return turns, changed(ChatSettings(), values)


def _settings(saved: dict[str, Any], path: Path) -> dict[str, Any]:
    for name in saved:
        if name not in NAMES:
            hint = f"{did_you_mean(name, NAMES)}remove it"
            raise UsageError(f"{path} has the unknown setting {shown(name)}", hint)
    lookahead = saved.get("lookahead", "auto")
    parsed = lookahead if lookahead == "auto" else LookaheadConfig.parse(lookahead)
    return {**saved, "lookahead": parsed} if "lookahead" in saved else saved


def _plain(value: Any) -> Any:
    if isinstance(value, Grammar):
        return value.value
    return value.as_tuple() if isinstance(value, LookaheadConfig) else value


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _is_text(content: object) -> bool:
    return isinstance(content, str)
