"""JSON from outside as Python values; what no reader should be given is refused in one phrase.

Files go through `trtla.config.read_json`, lines through `trtla.prompts.parse_jsonl`.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

_MAX_DEPTH = 100  # far above any real file; what walks the values later must not run out of stack
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    """What is wrong with a JSON text, in one phrase, and the line where that is known."""

    def __init__(self, phrase: str, line: int | None = None) -> None:
        super().__init__(phrase)
        self.line = line


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; of keys that are there twice the last one counts.

    Raises:
        JsonError: it is not JSON, or holds NaN or Infinity, a number of thousands of digits, or
            more than 100 levels.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except JsonError:
        raise
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.lineno) from None
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise JsonError(f"it has more than {_MAX_DEPTH} levels") from None
    except ValueError:  # Python refuses to convert integers of more than 4300 digits
        raise JsonError("it holds a number with thousands of digits") from None
    _check_depth(value)
    return value


def parse_texts(text: str) -> Any:
    """Parse JSON whose strings are to be read by a tokenizer, not names of files, which may be
    anything.

    Raises:
        JsonError: as `parse_json`, or a string holds half of a surrogate pair.
    """
    value = parse_json(text)
    if _HALF_PAIR.search(text):
        _check_pairs(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"it holds {name}, which is not a number")


def _check_depth(value: Any) -> None:
    """Level by level: the values may be nested more deeply than Python's stack is."""
    level: list[Any] = [[value]]
    for _ in range(_MAX_DEPTH + 1):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for values in inside for one in values if isinstance(one, (dict, list))]
        if not level:
            return
    raise JsonError(f"it has more than {_MAX_DEPTH} levels")


def _check_pairs(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start]).strip("'")
        raise JsonError(f"it holds {half}, half of a surrogate pair") from None
