"""Compares the tensors a file holds with those a config asks for, and names every difference."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch

from trtla.build.safetensors_file import Entry
from trtla.errors import UsageError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_FP8 = (torch.float8_e4m3fn, torch.int8)  # TensorRT-LLM re-views int8 tensors as FP8


def tensor_problems(
    where: str,
    found: Mapping[str, Entry],
    expected: Mapping[str, tuple[int, ...]],
    hint: str,
    fp8: Container[str] = (),
) -> list[UsageError]:
    """One error for every missing, unexpected or misshapen tensor, or one of an unknown dtype.

    Args:
        where: the file or folder, for the messages.
        found: what is there.
        expected: name and shape of what config.json asks for.
        hint: what to do about it.
        fp8: names of the tensors that are FP8; all others are float16, bfloat16 or float32.
    """
    problems = [f"{where} lacks tensor {name}" for name in expected if name not in found]
    problems += [
        f"{where} holds tensor {name}, which config.json has no place for"
        for name in found
        if name not in expected
    ]
    for name, shape in expected.items():
        entry = found.get(name)
        if entry is not None and entry.shape != shape:
            problems.append(
                f"{where}: tensor {name} has shape {list(entry.shape)}, "
                f"config.json asks for {list(shape)}"
            )
        if entry is not None and entry.dtype not in (_FP8 if name in fp8 else _FLOATS):
            dtype = str(entry.dtype).removeprefix("torch.")
            wanted = "FP8" if name in fp8 else "float16, bfloat16 and float32"
            problems.append(f"{where}: tensor {name} is {dtype}, trtla reads {wanted}")
    return [UsageError(problem, hint) for problem in problems]


def raise_first(problems: Sequence[UsageError]) -> None:
    """Raise the first problem, if any, and tell how many more there are.

    Raises:
        UsageError: there is a problem.
    """
    if not problems:
        return
    first, more = problems[0], len(problems) - 1
    counted = f" (and {more} more of the kind)" if more else ""
    raise UsageError(first.message + counted, first.hint)
