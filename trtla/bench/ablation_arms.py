"""An ablation's arms by name, what they are set to, and the tasks that they decode.

The defaults are the four arms that speculative-decoding demos compare (plain, a fixed gamma, EGAG,
n-grams), and beside them prompt lookup, lookahead, lookahead auto and a chain. Further arms are
auto without one of its sources, and with so many nodes in every step.
"""

from __future__ import annotations

from dataclasses import replace

from trtla.bench.arms import AR, Way
from trtla.files import ASSETS
from trtla.settings.lookahead import LookaheadConfig

METHODS = (
    AR, "sd", "egag", "nasd", "prompt-lookup", "lookahead", "lookahead-auto", "chain"
)  # fmt: skip
"""The arms, in the order in which they run."""
WITHOUT, NODES = "auto-without-", "auto-nodes"
_LEFT_OUT = ("context", "requests", "recycling", "window")
SOURCE_METHODS = ("lookahead-auto", *(f"{WITHOUT}{name}" for name in _LEFT_OUT), NODES)
"""What the candidate tree is worth: whole, without each of its sources, and by size."""
KNOWN_METHODS = tuple(dict.fromkeys((*METHODS, *SOURCE_METHODS)))

TASKS = ("dialogue", "translation", "continuation", "code")
TASK_FILES = {task: str(ASSETS / "ablation" / f"{task}.jsonl") for task in TASKS}
"""The sets that come with trtla."""
OWN_PROMPT = "prompt"
"""The task of a text that was given with --input-text."""


def resolved(way: Way, own: LookaheadConfig) -> Way:
    """An ablation's arm with its setting; lookahead alone is named by its triple."""
    triple = own if way.largest or way.lookahead is None else way.lookahead
    name = f"{way.name} {triple}" if way.name == "lookahead" else way.name
    found = replace(way, name=name, lookahead=triple, largest=False)
    return replace(found, setting=_setting(found))


def _setting(way: Way) -> str | None:
    """What an arm is set to, in short."""
    own, parts = way.drafter, list[str]()
    if own.egag:
        parts += [f"gamma {own.gamma_min} to {own.gamma_max}", f"EMA {own.ema:g}"]
    elif own.most_tokens:
        parts.append(f"gamma {own.gamma}")
    elif way.options is not None and way.options.nodes is not None:
        parts.append(f"nodes {way.options.nodes}")
    if "ngram" in own.drafter:
        parts += [f"{own.ngram_kind} {own.ngram_order}", f"filler {own.top_k_filler}"]
    if own.draft_model is not None and own.uses_lookahead:
        parts.append(str(way.lookahead))
    return ", ".join(parts) or None
