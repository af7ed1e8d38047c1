"""The JSON document of tune: rows as bench has them, and a recommendation."""

from __future__ import annotations

from trtla.results.documents import Figure, Part, Triple
from trtla.results.rows import Document


class Recommendation(Part):
    """The best fixed triple, and `auto` for comparison."""

    lookahead: Triple
    batch_size: int
    predicted_speedup: Figure = None
    measured_speedup: Figure = None
    """None: no triple was measured."""
    auto_speedup: Figure = None
    """The measured speed-up of `auto`, the default; None: it was not measured."""
    keep_auto: bool = False
    """True: no triple was measured ahead of `auto`, which is recommended."""


class Tune(Document):
    """`trtla tune --json`: measured rows have `speedup_vs_ar`, triples `predicted_speedup`."""

    command: str | None = None
    recommendation: Recommendation
    time_s: Figure = None
