"""From paths to what `LLM` runs: engines, Hugging Face folders, tokenizers, draft models.

Nothing is loaded here: engines hold where their weights are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtla.build.engine_folder import Engine, open_engine
from trtla.build.folder_kind import folder_kind
from trtla.build.t5_config import check_same_kind, is_encoder_decoder
from trtla.drafting import DrafterSettings, check_drafts_itself
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.runtime.text import Tokenizer

DEFAULT_LOOKAHEAD = LookaheadConfig(7, 7, 7)
"""The server's triple for a Hugging Face folder when none is given."""


def draft_engines(
    target: Engine, drafter: DrafterSettings, draft_models: Sequence[str]
) -> dict[str, Engine]:
    """The draft models' folders, opened but not loaded; none for what TensorRT-LLM runs."""
    if target.backend == "tensorrt-llm":
        check_drafts_itself(drafter, target.name)
        return {}
    own = () if drafter.draft_model is None else (drafter.draft_model,)
    paths = (*own, *draft_models)
    for path in paths:
        check_same_kind(Path(path), target.path)
    return {path: open_model(Path(path), AUTOREGRESSIVE) for path in paths}


def open_model(path: Path, lookahead: LookaheadConfig | None) -> Engine:
    """An engine directory, or a Hugging Face folder: converted in memory, or as it is (T5)."""
    if is_encoder_decoder(path):
        from trtla.build.encoder_decoder import open_encoder_decoder

        return open_encoder_decoder(path, lookahead or DEFAULT_LOOKAHEAD)
    if folder_kind(path) == "Hugging Face model":
        from trtla.build.in_memory import engine_from_hugging_face
        from trtla.build.settings import BuildSettings

        return engine_from_hugging_face(path, BuildSettings(lookahead or DEFAULT_LOOKAHEAD))
    return open_engine(path)


def open_tokenizer(folder: str | Path | None, engine: Engine) -> Tokenizer | None:
    """That of a folder, else the one beside the model; None: the model has none."""
    if folder is not None:
        return Tokenizer(Path(folder))
    return Tokenizer(engine.tokenizer_dir) if engine.tokenizer_dir is not None else None
