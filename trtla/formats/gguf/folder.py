"""A GGUF file as a Hugging Face folder, which all other code reads like any other.

The folder has config.json, the tokenizer and the chat template; its weights stay in the GGUF file.
It is kept in the user's cache, made again when the file has changed, and may be deleted any time;
those of files that are gone or have changed are deleted when another one is made. Where no cache
can be written, it is a temporary folder of this process.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trtla.errors import UsageError, first_line
from trtla.files import CACHE_HINT, read_json, temporary_folder, written
from trtla.formats.chat_templates import MORE_TEMPLATES, TEMPLATE
from trtla.formats.families import BY_ARCHITECTURE
from trtla.formats.gguf.config import hf_config
from trtla.formats.gguf.header import (
    HEADER,
    MADE_OF,
    Header,
    cached_folder,
    header_text,
    is_gguf,
    read_header,
    shards,
    stamps,
)
from trtla.formats.gguf.tokenizer import Vocabulary
from trtla.formats.gguf.weights import GgufFile, gguf_name
from trtla.formats.hf_config import parse_hf_config
from trtla.formats.hub import hub_folder
from trtla.formats.mistaken import no_gguf_model
from trtla.formats.model_folder import ModelFolder
from trtla.formats.shapes import LM_HEAD
from trtla.formats.special_tokens import GENERATION_CONFIG
from trtla.formats.stored_form import stored_shapes
from trtla.formats.weight_files import raise_first, tensor_problems
from trtla.leftovers import remove_abandoned

_IN_USE_S = 86_400.0
"""The time since a folder was last asked for, after which no open model is expected to read it."""
_TEMPORARY: dict[Path, TemporaryDirectory[str]] = {}
"""The folders of this process by those in the cache; they are removed as it ends."""


def model_folder(path: str | Path) -> Path:
    """The folder of a model: a GGUF file's, that of a name on the hub, or the path itself."""
    return find_folder(path).path


def find_folder(path: str | Path) -> ModelFolder:
    """Find the folder of `model_folder`, with the files of it that have been read."""
    local = hub_folder(path)
    return _gguf_folder(local.absolute()) if is_gguf(local) else ModelFolder(local)


def _gguf_folder(path: Path) -> ModelFolder:
    """The folder of a GGUF file, made if it is not there."""
    file_stamps = stamps(shards(path))
    folder = cached_folder(path, file_stamps)
    known = ModelFolder(folder)
    if _is_whole(known):
        with suppress(OSError):  # of a cache that cannot be written
            os.utime(folder)
        return known
    if folder in _TEMPORARY:
        return ModelFolder(Path(_TEMPORARY[folder].name, folder.name))
    header = read_header(path)
    files, notes = _files(path, header), _said(path, header)
    made_of = {"path": str(path), "stamps": file_stamps, **notes}
    try:
        with written(folder, CACHE_HINT):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with temporary_folder(folder.parent) as temporary:
                _write(temporary / "new", files, made_of)
                _publish(temporary, folder)
            _remove_unused(folder.parent)
    except UsageError:  # no cache can be written here
        with written(folder, CACHE_HINT):
            own = TemporaryDirectory(prefix="trtla-")
            _write(Path(own.name, folder.name), files, made_of)
        _TEMPORARY[folder] = own
        return ModelFolder(Path(own.name, folder.name))
    return ModelFolder(folder)


def _remove_unused(cache: Path) -> None:
    """Remove the folders of files that are gone, have changed, or are kept in another form now."""
    known = ((folder, ModelFolder(folder).object(MADE_OF)) for folder in cache.iterdir())
    made_of = ((folder, str(found["path"])) for folder, found in known if "path" in found)
    unused = (folder for folder, path in made_of if not _may_be_used(folder, Path(path)))
    remove_abandoned(unused, _IN_USE_S)


def _may_be_used(folder: Path, path: Path) -> bool:
    """Return True for the folder of a file as it is, or of one that cannot be read now."""
    try:
        return folder == cached_folder(path, stamps(shards(path)))
    except (OSError, UsageError):
        return not _is_gone(path)


def _is_gone(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        return False
    return False


def weight_file(folder: Path) -> Path | None:
    """The GGUF file, the first of several, from which a folder was made; None: from none."""
    named = folder / MADE_OF
    return shards(Path(read_json(named)["path"]))[0] if named.is_file() else None


def model_name(folder: str) -> str:
    """A model's name for the user: the GGUF file that its folder was made of, else the folder."""
    return str(weight_file(Path(folder)) or folder)


def model_inputs(path: str | Path) -> tuple[Path, ...]:
    """The paths that must stay while a model is read: its folder, or all parts of a GGUF file."""
    local = Path(path)
    file = weight_file(local) or local
    return (local, *(shards(file) if is_gguf(file) else ()))


def _is_whole(folder: ModelFolder) -> bool:
    """Return True if all written files are there; a cache may be cleared file by file."""
    try:
        sizes = folder.read(MADE_OF)["sizes"]
        return all((folder.path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, UsageError, KeyError):
        return False


def _files(path: Path, header: Header) -> dict[str, dict[str, Any] | str]:
    """Every file's content, a text or JSON, after everything has been checked."""
    if (other := no_gguf_model(path, header.metadata, len(header.tensors))) is not None:
        raise other
    weights = GgufFile(path, header)
    config = hf_config(path, header, weights)
    parsed = parse_hf_config(config, path)[0]
    shapes, family = stored_shapes(parsed, gguf=True), BY_ARCHITECTURE[parsed.architecture]
    if config["tie_word_embeddings"]:
        del shapes[LM_HEAD]
    expected = {gguf_name(name, family): shape for name, shape in shapes.items()}
    entries = {gguf_name(name, family): entry for name, entry in weights.entries.items()}
    raise_first(tensor_problems(str(path), entries, expected, "copy the file again"))
    files: dict[str, dict[str, Any] | str] = {"config.json": config, HEADER: header_text(header)}
    if _has_vocabulary(header):
        vocabulary = Vocabulary(path, header.metadata)
        files |= vocabulary.files()
        _check_tokenizer(path, files["tokenizer.json"])
        files[GENERATION_CONFIG] = {"eos_token_id": vocabulary.end_ids}
    return files | _templates(header)


def _templates(header: Header) -> dict[str, str]:
    """The chat templates as files: the one without a name, and those such as `tool_use`."""
    key, found = "tokenizer.chat_template", header.metadata
    names = {key: TEMPLATE}
    names |= {f"{key}.{one}": f"{MORE_TEMPLATES}/{one}.jinja" for one in _named(found, key)}
    return {file: text for name, file in names.items() if isinstance(text := found.get(name), str)}


def _named(metadata: Mapping[str, Any], key: str) -> Iterator[str]:
    names = (name.removeprefix(f"{key}.") for name in metadata if name.startswith(f"{key}."))
    return (name for name in names if re.fullmatch(r"\w{1,64}", name))


def _has_vocabulary(header: Header) -> bool:
    return header.metadata.get("tokenizer.ggml.model") not in (None, "none", "no_vocab")


def _said(path: Path, header: Header) -> dict[str, Any]:
    """Sources of special tokens, and a note about the vocabulary."""
    if not _has_vocabulary(header):
        return {}
    vocabulary = Vocabulary(path, header.metadata)
    return {"sources": vocabulary.sources(), "note": vocabulary.note()}


def vocabulary_note(folder: ModelFolder) -> str | None:
    """The note about the vocabulary of the GGUF file that a folder was made of, if any."""
    note = folder.object(MADE_OF).get("note")
    return note if isinstance(note, str) else None


def _check_tokenizer(path: Path, data: dict[str, Any] | str) -> None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # tokenizers raises nothing narrower
        raise UsageError(
            f"{path}: the tokenizer is broken: {first_line(error)}",
            "convert the model again with a current llama.cpp",
        ) from None


def _write(folder: Path, files: dict[str, dict[str, Any] | str], made_of: dict[str, Any]) -> None:
    folder.mkdir()
    sizes = {}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        sizes[name] = (folder / name).write_bytes(text.encode())
    (folder / MADE_OF).write_text(json.dumps({**made_of, "sizes": sizes}), encoding="utf-8")


def _publish(temporary: Path, folder: Path) -> None:
    """Rename the new folder into place, unless another process was faster."""
    if folder.exists() and not _is_whole(ModelFolder(folder)):
        folder.rename(temporary / "damaged")
    try:
        (temporary / "new").rename(folder)
    except OSError:
        if not _is_whole(ModelFolder(folder)):
            raise
