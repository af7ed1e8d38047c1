"""Candidate trees as tests drive them: rows, one tree's draft, the path of a text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from trtla.runtime.costs import NodePrices
from trtla.runtime.draft import Draft, TopRows
from trtla.runtime.tree.library import READ, Planner, SharedTrees, Tree
from trtla.settings.sampling import SamplingParams

GREEDY = SamplingParams()


def phrases(seed: int, size: int = 60, words: int = 6) -> list[int]:
    """A text of tokens below 49 that says a few phrases again and again."""
    dice = Random(seed)
    known = [[dice.randrange(49) for _ in range(5)] for _ in range(words)]
    text = [token for _ in range(size) for token in dice.choice(known)]
    return text[:size]


def top_rows(
    rows: Sequence[Mapping[int, float]], nodes: Sequence[int] = (), last: int = -1
) -> TopRows:
    """Rows of probabilities by token, padded with -1."""
    ids = np.full((len(rows), READ), -1, np.int32)
    logs = np.full((len(rows), READ), -math.inf, np.float32)
    for place, row in enumerate(rows):
        best = sorted(row.items(), key=lambda one: -one[1])[:READ]
        for rank, (token, chance) in enumerate(best):
            ids[place, rank] = token
            logs[place, rank] = math.log(chance) if chance else -math.inf
    return TopRows(tuple(nodes) or tuple(range(len(rows))), ids, logs, last)


def learn(shared: SharedTrees, rows: Mapping[tuple[int, int], Mapping[int, float]]) -> None:
    """Teach rows by (token before, token)."""
    pairs = [token for pair in rows for token in pair]
    shared.learn(pairs, top_rows(list(rows.values())))


def plan(tree: Tree, nodes: int = 64, depth: int = 32, **price: Any) -> Draft:
    """The draft of one tree."""
    return Planner().plan([tree], [nodes], [depth], nodes, NodePrices(**price))[0]


def accepted_path(draft: Draft, text: Sequence[int]) -> list[int]:
    """Nodes of a draft that a text goes along."""
    path = [0]
    below = {(p, t): n for n, (p, t) in enumerate(zip(draft.parents, draft.tokens, strict=True), 1)}
    for token in text:
        if (path[-1], token) not in below:
            break
        path.append(below[path[-1], token])
    return path[1:]
