"""The text of a folder's chat template, from whichever of the files that may have it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtla.errors import UsageError, named
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import TOKENIZER_CONFIG, gguf_sources, read_tokenizer_config

TEMPLATE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
"""A folder of templates with other names."""

Stored = str | dict[str, str]
"""A template's text, or several by name: `default`, and `tool_use` where tools are given."""


def stored_template(folder: ModelFolder) -> tuple[Stored, str] | None:
    """A folder's template, found as transformers does, and its source; None: there is none."""
    if folder.template is not None:
        return folder.template, "--chat-template"
    files = {path.stem: f"{MORE_TEMPLATES}/{path.name}" for path in more_templates(folder.path)}
    if (folder.path / TEMPLATE).is_file():
        files = {"default": TEMPLATE, **files}
    if files:
        texts = {name: folder.text(file) for name, file in files.items()}
        only = texts["default"] if texts.keys() == {"default"} else texts
        source = TEMPLATE if "default" in texts else MORE_TEMPLATES
        return only, str(gguf_sources(folder).get("chat_template", source))
    stored = _by_name(read_tokenizer_config(folder).get("chat_template"))
    return (stored, f"{TOKENIZER_CONFIG}, chat_template") if stored else None


def unused_variables(template: Stored | None, variables: Mapping[str, object]) -> str:
    """Say which variables change nothing, as no template is used, or it has no such word."""
    if template is None:
        return "--chat-template-kwargs changes nothing without --chat" if variables else ""
    words = re.findall(r"\w+", str(template).replace("\\n", " "))
    unknown = ", ".join(name for name in variables if name not in words)
    return f"the chat template ignores {unknown}" if unknown else ""


def more_templates(folder: Path) -> list[Path]:
    """The files of the templates that have names."""
    return sorted((folder / MORE_TEMPLATES).glob("*.jinja"))


def _by_name(stored: Any) -> Stored | None:
    if isinstance(stored, list):
        pairs = [item for item in stored if isinstance(item, dict)]
        return {str(item.get("name")): str(item.get("template")) for item in pairs}
    return stored if isinstance(stored, str) else None


def no_default(names: list[str]) -> UsageError:
    """The refusal of messages where several templates have other names."""
    return UsageError(
        f"the model has several chat templates and none is called default, but {', '.join(names)}",
        f"give the file of one of them: {named('chat_template')} {MORE_TEMPLATES}/NAME.jinja",
    )
