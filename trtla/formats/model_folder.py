"""A model's folder: of which kind it is, and its JSON files, each read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trtla.errors import UsageError
from trtla.files import read_json, read_text
from trtla.formats.filling import is_half_filled, restore
from trtla.formats.heads.kinds import drafter_kind, no_model_but
from trtla.formats.mistaken import no_model

CONFIG = "config.json"
FolderKind = Literal["Hugging Face model", "checkpoint", "engine"]


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a model or with the files of a tokenizer, as it was when it was first read."""

    path: Path
    _read: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    template: str | None = None
    """A chat template in place of those of its files."""

    @classmethod
    def of(cls, location: str | Path | ModelFolder) -> ModelFolder:
        """The folder at a path; a `ModelFolder` itself, with the files that it has read."""
        return location if isinstance(location, ModelFolder) else cls(Path(location))

    def with_template(self, template: str | None) -> ModelFolder:
        """The same folder with another chat template; None: with its own."""
        return self if template is None else ModelFolder(self.path, self._read, template)

    def read(self, name: str) -> Any:
        """Read a JSON file, once; not to be changed. Raises `UsageError` if it is broken."""
        return self._once(name, read_json)

    def text(self, name: str) -> str:
        """Read a text file, once; raises `UsageError` if it is absent or no UTF-8."""
        return str(self._once(name, read_text))

    def _once(self, name: str, reader: Callable[[Path], Any]) -> Any:
        if name not in self._read:
            try:
                self._read[name] = reader(self.path / name)
            except UsageError as error:
                self._read[name] = error
        content = self._read[name]
        if isinstance(content, UsageError):
            raise content.within("")
        return content

    def object(self, name: str) -> dict[str, Any]:
        """A file's object; an empty one where it is broken or absent."""
        try:
            data = self.read(name)
        except UsageError:
            return {}
        return data if isinstance(data, dict) else {}

    @cached_property
    def kind(self) -> FolderKind:
        """The kind of the folder; raises `UsageError` if it holds no model."""
        path = self.path
        if not (path / CONFIG).is_file():
            restore(path)
        if not path.exists():
            hub = "" if len(path.parts) > 1 else "; a model on the hub is org/name"
            raise UsageError(f"{path} does not exist", f"check the path{hub}")
        if not path.is_dir():
            weights = path.suffix in (".safetensors", ".bin")
            hint = "a model, checkpoint or engine folder, or a GGUF file"
            raise UsageError(
                f"{path} is not a folder", f"give {'the folder that holds it' if weights else hint}"
            )
        if not (path / CONFIG).is_file():
            raise self._half_filled() if is_half_filled(path) else no_model(path)
        kind = config_kind(self.read(CONFIG))
        if kind is None:
            if (drafter := drafter_kind(self.object(CONFIG))) is not None:
                raise no_model_but(path, drafter)
            raise UsageError(
                f"{path / CONFIG} belongs to no Hugging Face model, checkpoint or engine",
                "give a Hugging Face model, checkpoint or engine folder",
            )
        return kind

    def _half_filled(self) -> UsageError:
        return UsageError(
            f"the files of {self.path} are being replaced, or a killed process left them so",
            "wait until it has ended, or run trtla inspect as a user who may write there",
        )


def config_kind(data: Any) -> FolderKind | None:
    """The kind of folder that a parsed config.json belongs to; None: it is none of the three."""
    if not isinstance(data, dict):
        return None
    if "pretrained_config" in data or "build_config" in data:
        return "engine"
    if "architectures" in data or "model_type" in data:
        return "Hugging Face model"
    if "architecture" in data or "mapping" in data:
        return "checkpoint"
    return None
