"""What was typed in earlier chats, kept in the user's cache.

Where that is not writable it lasts as long as the chat.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from trtla.files import user_cache

NAME = "chat_history"


class _CarefulHistory(FileHistory):
    """A file that may become unwritable while the chat goes on."""

    def store_string(self, string: str) -> None:
        """Write one entry, or let it be."""
        with contextlib.suppress(OSError):
            super().store_string(string)


def open_history(folder: Path | None = None) -> History:
    """The history of all chats, its file readable for its owner only."""
    path = (folder or user_cache()) / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("a+", encoding="utf-8") as file:
            file.read(1)
    except OSError:
        return InMemoryHistory()
    return _CarefulHistory(str(path))
