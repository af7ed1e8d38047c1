"""What is given for a model and is something else is called by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.support.command import refused, trtla
from tests.support.heads import edit, head_path, write_head

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 4976698672\n"
PAGE = "<!DOCTYPE html>\n<html><head><title>model at main</title></head></html>\n"


@pytest.mark.parametrize(
    ("content", "says"), [(POINTER, "git-lfs's pointer to a file"), (PAGE, "a web page")]
)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_what_stands_for_a_file_is_named(
    tiny_llama: Path, tmp_path: Path, name: str, content: str, says: str
) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    (folder / name).unlink()
    (folder / name).write_text(content)
    ran = trtla("run", "-m", folder, "-p", "a", "-n", "1")
    assert ran.code == 2
    assert f"{folder / name} is {says}" in ran.err


@pytest.mark.parametrize(("name", "content"), [("model.gguf", POINTER), ("m.gguf", PAGE)])
def test_what_stands_for_a_gguf_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    ran = trtla("run", "-m", tmp_path / name, "-p", "a")
    assert ran.code == 2
    assert ", not the file\n" in ran.err


def test_an_adapter_is_named(tmp_path: Path) -> None:
    said = {"base_model_name_or_path": "meta-llama/Llama-2-7b"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    ran = trtla("run", "-m", tmp_path, "-p", "a")
    assert ran.code == 2
    assert "holds an adapter for 'meta-llama/Llama-2-7b' (LoRA), not a model" in ran.err
    assert "merge_and_unload" in ran.err


def test_metas_original_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    (tmp_path / "consolidated.00.pth").write_text("")
    ran = trtla("run", "-m", tmp_path, "-p", "a")
    assert ran.code == 2
    assert "holds a model in Meta's original format" in ran.err


@pytest.mark.parametrize(
    ("names", "says"), [(("b.gguf",), "a GGUF file"), (("c.gguf", "b.gguf"), "2 GGUF files")]
)
def test_a_folder_of_gguf_files_names_one(
    tmp_path: Path, names: tuple[str, ...], says: str
) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    ran = trtla("run", "-m", tmp_path, "-p", "a")
    assert ran.code == 2
    assert f"{tmp_path} is a folder with {says}\n" in ran.err
    assert f"give the file, such as {tmp_path / 'b.gguf'}\n" in ran.err


def test_a_folder_of_a_gguf_model_and_its_head_names_the_model(tmp_path: Path) -> None:
    write_head(tmp_path / "a-head.gguf", "gguf")
    (tmp_path / "b.gguf").write_text("")
    ran = trtla("run", "-m", tmp_path, "-p", "a")
    refused(ran, 2, "a folder with 2 GGUF files", f"such as {tmp_path / 'b.gguf'}")


@pytest.mark.parametrize("inside", ["", "models--a--b"])
def test_the_root_of_a_cache_names_a_snapshot(tmp_path: Path, inside: str) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    ran = trtla("run", "-m", tmp_path / inside, "-p", "a")
    assert ran.code == 2
    assert "is a cache of the hub, not a model" in ran.err
    assert f"such as {snapshot}" in ran.err


def test_an_adapter_with_its_models_config_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    (tmp_path / "adapter_config.json").write_text("{}")
    ran = trtla("run", "-m", tmp_path, "-p", "a")
    assert ran.code == 2
    assert "holds an adapter (LoRA), not a model" in ran.err


@pytest.mark.parametrize(
    ("prefix", "what"),
    [
        ("_orig_mod.", "a compiled model (torch.compile)"),
        ("module.", "a model in DataParallel"),
        ("base_model.model.", "a model with an adapter (PEFT)"),
        ("model.language_model.", "the text part of a model for images or sound"),
        ("language_model.", "the text part of a model for images or sound"),
        ("model.", "a module that has the model"),
    ],
)
def test_weights_of_a_wrapped_model_are_named(
    tiny_llama: Path, tmp_path: Path, prefix: str, what: str
) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file({f"{prefix}{n}": t for n, t in tensors.items()}, folder / "model.safetensors")
    ran = trtla("run", "-m", folder, "-p", "a", "-n", "1")
    assert ran.code == 2
    assert f"names of tensors begin with '{prefix}" in ran.err
    assert f"as those of {what}" in ran.err


@pytest.mark.parametrize(
    ("style", "what"),
    [
        ("specforge", "an EAGLE-3 head"),
        ("speculators", "an EAGLE-3 head"),
        ("gguf", "an EAGLE-3 head"),
        ("medusa", "Medusa heads"),
        ("medusa-pt", "Medusa heads"),
    ],
)
def test_a_head_in_place_of_its_model_is_named(style: str, what: str, tmp_path: Path) -> None:
    path = write_head(head_path(tmp_path, style), style)
    if style == "medusa-pt":
        (path / "config.json").unlink()
    ran = trtla("run", "-m", path, "-p", "a")
    assert ran.code == 2
    assert f"{path} holds {what}, not a model\n" in ran.err
    assert (
        f"give the model that it drafts for, and the head with --drafter head:{path}\n" in ran.err
    )


def test_another_drafter_in_place_of_its_model_is_named(tmp_path: Path) -> None:
    path = write_head(tmp_path / "head", change=edit(architectures=["DFlashDraftModel"]))
    ran = trtla("run", "-m", path, "-p", "a")
    assert ran.code == 2
    assert f"{path} holds a DFlash drafter, not a model\n" in ran.err
    assert "give the model that it drafts for\n" in ran.err


_LORA = {"blk.0.attn_q.weight.lora_a": np.ones((4, 8), np.float32)}


@pytest.mark.parametrize(
    ("architecture", "keys", "tensors", "what"),
    [
        ("llama", {"general.type": "adapter", "adapter.type": "lora"}, _LORA, "an adapter (LoRA)"),
        ("", {"general.type": "imatrix"}, _LORA, "an importance matrix"),
        ("llama", {"general.type": "model"}, {}, "a vocabulary without weights"),
        ("clip", {"clip.has_vision_encoder": "1"}, _LORA, "the projector of a model for images"),
        ("controlvector", {"controlvector.model_hint": "llama"}, _LORA, "a control vector"),
    ],
)
def test_a_gguf_file_that_holds_no_model_is_named(
    architecture: str,
    keys: dict[str, str],
    tensors: dict[str, np.ndarray],
    what: str,
    tmp_path: Path,
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    for key, value in keys.items():
        writer.add_string(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ran = trtla("run", "-m", tmp_path / "m.gguf", "-p", "a")
    assert ran.code == 2
    assert f"m.gguf holds {what}" in ran.err
    assert "not a model" in ran.err
