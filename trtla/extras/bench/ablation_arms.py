"""An ablation's arms by name, their settings, and the tasks that they decode.

The defaults are the four arms that speculative-decoding demos compare (plain, a fixed gamma, EGAG,
n-grams), and also prompt lookup, lookahead, lookahead auto and a chain. Further arms are auto
without one of its sources, and auto with a fixed number of nodes in every step.
"""

from __future__ import annotations

from dataclasses import replace

from trtla.extras.bench.ways import Way
from trtla.files import ASSETS
from trtla.measuring.arms import AR
from trtla.settings.lookahead import LookaheadConfig

METHODS = (
    AR, "sd", "egag", "nasd", "prompt-lookup", "lookahead", "lookahead-auto", "chain"
)  # fmt: skip
"""The arms, in the order in which they run."""
WITHOUT, NODES = "auto-without-", "auto-nodes"
_LEFT_OUT = ("context", "requests", "recycling", "window")
SOURCE_METHODS = ("lookahead-auto", *(f"{WITHOUT}{name}" for name in _LEFT_OUT), NODES)
"""Arms that show the worth of the candidate tree: whole, without each source, and by size."""
KNOWN_METHODS = tuple(dict.fromkeys((*METHODS, *SOURCE_METHODS)))

TASKS = ("dialogue", "translation", "continuation", "code")
TASK_FILES = {task: str(ASSETS / "ablation" / f"{task}.jsonl") for task in TASKS}
"""The sets that come with trtla."""
OWN_PROMPT = "prompt"
"""The task of a text from --input-text."""


def resolved(way: Way, largest: LookaheadConfig) -> Way:
    """Return an ablation's arm with its setting; lookahead alone is named by its triple."""
    triple = largest if way.largest or way.lookahead is None else way.lookahead
    name = f"{way.name} {triple}" if way.name == "lookahead" else way.name
    way = replace(way, name=name, lookahead=triple, largest=False)
    return replace(way, setting=_setting(way))


def _setting(way: Way) -> str | None:
    """Describe the setting of an arm in short."""
    drafter, parts = way.drafter, list[str]()
    if drafter.egag:
        parts += [f"gamma {drafter.gamma_min} to {drafter.gamma_max}", f"EMA {drafter.ema:g}"]
    elif drafter.most_tokens:
        parts.append(f"gamma {drafter.gamma}")
    elif way.options is not None and way.options.nodes is not None:
        parts.append(f"nodes {way.options.nodes}")
    if "ngram" in drafter.drafter:
        parts += [f"{drafter.ngram_kind} {drafter.ngram_order}", f"filler {drafter.top_k_filler}"]
    if drafter.draft_model is not None and drafter.uses_lookahead:
        parts.append(str(way.lookahead))
    return ", ".join(parts) or None
