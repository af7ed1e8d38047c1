"""A GGUF file as a Hugging Face folder, which everything else reads as it reads any other.

The folder has config.json, the tokenizer and the chat template; its weights stay in the GGUF file.
It lies in the user's cache, made anew when the file has changed, and may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, first_line
from trtla.files import CACHE_HINT, read_json, temporary_folder, user_cache, written
from trtla.formats.folder import GENERATION_CONFIG
from trtla.formats.gguf.header import MADE_OF, Header, is_gguf, read_header, shards, stamps
from trtla.formats.hf_config import parse_hf_config
from trtla.formats.hub import hub_folder
from trtla.formats.plan import LM_HEAD, hf_shapes

if TYPE_CHECKING:
    from trtla.formats.gguf.weights import GgufFile

_FORMAT = 1
"""Counted up when the content of the folders changes."""
_LONGEST = 200
"""Bytes of a file's name in that of its folder."""


def model_folder(path: str | Path) -> Path:
    """The folder of a model: a GGUF file's, that of a name on the hub, or the path itself."""
    local = hub_folder(path)
    return gguf_folder(local.absolute()) if is_gguf(local) else local


def gguf_folder(path: Path) -> Path:
    """The folder of a GGUF file, made if it is not there; errors as `model_folder`."""
    found = stamps(shards(path))
    folder = user_cache() / "gguf" / f"{_short(path.stem)}-{_key(found)}"
    if _is_whole(folder):
        return folder
    files = _files(path, read_header(path))
    with written(folder, CACHE_HINT):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder.parent) as made:
            _write(made / "new", files, {"path": str(path), "stamps": found})
            _publish(made, folder)
    return folder


def weight_file(folder: Path) -> Path | None:
    """The GGUF file, the first of several, that a model folder was made of; None: of none."""
    named = folder / MADE_OF
    return shards(Path(read_json(named)["path"]))[0] if named.is_file() else None


def model_inputs(path: str | Path) -> tuple[Path, ...]:
    """What must stay while a model is read: its folder or file, and all parts of a GGUF file."""
    local = Path(path)
    file = weight_file(local) or local
    return (local, *(shards(file) if is_gguf(file) else ()))


def _key(found: list[list[str | int]]) -> str:
    """Changes when the file does, or what trtla makes of it."""
    return hashlib.sha256(repr((_FORMAT, found)).encode()).hexdigest()[:12]


def _short(name: str) -> str:
    """So much of it that a key behind it makes no name that is too long."""
    return name.encode(errors="replace")[:_LONGEST].decode(errors="ignore")


def _is_whole(folder: Path) -> bool:
    """Whether all files are there that were written; a cache may be cleared file by file."""
    try:
        sizes = read_json(folder / MADE_OF)["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, UsageError, KeyError):
        return False


def _files(path: Path, header: Header) -> dict[str, dict[str, Any] | str]:
    """Every file's content, a text or JSON, after everything has been checked."""
    from trtla.formats.gguf.config import hf_config
    from trtla.formats.gguf.tokenizer import Vocabulary
    from trtla.formats.gguf.weights import GgufFile

    weights = GgufFile(path, header)
    config = hf_config(path, header, weights)
    checked, _ = parse_hf_config(config, path)
    _check_weights(path, weights, hf_shapes(checked), config["tie_word_embeddings"])
    files: dict[str, dict[str, Any] | str] = {"config.json": config}
    if header.metadata.get("tokenizer.ggml.model") not in (None, "none", "no_vocab"):
        vocabulary = Vocabulary(path, header.metadata)
        files |= vocabulary.files()
        _check_tokenizer(path, files["tokenizer.json"])
        files[GENERATION_CONFIG] = {"eos_token_id": vocabulary.end_ids}
    template = header.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        files["chat_template.jinja"] = template
    return files


def _check_weights(
    path: Path, weights: GgufFile, shapes: dict[str, tuple[int, ...]], tied: bool
) -> None:
    """Errors have the names of the file."""
    from trtla.formats.gguf.weights import gguf_name
    from trtla.formats.weight_files import raise_first, tensor_problems

    expected = {gguf_name(n): shape for n, shape in shapes.items() if n != LM_HEAD or not tied}
    found = {gguf_name(name): entry for name, entry in weights.entries.items()}
    raise_first(tensor_problems(str(path), found, expected, "copy the file again"))


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
        text = content if isinstance(content, str) else json.dumps(content)
        sizes[name] = (folder / name).write_bytes(text.encode())
    (folder / MADE_OF).write_text(json.dumps({**made_of, "sizes": sizes}), encoding="utf-8")


def _publish(made: Path, folder: Path) -> None:
    """Rename what is new into place, unless another process was faster."""
    if folder.exists() and not _is_whole(folder):
        folder.rename(made / "damaged")
    try:
        (made / "new").rename(folder)
    except OSError:
        if not _is_whole(folder):
            raise
