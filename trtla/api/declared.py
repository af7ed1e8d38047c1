"""Fields of bodies that are settings of the same name, declared in trtla.settings alone."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ExecutorOptions, TrtllmSettings
from trtla.settings.fields import Declared, declared, flag_name
from trtla.settings.sampling import BEYOND, SamplingParams

_SAMPLING, _DRAFTING = declared(SamplingParams), declared(DrafterSettings)
SAMPLING = {name: _SAMPLING[name] for name in BEYOND if not _SAMPLING[name].is_biases}
"""Filters and penalties; absent they are as declared."""
DRAFTING = {
    name: setting
    for name, setting in _DRAFTING.items()
    if name != "drafter" and not setting.option.at_start
}
"""Settings of drafters; absent they are as the model was opened."""
RULES = {name: setting.rule for name, setting in (SAMPLING | DRAFTING).items()}
"""The rules for values of these fields."""
_AT_START = {
    setting.flag: flag_name(f"no_{setting.flag}" if setting.default is True else setting.flag)
    for kind in (ExecutorOptions, TrtllmSettings, DraftOptions, DrafterSettings)
    for setting in declared(kind).values()
    if setting.flag not in DRAFTING and not setting.option.flagless
}


def body_fields() -> dict[str, Any]:
    """The fields, as pydantic's `create_model` takes them."""
    sampling = {
        name: (setting.type, _field(setting, setting.default)) for name, setting in SAMPLING.items()
    }
    drafting = {
        name: (setting.json_type | None, _field(setting, None))
        for name, setting in DRAFTING.items()
    }
    return sampling | drafting


def _field(setting: Declared, default: Any) -> Any:
    number = setting.type in (int, float)
    limits = setting.option
    bounds: dict[str, Any] = {"ge": limits.least, "le": limits.most} if number else {}
    return Field(default, description=f"trtla: {setting.option.help}", **bounds)


def chosen_at_start(name: str) -> str | None:
    """The flag of a setting that no request can bring; None: it is none."""
    return _AT_START.get(name)
