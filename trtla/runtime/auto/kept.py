"""Learnt costs of steps, kept from one process to the next in the user's cache.

The next process begins with them, and its own steps keep correcting them, up and down.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

from trtla.files import parse_json, user_cache, write_whole
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.device import Device
from trtla.runtime.models.cpu.levels import UnknownLevel, chosen_level
from trtla.runtime.threads import num_threads
from trtla.version import __version__

FORMAT_VERSION = 3


class KeptCosts:
    """The file for a model's shape, arithmetic, device, threads and library.

    Args:
        shape: in JSON; all engines of a shape share a file, since values do not matter.
    """

    def __init__(self, shape: dict[str, Any], arithmetic: str, device: Device) -> None:
        facts = [shape, arithmetic, device.type, _name(device), num_threads(), __version__]
        text = json.dumps(facts, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = user_cache() / f"trtla-cost-{self.key}.json"

    def load(self) -> dict[str, Any]:
        """Read the kept costs; empty if there are none, or the file is broken or foreign."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            document = parse_json(self.path.read_text(encoding="utf-8"))
            if document["format_version"] == FORMAT_VERSION and document["key"] == self.key:
                return dict(document["sequences"])
        return {}

    def save(self, costs: StepCosts) -> None:
        """Write the learnt costs, whole or not at all, if possible."""
        learnt = costs.learnt()
        if learnt:
            head = {"format_version": FORMAT_VERSION, "key": self.key}
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path, json.dumps(head | {"sequences": learnt}, indent=1))


def _name(device: Device) -> str:
    if device.type != "cuda":
        try:
            return chosen_level().name
        except UnknownLevel:  # PyTorch's operations run
            return ""
    import torch

    return torch.cuda.get_device_name(str(device))
