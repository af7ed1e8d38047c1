"""What a result was measured with: the machine, versions of packages, the commit, the command."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from trtla.machine import look
from trtla.version import __version__


def environment(command: str) -> dict[str, Any]:
    """The machine, the versions, the commit and the command, to stand beside every number."""
    machine = look()
    return {
        "command": command,
        "trtla": __version__,
        "commit": _commit(),
        "cpu": machine.cpu.model,
        "cores": machine.cpu.cores,
        "instruction_sets": list(machine.cpu.instruction_sets),
        "memory_bytes": machine.cpu.memory_bytes,
        "gpus": [gpu.name for gpu in machine.gpus] if machine.usable else [],
        "driver": machine.driver.version,
        "platform": machine.platform,
        "python": machine.python,
        "torch": machine.torch.version,
        "transformers": machine.transformers,
        "llama_cpp_python": _version("llama-cpp-python"),
    }


def _version(package: str) -> str | None:
    """Of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that trtla lies in, with `-dirty` where files differ from it."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
