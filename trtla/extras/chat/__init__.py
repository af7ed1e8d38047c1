"""Conversations for `trtla chat`: settings, commands, and their terminal and piped forms."""

from __future__ import annotations

COMMANDS = {
    "chat": ("command:chat", "A conversation at the terminal, or from a script."),
}
"""Module and function of each command, below this package, and its sentence in the help."""
