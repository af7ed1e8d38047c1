"""Texts for FP8 calibration: from CNN/DailyMail, or a .txt or .jsonl file.

They are tokenised here; trtla.build.quantize runs the model over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

from trtla.build.quantize import Calibration
from trtla.data.prompt_sets import CNN_DAILYMAIL, load_rows
from trtla.errors import TrtlaError, UsageError, install_hint
from trtla.files import parse_jsonl, read_text
from trtla.formats.folder import tokenizer_dir
from trtla.llm.text import Tokenizer
from trtla.runtime.device import resolve_device

TEXT_CHARS = 2048
"""Length of the texts that a .txt file is cut into: about calib_max_seq_length (512) tokens."""
DEFAULT_TEXTS = 512
"""Most texts to read; calib_size of TensorRT-LLM's quantize.py."""

_HINT = 'give --calib-data PATH: a .txt file, or a .jsonl file with {"text"} or {"article"} lines'


class CalibrationLine(BaseModel):
    """One line of a .jsonl file: `text`, or `article` as in CNN/DailyMail; any other keys."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    text: str | None = None
    article: str | None = None

    @model_validator(mode="after")
    def _one(self) -> CalibrationLine:
        if (self.text is None) == (self.article is None):
            raise ValueError('the line needs either "text" or "article"')
        return self


def calibration(
    model_dir: str | Path,
    data: str = CNN_DAILYMAIL,
    size: int = DEFAULT_TEXTS,
    *,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The calibration data of `convert`: the first `size` texts of a data set, tokenised.

    It is read when `convert` needs it, after its own checks.

    Args:
        model_dir: a Hugging Face folder with tokenizer files.
        data: cnn_dailymail (articles of its train split), or a .txt or .jsonl file. A .txt file is
            cut into texts of TEXT_CHARS characters.
        device: auto, cpu, cuda or cuda:N.
        progress: called with (texts done, texts in all).
    """
    prompts = _prompts(Path(model_dir), data, size)
    return Calibration(prompts, str(resolve_device(device)), progress)


def _prompts(model_dir: Path, data: str, size: int) -> Iterator[tuple[int, ...]]:
    if tokenizer_dir(model_dir) is None:
        raise UsageError(
            f"{model_dir} has no tokenizer files, calibration needs them",
            "copy tokenizer.json into the folder",
        )
    # Before the tokenizer: once transformers is loaded, the hub's client no longer learns that
    # there is no network, and retries for a minute.
    sample = list(islice(texts(data, size), size))
    tokenizer = Tokenizer(model_dir)
    yield from map(tokenizer.encode, sample)


def texts(data: str, size: int) -> Iterator[str]:
    """The texts of a data set or file, at least the first `size` ones."""
    if data == CNN_DAILYMAIL:
        if find_spec("datasets") is None:
            raise TrtlaError(
                f'calibration on {CNN_DAILYMAIL} needs the "datasets" package',
                f"{install_hint('eval')}, or {_HINT}",
            )
        yield from (row["article"] for row in load_rows("train", size, _HINT))
        return
    suffix = Path(data).suffix.lower()
    if suffix not in (".txt", ".jsonl"):
        raise UsageError(
            f"calibration data {data} is neither {CNN_DAILYMAIL} nor a .txt or .jsonl file", _HINT
        )
    text = read_text(Path(data))
    if suffix == ".jsonl":
        for _, line in parse_jsonl(CalibrationLine, text, data):
            yield line.text or line.article or ""
    else:
        for start in range(0, len(text), TEXT_CHARS):
            yield text[start : start + TEXT_CHARS]
