"""Descriptions of this machine and of a model, as one table or one JSON document."""

from __future__ import annotations

COMMANDS = {
    "inspect": (
        "command:inspect_path",
        "What a model, checkpoint, engine folder or trained head is.",
    ),
    "doctor": ("command:doctor", "What this machine can run, and with which backend."),
}
"""Module and function of each command, below this package, and its sentence in the help."""
