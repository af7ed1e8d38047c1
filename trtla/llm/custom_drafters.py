"""Drafters of the user's own from their names: modules are imported, files are run.

Only those that a model is opened with come here; what a request names is looked up among them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isclass, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from trtla.errors import UsageError, did_you_mean, sentence
from trtla.runtime.drafters.custom import CustomDrafters
from trtla.settings.custom_drafters import TokenDrafter, name_of

_HINT = (
    "give module:Name of a module in this folder or installed, or file.py:Name; Name is a class or "
    "an object with propose(ids)"
)


def custom_drafters(drafters: Iterable[object]) -> CustomDrafters:
    """Return what makes the drafters of requests, by name.

    Args:
        drafters: their names, or themselves, of which a name is that of one.

    Raises:
        UsageError: one cannot be imported, or cannot propose.
    """
    every = list(drafters)
    own: dict[str, Any] = {}
    for drafter in every:
        if isinstance(drafter, str):
            continue
        if own.setdefault(name_of(drafter), drafter) is not drafter:
            raise UsageError(
                f"two drafters are named {name_of(drafter)}", "give one of the classes another name"
            )
    names = dict.fromkeys(each if isinstance(each, str) else name_of(each) for each in every)
    return {name: _maker(name, own[name] if name in own else _imported(name)) for name in names}


def _maker(name: str, drafter: Any) -> Callable[[], TokenDrafter]:
    proposes = callable(getattr(drafter, "propose", None))
    if proposes and not isclass(drafter):
        return lambda: drafter
    if not callable(drafter) or (isclass(drafter) and not proposes):
        raise UsageError(f"the drafter {name} has no propose(ids)", _HINT)
    try:
        signature(drafter).bind()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the drafter {name} is made for each request without arguments: {error}",
            "give an object with propose(ids), which all requests share, or give the arguments "
            "defaults",
        ) from None
    return drafter  # type: ignore[no-any-return]


def _imported(name: str) -> Any:
    place, _, attribute = name.rpartition(":")
    try:
        module = _run(Path(place).resolve()) if place.endswith(".py") else _import(place)
    except (Exception, SystemExit) as error:
        raise UsageError(f"the drafter {name} cannot be imported: {sentence(error)}", _HINT) from (
            error
        )
    try:
        return getattr(module, attribute)
    except AttributeError:
        guess = did_you_mean(attribute, vars(module))
        raise UsageError(f"the drafter {name}: {place} has no {attribute}", guess + _HINT) from None


def _import(name: str) -> ModuleType:
    with _first_on_path(Path.cwd()):
        return import_module(name)


@cache
def _run(file: Path) -> ModuleType:
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = module_from_spec(spec)
    with _first_on_path(file.parent):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Import from a folder first, as `python -m` does; later imports of its modules come last."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the module may have changed the path itself
            sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
