"""One model in several processes: replicas on Ray, behind the same server and batch commands."""

from __future__ import annotations

EXTENSIONS = {"serve": "command:Replicas", "batch": "command:Replicas"}
"""What extends the command of a name: module and class, below this package."""
