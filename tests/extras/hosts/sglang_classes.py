"""What test_sglang_classes.py runs in SGLang's environment; it prints one JSON object."""

from __future__ import annotations

import inspect
import json
import logging
import sys
import types
from random import Random
from typing import Any

import numpy as np
from sglang.srt.plugins import load_plugins
from sglang.srt.speculative.cpp_ngram import ngram_corpus

from trtla.extras.hosts.sglang import TreeCorpus
from trtla.runtime.draft import Draft

NODES = 12
SETTINGS = {
    "min_bfs_breadth": 1, "max_bfs_breadth": 10, "match_type": "BFS", "capacity": 1_000_000,
    "draft_token_num": NODES, "external_sam_budget": 0, "external_corpus_max_tokens": 10_000_000,
}  # fmt: skip
"""Those that NGRAMWorker passes, at SGLang's defaults."""


def phrases(seed: int, length: int) -> list[int]:
    dice = Random(seed)
    parts = [[dice.randrange(100) for _ in range(8)] for _ in range(6)]
    text: list[int] = []
    while len(text) < length:
        text += dice.choice(parts)[: dice.randrange(4, 9)]
    return text[:length]


def parents(mask: Any) -> list[int]:
    return [int(np.flatnonzero(row[:node])[-1]) for node, row in enumerate(mask) if node]


def accepted(tokens: Any, above: list[int], rest: list[int]) -> int:
    node = count = 0
    while count < len(rest) - 1:
        below = [one for one, parent in enumerate(above, 1) if parent == node]
        node = next((one for one in below if tokens[one] == rest[count]), 0)
        if not node:
            break
        count += 1
    return count


def decode(corpus: Any, name: str, text: list[int], prompt: int, depth: int) -> int:
    """The calls of NGRAMWorker for a batch of one row, without overlap; returns its steps."""
    size, steps = prompt, 0
    while size < len(text):
        tail = text[:size][-depth:]
        corpus.synchronize()
        tokens, mask = corpus.batch_get([name], [tail], [size])
        above = parents(mask.reshape(NODES, NODES))
        size, steps = size + 1 + accepted(tokens, above, text[size:]), steps + 1
        corpus.batch_put([tail])
    corpus.erase_match_state([name])
    return steps


def same_arrays(own: Any, ours: Any) -> int:
    """Count SGLang's trees that trtla writes as the same arrays."""
    same = 0
    for seed in range(20):
        own.batch_put([phrases(seed, 18) for _ in range(4)])
    own.synchronize()
    for seed in range(60):
        tail = phrases(seed % 20, 18)[: 1 + seed % 7]
        tokens, mask = own.batch_get([f"same{seed}"], [tail], [len(tail)])
        drawn = int(np.flatnonzero(tokens[1:])[-1]) + 1 if tokens[1:].any() else 0
        above = parents(mask.reshape(NODES, NODES))[:drawn]
        draft = Draft(tuple(tokens[1 : drawn + 1].tolist()), tuple(above))
        again = ours._arrays([int(tokens[0])], [draft])
        same += all(
            one.dtype == two.dtype and np.array_equal(one, two)
            for one, two in zip(again, (tokens, mask), strict=True)
        )
    return same


def main() -> None:
    own_class = ngram_corpus.NgramCorpus
    early = types.ModuleType("imports_it_early")
    early.NgramCorpus = own_class  # type: ignore[attr-defined]
    sys.modules["imports_it_early"] = early
    load_plugins()
    found = ngram_corpus.NgramCorpus
    classes = [one.__name__ for one in (found, own_class)] if found is not own_class else []
    if not classes:
        print(json.dumps({"classes": [own_class.__name__]}))
        return
    ours, own = found(max_trie_depth=4096, **SETTINGS), own_class(max_trie_depth=18, **SETTINGS)
    texts = [phrases(seed, 400) for seed in range(6)]
    errors: list[logging.LogRecord] = []
    watch = logging.Handler(logging.ERROR)
    watch.emit = errors.append  # type: ignore[method-assign]
    logging.getLogger("sglang.trtla").addHandler(watch)
    answer = {
        "classes": classes,
        "module_that_had_imported_it": early.NgramCorpus.__name__,
        "same_signatures": all(
            list(inspect.signature(getattr(TreeCorpus, name)).parameters)
            == list(inspect.signature(getattr(own_class, name)).parameters)
            for name in ("batch_get", "batch_put", "erase_match_state", "reset")
        ),
        "plain": 300 * len(texts),
        "own": sum(decode(own, f"{row}", text, 100, 18) for row, text in enumerate(texts)),
        "ours": sum(decode(ours, f"{row}", text, 100, 4096) for row, text in enumerate(texts)),
        "kept_rows": len(ours._texts),
    }
    ours._chains.trees = None  # a fault
    answer["after_a_fault"] = decode(ours, "last", texts[0], 100, 18)
    answer["plain_after_it"] = 300
    answer["errors"] = len(errors)
    answer["same_arrays"] = same_arrays(own, ours)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
