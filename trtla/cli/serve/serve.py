"""`trtla serve`: from flags to a server; everything else is in trtla.serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import click

from trtla.cli.commands import extension
from trtla.cli.serve.served_model import (
    Flags,
    ServedModelFlags,
    checked,
    open_served,
    served_draft_flags,
    served_model_flags,
    served_name,
)
from trtla.cli.shared.command import Command
from trtla.cli.shared.model import is_trtllm, model_at
from trtla.cli.shared.options import PATH, Decorator, engine_flags, options_of, stack
from trtla.cli.shared.values import SIZE
from trtla.console import Console
from trtla.errors import TrtlaError, UsageError, install_hint
from trtla.machine import process_rank
from trtla.settings.serving import ServeSettings

if TYPE_CHECKING:
    from trtla.formats.model import Model
    from trtla.llm.llm import LLM
    from trtla.llm.prompt import RequestMaker


class Replicas(Protocol):
    """Replicas of the model behind one server, which an extra may bring."""

    options: ClassVar[Decorator]
    """The flags that ask for them."""

    @staticmethod
    def taken(params: dict[str, Any]) -> Replicas | None:
        """Take the flags out of the command's parameters; None: they ask for no replicas."""

    @property
    def text(self) -> str:
        """Their number, as it stands before the description of one."""

    def opener(
        self, flags: Flags, open_model: Callable[[Flags], LLM], log: Callable[[str], None]
    ) -> Callable[[], RequestMaker]:
        """Return the function that opens replicas, each with the flags' model."""


REPLICAS: type[Replicas] | None = extension("serve")


@dataclass(frozen=True)
class ServeFlags(ServedModelFlags):
    """The command's flags as click parsed them."""

    serving: ServeSettings


@click.command(
    cls=Command,
    short_help="An OpenAI-compatible server with a web page.",
    examples=[
        "trtla serve model.gguf",
        "trtla serve engine",
        "trtla serve model.gguf --port 8080 --api-key-file keys.txt --json-logs",
        "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        '    -d \'{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}\'',
    ],
)
@engine_flags("Model", type=PATH, required=False, show_default="the small one that trtla chat has")
@served_model_flags
@options_of(
    ServeSettings,
    "Server",
    port={"type": int, "basic": True},
    host={"basic": True},
    api_key_file={"basic": True},
    max_body={"type": SIZE, "default": "1MiB"},
)
@stack(*([REPLICAS.options] if REPLICAS else []))
@served_draft_flags
@click.pass_obj
def serve(console: Console, /, **params: Any) -> int:
    """Answer OpenAI's API: chats, completions and responses, streamed too, and /v1/models.

    All requests share one running batch. Beside OpenAI's fields, requests may bring lookahead,
    drafter and its settings, top_k, min_p, repetition_penalty, ignore_eos, cache, metrics and
    pieces; a field that is not supported is refused by name.
    The page at / shows a chat; /metrics is for Prometheus. SIGTERM lets the texts in flight end
    first, a second one does not.
    """
    named = params["engine_dir"]
    replicas = REPLICAS.taken(params) if REPLICAS else None
    _check_packages()
    from trtla.serve.log import RequestLog
    from trtla.serve.server import bind, is_open_to_all
    from trtla.serve.server import serve as run_server

    log = RequestLog(params["json_logs"], console.quiet)

    def note(text: str) -> None:
        log.note(text.removeprefix("note: "))

    flags = checked(ServeFlags, params, note, "trtla serve MODEL")
    _check_isolation(flags)
    model = model_at(flags.engine_dir)
    open_model: Callable[[], RequestMaker] = partial(_open, flags, model)
    if replicas is not None:
        bind(flags.serving).close()  # a port in use is reported before Ray starts
        open_model = replicas.opener(flags, _open, log.problem)

    def ready(maker: RequestMaker, address: str) -> None:
        log.note(f"{name} on {replicas.text if replicas else ''}{maker.description}")
        log.note(f"prompt and answer may have {maker.limits.max_text_len} tokens together")
        if flags.force_greedy:
            log.note("every answer is greedy, whatever temperature, top_p and top_k are requested")
        text = f"listens on {address}, and shows a page there; OpenAI's API is {address}/v1"
        log.note(text, always=True)

    if process_rank():
        with _open(flags):
            return 0  # leaving serves rank 0 to its end
    name = served_name(flags.serving.served_model_name, named, flags)
    if is_open_to_all(flags.serving):
        log.note(f"everybody who reaches {flags.serving.host} may use it: give an --api-key-file")

    def opened() -> RequestMaker:
        log.note(f"loading {named or flags.engine_dir}")
        return open_model()

    # TensorRT-LLM's constructor holds the interpreter while it loads (nanobind/executor.cpp).
    holds_gil = model.is_trtllm and replicas is None
    return run_server(flags.serving, opened, name, log, ready, holds_gil)


def _check_packages() -> None:
    try:
        for name in ("fastapi", "prometheus_client", "uvicorn"):
            import_module(name)
    except ImportError as error:
        raise TrtlaError(f"serve needs the package {error.name}", install_hint("serve")) from None


def _check_isolation(flags: ServeFlags) -> None:
    if not flags.serving.isolate_keys:
        return
    if is_trtllm(flags.engine_dir) and flags.kv_cache_enable_block_reuse:
        raise UsageError(
            f"{flags.engine_dir} is a TensorRT-LLM engine, whose K/V blocks are shared by all",
            "add --no-kv-cache-enable-block-reuse to --isolate-keys",
        )
    if flags.save_corpus is not None:
        raise UsageError(
            "--save-corpus writes the texts of all keys into one file, and --isolate-keys keeps "
            "them apart",
            "omit one of them",
        )
    if flags.options.corpus:
        named = ", ".join(map(str, flags.options.corpus))
        raise UsageError(
            f"--corpus {named} is drafted from for all keys, and --isolate-keys "
            "keeps apart what each drafts from",
            "omit one of them",
        )


def _open(flags: ServeFlags, model: Model | None = None) -> LLM:
    llm = open_served(flags, "a server", model, bounded_steps=True)
    # Otherwise transformers' import would delay the first requests.
    _ = llm.tokenizer is not None and llm.tokenizer.has_chat_template
    return llm
