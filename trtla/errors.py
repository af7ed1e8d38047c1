"""trtla's errors: a sentence that names the value, a hint with the next step, an exit code.

The command line prints these without a traceback; library users catch `TrtlaError`. Errors of other
libraries are shortened to one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

from trtla.other_tools import counterpart, instead, plain

if TYPE_CHECKING:
    from typing_extensions import Self

_NEAR = 0.75
"""Similarity of a likely typing error: `nsad` for `nasd`, not `bogus` for `verbose`."""
_BEGUN = 3
"""Letters at the beginning of a name that stand for it where they are unique: `--temp`."""


_BEGIN, _END = "\0{", "}\0"
"""Around the name of a setting."""
_PLAIN, _AT_START = "=", "+"
"""In front of the name of one that is spelt without dashes, and of one that a start takes."""


def flag_name(name: str) -> str:
    """A setting's flag: `--max-batch-size` for `max_batch_size`."""
    return "--" + name.replace("_", "-")


def named(setting: str) -> str:
    """A setting in a sentence or a hint of an error, spelt as a flag, an argument or a field of a
    request where the error leaves; `no_` in front switches it off."""
    return f"{_BEGIN}{setting}{_END}"


def plainly(setting: str) -> str:
    """A setting as `named`, but without the dashes of a flag."""
    return named(_PLAIN + setting)


def at_start(setting: str) -> str:
    """A setting as `named`, with which a model is opened: in a chat it stays a flag."""
    return named(_AT_START + setting)


class TrtlaError(Exception):
    """An operation failed; the base class of everything trtla raises on purpose (exit code 1).

    `message` and `hint` name settings by their flags, `str` by their arguments in Python.

    Args:
        setting: the setting that is wrong, if it is one: its flag's name with underscores.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None, setting: str | None = None) -> None:
        self._message, self._hint, self.setting = message, hint, setting
        super().__init__(self.message)
        self.argument = setting
        """The setting's name in Python."""

    @property
    def message(self) -> str:
        return self.spelt(flag_name)[0]

    @property
    def hint(self) -> str | None:
        return self.spelt(flag_name)[1]

    def spelt(
        self,
        spell: Callable[[str], str],
        plain: Callable[[str], str] = str,
        start: Callable[[str], str] | None = None,
    ) -> tuple[str, str | None]:
        """Return the sentence and the hint with names for their settings.

        Args:
            plain: names those of `plainly`.
            start: names those of `at_start`; by default as all others.
        """
        kinds = {"": spell, _PLAIN: plain, _AT_START: start or spell}
        return _spelt(self._message, kinds), self._hint and _spelt(self._hint, kinds)

    def advises(self, *settings: str) -> bool:
        """Return True for a hint that names no other settings."""
        names = [part.partition(_END)[0] for part in (self._hint or "").split(_BEGIN)[1:]]
        return set(names) <= {*settings}

    def within(self, before: str, after: str = "") -> Self:
        """Return the same error with more of a sentence."""
        error = copy(self)
        error._message = f"{before}{self._message}{after}"
        return error

    def __str__(self) -> str:
        """The sentence, and the hint on a line of its own, for a traceback."""
        message, hint = self.spelt(self._argument, self._argument)
        return message if hint is None else f"{message}\nhint: {hint}"

    def _argument(self, name: str) -> str:
        if name == self.setting and self.argument:
            return self.argument
        return f"{name.removeprefix('no_')}=False" if name.startswith("no_") else name


def _spelt(text: str, kinds: Mapping[str, Callable[[str], str]]) -> str:
    first, *parts = text.split(_BEGIN)
    for part in parts:
        name, end, rest = part.partition(_END)
        kind = name[:1] if name[:1] in kinds else ""
        first += kinds[kind](name.removeprefix(kind)) + rest if end else _BEGIN + name
    return first


class UsageError(TrtlaError):
    """The request, the flags, the configuration or the input files are wrong (exit code 2)."""

    exit_code = 2


class PromptTooLong(UsageError):
    """A prompt has more tokens than the model accepts, alone or with the output."""


class RankLost(TrtlaError):
    """Another process that runs the model has ended: this one cannot continue."""


class ReplicasLost(TrtlaError):
    """No replica of the model answers, and none can be started: its server cannot continue."""


class RendererLost(TrtlaError):
    """The process that renders chat templates was lost: no fault of the conversation."""


class TrtlaWarning(UserWarning):
    """Something was done differently than requested; commands print it as a note."""


class CheckFailed(TrtlaError):
    """The work was done and a check on it failed, e.g. ROUGE below its threshold (exit code 3)."""

    exit_code = 3


def trtllm_cannot(
    engine: object, reason: str, hint: str = "build with --backend torch"
) -> UsageError:
    """A limitation of such an engine; `reason` continues "NAME is a TensorRT-LLM engine, "."""
    return UsageError(f"{engine} is a TensorRT-LLM engine, {reason}", hint)


def first_line(text: object) -> str:
    """The first line of another library's message, without the stack traces below it."""
    return str(text).strip().partition("\n")[0]


def sentence(error: BaseException) -> str:
    """An error of another library in one line: its type and its message."""
    reason = first_line(error)
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


_NEEDED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "mapping_type": "an object",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_too_long": "a text of at most {max_length} characters",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "tuple_type": "a list",
    "too_long": "no longer than {max_length} items",
    "too_short": "no shorter than {min_length} items",
}
"""The form of a valid value, by the names of pydantic's errors; in braces what is in their `ctx`.
"""


def needed(error: Mapping[str, Any]) -> str:
    """The form of a valid value where pydantic refused one; continues "must be "."""
    kind = str(error.get("type"))
    if kind in _NEEDED:
        items = (error.get("ctx") or {}).items()
        context = {key: f"{item:g}" if isinstance(item, float) else item for key, item in items}
        text = _NEEDED[kind].format(**context)
        return text.replace(" 1 items", " 1 item").replace(" 1 characters", " 1 character")
    if kind.startswith("int"):
        return "a whole number"
    return "a number" if kind.startswith(("float", "decimal")) else "a value that fits"


def as_trtla_error(error: BaseException) -> TrtlaError:
    """Convert any error to a `TrtlaError`."""
    return error if isinstance(error, TrtlaError) else TrtlaError(sentence(error))


def closest(typed: str, known: Iterable[str]) -> str | None:
    """The known name that a typed one abbreviates or resembles most; None where there is none.

    `float8` is not a mistyped `float32`: numbers without a common digit are different values.
    """
    from difflib import get_close_matches

    names = {plain(name): name for name in known}
    word, digits = plain(typed), set(filter(str.isdigit, typed))
    if same := counterpart(typed, names):
        return names[same]
    alike = [name for name in names if not digits or digits.intersection(name)]
    alike = [name for name in alike if {name[:4], word[:4]} != {"min_", "max_"}]
    begun = [name for name in alike if name.startswith(word)] if len(word) >= _BEGUN else []
    swapped = [name for name in alike if sorted(name) == sorted(word)]
    matches = begun if len(begun) == 1 else swapped or get_close_matches(word, alike, 1, _NEAR)
    return names[matches[0]] if matches else None


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """The beginning of a hint for a mistyped name: `did you mean NAME? `, or nothing."""
    guess = closest(typed, known)
    return f"did you mean {guess}? " if guess else ""


def served_by(typed: str, known: Iterable[str]) -> str:
    """The beginning of a hint for an unknown name: what another tool's name is here, or the name
    that was probably meant, or nothing."""
    other = instead(typed)
    return f"{other}; " if other else did_you_mean(typed, known)


Extra = Literal["bench", "eval", "ray", "serve", "structured", "torch"]
"""Optional packages, as pyproject.toml names them."""


def install_hint(extra: Extra) -> str:
    """The hint for a package of an extra that is not installed."""
    return f"pip install 'trtla[{extra}]'"


TORCH = ("torch", "transformers")
"""The packages of the extra `torch`."""


def require(purpose: str, *packages: str) -> None:
    """Refuse a purpose some of whose packages, all of the extra `torch`, are not installed.

    Raises:
        TrtlaError: its message is `{purpose} needs {packages}`.
    """
    if missing := [package for package in packages if not is_installed(package)]:
        verb = "is" if len(missing) == 1 else "are"
        names = " and ".join(missing)
        raise TrtlaError(
            f"{purpose} needs {names}, which {verb} not installed", install_hint("torch")
        )


def is_installed(module: str) -> bool:
    """Return True for a module that can be imported, which does not happen here."""
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # its parent is missing, or it has been blocked
        return False


def missing_package(module: str) -> tuple[str, str]:
    """The message for an installation that lacks a dependency, and the hint."""
    package = module.partition(".")[0]
    package = {"yaml": "pyyaml"}.get(package, package)
    said = f"trtla needs {package}, which is not installed"
    if package in TORCH:
        return said, install_hint("torch")
    return said, f"pip install {package}, or its wheel where there is no network"
