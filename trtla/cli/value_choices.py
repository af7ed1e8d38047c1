"""What a flag's value may become while it is typed: names, triples, folders. For shells only.

Flags are known by their parameter's name, since one name means one thing in all commands. What is
offered is a help, not a rule: values are checked where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from trtla.cli.values import DeviceType, ListType, LookaheadType, TripleType
from trtla.errors import TrtlaError

_TRIPLES = ("3,3,3", "5,5,5", "7,7,7")
_FOLDERS = ("draft_model",)  # beside all names that end with _dir


def _peers() -> Iterable[str]:
    from trtla.bench.peer_names import PEERS

    return PEERS


def _prompt_sets() -> Iterable[str]:
    from trtla.bench.prompt_sets import SHIPPED

    return SHIPPED


def _tasks() -> Iterable[str]:
    from trtla.bench.ablation_cases import TASKS

    return dict.fromkeys((*_prompt_sets(), *TASKS))


def _arms() -> Iterable[str]:
    from trtla.bench.ablation_arms import METHODS

    return METHODS


def _drafters() -> Iterable[str]:
    from trtla.drafting import DRAFT_PREFIX, DRAFTERS

    return (*DRAFTERS, DRAFT_PREFIX)


def _processors() -> Iterable[str]:
    return ("greedy", "multinomial:0.8", "topk:0.8:50", "nucleus:0.8:0.9", "topknucleus:0.8:50:0.9")


def _datasets() -> Iterable[str]:
    from trtla.cnn_dailymail import CNN_DAILYMAIL

    return (CNN_DAILYMAIL,)


def _gpus() -> Iterable[str]:
    from trtla.tune.roofline import GPUS

    return GPUS


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "compare": _peers,
    "prompts": _prompt_sets,
    "categories": _tasks,
    "arms": _arms,
    "drafter": _drafters,
    "processor": _processors,
    "dataset": _datasets,
    "gpu": _gpus,
    "grid_ngram_kind": lambda: ("basic", "onelevel"),
    "dtype": lambda: ("auto", "float16", "bfloat16", "float32"),
}
_OR_A_FILE = ("prompts", "dataset")
_CHAINS = ("drafter",)  # texts with commas between


def choices(
    param: click.Parameter, ctx: click.Context, incomplete: str
) -> list[CompletionItem] | None:
    """What the shell is offered for a flag's value; None leaves that to the flag's type."""
    name = param.name or ""
    if name.endswith("_dir") or name in _FOLDERS:
        return [CompletionItem(incomplete, type="dir")]
    if isinstance(param.type, click.Choice):
        return None
    if isinstance(param.type, TripleType):
        return _starting(_triples(param.type, ctx), incomplete)
    known = _known(param)
    if known is None:
        return None
    found = _starting(known, incomplete, part=isinstance(param.type, ListType) or name in _CHAINS)
    if not found and name in _OR_A_FILE:
        return [CompletionItem(incomplete, type="file")]
    return found


def _known(param: click.Parameter) -> Iterable[str] | None:
    inner: Any = param.type.inner if isinstance(param.type, ListType) else param.type
    if isinstance(inner, DeviceType):
        return ("auto", "cpu", "cuda")
    names = _NAMES.get(param.name or "")
    return names() if names else None


def _starting(known: Iterable[str], incomplete: str, *, part: bool = False) -> list[CompletionItem]:
    """The names that go on from what is typed; of a list, from behind its last comma."""
    before, comma, last = incomplete.rpartition(",") if part else ("", "", incomplete)
    taken = before.split(",")
    return [
        CompletionItem(before + comma + name)
        for name in known
        if name.startswith(last) and name not in taken and not (comma and name == "none")
    ]


def _triples(kind: TripleType, ctx: click.Context) -> Sequence[str]:
    """The engine's own first, and auto where it may stand."""
    own = _engines_own(ctx.params.get("engine_dir"))
    auto = ("auto",) if isinstance(kind, LookaheadType) else ()
    return list(dict.fromkeys((*own, *auto, *_TRIPLES)))


def _engines_own(engine_dir: object) -> tuple[str, ...]:
    from trtla.config import EngineManifest, read_json, validate

    if isinstance(engine_dir, str):
        path = Path(engine_dir).expanduser() / "trtla.json"
        with suppress(TrtlaError, OSError):
            return (str(validate(EngineManifest, read_json(path), str(path)).triple),)
    return ()
