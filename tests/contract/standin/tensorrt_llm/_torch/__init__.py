"""The PyTorch backend: of it, what drafters meet. Releases from 1.0 on have user-provided ones."""

from .._version import __version__, at_least

if not at_least(1, 0):
    raise ImportError(f"the stand-in for {__version__} has no PyTorch backend")
