"""The version of trtla, apart from the package so that every file may import it."""

from __future__ import annotations

__version__ = "0.1.0"
