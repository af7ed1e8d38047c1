"""A model is opened once: a command and `LLM` share one record of what lies in its folder."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import trtla
from tests.support.gguf_models import BYTE_LEVEL, byte_vocabulary, write_gguf
from tests.support.models import Variant, make_model
from trtla.formats.gguf.folder import model_folder
from trtla.llm.llm import LLM
from trtla.settings.sampling import SamplingParams

_PROMPT = "def f("
_noted: list[list[Path]] = []
"""The lists that take the paths of what is opened now."""


def _note(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and _noted and isinstance(args[0], (str, os.PathLike)):
        _noted[-1].append(Path(args[0]))


@pytest.fixture(scope="module")
def hooked() -> None:
    sys.addaudithook(_note)  # for good: Python removes none


@contextmanager
def opening() -> Iterator[list[Path]]:
    _noted.append([])
    try:
        yield _noted[-1]
    finally:
        _noted.pop()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = byte_vocabulary()
    variant = Variant("small", {"vocab_size": len(vocabulary), "max_position_embeddings": 256})
    tokenizer = {
        **BYTE_LEVEL,
        "tokens": vocabulary,
        "merges": ["a b"],
        "eos_token_id": 257,
        "chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}",
    }
    path = tmp_path_factory.mktemp("once") / "small.gguf"
    return write_gguf(make_model(variant), path, tokenizer=tokenizer)


def open_as_server(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open as `trtla serve` does, in another thread than the command's."""

    def run(settings: object, open_model: Callable[[], LLM], *more: object) -> int:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(open_model).result().close()
        return 0

    monkeypatch.setattr("trtla.serve.server.serve", run)
    ran = trtla("serve", model)
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("how", ["run", "LLM", "serve"])
@pytest.mark.parametrize("kind", ["model", "engine", "gguf"])
def test_each_file_of_a_model_is_read_once(kind, how, request, hooked, monkeypatch):
    model: Path = request.getfixturevalue(kind)
    folder = model_folder(model)
    with opening() as paths:
        if how == "run":
            ran = trtla("run", "-m", model, "-p", _PROMPT, "-n", "4")
            assert ran.code == 0, ran.err
        elif how == "serve":
            open_as_server(model, monkeypatch)
        else:
            with LLM(model) as llm:
                llm.generate(_PROMPT, SamplingParams(max_output_len=4))
    counts = Counter(path.name for path in paths if path == model or path.parent == folder)
    headers = {model.name, "model.safetensors", "rank0.safetensors"}
    # Of weights the header and then the numbers; the file's stamps once more as those are opened.
    twice = headers | {"gguf.json"}
    assert counts["config.json"] == 1
    assert {name for name, count in counts.items() if count > 1} <= twice
    assert max(counts.values()) <= 2
