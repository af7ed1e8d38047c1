"""The jinja2 environment of chat templates, as transformers sets it up.

The rules are those of transformers' `utils/chat_template_utils.py`: templates come from strangers,
so they run in jinja2's sandbox, and neither dictionaries nor namespaces lead out of it. This file,
and jinja2 with it, is imported where a template is compiled.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace as AnyNamespace


class Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for training; here its body is shown."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_shown")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _shown(self, caller: Any) -> Any:
        return caller()


class TemplateDict:
    """`dict` without the attributes that lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class Namespace(AnyNamespace):
    """`namespace` that stores no attribute of Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `namespace(self=...)` is allowed
        self_, *positional = args
        attributes = dict(*positional, **kwargs)
        for name in attributes:
            _check_name(name)
        AnyNamespace.__init__(self_, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
            f"{name!r}. Please rename the attribute."
        )


@cache
def environment() -> ImmutableSandboxedEnvironment:
    """Create the environment that templates are compiled in."""
    created = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    created.filters["tojson"] = _tojson
    created.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda format: datetime.now().strftime(format),  # noqa: A006
        "dict": TemplateDict(),
        "namespace": Namespace,
    }
    return created


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Serialise without jinja2's escapes for HTML."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise TemplateError(message)
