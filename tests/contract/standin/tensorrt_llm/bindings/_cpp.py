"""How C++ speaks: assertion texts with file and stack, and its logger.

TensorRT-LLM assert.h, tllmException.cpp and logger.h. Line numbers and addresses are invented. The
C++ logger writes to file descriptor 1 while its level is below WARNING (errors too), else to 2.
"""

from __future__ import annotations

import os

_LEVELS = {"TRACE": 0, "DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}
_LEVEL = _LEVELS.get(os.environ.get("TLLM_LOG_LEVEL", "INFO").upper(), 20)
_DESCRIPTOR = 1 if _LEVELS["WARNING"] > _LEVEL else 2


def check(condition: bool, text: str, file: str) -> None:
    """TLLM_CHECK_WITH_INFO.

    Raises:
        RuntimeError: the condition does not hold.
    """
    if not condition:
        raise throw(f"[TensorRT-LLM][ERROR] Assertion failed: {text}", file)


def throw(text: str, file: str) -> RuntimeError:
    path = f"/src/tensorrt_llm/cpp/tensorrt_llm/{file}:100"
    frames = "\n".join(
        f"{number}       0x7f0000000{number}00 {name}"
        for number, name in enumerate(("tensorrt_llm::common::throwRuntimeError", "_start"), 1)
    )
    return RuntimeError(f"{text} ({path})\n{frames}")


def log(level: str, text: str) -> None:
    """Write a line where C++ would, past Python's `sys.stdout`."""
    if _LEVELS[level] < _LEVEL:
        return
    line = f"[TensorRT-LLM][{level}] {text}\n"
    os.write(_DESCRIPTOR, line.encode())
