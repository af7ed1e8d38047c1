"""Models by the name that they have on the Hugging Face hub: `org/name`, or `org/name@revision`;
a GGUF file among others as llama.cpp names it, `org/name:Q4_K_M` or `org/name:file.gguf`.

The files come from huggingface_hub's cache, or are fetched into it; HF_HOME, HF_HUB_OFFLINE and
HF_TOKEN count as they do for transformers.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtla.errors import UsageError, sentence
from trtla.formats.folder import TOKENIZER_FILES
from trtla.formats.special_tokens import GENERATION_CONFIG
from trtla.settings.fields import shown

_NAME = re.compile(
    r"(?P<repo>\w[\w.-]{0,95}/\w[\w.-]{0,95})(@(?P<revision>\w[\w./-]{0,95}))?"
    r"(:(?P<file>[\w./-]{1,200}))?",
    re.A,
)
_TIMEOUT_S = 10.0
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_SMALL = ("config.json", GENERATION_CONFIG, *TOKENIZER_FILES, "*.index.json")
_WEIGHTS = ("*.safetensors", "*.bin", "medusa_lm_head.pt")
"""Each only where those before it are not there."""
_ELSEWHERE = ("*/*", "training_args.bin", "consolidated*")
"""Other formats' folders, files without weights, and the weights again under Mistral's names."""


def hub_folder(path: str | Path) -> Path:
    """The path itself, or the snapshot or GGUF file of the model that it names on the hub.

    `~` is expanded. Only names that are no local path are looked up: one slash, the hub's letters,
    and no folder of the first part's name.
    """
    local, match = Path(os.path.expanduser(path)), _NAME.fullmatch(str(path))
    if _exists(local) or match is None or Path(local.parts[0]).exists():
        return local
    with hub_if_it_answers() as silence:
        try:
            if match["file"]:
                return _gguf_file(match["repo"], match["revision"], match["file"])
            return _snapshot(match["repo"], match["revision"])
        except UsageError:
            raise
        except Exception as error:  # of the network, of the hub, of the cache's disk
            why = f"it does not answer ({silence})" if silence else sentence(error)
            raise UsageError(
                f"{path} does not exist here and could not be fetched from the hub: {why}",
                f"check the path, or run hf download {match['repo']} where there is a network",
            ) from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            text = f"{shown(str(path))}: {error.strerror}"
            raise UsageError(text, "check the path") from None
        return True  # its reader says what is wrong with it


@contextmanager
def hub_if_it_answers() -> Iterator[str]:
    """Have the hub's client look at its cache alone where the hub does not answer one quick
    question, within the block; the client itself gives up only after a minute of retries.

    Yields why it does not, or an empty text.
    """
    from huggingface_hub import constants

    silence = "" if constants.HF_HUB_OFFLINE else _silence(constants.ENDPOINT)
    if not silence:
        yield ""
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield silence
    finally:
        constants.HF_HUB_OFFLINE = before


def _silence(endpoint: str) -> str:
    import ssl
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(endpoint, timeout=_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError:
        return ""
    except urllib.error.URLError as error:
        trusted = isinstance(error.reason, ssl.SSLError)  # the client may know more certificates
        return "" if trusted else str(error.reason)
    except (OSError, ValueError) as error:
        return sentence(error)


def _snapshot(repo: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    for weights in _WEIGHTS:
        folder = Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=[*_SMALL, weights],
                ignore_patterns=list(_ELSEWHERE),
            )
        )
        if any(folder.glob(weights)):
            break
    return folder


def _gguf_file(repo: str, revision: str | None, selector: str) -> Path:
    """The path of a GGUF file's first part, once all parts are in the cache."""
    folder, names = _listed(repo, revision)
    chosen = _chosen(repo, selector, names)
    if folder is not None:
        return folder / chosen[0]
    from huggingface_hub import hf_hub_download

    parts = [Path(hf_hub_download(repo, name, revision=revision)) for name in chosen]
    return parts[0]


def _listed(repo: str, revision: str | None) -> tuple[Path | None, list[str]]:
    """The names of a model's files at the hub; offline, the cache's folder and the names there."""
    from huggingface_hub import HfApi, constants, snapshot_download

    if not constants.HF_HUB_OFFLINE:
        return None, HfApi().list_repo_files(repo, revision=revision)
    folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
    return folder, [str(file.relative_to(folder)) for file in folder.rglob("*.gguf")]


def _chosen(repo: str, selector: str, names: list[str]) -> list[str]:
    files: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(".gguf") and not Path(name).name.startswith("mmproj"):
            files.setdefault(_PART.sub("", name.removesuffix(".gguf")), []).append(name)
    if selector.lower().endswith(".gguf"):
        matches = [stem for stem, parts in files.items() if selector in (*parts, f"{stem}.gguf")]
    else:
        quant = re.compile(rf"(?<![a-z0-9]){re.escape(selector)}$", re.I)
        matches = [stem for stem in files if quant.search(stem)]
    if len(matches) == 1:
        return files[matches[0]]
    available = ", ".join(f"{Path(stem).name}.gguf" for stem in matches or files) or "none"
    raise UsageError(
        f"{repo} has {'several GGUF files' if matches else 'no GGUF file'} for {selector}",
        f"name one of these: {available}" if files else "name a model with GGUF files",
    )
