"""The Python logger: lines on stdout, level from TLLM_LOG_LEVEL; TensorRT-LLM logger.py.

The stream is the `sys.stdout` of the moment of the import, so that a caller who wants a clean
stdout must redirect it around the import, or raise the level.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partialmethod

severity_map = {
    "internal_error": logging.CRITICAL,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "verbose": logging.DEBUG,
    "debug": logging.DEBUG,
}


class Logger:
    """One for the process; the environment's level wins over `set_level`."""

    def __init__(self) -> None:
        given = os.environ.get("TLLM_LOG_LEVEL")
        self._set_from_env = given is not None
        level = severity_map.get((given or "info").lower(), logging.INFO)
        self._logger = logging.Logger("TRT-LLM", level)
        handler = logging.StreamHandler(stream=sys.stdout)
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%m/%d/%Y-%H:%M:%S"))
        self._logger.addHandler(handler)

    def set_level(self, min_severity: str) -> None:
        if not self._set_from_env:
            self._logger.setLevel(severity_map[min_severity])
            return
        text = "Logger level already set from environment. Discard new verbosity"
        self.warning(f"{text}: {min_severity}")

    def _log(self, level: int, letter: str, *message: object) -> None:
        self._logger.log(level, " ".join(["[TRT-LLM]", f"[{letter}]", *map(str, message)]))

    warning = partialmethod(_log, logging.WARNING, "W")
    info = partialmethod(_log, logging.INFO, "I")


logger = Logger()
