"""An engine: its limits, its lookahead triple, its weights, from a folder or from memory.

The folder has TensorRT-LLM's layout; `trtla.json` beside config.json holds everything that
config.json has no place for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtla.errors import UsageError, named
from trtla.files import validate
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine_config import EngineConfig, EngineManifest
from trtla.formats.engine_limits import (
    BuildSettings,
    check_compiled,
    is_compiled,
    longest_text,
    plan_limits,
    unknown_triple,
)
from trtla.formats.folder import tokenizer_dir
from trtla.formats.model_folder import CONFIG, ModelFolder
from trtla.formats.special_tokens import end_tokens
from trtla.formats.t5_config import T5Config, decoder_config, read_t5_config, refuse_to_convert
from trtla.machine import package_version
from trtla.settings.fields import whole
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig, check_default
from trtla.version import __version__

if TYPE_CHECKING:
    from trtla.formats.source import EngineBuild
    from trtla.formats.tensors import FileSource, StoredTensor, Weight

MANIFEST = "trtla.json"
_LONGEST_SOURCE = 4096
"""Most tokens of an encoder's input. Its attention has no position limit, but grows with the square
of the length."""


@dataclass(frozen=True)
class Engine:
    """An opened engine; weights are read on demand."""

    folder: ModelFolder
    """The engine's, or the Hugging Face folder of an engine made in memory."""
    config: EngineConfig
    manifest: EngineManifest | None
    """None for engines made by TensorRT-LLM and for engines in memory."""
    source: FileSource | None = field(default=None, repr=False, compare=False)
    """The source of the weights; None: only its limits were read, or they cannot be read."""
    in_memory_lookahead: LookaheadConfig | None = None

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def backend(self) -> str:
        if self.manifest is not None:
            return self.manifest.backend
        compiled = not self.is_in_memory and is_compiled(self.path)
        return "tensorrt-llm" if compiled else "torch"

    @property
    def lookahead(self) -> LookaheadConfig | None:
        """The triple it was built for, (1,1,0) if plain; None where only max_draft_len is known."""
        if self.manifest is not None:
            return self.manifest.triple
        if self.in_memory_lookahead is not None:
            return self.in_memory_lookahead
        return None if self.config.build_config.max_draft_len else AUTOREGRESSIVE

    def default_triple(self, requested: LookaheadConfig | None) -> LookaheadConfig:
        """The triple of requests that name none: the requested one, else the engine's own.

        TensorRT-LLM would take (4,3,4) without one, and fail at start.
        """
        draft_len = self.config.build_config.max_draft_len
        triple = requested or self.lookahead
        if triple is None:
            raise unknown_triple(self.name, draft_len)
        check_default(triple, draft_len, self.name)
        return triple

    def batch_size(self, requested: int | None) -> int:
        """The number of requests in flight: the requested one, else the engine's limit."""
        if requested is not None:
            whole("max_batch_size", requested, "a whole number, at least 1", 1)
        largest = self.config.build_config.max_batch_size
        if requested is not None and requested > largest:
            raise UsageError(
                f"max_batch_size {requested} is above the engine's {largest}",
                f"use a smaller {named('max_batch_size')}, or rebuild the engine",
            )
        return requested or largest

    @property
    def is_in_memory(self) -> bool:
        """Return True if it was made when its model was opened, with the model's own limits."""
        return self.in_memory_lookahead is not None

    @property
    def longest_text(self) -> int:
        """Tokens of prompt and output that it can be opened with."""
        if self.is_in_memory:
            return longest_text(self.config.pretrained_config)
        return self.config.build_config.max_text_len

    def text_len(self, requested: int | None) -> int:
        """The most tokens of prompt and output: the requested number, else the engine's limit."""
        largest = self.config.build_config.max_text_len
        if requested is not None and requested > largest:
            raise UsageError(
                f"max_seq_len {requested} is above the {largest} that {self.name} was built for",
                "build an engine with a larger --max-seq-len",
            )
        return requested or largest

    @property
    def max_encoder_len(self) -> int | None:
        """Most tokens that its encoder reads of a prompt; None: it has no encoder."""
        return None

    @property
    def decoder_start(self) -> int | None:
        """The decoder's first token, if an encoder reads the prompt; None: it has no encoder."""
        return None

    @property
    def tokenizer_dir(self) -> Path | None:
        """The folder with the tokenizer files, if there are any."""
        return tokenizer_dir(self.path)

    def end_ids(self) -> frozenset[int]:
        """All token ids that end a text; empty if none is known."""
        return frozenset(end_tokens(self.folder))

    def weights(self, rank: int = 0, tp_size: int = 1) -> Iterator[tuple[str, Weight]]:
        """TensorRT-LLM's checkpoint tensors of the whole model on one rank, one by one.

        Names are `transformer.vocab_embedding.weight`,
        `transformer.layers.{i}.attention.qkv.weight` and so on; of a model that ties its embeddings
        there is no `lm_head.weight`. Linear weights are (out, in), in the engine's dtype, on the
        CPU. A quantised weight is a `BlockTensor`; in a model that has one, q, k and v are not
        fused: `attention.q.weight`, `attention.k.weight`, `attention.v.weight`.

        Args:
            rank: of `tp_size` ranks of tensor parallelism, each of which has its part of lm_head
                and the whole embedding.
        """
        source, tensors = self._stored(rank, tp_size)
        return _loaded(source, tensors)

    @contextmanager
    def stored_weights(
        self, rank: int = 0, tp_size: int = 1
    ) -> Iterator[Iterator[tuple[str, StoredTensor]]]:
        """Give `weights` unread: each is read on demand, while the context keeps the files open."""
        source, tensors = self._stored(rank, tp_size)
        with closing(source):
            yield tensors

    def _stored(
        self, rank: int, tp_size: int
    ) -> tuple[FileSource, Iterator[tuple[str, StoredTensor]]]:
        from trtla.formats.support import split_config
        from trtla.formats.tensors import rank_tensors

        source, config = self.tensor_source()
        return source, rank_tensors(source, split_config(config, tp_size), rank)

    def tensor_source(self) -> tuple[FileSource, CheckpointConfig]:
        """The source of the weights, by Hugging Face's names, and the config that they fit."""
        if self.source is None:
            raise UsageError(
                f"{self.name} has no readable weights", "build it with --backend torch"
            )
        from trtla.formats.checkpoint import Checkpoint

        if isinstance(self.source, Checkpoint):
            return self.source, self.source.config
        return self.source, self.config.pretrained_config


def open_engine(location: str | Path | ModelFolder) -> Engine:
    """Open an engine folder and check it whole: config, manifest, and the header of the weights.

    An engine that trtllm-build made is opened too, without a manifest.
    """
    from trtla.formats.checkpoint import Checkpoint, check_config

    model_folder = ModelFolder.of(location)
    check_is_engine(model_folder)
    engine, folder = read_engine(model_folder), model_folder.path
    check_manifest(engine)
    config = engine.config.pretrained_config
    if engine.backend == "tensorrt-llm":
        check_compiled(folder, engine.config)
        return engine
    check_config(folder, config)
    if config.mapping.world_size != 1:
        raise UsageError(
            f"{folder} is a torch engine of {config.mapping.world_size} ranks",
            "build it again from the checkpoint; torch engines have one rank",
        )
    return replace(engine, source=Checkpoint(folder, config))


def check_is_engine(folder: ModelFolder) -> None:
    """Raise `UsageError`, with a command to run, if a folder is no engine."""
    if folder.kind != "engine":
        raise UsageError(
            f"{folder.path} is a {folder.kind}, not an engine",
            f"run trtla build --checkpoint-dir {folder.path} --output-dir ENGINE",
        )


def read_engine(location: Path | ModelFolder, *, manifest: bool = True) -> Engine:
    """Read config.json and trtla.json of an engine folder, without comparing them or weights."""
    folder = ModelFolder.of(location)
    config = validate(EngineConfig, folder.read(CONFIG), str(folder.path / CONFIG))
    return Engine(folder, config, _manifest(folder) if manifest else None)


def _manifest(folder: ModelFolder) -> EngineManifest | None:
    path = folder.path / MANIFEST
    if not path.exists():
        return None
    data = folder.read(MANIFEST)
    version = data.get("format_version") if isinstance(data, dict) else None
    if version is not None and version != 1:
        raise UsageError(
            f"{path} has format_version {version!r}, this trtla reads 1",
            "build the engine again, or install the trtla that made it",
        )
    return validate(EngineManifest, data, str(path))


def new_manifest(
    backend: Literal["torch", "tensorrt-llm"],
    build: EngineBuild,
    sha256: str,
    tensorrt_llm_version: str | None = None,
    compute_capability: str | None = None,
) -> EngineManifest:
    """The trtla.json of an engine that is built here, of weights and config.json of a digest."""
    return EngineManifest(
        backend=backend,
        lookahead=build.lookahead.as_tuple(),
        dtype=build.source.config.dtype,
        trtla_version=__version__,
        torch_version=package_version("torch"),
        source=build.source.folder.name or str(build.source.folder),
        source_sha256=sha256,
        settings=build.origin,
        trtllm=build.trtllm,
        tensorrt_llm_version=tensorrt_llm_version,
        compute_capability=compute_capability,
    )


def check_manifest(engine: Engine) -> None:
    """Compare trtla.json, if there is one, with config.json."""
    manifest, config = engine.manifest, engine.config
    if manifest is None:
        return
    needed, stored = manifest.triple.max_draft_len, config.build_config.max_draft_len
    if needed != stored:
        raise UsageError(
            f"{engine.name}: lookahead {manifest.triple} in {MANIFEST} "
            f"needs max_draft_len {needed}, config.json says {stored}",
            "build the engine again",
        )
    if manifest.dtype != config.pretrained_config.dtype:
        raise UsageError(
            f"{engine.name}: dtype is {manifest.dtype} in {MANIFEST}, "
            f"{config.pretrained_config.dtype} in config.json",
            "build the engine again",
        )


def engine_from_hugging_face(
    location: str | Path | ModelFolder, settings: BuildSettings | None = None, dtype: str = "auto"
) -> Engine:
    """An engine in memory: nothing is written, `weights()` converts on the fly.

    Here `auto` keeps the stored dtype, the float16 rule of `convert` is for TensorRT-LLM's files,
    and the blocks of a GGUF file. Any other dtype dequantises.
    """
    from trtla.formats.hf import HFModel
    from trtla.formats.source import checkpoint_config, in_type

    folder = ModelFolder.of(location)
    model = HFModel.open(folder)
    config = model.config if dtype == "auto" else checkpoint_config(model.config, dtype)
    source = in_type(model, model.config, config)
    engine_config, triple = _in_memory(config, settings or BuildSettings())
    return Engine(folder, engine_config, None, source, triple)


def _in_memory(
    config: CheckpointConfig, settings: BuildSettings
) -> tuple[EngineConfig, LookaheadConfig]:
    """The config with limits as long as the model's own, and the triple."""
    limited = replace(settings, max_seq_len=settings.max_seq_len or longest_text(config))
    planned = plan_limits(limited, config)
    limits = planned.build_config
    engine_config = EngineConfig(version=__version__, pretrained_config=config, build_config=limits)
    return engine_config, planned.lookahead


def _loaded(
    source: FileSource, tensors: Iterator[tuple[str, StoredTensor]]
) -> Iterator[tuple[str, Weight]]:
    """The weights of a source, whose files are closed behind the last one."""
    with closing(source):
        for name, tensor in tensors:
            yield name, tensor.load()


@dataclass(frozen=True)
class EncoderDecoder(Engine):
    """An opened model of the T5 family: prompts go to the encoder, the decoder writes the text."""

    t5: T5Config = field(kw_only=True)

    @property
    def backend(self) -> str:
        return "torch"

    @property
    def max_encoder_len(self) -> int:
        return max(_LONGEST_SOURCE, self.t5.n_positions)

    @property
    def decoder_start(self) -> int:
        return self.t5.decoder_start_token_id

    def weights(self, rank: int = 0, tp_size: int = 1) -> Iterator[tuple[str, Weight]]:
        raise refuse_to_convert(self.path, self.config.pretrained_config.architecture)


def open_encoder_decoder(
    location: str | Path | ModelFolder, settings: BuildSettings
) -> EncoderDecoder:
    """Read the folder's config; the decoder's positions are the limit of start token + output."""
    folder = ModelFolder.of(location)
    t5 = read_t5_config(folder)
    config, triple = _in_memory(decoder_config(folder, t5), settings)
    return EncoderDecoder(folder, config, None, in_memory_lookahead=triple, t5=t5)


def text_digest(text: str) -> str:
    """A digest of a text, as long as that of weights."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def model_digest(engine: Engine) -> str:
    """A digest of a model's sizes and of each weight's middle row; training changes them all.

    Of the T5 family, whose files are read otherwise, nothing.
    """
    if isinstance(engine, EncoderDecoder):
        return ""
    from trtla.formats.plan import source_shapes

    source, config = engine.tensor_source()
    digest = hashlib.sha256()
    with closing(source):
        for name, shape in source_shapes(config).items():
            row = source.read(name, shape[0] // 2, shape[0] // 2 + 1)
            digest.update(f"{name} {shape} torch.{row.dtype}\n".encode())
            digest.update(row.tobytes())
    return digest.hexdigest()[:16]
