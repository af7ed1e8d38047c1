"""Notes about trained heads that are nearly never right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trtla.runtime.stats import HeadTotals

_ENOUGH = 16  # drafts; a useless head retires after some 24 and drafts rarely from then on
_SETTLED = 1024  # drafts after which a head is not watched any longer
_HITS = 0.05  # the share of drafts below which a head is doubted; one that fits has 0.4 and more


class HeadDoubts:
    """Tells of each head of an open model at most once."""

    def __init__(self) -> None:
        self._settled: set[str] = set()

    def new(self, heads: Mapping[str, HeadTotals]) -> list[str]:
        """Return a sentence for each head that is found to be nearly never right."""
        found = []
        for path, totals in heads.items():
            if path in self._settled or totals.drafts < _ENOUGH:
                continue
            share = totals.hits / totals.drafts
            if share < _HITS:
                about = f"the head {path} is right {100 * share:.0f} % of the time"
                found.append(f"{about}: it may be another model's")
            if share < _HITS or totals.drafts >= _SETTLED:
                self._settled.add(path)
        return found

    def watches(self, heads: Iterable[str]) -> bool:
        """Return True if more drafts of these heads may bring a sentence."""
        return not self._settled.issuperset(heads)
