"""--processor: sampling settings by name, in place of --temperature, --top-k and --top-p."""

from __future__ import annotations

from typing import Any

import click

from trtla.cli.options import setting
from trtla.cli.settings import source
from trtla.cli.values import NAMES, TEXT
from trtla.errors import UsageError
from trtla.processors import parse_processor

_FILTERS = ("temperature", "top_k", "top_p")
_NAMES = "greedy, multinomial:T, topk:T:K, nucleus:T:P or topknucleus:T:K:P."

processor_flag = setting(
    "--processor",
    section="Sampling",
    type=TEXT,
    metavar="NAME[:VALUE...]",
    help=f"In place of the three above: {_NAMES}",
)
"""One."""

processors_flag = setting(
    "--processor",
    section="Lists: every combination is measured",
    type=NAMES,
    metavar="NAME[:VALUE...],...",
    show_default="with --ablation greedy,nucleus:0.8:0.9",
    callback=lambda ctx, param, value: value or (),
    help=f"In place of --temperature, --top-k and --top-p: {_NAMES}",
)
"""A list."""


def with_processor(flags: dict[str, Any]) -> dict[str, Any]:
    """The running command's flags, its processor turned into temperature, top_k and top_p.

    Raises:
        UsageError: the processor is not usable, or one of the three is given beside it.
    """
    rest = {name: value for name, value in flags.items() if name != "processor"}
    if flags["processor"] is None:
        return rest
    chosen = parse_processor(flags["processor"])
    refuse_filters(flags["processor"])
    return {**rest, **dict(zip(_FILTERS, chosen.filters, strict=True))}


def refuse_filters(processor: object) -> None:
    """Refuse what a processor of the running command stands for beside it.

    Raises:
        UsageError: there is a processor, and one of the three flags is given.
    """
    context = click.get_current_context()
    for name in _FILTERS if processor else ():
        if source(context, name) == "flag":
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--processor and {flag} exclude each other", f"leave {flag} away")
