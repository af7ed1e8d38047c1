"""One model in several processes: replicas on Ray, behind the same server and batch commands."""

from __future__ import annotations

EXTENSIONS = {"serve": "command:Replicas", "batch": "command:Replicas"}
"""The extension of each command: module and class, below this package."""
