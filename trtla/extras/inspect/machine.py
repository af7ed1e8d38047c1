"""The description of this machine: versions, processor, memory, GPUs, and what computes here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from trtla.build.engine import choose_backend
from trtla.console import counted
from trtla.errors import TrtlaError, install_hint, sentence
from trtla.formats.config import CheckpointConfig
from trtla.machine import Machine, look
from trtla.runtime.device import resolve_device
from trtla.runtime.models.cpu.native_code import FORWARD, TREES
from trtla.trtllm.library import installed_version, known_trouble, require_backend
from trtla.trtllm.rules import show
from trtla.version import __version__

_LLAMA_3_8B = {
    "architecture": "LlamaForCausalLM",
    "dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


def describe_machine() -> dict[str, Any]:
    """Describe this machine in JSON types; TensorRT-LLM is imported if it is installed.

    Nothing here fails: a part that cannot be examined is described by a sentence.
    """
    machine = look()
    facts = asdict(machine)
    facts["gpus_usable"] = facts.pop("usable")
    for gpu in facts["gpus"]:
        gpu["capability"] = gpu["capability"] and show(gpu["capability"])
    chosen = _answer(choose_backend)
    backend, reason = (None, chosen) if isinstance(chosen, str) else chosen
    return {
        "trtla": __version__,
        **facts,
        "tensorrt_llm": _library(),
        "backend": {"auto": backend, "reason": reason},
        "device": _answer(lambda: str(resolve_device("auto"))),
        "cpu_forward": FORWARD.state(),
        "candidate_trees": TREES.state(),
        "cuda_forward": _answer(_cuda_forward) if machine.usable else None,
        "notes": list(_notes(machine)),
    }


def _answer(ask: Callable[[], Any]) -> Any:
    """Return an answer, or the reason for its lack: PyTorch and drivers fail in many ways."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trtla.machine has recorded them
            return ask()
    except TrtlaError as error:
        return error.message
    except Exception as error:
        return sentence(error)


def _library() -> dict[str, Any]:
    problem = None
    try:
        require_backend()
    except TrtlaError as error:
        problem = f"{error.message}; {error.hint}"
    return {"version": installed_version(), "has_backend": problem is None, "problem": problem}


def _cuda_forward() -> str:
    """Name the implementation of a common model shape on the first GPU."""
    import torch

    from trtla.runtime.models.cuda_check import choose_path

    config = CheckpointConfig.model_validate(_LLAMA_3_8B)
    return str(choose_path(config, torch.bfloat16, torch.device("cuda")))


def _notes(machine: Machine) -> Iterator[str]:
    torch = machine.torch
    if torch.problem:
        yield f"PyTorch: {torch.problem}"
    elif machine.gpus and not machine.usable:
        listed = f"nvidia-smi lists {counted(len(machine.gpus), 'GPU')}, but PyTorch"
        if torch.version is None:
            yield f"{listed} is not installed: {install_hint('torch')}"
        else:
            built = f"for CUDA {torch.cuda}" if torch.cuda else "without CUDA"
            yield (
                f"{listed} {torch.version}, built {built}, sees none: install its build for the "
                "CUDA of your driver"
            )
    if trouble := known_trouble(installed_version()):
        yield trouble
