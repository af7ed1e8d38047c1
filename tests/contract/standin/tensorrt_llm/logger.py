"""The Python logger: lines on stdout, level from TLLM_LOG_LEVEL; TensorRT-LLM logger.py.

The stream is the `sys.stdout` of the moment of the import, so that a caller who wants a clean
stdout must redirect it around the import, or raise the level.
"""

from __future__ import annotations

import logging
import os
import sys

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
        self._level = (given or "info").lower()
        if self._level not in severity_map:
            self._level = "info"
        self._logger = logging.Logger("TRT-LLM", severity_map[self._level])
        handler = logging.StreamHandler(stream=sys.stdout)
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%m/%d/%Y-%H:%M:%S"))
        self._logger.addHandler(handler)

    @property
    def level(self) -> str:
        return self._level

    def set_level(self, min_severity: str) -> None:
        if self._set_from_env:
            self.warning(
                f"Logger level already set from environment. Discard new verbosity: {min_severity}"
            )
            return
        self._level = min_severity
        self._logger.setLevel(severity_map[min_severity])

    def error(self, *message: object) -> None:
        self._logger.error(_line("[E]", message))

    def warning(self, *message: object) -> None:
        self._logger.warning(_line("[W]", message))

    def info(self, *message: object) -> None:
        self._logger.info(_line("[I]", message))

    def debug(self, *message: object) -> None:
        self._logger.debug(_line("[V]", message))


def _line(severity: str, message: tuple[object, ...]) -> str:
    return " ".join(["[TRT-LLM]", severity, *map(str, message)])


logger = Logger()


def set_level(min_severity: str) -> None:
    logger.set_level(min_severity)
