"""Batch jobs: a file of requests in, a folder of answers out, resumable after any interruption."""

from __future__ import annotations

COMMANDS = {
    "batch": ("command:batch", "A file of OpenAI's requests -> a folder of answers, resumable."),
}
"""Module and function of each command, below this package, and its sentence in the help."""
