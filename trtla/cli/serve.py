"""`trtla serve`: from flags to a server; everything else is in trtla.serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.command import Command
from trtla.cli.drafter_options import (
    CorpusFlags,
    check_corpus,
    check_drafters,
    corpus_flags,
    drafter_flags,
)
from trtla.cli.engine_check import check_triples
from trtla.cli.loading import open_speaking
from trtla.cli.options import (
    PATH,
    draft_flags,
    engine_flags,
    opening_flags,
    options_of,
    reuse_flag,
    setting,
)
from trtla.cli.values import COUNT, SIZE
from trtla.console import Console
from trtla.errors import TrtlaError
from trtla.settings.executor import TrtllmSettings
from trtla.settings.fields import parsed
from trtla.settings.serving import ServeSettings

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.serve.log import RequestLog

_REUSE = "kv_cache_enable_block_reuse"


@dataclass(frozen=True)
class ServeFlags(CorpusFlags):
    """The command's flags as click parsed them."""

    serving: ServeSettings
    max_batch_size: int | None


@click.command(
    cls=Command,
    short_help="An OpenAI-compatible server with a web page.",
    examples=[
        "trtla serve --engine-dir engine",
        "trtla serve --engine-dir model.gguf --port 8080 --api-key-file keys.txt --json-logs",
        "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        '    -d \'{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}\'',
    ],
)
@engine_flags("Model", type=PATH, required=False, show_default="the small one that trtla chat has")
@opening_flags
@setting(
    "--max-batch-size",
    section="Model",
    type=COUNT,
    show_default="the engine's",
    help="Texts that are written at the same time, at most the engine's.",
)
@reuse_flag
@options_of(ServeSettings, "Server", port={"type": int}, max_body={"type": SIZE, "default": "1MiB"})
@drafter_flags
@corpus_flags
@draft_flags
@options_of(TrtllmSettings, "TensorRT-LLM engines", but=(_REUSE,))
@click.pass_obj
def serve(console: Console, /, **flags: Any) -> int:
    """Answer OpenAI's API: /v1/chat/completions, /v1/completions and /v1/models, streamed too.

    All requests share one running batch. Beside OpenAI's fields, requests may bring lookahead,
    drafter, top_k, cache, metrics and pieces; a field that is not supported is refused by name.
    The page at / shows a chat; /metrics is for Prometheus. SIGTERM lets the texts in flight end
    first, a second one does not.
    """
    named, reuse = flags["engine_dir"], flags.pop(_REUSE)
    _check_packages()
    from trtla.serve.log import RequestLog
    from trtla.serve.server import is_open_to_all
    from trtla.serve.server import serve as run_server

    log = RequestLog(flags["json_logs"], console.quiet)
    flags["engine_dir"] = _folder(named, log)
    given = parsed(ServeFlags, flags)
    check_triples(given.engine_dir, given.lookahead)
    models = check_drafters(given.engine_dir, [("--drafter", given.drafter)], given)
    check_corpus(given)

    def open_model() -> LLM:
        return _open(given, models, reuse=reuse)

    def ready(llm: LLM, address: str) -> None:
        log.note(f"{name} on {llm.description}")
        text = f"listens on {address}, and shows a page there; OpenAI's API is {address}/v1"
        log.note(text, always=True)

    name = given.serving.served_model_name or Path(named or given.engine_dir).resolve().stem
    if is_open_to_all(given.serving):
        log.note(f"everybody who reaches {given.serving.host} may use it: give an --api-key-file")
    log.note(f"loading {named or given.engine_dir}")
    return run_server(given.serving, open_model, name, log, ready)


def _folder(named: str | None, log: RequestLog) -> str:
    """The model's folder; without a name the downloaded sample, else the shipped model."""
    from trtla.cli.chat import sample_model
    from trtla.formats.gguf.folder import model_folder

    def note(text: str) -> None:
        log.note(text.removeprefix("note: "))

    return str(model_folder(sample_model(note, "trtla serve --engine-dir MODEL", named)))


def _check_packages() -> None:
    try:
        import fastapi
        import prometheus_client
        import uvicorn
    except ImportError as error:
        raise TrtlaError(
            f"serve needs the package {error.name}", "pip install 'trtla[serve]'"
        ) from None
    del fastapi, prometheus_client, uvicorn


def _open(given: ServeFlags, draft_models: list[str], *, reuse: bool) -> LLM:
    more = {"bounded_steps": True, "max_batch_size": given.max_batch_size}
    llm = open_speaking(given, draft_models, "a server", reuse=reuse, **more)
    # What would else hold up the first requests: transformers' import, costs that are measured.
    _ = llm.tokenizer is not None and llm.tokenizer.has_chat_template
    llm.executor.call(lambda executor: executor.warm_up())
    return llm
