"""TensorRT-LLM, if installed: its release, its modules, its TensorRT backend; MPI.

The only file that imports it. Importing takes seconds, starts MPI and prints a banner on stdout, so
it is imported on demand only, with the banner on stderr.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from trtla.errors import TrtlaError, UsageError, did_you_mean, first_line, sentence
from trtla.settings.trtllm_fields import Kind

PACKAGE = "tensorrt_llm"
SUPPORTED = ">=0.20,<1.3"
"""Releases with the TensorRT backend and lookahead decoding, as the extra pins them."""

REMOVED = (
    "TensorRT-LLM removed its TensorRT backend, and lookahead decoding with it, in 1.3.0rc21; "
    f"pin tensorrt-llm{SUPPORTED} (trtla[tensorrt-llm]), the torch executor serves meanwhile"
)

HOW_TO_INSTALL = "how to install it: docs/install.md, With TensorRT-LLM"

_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "number", str: "text"}


@dataclass(frozen=True, slots=True)
class Library:
    """The installation found under the name of TensorRT-LLM."""

    version: str | None
    """None: not installed."""
    missing: tuple[str, ...] = ()
    """Parts of the TensorRT backend that this installation lacks."""
    failure: str | None = None
    """The error when importing it."""


def installed() -> bool:
    """Return True if the package can be found; nothing is imported."""
    return importlib.util.find_spec(PACKAGE) is not None


def installed_version() -> str | None:
    """Return the version in its metadata, without importing it; None if not installed."""
    if not installed():
        return None
    for name in ("tensorrt-llm", PACKAGE):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "unknown"


def probe() -> Library:
    """Look for the parts of the TensorRT backend, whatever the version number says.

    1.3.0rc21 and later lack some or all of them: the builder, the C++ `Executor`, the lookahead
    configuration, or the request's lookahead field.
    """
    version = installed_version()
    if version is None:
        return Library(None)
    try:
        return Library(version, tuple(name for name, present in _parts() if not present))
    except Exception as error:  # a broken CUDA, MPI or driver fails inside its import
        return Library(version, failure=sentence(error))


def _parts() -> Iterator[tuple[str, bool]]:
    load()
    try:
        load("builder")
    except ImportError:
        yield "the module tensorrt_llm.builder", False
    executor = load("bindings.executor")
    path = f"{PACKAGE}.bindings.executor"
    for name in ("Executor", "LookaheadDecodingConfig"):
        yield f"{path}.{name}", hasattr(executor, name)
    request = getattr(executor, "Request", None)
    yield f"lookahead_config of {path}.Request", "lookahead_config" in dir(request)


def load(name: str = "") -> ModuleType:
    """Import the package, or one of its modules, e.g. `load("bindings.executor")`."""
    os.environ.setdefault("TLLM_LOG_LEVEL", "WARNING")  # its INFO lines would be on stdout
    with contextlib.redirect_stdout(sys.stderr), deprecations_once():
        return importlib.import_module(f"{PACKAGE}.{name}" if name else PACKAGE)


_shown: set[str] = set()
"""Deprecation warnings of late releases that were shown."""


@contextlib.contextmanager
def deprecations_once(*, silent: bool = False) -> Iterator[None]:
    """Show every deprecation once in a process, or not at all, and never raise it.

    They are FutureWarnings (_deprecation.py), one for every entry point, and come again with every
    rank; a caller that turns warnings into errors must not break on them. The filter "once" forgets
    them whenever any filter changes.
    """
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_once(message: Warning | str, *where: Any, **more: Any) -> None:
            if str(message) not in _shown:
                _shown.add(str(message))
                show(message, *where, **more)

        warnings.showwarning = show_once
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore" if silent else "always", category)
        yield


def same_release(built: str, installed: str) -> bool:
    """Compare minor releases: engines run only on the TensorRT that built them."""
    return built.split(".")[:2] == installed.split(".")[:2]


def known_trouble(version: str | None) -> str | None:
    """Return a known problem of lookahead in a release, from NVIDIA's issues, if any."""
    if version is None or not version.startswith("0.20."):
        return None
    return (
        f"lookahead may fail on TensorRT-LLM {version}: its issue 5451 reports that a step with "
        'drafts ends all requests there, "invalid configuration argument"; 1.2.1 is recommended'
    )


def require_backend() -> Library:
    """Return the library, ready to build and to run; raises an error with the reason otherwise."""
    library = probe()
    if library.version is None:
        raise TrtlaError("TensorRT-LLM is not installed", f"use --backend torch; {HOW_TO_INSTALL}")
    if library.failure is not None:
        raise TrtlaError(
            f"TensorRT-LLM {library.version} cannot be imported: {library.failure}",
            "use --backend torch, or install it again (1.2 needs PyTorch's CUDA 13.0 build); "
            f"{HOW_TO_INSTALL}",
        )
    if library.missing:
        missing = " and ".join(library.missing)
        raise TrtlaError(f"TensorRT-LLM {library.version} lacks {missing}", REMOVED)
    return library


def rank() -> int:
    """Return this process's rank; 0 outside of MPI."""
    return _first(("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"), 0)


def world_size() -> int:
    """Return the processes in the run; 1 outside of MPI, or if the launcher does not say."""
    return _first(("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), 1)


def _first(names: tuple[str, ...], default: int) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdigit()), default)


def put(config: Any, name: str, value: Any, whole: str, flag: str) -> None:
    """Set a field of the library's object."""
    if not hasattr(config, name):
        raise UsageError(
            f"{flag} {whole}: TensorRT-LLM {installed_version()} has no such setting in "
            f"{type(config).__name__}",
            did_you_mean(name, _names(config)).strip() or None,
        )
    try:
        setattr(config, name, value)
    except (TypeError, ValueError, RuntimeError, AssertionError, AttributeError) as error:
        raise refused(flag, {whole: value}, error) from error


def refused(flag: str, arguments: dict[str, Any], error: Exception) -> UsageError:
    """Return the library's own error for a setting that it refuses."""
    shown = " ".join(f"{name}={value}" for name, value in arguments.items())
    return UsageError(f"{flag} {shown}: TensorRT-LLM refuses it: {first_line(error)}", None)


def plain_fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Kind]]:
    """Yield names and kinds of fields, by their defaults; those of None may be anything."""
    for name in _names(config):
        value = getattr(config, name, ())
        kind = "any" if value is None else _KINDS.get(type(value))
        if kind is not None:
            yield prefix + name, kind


def _names(config: Any) -> Iterable[str]:
    """Return the field names of a pydantic model, a dataclass, or a class that C++ binds."""
    fields = getattr(type(config), "model_fields", None)
    fields = fields or getattr(config, "__dataclass_fields__", None)
    if fields is None and hasattr(config, "to_dict"):
        fields = config.to_dict()
    names = dir(config) if fields is None else fields
    return [name for name in names if not name.startswith("_")]
