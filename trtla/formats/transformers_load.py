"""What transformers itself has to load: models of other kinds, and tokenizers in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, sentence
from trtla.files import refuse_stand_in
from trtla.formats.folder import TOKENIZER_FILES
from trtla.formats.gguf.header import MADE_OF

if TYPE_CHECKING:
    import torch

    from trtla.formats.hf import HFModel


def load_model(kind: str, folder: str | Path, dtype: torch.dtype, hint: str) -> Any:
    """A Hugging Face folder's model in evaluation mode, on the CPU.

    Args:
        kind: transformers' class, such as AutoModelForCausalLM.
        dtype: the type of its weights in memory.
        hint: what to do when it cannot be loaded.
    """
    from trtla.formats.hf import HFModel, check_layers

    what = f"the weights in {folder}"
    if Path(folder).is_dir():
        check_layers(Path(folder))
    if (Path(folder) / MADE_OF).is_file():
        return _load_dequantized(kind, HFModel.open(folder), dtype)
    with _quiet():
        model, found = _load(kind, folder, what, hint, dtype=dtype, output_loading_info=True)
    if found["missing_keys"]:  # transformers fills them with random numbers
        name = min(found["missing_keys"])
        raise UsageError(f"{what} lack the tensor {name} that config.json asks for", hint)
    return model.eval()


def _load_dequantized(kind: str, model: HFModel, dtype: torch.dtype) -> Any:
    """The model of a GGUF file, which transformers cannot find in the folder."""
    import transformers

    from trtla.formats.plan import LM_HEAD, hf_shapes
    from trtla.formats.tensors import Dequantized
    from trtla.formats.torch_tensors import as_tensor

    config = transformers.AutoConfig.from_pretrained(str(model.path), local_files_only=True)
    names = hf_shapes(model.config)
    if model.config.tie_word_embeddings:
        del names[LM_HEAD]
    numbers = Dequantized(model, model.config.block_types)
    with closing(model):
        state = {
            name: as_tensor(numbers.read(name, 0, shape[0])).to(dtype)
            for name, shape in names.items()
        }
    with _quiet():
        made = getattr(transformers, kind).from_config(config, dtype=dtype)
        made.load_state_dict(state, strict=False, assign=True)
        made.tie_weights()
    return made.eval()


def load_tokenizer(folder: str | Path) -> Any:
    """A folder's tokenizer."""
    paths = [Path(folder) / name for name in TOKENIZER_FILES if (Path(folder) / name).is_file()]
    for path in paths:
        refuse_stand_in(path)
    stats = [(path.name, path.stat()) for path in paths]
    return _tokenizer(str(folder), tuple((n, stat.st_mtime_ns, stat.st_size) for n, stat in stats))


@lru_cache(maxsize=1)
def _tokenizer(folder: str, files: tuple[tuple[str, int, int], ...]) -> Any:
    """The tokenizer of these very files: a command asks for it before and after the model opens."""
    hint = "give a folder that holds tokenizer.json with --tokenizer-dir"
    return _load("AutoTokenizer", folder, f"the tokenizer in {folder}", hint)


def fills_in_by_jinja(tokenizer: Any) -> bool:
    """Whether a tokenizer of transformers fills chat templates in as most do."""
    from transformers import PreTrainedTokenizerBase

    usual = PreTrainedTokenizerBase.apply_chat_template
    return getattr(type(tokenizer), "apply_chat_template", None) is usual


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, and without the tables that transformers logs before it raises."""
    from transformers.utils import logging as log

    log.disable_progress_bar()  # type: ignore[no-untyped-call]
    before = log.get_verbosity()
    log.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        log.set_verbosity(before)


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
        if "ignore_mismatched_sizes" in reason:  # an argument that users cannot give
            reason = "a tensor has another shape than config.json asks for"
        raise UsageError(f"{what} cannot be loaded: {reason}", hint) from None
