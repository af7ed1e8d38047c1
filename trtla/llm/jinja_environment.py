"""The jinja2 environment of chat templates, as transformers sets it up.

Templates come from strangers, so they run in jinja2's sandbox. This file, and jinja2 with it, is
imported where a template is compiled.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache, lru_cache, partial
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for training; here its body is shown."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@lru_cache(8)
def compiled(text: str) -> Template:
    """Compile a template; raises jinja2's error for an invalid one."""
    return _environment().from_string(text)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    created = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    created.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # no escapes for HTML
    created.globals["raise_exception"] = _raise_exception
    created.globals["strftime_now"] = lambda format: datetime.now().strftime(format)  # noqa: A006
    return created


def _raise_exception(message: Any) -> None:
    raise TemplateError(message)
