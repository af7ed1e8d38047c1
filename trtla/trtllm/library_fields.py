"""What the installed TensorRT-LLM's own classes have: names and types of settings handed on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trtla.errors import UsageError, did_you_mean, first_line
from trtla.settings.passed_on import BUILD, Kind, Kinds
from trtla.trtllm.library import installed, installed_version, load

PLUGINS = "plugin_config."
_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "number", str: "text"}
_NESTED = (
    "kv_cache_config",
    "extended_runtime_perf_knob_config",
    "peft_cache_config",
)


def build_kinds() -> Kinds:
    """Fields of BuildConfig and PluginConfig; nothing where there is no library."""
    if not installed():
        return {}
    config, plugins = load("builder").BuildConfig(), load("plugin").PluginConfig()
    return {**dict(_plain(config)), **dict(_plain(plugins, PLUGINS))}


def check_asked(asked: Mapping[str, Any]) -> None:
    """Whether this release's builder has what it is asked.

    A pydantic BuildConfig would drop what it does not know in silence.

    Raises:
        UsageError: it has not, or refuses the value.
    """
    if not asked:
        return
    config, plugins = load("builder").BuildConfig(), load("plugin").PluginConfig()
    for name, value in asked.items():
        inside = name.startswith(PLUGINS)
        put(plugins if inside else config, name.removeprefix(PLUGINS), value, name, BUILD.flag)


def executor_kinds() -> Kinds:
    """Fields of ExecutorConfig and of what it holds; nothing where there is no library."""
    if not installed():
        return {}
    config = load("bindings.executor").ExecutorConfig()
    found = dict(_plain(config))
    for name in _NESTED:
        found |= dict(_plain(getattr(config, name, None), f"{name}."))
    return found


def _plain(config: Any, prefix: str = "") -> Iterator[tuple[str, Kind]]:
    """Names whose default says their type; None may become anything."""
    for name in _names(config):
        value = getattr(config, name, _NESTED)
        kind = "any" if value is None else _KINDS.get(type(value))
        if kind is not None:
            yield prefix + name, kind


def _names(config: Any) -> Iterable[str]:
    """Of a pydantic model, a dataclass, or a class that C++ binds."""
    fields = getattr(type(config), "model_fields", None) or getattr(
        config, "__dataclass_fields__", None
    )
    if fields is None and hasattr(config, "to_dict"):
        fields = config.to_dict()
    names = dir(config) if fields is None else fields
    return [name for name in names if not name.startswith("_")]


def put(config: Any, name: str, value: Any, whole: str, flag: str) -> None:
    """Set a field of the library's object.

    Raises:
        UsageError: this release has no such field, or refuses the value.
    """
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


def refused(flag: str, given: dict[str, Any], error: Exception) -> UsageError:
    """The library's own words for a setting that it does not take."""
    shown = " ".join(f"{name}={value}" for name, value in given.items())
    return UsageError(f"{flag} {shown}: TensorRT-LLM refuses it: {first_line(error)}", None)
