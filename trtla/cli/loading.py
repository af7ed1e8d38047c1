"""Loading what stays for the rest of the process: imports and weights.

Knows Python's garbage collector, nothing of what is loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Keep the garbage collector from what is loaded inside, now and at exit.

    `import torch` makes some 200 000 objects that stay. Looking through them for garbage, while
    they come and once more when Python ends, takes longer than all that trtla does at its start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
