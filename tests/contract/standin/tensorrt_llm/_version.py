"""The release that this stand-in plays, from TENSORRT_LLM_STANDIN_VERSION, and what it is bound to.

Everything that differs between releases asks `at_least` here.
"""

from __future__ import annotations

import os

VERSIONS = ("0.20.0", "0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.3.0rc21")

__version__ = os.environ.get("TENSORRT_LLM_STANDIN_VERSION") or "1.2.1"
if __version__ not in VERSIONS:
    raise ImportError(
        f"TENSORRT_LLM_STANDIN_VERSION is {__version__!r}, known are {', '.join(VERSIONS)}"
    )


def at_least(major: int, minor: int) -> bool:
    """True when the release played is `major.minor` or later, its pre-releases included."""
    return tuple(int(part) for part in __version__.split(".")[:2]) >= (major, minor)


HAS_BACKEND = not at_least(1, 3)
"""False for the release after the removal of the TensorRT backend."""
