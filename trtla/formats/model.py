"""A model on the disk: inspected once, checked before it is opened, then opened."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trtla.formats.model_folder import CONFIG, FolderKind, ModelFolder

if TYPE_CHECKING:
    from trtla.formats.config import CheckpointConfig
    from trtla.formats.engine import Engine
    from trtla.settings.lookahead import LookaheadConfig


@dataclass(frozen=True)
class Model:
    """The facts about a model without its weights; pydantic is imported for engines only."""

    folder: ModelFolder

    @classmethod
    def at(cls, location: str | Path | Model) -> Model:
        """The model of a folder, a GGUF file or a name on the hub; a `Model` itself."""
        if isinstance(location, Model):
            return location
        from trtla.formats.gguf.folder import find_folder

        return cls(find_folder(location))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def kind(self) -> FolderKind:
        """The kind of its folder; raises `UsageError` if that holds no model."""
        return self.folder.kind

    @cached_property
    def engine(self) -> Engine | None:
        """The engine in its folder, unchecked; None: the folder is none."""
        if self.kind != "engine":
            return None
        from trtla.formats.engine import read_engine

        return read_engine(self.folder)

    @property
    def is_trtllm(self) -> bool:
        """Return True if TensorRT-LLM runs it."""
        return self.engine is not None and self.engine.backend == "tensorrt-llm"

    @cached_property
    def is_encoder_decoder(self) -> bool:
        """Return True for a model of the T5 family."""
        from trtla.formats.families import ENCODER_DECODERS, architecture

        if self.kind != "Hugging Face model":
            return False
        return architecture(self.folder.read(CONFIG)) in ENCODER_DECODERS.values()

    @cached_property
    def config(self) -> CheckpointConfig:
        """Its sizes, of an encoder-decoder the decoder's."""
        from trtla.formats.checkpoint import read_checkpoint_config
        from trtla.formats.gguf.folder import weight_file
        from trtla.formats.hf import HFModel
        from trtla.formats.hf_config import read_hf_config
        from trtla.formats.t5_config import decoder_config, read_t5_config

        if self.engine is not None:
            return self.engine.config.pretrained_config
        if self.kind == "checkpoint":
            return read_checkpoint_config(self.folder)
        if self.is_encoder_decoder:
            return decoder_config(self.folder, read_t5_config(self.folder))
        if weight_file(self.path) is not None:  # whose header has the types of blocks
            return HFModel.open(self.folder).config
        return read_hf_config(self.folder)[0]

    def open(self, lookahead: LookaheadConfig | None, max_seq_len: int | None = None) -> Engine:
        """An engine directory, or a Hugging Face folder: converted in memory, or as it is (T5).

        An engine keeps the limits that it was built with.
        """
        from trtla.formats import engine
        from trtla.formats.engine_limits import BuildSettings

        settings = BuildSettings(lookahead, max_seq_len=max_seq_len)
        if self.is_encoder_decoder:
            return engine.open_encoder_decoder(self.folder, settings)
        if self.kind == "Hugging Face model":
            return engine.engine_from_hugging_face(self.folder, settings)
        return engine.open_engine(self.folder)
