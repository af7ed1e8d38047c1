"""Fields of bodies that are settings of the same name, declared in trtla.settings alone."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trtla.errors import renamed
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ExecutorOptions, TrtllmSettings
from trtla.settings.fields import Declared, declared, flag_name
from trtla.settings.sampling import BEYOND, SamplingParams

_SAMPLING, _DRAFTING = declared(SamplingParams), declared(DrafterSettings)
SAMPLING = {name: _SAMPLING[name] for name in BEYOND if not _SAMPLING[name].is_biases}
"""Filters and penalties; absent they are as declared."""
DRAFTING = {
    name: one for name, one in _DRAFTING.items() if name != "drafter" and not one.option.at_start
}
"""What drafters are set to; absent they are as the model was opened."""
RULES = {name: renamed(one.rule, str) for name, one in (SAMPLING | DRAFTING).items()}
"""What the values of these fields must be."""
_AT_START = {
    one.flag: flag_name(f"no_{one.flag}" if one.default is True else one.flag)
    for kind in (ExecutorOptions, TrtllmSettings, DraftOptions, DrafterSettings)
    for one in declared(kind).values()
    if one.flag not in DRAFTING and not one.option.flagless
}


def body_fields() -> dict[str, Any]:
    """The fields, as pydantic's `create_model` takes them."""
    sampling = {name: (one.type, _field(one, one.default)) for name, one in SAMPLING.items()}
    drafting = {name: (one.json_type | None, _field(one, None)) for name, one in DRAFTING.items()}
    return sampling | drafting


def _field(one: Declared, default: Any) -> Any:
    number = one.type in (int, float)
    bounds: dict[str, Any] = {"ge": one.option.least, "le": one.option.most} if number else {}
    return Field(default, description=f"trtla: {renamed(one.option.help, str)}", **bounds)


def chosen_at_start(name: str) -> str | None:
    """The flag of a setting that no request can bring; None: it is none."""
    return _AT_START.get(name)
