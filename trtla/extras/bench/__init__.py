"""Arms of our engine and of peers in turns, load on servers, the best triple, a page of results."""

from __future__ import annotations

COMMANDS = {
    "bench": ("command:bench", "Lookahead, plain decoding and peers, measured in rounds."),
    "tune": (
        "tune.command:tune",
        "The best lookahead triple for a model, a machine and a kind of text.",
    ),
    "report": ("report.command:report", "Results of bench, tune and summarize -> one HTML page."),
}
"""Module and function of each command, below this package, and its sentence in the help."""
