"""One step of a real run, printed and drawn: its draft, the target's draws, and why it ended."""

from __future__ import annotations

COMMANDS = {
    "explain": ("command:explain", "One decoding step, described and drawn."),
}
"""Module and function of each command, below this package, and its sentence in the help."""
