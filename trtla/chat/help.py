"""The text of /help, from the table and the settings. Pure."""

from __future__ import annotations

from trtla.chat.commands import TABLE
from trtla.chat.settings import ChatSettings

_REST = (
    "All else is a message; // begins one with a slash. Toggles without a value toggle, other\n"
    "settings tell theirs. /compare takes several settings a side, ; between them and no slashes:\n"
    "/compare lookahead 7,7,7 | drafter ngram; gamma 6"
)


def help_text(now: ChatSettings, start: ChatSettings) -> str:
    """Every command with its present value, and the one at the start where that differs."""
    rows = []
    for command in TABLE:
        value, was = command.shown(now), command.shown(start)
        note = f" (at the start {was})" if value != was else ""
        rows.append((command.usage, value, command.help + note))
    first, second = (max(len(row[i]) for row in rows) for i in range(2))
    lines = [f"{usage:{first}}  {value:{second}}  {text}" for usage, value, text in rows]
    return "\n".join([*lines, "", _REST])
