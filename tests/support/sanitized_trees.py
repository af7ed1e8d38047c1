"""Candidate trees of a library that was built with sanitizers, in a process of its own.

Run as `python -m tests.support.sanitized_trees LIBRARY`; a finding ends the process with an error.
Which nodes are taken is tested elsewhere: here the trees must only stay inside their arrays.
"""

from __future__ import annotations

import sys
from ctypes import CDLL

from tests.support.tree_sessions import Session, Theme
from tests.support.trees import GREEDY, learn, plan
from trtla.runtime.tree import calls
from trtla.runtime.tree import library as native
from trtla.settings.drafting import SOURCES


def sessions() -> None:
    """Random requests, with few and with many tokens of other requests' texts."""
    for seed, most_tokens in enumerate([40, 10_000] * 2):
        session = Session(seed, Theme(SOURCES, most_tokens=most_tokens))
        for _ in range(25):
            session.step()
        assert any(draft.tokens for draft in session.calls.drafts)


def long_texts() -> None:
    """A window that forgets between a plan and its commit, and tables that fill up."""
    shared = native.SharedTrees(10_000)
    tree = shared.tree([5, 1, 2], GREEDY, SOURCES, True)
    tree.add_text("window", [1, 2, 3, 4])
    for text in ([9] * 33_000, [3, 4]):
        plan(tree, depth=2)
        tree.add_text("window", text)
        tree.commit([3, 4, 1], 2)
        tree.commit([2])
    learn(shared, {(token, 9_999): {token: 1.0} for token in range(10_000)})
    plan(tree, 512)


def main() -> None:
    """Go through sessions and limits."""
    library = calls.declared(CDLL(sys.argv[1]))
    native.tree_library = lambda: library  # type: ignore[assignment]
    sessions()
    long_texts()
    print("clean")


if __name__ == "__main__":
    main()
