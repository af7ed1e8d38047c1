"""Models by the name that they have on the Hugging Face hub: `org/name`, or `org/name@revision`.

The files come from huggingface_hub's cache, or are fetched into it; HF_HOME, HF_HUB_OFFLINE and
HF_TOKEN count as they do for transformers.
"""

from __future__ import annotations

import re
from pathlib import Path

from trtla.errors import UsageError, sentence
from trtla.formats.folder import GENERATION_CONFIG, TOKENIZER_FILES

_NAME = re.compile(
    r"(?P<repo>\w[\w.-]{0,95}/\w[\w.-]{0,95})(@(?P<revision>\w[\w./-]{0,95}))?", re.A
)
_SMALL = ("config.json", GENERATION_CONFIG, *TOKENIZER_FILES, "*.index.json")
_WEIGHTS = ("*.safetensors", "*.bin")
"""The second only where the first is not there."""
_ELSEWHERE = ("*/*", "training_args.bin", "consolidated*")
"""Other formats' folders, what is no weight, and the weights once more under Mistral's names."""


def hub_folder(path: str | Path) -> Path:
    """The path itself, or the snapshot of the model that it names on the hub.

    Only what no local path can mean is looked up: one slash, the hub's letters, and no folder of
    the first part's name.

    Raises:
        UsageError: it is a hub's name, and the hub does not give the files.
    """
    given, found = Path(path), _NAME.fullmatch(str(path))
    if found is None or given.exists() or Path(given.parts[0]).exists():
        return given
    try:
        return _snapshot(found["repo"], found["revision"])
    except Exception as error:  # of the network, of the hub, of the cache's disk
        raise UsageError(
            f"{path} does not exist here, and the hub does not give it: {sentence(error)}",
            f"check the path, or run hf download {found['repo']} where there is a network",
        ) from None


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
