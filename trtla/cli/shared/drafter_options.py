"""--drafter and what belongs to it: one help section on every command that decodes.

From flags to `DrafterSettings`, and what can be refused of them before torch is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtla.cli.shared.engine_check import is_trtllm
from trtla.cli.shared.options import DTYPES, PATH, options_of, setting, several, stack
from trtla.cli.shared.settings import check_folder
from trtla.cli.shared.values import DEVICE, TEXT
from trtla.errors import UsageError
from trtla.settings.drafting import (
    DrafterSettings,
    check_draft_place,
    check_drafts_itself,
    check_used,
    refuse_texts,
)
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import declared
from trtla.settings.sampling import SamplingParams

DRAFTERS = "Drafters"


@dataclass(frozen=True)
class ModelFlags:
    """What opens one model and decodes with it."""

    engine_dir: str
    options: ExecutorOptions
    sampling: SamplingParams


@dataclass(frozen=True)
class CorpusFlags(ModelFlags):
    """The same, where texts are kept to draft from."""

    save_corpus: str | None


_DRAFTER = declared(DrafterSettings)["drafter"].option

_place_flags = options_of(
    ExecutorOptions,
    DRAFTERS,
    only=("draft_device", "draft_dtype"),
    draft_device={"type": DEVICE, "metavar": "auto|cpu|cuda"},
    draft_dtype={"type": DTYPES},
)

drafter_flags = stack(options_of(DrafterSettings, DRAFTERS), _place_flags)
"""One drafter or chain."""

drafter_arms = stack(
    several(
        "--drafter",
        section=DRAFTERS,
        type=TEXT,
        metavar=_DRAFTER.metavar,
        help=f"{_DRAFTER.help} Several after one flag are an arm each.",
    ),
    options_of(DrafterSettings, DRAFTERS, but=("drafter",)),
    _place_flags,
)
"""Several, to compare."""


corpus_flag = several(
    "--corpus",
    section=DRAFTERS,
    type=PATH,
    help="Texts that auto drafts from: text files, .jsonl files with text, and files of "
    "--save-corpus. Of more than 1,000,000 tokens the last ones are drafted from.",
)
corpus_flags = stack(
    corpus_flag,
    setting(
        "--save-corpus",
        section=DRAFTERS,
        type=PATH,
        help="Write the texts that were drafted from, outputs too, to this file, for --corpus.",
    ),
)


def check_corpus(given: CorpusFlags) -> None:
    """Refuse a corpus for an engine that drafts from none, and a file that cannot be written.

    Raises:
        UsageError: TensorRT-LLM runs the engine, or another file is in the place.
    """
    if (given.options.corpus or given.save_corpus) and is_trtllm(Path(given.engine_dir)):
        raise refuse_texts(given.engine_dir, "a corpus")
    if given.save_corpus is not None:
        from trtla.llm.corpus import check_replaced

        check_folder(Path(given.save_corpus), "--save-corpus")
        check_replaced(Path(given.save_corpus))


def check_drafters(
    engine_dir: str,
    settings: Iterable[tuple[str, DrafterSettings]],
    options: ExecutorOptions | None = None,
) -> list[str]:
    """Check drafters against the model that they draft for, without loading any.

    Args:
        engine_dir: an engine or a Hugging Face folder.
        settings: (name, drafter) of the command and of every request that brings its own.
        options: the command's, for the device and the type of draft models.

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
    if options is not None:
        place = (options.draft_device, options.draft_dtype)
        check_draft_place(*place, bool(models), engine_dir if trtllm else None)
    for path in models:
        check_vocabulary(path, folder)
    return list(models)


def check_comparable(drafters: Sequence[tuple[str, DrafterSettings]]) -> None:
    """Refuse to compare samples that only share a distribution.

    Raises:
        UsageError: one of these drafters, each with its name, asks for rejection.
    """
    for name, settings in drafters:
        if settings.rejection:
            raise UsageError(
                f"{name} asks for rejection, which draws other samples of the same distribution",
                "omit --check-lossless or --rejection",
            )


def _draft_models(settings: Iterable[DrafterSettings]) -> list[str]:
    return [one.draft_model for one in settings if one.draft_model is not None]


def check_vocabulary(path: str, target: Path) -> None:
    """Raise `UsageError` where a draft model is not there, or has another vocabulary."""
    from trtla.formats.gguf.folder import model_folder
    from trtla.formats.t5_config import check_same_kind

    draft = model_folder(path)
    check_same_kind(draft, target)
    ours, theirs = _vocab_size(draft), _vocab_size(target)
    if ours != theirs:
        raise UsageError(
            f"the draft model {path} has {ours} tokens, the model {target} has {theirs}",
            "use a draft model with the same tokenizer",
        )


def _vocab_size(folder: Path) -> int:
    from trtla.files import read_json, validate
    from trtla.formats.config import EngineConfig
    from trtla.formats.folder import folder_kind
    from trtla.formats.hf_config import read_hf_config
    from trtla.formats.t5_config import is_encoder_decoder, read_t5_config

    config = folder / "config.json"
    if folder_kind(folder) == "engine":
        engine = validate(EngineConfig, read_json(config), str(config))
        return engine.pretrained_config.vocab_size
    if is_encoder_decoder(folder):
        return read_t5_config(folder).vocab_size
    return read_hf_config(config)[0].vocab_size
