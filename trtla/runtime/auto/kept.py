"""What steps have shown of their costs, kept from one process to the next in the user's cache.

It is where the next one begins: its own steps go on correcting it, up and down.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

from trtla.files import parse_json, user_cache, write_whole
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.device import Device
from trtla.runtime.models.cpu.levels import chosen_level
from trtla.runtime.threads import num_threads
from trtla.version import __version__

FORMAT_VERSION = 3


class KeptCosts:
    """The file of a model's shape, arithmetic, device, threads and library.

    Args:
        shape: in JSON; all engines of a shape share a file, since values do not matter.
    """

    def __init__(self, shape: dict[str, Any], arithmetic: str, device: Device) -> None:
        facts = [shape, arithmetic, device.type, _name(device), num_threads(), __version__]
        text = json.dumps(facts, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = user_cache() / f"trtla-cost-{self.key}.json"

    def load(self) -> dict[str, Any]:
        """Nothing where there is none, or a file is broken or foreign."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = parse_json(self.path.read_text(encoding="utf-8"))
            if found["format_version"] == FORMAT_VERSION and found["key"] == self.key:
                return dict(found["sequences"])
        return {}

    def save(self, costs: StepCosts) -> None:
        """Keep what is learnt, whole or not at all, where that is possible."""
        learnt = costs.learnt()
        if learnt:
            head = {"format_version": FORMAT_VERSION, "key": self.key}
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path, json.dumps(head | {"sequences": learnt}, indent=1))


def _name(device: Device) -> str:
    if device.type != "cuda":
        return chosen_level().name
    import torch

    return torch.cuda.get_device_name(str(device))
