"""Folders that bring code of their own: it never runs, nothing is read from stdin for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.command import Ran, needs, process, refused, there, trtla
from tests.support.encoder_decoders import make_t5
from tests.support.models import Evil
from trtla import LLM, SamplingParams, UsageError

ANSWERS = "y\nyes\n1\n"
"""What would allow the code to run, if anything asked."""

CODE = """
from pathlib import Path
Path({marker!r}).touch()
import transformers
class Config(transformers.LlamaConfig): pass
class Model(transformers.LlamaForCausalLM): pass
class OtherTokenizer(transformers.PreTrainedTokenizerFast): pass
def generate(model, *args, **kwargs): return model.generate(*args, **kwargs)
"""


def change(folder: Path, name: str, **keys: Any) -> None:
    path = folder / name
    data = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**data, **keys}))


def model_code(folder: Path) -> None:
    """Code for a kind of model that transformers knows: it works without."""
    names = {"AutoConfig": "other.Config", "AutoModelForCausalLM": "other.Model"}
    change(folder, "config.json", auto_map=names)
    generating_code(folder)


def generating_code(folder: Path) -> None:
    """Code that transformers takes in place of its own `generate`."""
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "other.py", folder / "custom_generate" / "generate.py")


def tokenizer_code(folder: Path) -> None:
    """A tokenizer that there is no other code for."""
    names = {"AutoTokenizer": ["other.OtherTokenizer", None]}
    change(folder, "tokenizer_config.json", tokenizer_class="OtherTokenizer", auto_map=names)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that the code of a folder makes when it runs."""
    return tmp_path / "code-ran"


@pytest.fixture
def hostile(tmp_path: Path, model: Path, marker: Path) -> Callable[..., Path]:
    """Copies the model and adds code to the copy."""

    def make(*changes: Callable[[Path], None], of: Path = model) -> Path:
        folder = tmp_path / "hostile"
        shutil.copytree(of, folder)
        (folder / "other.py").write_text(CODE.format(marker=str(marker)))
        for one in changes:
            one(folder)
        return folder

    return make


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ((model_code, tokenizer_code), ("convert", "--model-dir")),
        ((model_code, tokenizer_code), ("build", "--dtype", "float32", "--checkpoint-dir")),
        ((model_code,), ("convert", "--dtype", "fp8", "--model-dir")),
        ((model_code, tokenizer_code), ("convert", "--dtype", "fp8", "--model-dir")),
    ],
)
def test_code_of_a_model_is_not_run_where_it_is_converted(
    changes: tuple[Callable[[Path], None], ...], command: tuple[str, ...],
    hostile: Callable[..., Path], marker: Path, tmp_path: Path,
) -> None:  # fmt: skip
    out, texts = tmp_path / "out", tmp_path / "texts.jsonl"
    texts.write_text('{"text": "ab"}\n')
    data = ("--calib-data", texts) if "fp8" in command else ()
    ran = trtla(*command, hostile(*changes), *data, "--output-dir", out, stdin=ANSWERS)
    if data and tokenizer_code in changes:  # calibration needs the tokenizer
        refused(ran, 2, "code of its own")
    else:
        assert ran.code == 0, ran.err
    assert not marker.exists()
    assert not list(out.rglob("*.py"))


@pytest.mark.parametrize("command", there("run", "chat", "explain"))
def test_a_tokenizer_with_code_is_refused(
    command: str, hostile: Callable[..., Path], marker: Path
) -> None:
    folder = hostile(tokenizer_code)
    text = () if command == "chat" else ("--input-text", "hello")
    ran = trtla(command, "--engine-dir", folder, *text, stdin=ANSWERS + "hello\n")
    refused(ran, 2, str(folder), "code of its own")
    assert ran.out == ""
    assert not marker.exists()
    with pytest.raises(UsageError, match="code of its own"):
        LLM(folder)
    assert not marker.exists()


@needs("chat")
@pytest.mark.deep
def test_a_chat_in_a_process_reads_no_answer_for_a_tokenizer(
    hostile: Callable[..., Path], marker: Path, tmp_path: Path
) -> None:
    done = process(
        "chat", "--engine-dir", hostile(tokenizer_code), "--max-output-len", "3",
        input="y\nhello\n", env={"HF_HOME": str(tmp_path / "hub")},
    )  # fmt: skip
    refused(Ran(done.returncode, done.stdout, done.stderr), 2, "code of its own")
    assert done.stdout == ""
    assert not marker.exists()


def test_a_model_with_code_runs_without_it(
    hostile: Callable[..., Path], marker: Path, model: Path
) -> None:
    folder, sampling = hostile(model_code), SamplingParams(max_output_len=3)
    texts = []
    for one in (model, folder):
        with LLM(one) as llm:
            texts.append(llm.generate("ab", sampling)[0].output_ids)
    assert texts[0] == texts[1]
    for command in there("chat"):
        plain, ran = (
            trtla(command, "--engine-dir", one, "--max-output-len", "3", stdin="y\nhello\n")
            for one in (model, folder)
        )
        assert ran.code == 0, ran.err
        assert ran.out == plain.out  # no line was taken for anything but a message
    assert not marker.exists()


def bench(engine: Path, *args: str | Path) -> Ran:
    return trtla(
        "bench", "--engine-dir", engine, "--lookahead", "2,2,2", "--compare", "hf",
        "--prompts", "code", "--num-prompts", "1", "--max-output-len", "4", "--rounds", "1",
        "--dtype", "float32", *args, stdin=ANSWERS,
    )  # fmt: skip


@needs("bench")
@pytest.mark.parametrize("needs_it", [False, True])
def test_a_peer_of_bench_runs_without_the_code_of_its_folder_or_not_at_all(
    needs_it: bool, hostile: Callable[..., Path], marker: Path, model: Path
) -> None:
    folder = hostile(model_code)
    if needs_it:
        change(folder, "config.json", model_type="other", architectures=["Model"])
    ran = bench(model, "--hf-model-dir", folder)
    assert ran.code == (2 if needs_it else 0), ran.err
    assert ("code of its own" in ran.err) is needs_it
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["model_code", "contrastive"])
def test_the_hugging_face_side_of_summarize_runs_no_code(
    kind: str, hostile: Callable[..., Path], marker: Path, articles: Path
) -> None:
    """Contrastive search is code on the hub, which transformers would ask for."""
    folder = hostile(model_code)
    if kind == "contrastive":
        change(folder, "generation_config.json", penalty_alpha=0.6, top_k=4)
    ran = trtla(
        "summarize", "--engine-dir", folder, "--hf-model-dir", folder, "--test-hf",
        "--dataset", articles, "--max-ite", "1", "--max-output-len", "3", "--max-input-len", "30",
        stdin=ANSWERS,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert not marker.exists()


def t5_code(folder: Path) -> None:
    names = {"AutoConfig": "other.Config", "AutoModelForSeq2SeqLM": "other.Model"}
    change(folder, "config.json", auto_map=names)
    generating_code(folder)


def test_an_encoder_decoder_runs_without_its_code(
    hostile: Callable[..., Path], marker: Path, tmp_path: Path
) -> None:
    folder = hostile(t5_code, of=make_t5(tmp_path / "t5"))
    args = ("run", "--engine-dir", folder, "--input-text", "ab", "--max-output-len", "3")
    ran = trtla(*args, stdin=ANSWERS)
    assert ran.code == 0, ran.err
    assert not marker.exists()


def test_pickled_code_in_the_weights_of_an_encoder_decoder_is_not_run(
    hostile: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = hostile(of=make_t5(tmp_path / "t5"))
    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": Evil()}, folder / "pytorch_model.bin")
    ran = trtla("run", "--engine-dir", folder, "--input-text", "ab", "--max-output-len", "3")
    refused(ran, 2, str(folder))
    assert not (tmp_path / "evil").exists()


def test_transformers_opens_folders_in_one_place_only() -> None:
    """Whatever else opened one would have to forbid code again."""
    from tests.support.command import ROOT

    callers = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "trtla").rglob("*.py"))
        if ".from_pretrained(" in path.read_text()
    ]
    assert callers == ["trtla/formats/transformers_load.py"]
