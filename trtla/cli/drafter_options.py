"""--drafter and what belongs to it: one help section on every command that decodes.

From flags to `DrafterSettings`, and what can be refused of them before torch is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from trtla.cli.engine_check import is_trtllm
from trtla.cli.options import DTYPES, DraftFlags, setting, several, stack, switch
from trtla.cli.values import DEVICE, TEXT
from trtla.errors import UsageError
from trtla.files import read_json, validate
from trtla.formats.config import EngineConfig
from trtla.formats.folder import folder_kind
from trtla.formats.hf_config import read_hf_config
from trtla.formats.t5_config import check_same_kind, is_encoder_decoder, read_t5_config
from trtla.settings.drafting import (
    DrafterSettings,
    NgramKind,
    check_auto,
    check_draft_place,
    check_drafts_itself,
    check_used,
    parse_drafter,
)
from trtla.settings.lookahead import Lookahead

DRAFTERS = "Drafters"
_NAMES = "none|lookahead|ngram|prompt-lookup|draft:PATH"


@dataclass(frozen=True)
class DrafterFlags(DraftFlags):
    """Those of `drafter_choices` as well."""

    gamma: int
    egag: bool
    gamma_min: int
    gamma_max: int | None
    ema: float
    ngram_kind: NgramKind
    ngram_order: int
    top_k_filler: int
    stop_if_unknown: bool
    reset_in_between: bool
    rejection: bool
    draft_device: str | None
    draft_dtype: str | None


@dataclass(frozen=True)
class ModelFlags(DrafterFlags):
    """Those of `model_flags` as well: with them a command opens one model."""

    engine_dir: str
    tokenizer_dir: str | None
    device: str
    dtype: str
    threads: int | None
    lookahead: Lookahead | None


drafter_choices = stack(
    setting(
        "--gamma",
        section=DRAFTERS,
        type=int,
        default=4,
        help="Most tokens that ngram, prompt-lookup and draft propose in a step.",
    ),
    switch("--egag", section=DRAFTERS, help="Let the draft model's entropy choose how many."),
    setting(
        "--gamma-min",
        section=DRAFTERS,
        type=int,
        default=1,
        help="Fewest that --egag takes.",
    ),
    setting(
        "--gamma-max",
        section=DRAFTERS,
        type=int,
        show_default="--gamma",
        help="Most that --egag takes.",
    ),
    setting(
        "--ema",
        section=DRAFTERS,
        type=float,
        default=0.0,
        help="Weight of the past in --egag's choice; 0 looks at the step alone.",
    ),
    setting(
        "--ngram-kind",
        section=DRAFTERS,
        type=click.Choice(["basic", "onelevel"]),
        default="basic",
        help="Contexts that n-grams are looked up by: all lengths, the longest first, or the "
        "longest alone.",
    ),
    setting(
        "--ngram-order",
        section=DRAFTERS,
        type=int,
        default=3,
        help="Tokens of the longest n-gram, the predicted one included.",
    ),
    setting(
        "--top-k-filler",
        section=DRAFTERS,
        type=int,
        default=3,
        help="How many of the model's most probable tokens n-grams are counted with; 1: its text "
        "alone.",
    ),
    setting(
        "--stop-if-unknown/--no-stop-if-unknown",
        section=DRAFTERS,
        default=True,
        help="Whether an unknown context ends an n-gram draft; else a random token stands in.",
    ),
    setting(
        "--reset-in-between/--no-reset-in-between",
        section=DRAFTERS,
        default=True,
        help="Whether n-grams of earlier requests are forgotten.",
    ),
    switch(
        "--rejection",
        section=DRAFTERS,
        help="Verify a draft model's tokens by rejection sampling: another text of the same law.",
    ),
    setting(
        "--draft-device",
        section=DRAFTERS,
        type=DEVICE,
        metavar="auto|cpu|cuda",
        show_default="--device",
        help="Where draft models run.",
    ),
    setting(
        "--draft-dtype",
        section=DRAFTERS,
        type=DTYPES,
        show_default="--dtype",
        help="Type that draft models compute in; auto is their own.",
    ),
)
"""How drafters other than lookahead draft."""

drafter_flags = stack(
    setting(
        "--drafter",
        section=DRAFTERS,
        metavar=_NAMES,
        default="lookahead",
        help="What drafts. Of several with commas between, the first that has something to say "
        "does, and the next ones fill the rest of the draft. PATH is a small model with the same "
        "tokenizer.",
    ),
    drafter_choices,
)
"""One drafter or chain."""

drafter_arms = stack(
    several(
        "--drafter",
        section=DRAFTERS,
        type=TEXT,
        metavar=_NAMES,
        help="What drafts, several after one flag, each an arm of its own; of several with commas "
        "between, the first that has something to say does, and the next ones fill the rest of the "
        "draft. PATH is a small model with the same tokenizer.",
    ),
    drafter_choices,
)
"""Several, to compare."""


def drafter_settings(drafter: str, flags: DrafterFlags) -> DrafterSettings:
    """The settings of a drafter or chain; raises UsageError for values out of their range."""
    return DrafterSettings(
        parse_drafter(drafter),
        flags.gamma,
        flags.egag,
        flags.gamma_min,
        flags.gamma_max,
        flags.ema,
        flags.ngram_kind,
        flags.ngram_order,
        flags.top_k_filler,
        flags.stop_if_unknown,
        flags.reset_in_between,
        flags.rejection,
    )


def check_drafters(
    engine_dir: str,
    settings: Iterable[tuple[str, DrafterSettings]],
    lookahead: Lookahead | None = None,
    flags: DrafterFlags | None = None,
) -> list[str]:
    """Check drafters against the model that they draft for, without loading any.

    Args:
        engine_dir: an engine or a Hugging Face folder.
        settings: (name, drafter) of the command and of every request that brings its own.
        lookahead: the server's.
        flags: the command's, for the device and the type of draft models.

    Returns:
        The draft models' folders, each once.

    Raises:
        UsageError: TensorRT-LLM runs the engine, a draft model has another vocabulary or is not
            there, or what is asked for does not go together.
    """
    given = list(settings)
    check_used(one for _, one in given)
    folder, models = Path(engine_dir), dict.fromkeys(_draft_models(one for _, one in given))
    trtllm = is_trtllm(folder)
    if trtllm:
        for name, one in given:
            check_drafts_itself(one, name)
    if flags is not None:
        place = (flags.draft_device, flags.draft_dtype)
        check_draft_place(*place, bool(models), engine_dir if trtllm else None)
    if lookahead == "auto":
        check_auto(given[0][1], given[0][0])
    for path in models:
        _check_vocabulary(path, folder)
    return list(models)


def _draft_models(settings: Iterable[DrafterSettings]) -> list[str]:
    return [one.draft_model for one in settings if one.draft_model is not None]


def _check_vocabulary(path: str, target: Path) -> None:
    check_same_kind(Path(path), target)
    ours, theirs = _vocab_size(Path(path)), _vocab_size(target)
    if ours != theirs:
        raise UsageError(
            f"the draft model {path} has {ours} tokens, the model {target} has {theirs}",
            "use a draft model with the same tokenizer",
        )


def _vocab_size(folder: Path) -> int:
    config = folder / "config.json"
    if folder_kind(folder) == "engine":
        engine = validate(EngineConfig, read_json(config), str(config))
        return engine.pretrained_config.vocab_size
    if is_encoder_decoder(folder):
        return read_t5_config(folder).vocab_size
    return read_hf_config(config)[0].vocab_size
