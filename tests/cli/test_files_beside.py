"""What files beside a model say decides how texts end and begin, and `inspect` shows by which."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.chat_templates import UNREADABLE
from tests.support.command import ROOT, known, needs, trtla
from tests.support.gguf_models import BYTE_LEVEL, byte_vocabulary, write_gguf
from tests.support.inspected import inspected
from tests.support.models import Variant, make_model
from trtla.llm.text import Tokenizer

BEGIN, END = 256, 257
HELLO = ("--input-text", "hello", "--max-output-len", "4", "--json")


def change(folder: Path, name: str, **keys: Any) -> None:
    path = folder / name
    data = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**data, **keys}))


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Path:
    """A copy of the model that its test may change."""
    return Path(shutil.copytree(model, tmp_path / "own"))


@pytest.fixture(scope="module")
def tiny() -> Any:
    keys = {"vocab_size": 258, "max_position_embeddings": 64}
    return make_model(Variant("tiny", keys))


def gguf(tiny: Any, path: Path, **keys: Any) -> Path:
    own = {"tokens": byte_vocabulary(), "merges": ["a b"], "eos_token_id": END}
    kept = {key: value for key, value in {**BYTE_LEVEL, **own, **keys}.items() if value is not None}
    return write_gguf(tiny, path, tokenizer=kept)


def test_a_text_ends_at_the_end_token_of_the_tokenizer_too(own: Path) -> None:
    change(own, "generation_config.json", eos_token_id=END)
    change(own, "tokenizer_config.json", eos_token="<s>")
    for token in (BEGIN, END):
        ran = trtla("run", "--engine-dir", own, *HELLO, "--logit-bias", f"{token}:100")
        (result,) = ran.json["results"]
        assert (result["finish_reason"], result["output_ids"]) == ("end_id", [token])


@needs("inspect")
def test_inspect_shows_what_ends_begins_and_fills_with_its_source(own: Path, tiny: Any) -> None:
    change(own, "generation_config.json", eos_token_id=[END])
    change(own, "tokenizer_config.json", eos_token="<s>", bos_token="</s>", add_bos_token=True,
           chat_template="{{ bos_token }}")  # fmt: skip
    found = trtla("inspect", own, "--json").json
    assert found["ends"] == {
        "256": "<s>: tokenizer_config.json, eos_token",
        "257": "</s>: generation_config.json, eos_token_id",
    }
    assert found["begins"] == "</s>: tokenizer_config.json, add_bos_token"
    assert found["chat_template"] == "tokenizer_config.json, chat_template"
    assert "</s>: generation_config.json, eos_token_id" in trtla("inspect", own).out
    file = gguf(tiny, own / "model.gguf", bos_token_id=BEGIN, add_bos_token=True)
    found = trtla("inspect", file, "--json").json
    assert found["ends"] == {"257": "<|im_end|>: tokenizer.ggml.eos_token_id"}
    assert found["begins"].endswith(": tokenizer.ggml.add_bos_token")


def test_a_gguf_file_without_a_pre_tokenizer_gives_a_note(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = gguf(tiny, tmp_path / "old.gguf", pre=None)
    for _ in range(2):  # its folder is made by the first, and read by the second
        ran = trtla("run", "--engine-dir", file, *HELLO)
        assert ran.code == 0, ran.err
        assert caplog.text.count("note: old.gguf has no tokenizer.ggml.pre") == 1
        caplog.clear()
    if shown := inspected(file):
        assert "old.gguf has no tokenizer.ggml.pre" in str(shown["notes"])
        other = inspected(gguf(tiny, tmp_path / "new.gguf"))
        assert "tokenizer.ggml.pre" not in str(other["notes"])


def test_nothing_stands_for_a_beginning_that_there_is_not(tiny: Any, tmp_path: Path) -> None:
    template = "{{ bos_token + '<|im_start|>' + messages[0].content }}"
    file = gguf(tiny, tmp_path / "model.gguf", chat_template=template)
    ran = trtla("run", "--engine-dir", file, "--chat", *HELLO)
    assert ran.code == 0, ran.err
    assert ran.json["results"][0]["input_text"] == "<|im_start|>hello"


@needs("chat")
def test_a_template_that_is_none_is_reported_when_the_model_opens(
    own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(own, "tokenizer_config.json", chat_template=UNREADABLE)
    trtla("chat", "--engine-dir", own, stdin="")
    assert caplog.text.count("note: the model's chat template fails: ") == 1
    if shown := inspected(own):
        assert "the model's chat template fails: " in str(shown["notes"])


def test_templates_without_a_default_are_refused_with_what_helps(own: Path) -> None:
    change(own, "tokenizer_config.json", chat_template=[{"name": "tools", "template": "a"}])
    ran = trtla("run", "--engine-dir", own, "--chat", *HELLO[:-1])
    assert (ran.code, ran.out) == (2, "")
    assert "has no chat template" in ran.err
    assert "--chat-template" in ran.err
    (own / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert trtla("run", "--engine-dir", own, "--chat", *HELLO).code == 0


def test_more_templates_go_along_into_an_engine(own: Path, tmp_path: Path) -> None:
    (own / "additional_chat_templates").mkdir()
    for name in ("default", "tools"):
        (own / "additional_chat_templates" / f"{name}.jinja").write_text(
            f"{name}: {{{{ messages[0].content }}}}"
        )
    trtla("build", "--checkpoint-dir", own, "--output-dir", tmp_path / "engine")
    messages = [{"role": "user", "content": "a"}]
    assert Tokenizer(tmp_path / "engine").chat_text(messages) == "default: a"


def test_tensors_beside_the_model_are_a_note(
    own: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = load_file(own / "model.safetensors")
    save_file({**tensors, "v_head.summary.weight": torch.ones(2)}, own / "model.safetensors")
    first, second = (trtla("run", "--engine-dir", one, *HELLO) for one in (model, own))
    assert second.json["results"][0]["output_ids"] == first.json["results"][0]["output_ids"]
    note = "own holds 1 tensor that texts do not need: v_head.*"
    assert caplog.text.count(note) == 1
    for line in known(("inspect", own)):
        ran = trtla(*line)
        assert ran.code == 0
        assert f"note: {note}" in ran.out


@pytest.mark.deep
def test_what_transformers_warns_of_is_not_for_users(own: Path) -> None:
    """It says that a folder's class is wrong for its tokenizer.json, and goes on."""
    change(own, "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    code = "import sys; from trtla.formats.transformers_load import load_tokenizer as load; load"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}(sys.argv[1])", own],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stderr == ""
