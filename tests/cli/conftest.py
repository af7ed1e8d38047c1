"""The command line on a tiny random Llama with a byte tokenizer; one engine for the session."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pytest

from trtla.cli.failure import execute

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """What a command line left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def trtla(*args: str | Path, stdin: str | TextIO = "", env: dict[str, str] | None = None) -> Ran:
    """Run the command line in this process, exactly as `main` does but for the exit."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        for key, value in (env or {}).items():
            patch.setenv(key, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = execute([str(arg) for arg in args])
    return Ran(code, out.getvalue(), err.getvalue())


def process(*args: str | Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m trtla` as a process of its own."""
    command = [sys.executable, "-m", "trtla", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **kwargs.pop("env", {})}
    return subprocess.run(command, capture_output=True, text=True, env=env, **kwargs)


def refused(ran: Ran, code: int, *parts: str) -> None:
    """Assert a refusal in trtla's form: exit code, one sentence, one hint, no traceback."""
    assert ran.code == code, ran
    lines = [line for line in ran.err.splitlines() if not line.startswith("note: ")]
    assert lines, ran
    assert lines[0].startswith("error: "), ran.err
    assert all(line.startswith("hint: ") for line in lines[1:]), ran.err
    assert len(lines) == 2, ran.err
    for part in parts:
        assert part in ran.err
    assert "Traceback" not in ran.err


def make_model(folder: Path, *, tokenizer: bool = True) -> Path:
    """A random Llama in float32; ids 0 to 255 are bytes, 256 begins and 257 ends a text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=256,
        eos_token_id=257,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    if tokenizer:
        _save_tokenizer(folder)
    return folder


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a tokenizer."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def no_weights(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model without its weights: what is refused here was refused before they were wanted."""
    folder = tmp_path_factory.mktemp("empty") / "model"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture(scope="session")
def checkpoint(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model converted in float32."""
    folder = tmp_path_factory.mktemp("made") / "checkpoint"
    ran = trtla("convert", "--model-dir", model, "--output-dir", folder, "--dtype", "float32")
    assert ran.code == 0, ran.err
    return folder


@pytest.fixture(scope="session")
def engine(checkpoint: Path) -> Path:
    """An engine of (4,3,4) for 4 requests, 128 prompt tokens, 256 in all."""
    folder = checkpoint.parent / "engine"
    limits = ("--max-batch-size", "4", "--max-input-len", "128", "--max-seq-len", "256")
    ran = trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", folder,
        "--lookahead", "4,3,4", *limits,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return folder


@pytest.fixture(scope="session")
def bare_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of a model without tokenizer files."""
    folder = tmp_path_factory.mktemp("bare")
    make_model(folder / "model", tokenizer=False)
    ran = trtla(
        "build", "--checkpoint-dir", folder / "model", "--output-dir", folder / "engine",
        "--lookahead", "3,3,3", "--dtype", "float32",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return folder / "engine"


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    """Two short articles."""
    lines = [
        {"article": "The old mill is open again. Many came.", "highlights": "The mill\nis open."},
        {"article": "A ferry did n't sail on Monday.", "highlights": "No ferry on Monday."},
    ]
    path = tmp_path / "articles.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
