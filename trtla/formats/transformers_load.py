"""Loading by transformers itself: models of other kinds, and tokenizers in Python."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.errors import TORCH, UsageError, is_installed, named, require, sentence
from trtla.files import refuse_stand_in
from trtla.formats.folder import TOKENIZER_FILES
from trtla.formats.gguf.header import MADE_OF
from trtla.formats.hf_config import built_of
from trtla.formats.model_folder import ModelFolder
from trtla.formats.quantised_folder import quantization_name

if TYPE_CHECKING:
    import torch

    from trtla.formats.hf import HFModel

_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/=]+ \d+\r?\n")
"""The beginning of a file of tiktoken: a token in base64 and its rank."""
_VERBOSITY = "TRANSFORMERS_VERBOSITY"


def load_model(kind: str, folder: str | Path, dtype: torch.dtype, hint: str) -> Any:
    """A Hugging Face folder's model in evaluation mode, on the CPU.

    Args:
        kind: transformers' class, such as AutoModelForCausalLM.
        dtype: the type of its weights in memory.
        hint: the next step when it cannot be loaded.
    """
    from trtla.formats.hf import HFModel, check_layers

    weights = f"the weights in {folder}"
    _check_folder(folder, weights, hint)
    require(weights, *TORCH)
    check_layers(Path(folder))
    # transformers reads FP8 with its scales only if the package that made it is installed
    method = quantization_name(ModelFolder.of(Path(folder)))
    if (Path(folder) / MADE_OF).is_file() or method not in (None, "mxfp4"):
        return _load_dequantized(kind, HFModel.open(folder), dtype)
    with _quiet():
        model, info = _load(kind, folder, weights, hint, dtype=dtype, output_loading_info=True)
    if info["missing_keys"]:  # transformers fills them with random numbers
        name = min(info["missing_keys"])
        raise UsageError(f"{weights} lack the tensor {name} that config.json asks for", hint)
    return model.eval()


def _load_dequantized(kind: str, model: HFModel, dtype: torch.dtype) -> Any:
    """The model of a GGUF file, which transformers cannot find in the folder, or of FP8."""
    if model.config.num_experts:
        raise UsageError(
            f"{model.path} is a mixture of experts, whose GGUF files transformers is not given",
            "give the Hugging Face folder that the file was made of",
        )
    import transformers

    from trtla.formats.torch_tensors import as_tensor

    config = transformers.AutoConfig.from_pretrained(str(model.path), local_files_only=True)
    vars(config).pop("quantization_config", None)
    with closing(model):
        state = {name: as_tensor(array).to(dtype) for name, array in model.stored_numbers()}
    with _quiet():
        result = getattr(transformers, kind).from_config(config, dtype=dtype)
        result.load_state_dict(state, strict=False, assign=True)
        result.tie_weights()
    return result.eval()


def load_tokenizer(folder: str | Path) -> Any:
    """A folder's tokenizer as transformers reads it."""
    paths = [Path(folder) / name for name in TOKENIZER_FILES if (Path(folder) / name).is_file()]
    for path in paths:
        refuse_stand_in(path)
    stats = [(path.name, path.stat()) for path in paths]
    return _tokenizer(str(folder), tuple((n, stat.st_mtime_ns, stat.st_size) for n, stat in stats))


@lru_cache(maxsize=1)
def _tokenizer(folder: str, files: tuple[tuple[str, int, int], ...]) -> Any:
    """The tokenizer of these very files: a command needs it before and after the model opens."""
    hint = f"give a folder that holds tokenizer.json with {named('tokenizer_dir')}"
    label, options = f"the tokenizer in {folder}", {}
    _check_folder(folder, label, hint)
    require(label, "transformers")
    _check_packages(Path(folder))
    with _quiet():
        if (kind := built_of(Path(folder))) is not None:
            from transformers import AutoConfig

            options["config"] = AutoConfig.for_model(kind)
        return _load("AutoTokenizer", folder, label, hint, **options)


def _check_folder(folder: str | Path, label: str, hint: str) -> None:
    """Refuse what transformers would take for a name on the hub."""
    if not Path(folder).is_dir():
        raise UsageError(f"{label} cannot be loaded: {folder} is not a folder", hint)


def _check_packages(folder: Path) -> None:
    """Refuse a tokenizer that needs a missing package, before transformers guesses."""
    path = folder / "tokenizer.model"
    if (folder / "tokenizer.json").is_file() or not path.is_file():
        return
    with path.open("rb") as file:
        ranks = _TIKTOKEN.match(file.read(200)) is not None
    needed = ("tiktoken",) if ranks else ("sentencepiece", "google.protobuf")
    missing = [name for name in needed if not is_installed(name)]
    if missing:
        names = [name.rpartition(".")[2] for name in missing]
        raise UsageError(
            f"{path} takes {' and '.join(names)} to be read, not installed here",
            f"pip install {' '.join(names)}, or give a folder with tokenizer.json: "
            f"{named('tokenizer_dir')}",
        )


def wrapped_tokenizer(tokenizer: Any, tokens: dict[str, str], template: Any) -> Any:
    """Wrap a `tokenizers.Tokenizer` as one of transformers, which encodes and decodes alike."""
    with _quiet():
        from transformers import PreTrainedTokenizerFast

        find = tokenizer.token_to_id
        known = {role: name for role, name in tokens.items() if find(name) is not None}
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer,
            clean_up_tokenization_spaces=False,
            chat_template=template,
            **known,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers within the block: progress bars, warnings, tables before it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log = _its_logging()
        log.disable_progress_bar()
        before = log.get_verbosity()
        log.set_verbosity_error()
        try:
            yield
        finally:
            log.set_verbosity(before)


def _its_logging() -> Any:
    """The logging module of transformers, which warns of missing packages on import, too."""
    if "transformers" in sys.modules or _VERBOSITY in os.environ:
        from transformers.utils import logging
    else:
        os.environ[_VERBOSITY] = "error"
        try:
            from transformers.utils import logging
        finally:
            del os.environ[_VERBOSITY]
        logging.set_verbosity_warning()  # type: ignore[no-untyped-call]
    return logging


def _load(kind: str, folder: str | Path, label: str, hint: str, **options: Any) -> Any:
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:  # transformers raises whatever its readers raise
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"{label} cannot be loaded without code of its own, which trtla never runs",
                "give a folder whose model and tokenizer are among those of transformers",
            ) from None
        reason = sentence(error)
        if "ignore_mismatched_sizes" in reason:  # an argument that users cannot give
            reason = "a tensor has another shape than config.json asks for"
        raise UsageError(f"{label} cannot be loaded: {reason}", hint) from None
