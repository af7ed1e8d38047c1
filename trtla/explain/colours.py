"""What each part of a step is drawn in: the charts' palette, and tints of it for grounds."""

from __future__ import annotations

from trtla.charts.theme import BASE, COLOURS, INK
from trtla.explain.mask import Part

WINDOW, CANDIDATE, ACCEPTED, REJECTED = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[5]
CACHED, FAINT = BASE, "#6b727b"
PARTS: dict[Part, str] = {
    "input": INK,
    "filler": COLOURS[4],
    "window": WINDOW,
    "candidate": CANDIDATE,
}


def tint(colour: str, share: float) -> str:
    """A colour mixed with white; 1 is the colour itself."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * share):02x}" for part in parts)


def level_tint(level: int, levels: int) -> str:
    """A window level's ground: the newer, the darker."""
    return tint(WINDOW, 0.14 + 0.3 * (level + 1) / max(1, levels))
