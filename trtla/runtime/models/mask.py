"""The mask of a candidate tree: the nodes that each node sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray


def seen_nodes(parents: Sequence[int]) -> ndarray:
    """1 where a node sees itself or an ancestor, 0 elsewhere; uint8 [nodes, nodes].

    For a step of a new shape, this must cost far less than its forward.
    """
    seen, count = [1], len(parents) + 1
    for node, parent in enumerate(parents, 1):
        seen.append(seen[parent] | 1 << node)
    size = count // 8 + 1
    packed = b"".join(row.to_bytes(size, "little") for row in seen)
    data = np.frombuffer(packed, np.uint8).reshape(count, -1)
    return np.unpackbits(data, axis=1, count=count, bitorder="little")
