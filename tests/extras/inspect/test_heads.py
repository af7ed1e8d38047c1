"""`trtla inspect HEAD`: what a trained head is, and whether it fits a model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import refused, trtla
from tests.support.head_sizes import EagleSizes
from tests.support.heads import edit, head_path, write_head


def described(path: Path, *flags: object, code: int = 0) -> dict[str, Any]:
    ran = trtla("inspect", path, *flags, "--json")
    assert ran.code == code, ran.err
    return dict(ran.json)


@pytest.mark.parametrize("style", ["specforge", "gguf"])
def test_a_head_is_described_by_its_files(style: str, tmp_path: Path, tiny_llama: Path) -> None:
    sizes = EagleSizes(norm_before_residual=True, embedding=True)
    path = write_head(head_path(tmp_path, style), style, norm_before_residual=True, embedding=True)
    found = described(path)
    assert (found["kind"], found["layers"], found["fits"]) == ("EAGLE-3 head", [2, 3, 4], None)
    assert found["parameters"] == sum(array.size for array in sizes.tensors.values())
    assert (found["vocab_size"], found["draft_vocab_size"]) == (2048, 96)
    assert (found["norms"], found["own"]) == (["norm_before_residual"], ["embedding", "lm_head"])
    assert found["bytes"] > 4 * found["parameters"]
    assert found["next"] == f"trtla run MODEL 'Once upon a time' --drafter head:{path}"
    fitting = described(path, "-m", tiny_llama)
    assert (fitting["fits"], fitting["target"]) == (True, str(tiny_llama))
    shown = trtla("inspect", path, "-m", tiny_llama).out
    assert "| draft_vocab_size " in shown
    assert "| fits                      | yes" in shown


def test_medusa_heads_are_described(tmp_path: Path, tiny_llama: Path) -> None:
    found = described(write_head(tmp_path / "head", "medusa"), "-m", tiny_llama)
    assert (found["kind"], found["num_heads"], found["num_layers"]) == ("Medusa heads", 3, 1)
    assert (found["fits"], found["problems"]) == (True, [])


def test_a_head_of_another_model_has_a_problem(tmp_path: Path, tiny_llama: Path) -> None:
    path = write_head(tmp_path / "head", vocab_size=512)
    assert described(path)["problems"] == []
    found = described(path, "-m", tiny_llama, code=3)
    assert (found["fits"], found["next"]) == (False, None)
    (only,) = found["problems"]
    assert only == f"{path} holds an EAGLE-3 head for a vocab_size of 512, and the model has 2048"
    refused(trtla("inspect", path, "-m", tiny_llama), 3, "1 problem", "use a head that was trained")


def test_layers_that_its_files_do_not_name(tmp_path: Path, tiny_llama: Path) -> None:
    path = write_head(tmp_path / "head", boundaries=None)
    found = described(path)
    assert found["layers"] == []
    assert "its files name no layers" in found["notes"][0]
    assert "in a model of 5 layers" in described(path, "-m", tiny_llama, code=3)["problems"][0]
    given = described(path, "-m", tiny_llama, "--head-layers", "2,3,5")
    assert (given["layers"], given["fits"]) == ([2, 3, 5], True)
    assert given["next"].endswith(f"--drafter head:{path} --head-layers 2,3,5")


def test_another_drafter_and_a_broken_head_have_problems(tmp_path: Path) -> None:
    other = write_head(tmp_path / "other", change=edit(architectures=["DFlashDraftModel"]))
    found = described(other, code=3)
    assert found["kind"] == "DFlash drafter"
    assert found["problems"] == [f"{other} holds a DFlash drafter, which trtla does not read"]
    broken = write_head(tmp_path / "broken", change=edit(hidden_act="gelu"))
    assert '"hidden_act" is "gelu"' in described(broken, code=3)["problems"][0]


def test_a_second_model_goes_with_a_head_alone(tmp_path: Path, tiny_llama: Path) -> None:
    ran = trtla("inspect", tiny_llama, "-m", tmp_path)
    refused(ran, 2, f"two models are named: {tmp_path} and {tiny_llama}", "or a trained head")
    head = write_head(tmp_path / "head")
    assert trtla("inspect", "-m", head).code == 0
    refused(trtla("inspect", head, "-m", head), 2, f"{head} holds an EAGLE-3 head, not a model")
    missing = tmp_path / "missing"
    refused(trtla("inspect", missing, "-m", tiny_llama), 2, f"{missing} does not exist")


def test_a_model_names_the_head_beside_it(tmp_path: Path, tiny_llama: Path) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    assert not any("the head" in note for note in described(model)["notes"])
    head = write_head(model / "head")
    fits = f"the head {head} beside it fits and drafts"
    assert fits in described(model)["notes"]
    assert f"note: {fits}" in trtla("inspect", model).out.splitlines()
    write_head(head, vocab_size=512)
    (note,) = [note for note in described(model)["notes"] if "the head" in note]
    assert note.startswith(f"the head {head} beside it does not draft: {head} holds an EAGLE-3")
    write_head(head)
    for lookahead, drafts in (("4,3,4", "fits and drafts"), ("1,1,0", "built without room")):
        engine = tmp_path / lookahead
        assert trtla("build", model, "-o", engine, "--lookahead", lookahead).code == 0
        shutil.copytree(head, engine / "head")
        (note,) = [note for note in described(engine)["notes"] if "the head" in note]
        assert drafts in note
