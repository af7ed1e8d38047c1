"""Arms that a YAML file lists, such as those of the shipped ablation.

Other keys of the file are defaults of bench's flags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from trtla.cli.shared.presets import flag_defaults
from trtla.errors import UsageError, did_you_mean
from trtla.extras.bench.ways import Way
from trtla.files import ASSETS, read_yaml
from trtla.measuring.arms import AR
from trtla.settings.drafting import (
    DRAFT_PREFIX,
    LOOKAHEAD,
    DrafterSettings,
    DraftOptions,
    parse_drafter,
)
from trtla.settings.fields import declared
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig

ABLATION = ASSETS / "ablation.yaml"
_KEYS = ("name", "lookahead", *declared(DrafterSettings), *declared(DraftOptions))

Described = tuple[Mapping[str, Any], ...]
"""Arms as a file has them."""


def load_arms(ctx: click.Context, param: click.Parameter, value: Any) -> Described | None:
    """Callback of --arms and --ablation: read the arms, and make other keys the flags' defaults."""
    if not value:
        return None
    path = ABLATION if value is True else Path(value)
    if not path.is_file():
        raise UsageError(
            f"--arms {path}: there is no such file",
            "name single arms with --drafter and --lookahead, or give a file such as "
            "configs/ablation.yaml",
        )
    settings = read_yaml(path)
    arms = settings.pop("arms", None)
    if not isinstance(arms, list) or not arms:
        raise UsageError(f"{path} lists no arms", "write arms: and below it - {name: sd, gamma: 4}")
    for number, arm in enumerate(arms, 1):
        _check_keys(arm, f"{path}, arm {number}")
    ctx.default_map = {
        **flag_defaults(ctx, settings, str(path)),
        **(ctx.default_map or {}),
    }
    return tuple(arms)


def _check_keys(arm: object, where: str) -> None:
    if not isinstance(arm, dict):
        raise UsageError(f"{where} is {arm!r}, not keys with values", "write {name: sd, gamma: 4}")
    for key in arm:
        if key not in _KEYS:
            guess = did_you_mean(str(key), _KEYS)
            raise UsageError(
                f'{where} has the unknown key "{key}"', f"{guess}the keys are {', '.join(_KEYS)}"
            )


def ways(arms: Sequence[Mapping[str, Any]], draft_model: str) -> list[Way]:
    """Return the described arms; `draft` stands for the draft model."""
    made = [_way(arm, number, draft_model) for number, arm in enumerate(arms, 1)]
    labels = Counter((way.name, way.setting, str(way.lookahead)) for way in made)
    for (name, setting, _), count in labels.items():
        if count > 1 or name == AR:
            label = f"{name} ({setting})" if setting else name or "lookahead"
            raise UsageError(f"two arms are named {label}", "give one of them another name")
    return made


def _way(arm: Mapping[str, Any], number: int, draft_model: str) -> Way:
    names = parse_drafter(arm.get("drafter", LOOKAHEAD.drafter))
    known = DRAFT_PREFIX.rstrip(":")
    names = tuple(f"{DRAFT_PREFIX}{draft_model}" if name == known else name for name in names)
    values = {key: tuple(x) if isinstance(x, list) else x for key, x in arm.items()}
    try:
        chosen: dict[str, Any] = {
            key: values[key] for key in declared(DrafterSettings) if key in values
        }
        drafter = DrafterSettings(**chosen | {"drafter": names})
        options: dict[str, Any] = {
            key: values[key] for key in declared(DraftOptions) if key in values
        }
        lookahead = _lookahead(values.get("lookahead"), drafter)
        return Way(
            str(values.get("name", "" if drafter.drafter == LOOKAHEAD.drafter else drafter.name)),
            lookahead,
            drafter,
            DraftOptions(**options) if options else None,
            _setting(arm),
            largest=lookahead is None,
        )
    except UsageError as error:
        raise UsageError(f"arm {number} of --arms: {error.message}", error.hint) from None


def _lookahead(value: Any, drafter: DrafterSettings) -> Lookahead | None:
    if value is None and drafter.head:
        return "auto"  # which knows what a head costs
    if value is None:
        return None if drafter.uses_lookahead else AUTOREGRESSIVE
    return "auto" if value == "auto" else LookaheadConfig.parse(value)


def _setting(arm: Mapping[str, Any]) -> str | None:
    """Describe an arm's settings in the words of the file."""
    left = {
        key: value
        for key, value in arm.items()
        if key not in ("name", "lookahead", "drafter", "sources")
    }
    parts = (key if value is True else f"{key} {value}" for key, value in left.items())
    return ", ".join(parts) or None
