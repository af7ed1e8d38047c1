"""Opens models and tokenizers in transformers: the only file that calls `from_pretrained`.

Code that a folder brings is never run, and nothing is asked on stdin or fetched: transformers does
all of that by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.build.hf import check_layers
from trtla.errors import UsageError, sentence

if TYPE_CHECKING:
    import torch


def load_model(kind: str, folder: str | Path, dtype: torch.dtype, hint: str) -> Any:
    """A model in evaluation mode, on the CPU.

    Args:
        kind: transformers' class, such as AutoModelForCausalLM.
        folder: a Hugging Face folder.
        dtype: the type of its weights in memory.
        hint: what to do when it cannot be loaded.

    Raises:
        UsageError: it cannot be loaded, or only by code of its own, or it lacks tensors.
    """
    what = f"the weights in {folder}"
    if Path(folder).is_dir():
        check_layers(Path(folder))
    with _quiet():
        model, found = _load(kind, folder, what, hint, dtype=dtype, output_loading_info=True)
    if found["missing_keys"]:  # transformers fills them with random numbers
        name = min(found["missing_keys"])
        raise UsageError(f"{what} lack the tensor {name} that config.json asks for", hint)
    return model.eval()


def load_tokenizer(folder: str | Path) -> Any:
    """A folder's tokenizer.

    Raises:
        UsageError: it cannot be loaded, or only by code of its own.
    """
    hint = "give a folder that holds tokenizer.json with --tokenizer-dir"
    return _load("AutoTokenizer", folder, f"the tokenizer in {folder}", hint)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, and without the tables that transformers logs before it raises."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _load(kind: str, folder: str | Path, what: str, hint: str, **options: Any) -> Any:
    import transformers

    if not Path(folder).is_dir():  # else transformers takes it for a name on the hub
        raise UsageError(f"{what} cannot be loaded: {folder} is not a folder", hint)
    try:
        return getattr(transformers, kind).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:  # transformers raises whatever its readers raise
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"{what} cannot be loaded without code of its own, which trtla never runs",
                "give a folder whose model and tokenizer are among those of transformers",
            ) from None
        reason = sentence(error)
        if "ignore_mismatched_sizes" in reason:  # an argument that nobody can give
            reason = "a tensor has another shape than config.json asks for"
        raise UsageError(f"{what} cannot be loaded: {reason}", hint) from None
