"""--processor: a sampling setting by name, in place of --temperature, --top-k and --top-p."""

from __future__ import annotations

from typing import Any

import click

from trtla.cli.options import setting
from trtla.cli.settings import source
from trtla.cli.values import TEXT
from trtla.errors import UsageError
from trtla.processors import parse_processor

_FILTERS = ("temperature", "top_k", "top_p")

processor_flag = setting(
    "--processor",
    section="Sampling",
    type=TEXT,
    metavar="NAME[:VALUE...]",
    help="In place of the three above: greedy, multinomial:T, topk:T:K, nucleus:T:P or "
    "topknucleus:T:K:P.",
)


def with_processor(flags: dict[str, Any]) -> dict[str, Any]:
    """The running command's flags, its processor turned into temperature, top_k and top_p.

    Raises:
        UsageError: the processor is not usable, or one of the three is given beside it.
    """
    rest = {name: value for name, value in flags.items() if name != "processor"}
    if flags["processor"] is None:
        return rest
    chosen, context = parse_processor(flags["processor"]), click.get_current_context()
    for name in _FILTERS:
        if source(context, name) == "flag":
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--processor and {flag} exclude each other", f"leave {flag} away")
    return {**rest, **dict(zip(_FILTERS, chosen.filters, strict=True))}
