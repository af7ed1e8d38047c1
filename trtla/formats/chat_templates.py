"""The text of a folder's chat template, from whichever of the files that may have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def more_templates(folder: Path) -> list[Path]:
    """The files of the templates that have names."""
    return sorted((folder / MORE_TEMPLATES).glob("*.jinja"))


def _by_name(stored: Any) -> Stored | None:
    if isinstance(stored, list):
        pairs = [item for item in stored if isinstance(item, dict)]
        return {str(item.get("name")): str(item.get("template")) for item in pairs}
    return stored if isinstance(stored, str) else None
