"""Models by their names on the hub: from a cache as huggingface_hub lays it out, never online."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects

from tests.support.command import known, refused, trtla
from tests.support.models import byte_model
from trtla import LLM, SamplingParams, UsageError
from trtla.formats import hub
from trtla.formats.hub import hub_folder

NAME, COMMIT = "some-org/tiny_model.v1", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_model(tmp_path_factory.mktemp("hub") / "model")


@pytest.fixture
def snapshot(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model in a cache of its own, its files links to blobs; the working folder is empty."""
    from huggingface_hub import constants

    cache, work = tmp_path / "cache", tmp_path / "work"
    model = cache / f"models--{NAME.replace('/', '--')}"
    made = model / "snapshots" / COMMIT
    for one in (made, model / "blobs", model / "refs", work):
        one.mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    for file in folder.iterdir():
        shutil.copy(file, model / "blobs" / file.name)
        (made / file.name).symlink_to(os.path.join("..", "..", "blobs", file.name))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))  # read once, at its import
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(work)
    return made


def test_a_name_is_its_snapshot(snapshot: Path) -> None:
    assert hub_folder(NAME) == hub_folder(Path(NAME)) == hub_folder(f"{NAME}@main") == snapshot
    assert hub_folder(f"{NAME}@{COMMIT}") == snapshot


def test_every_command_takes_a_name(snapshot: Path, folder: Path) -> None:
    assert trtla("convert", "--model-dir", NAME, "--output-dir", "made").code == 0
    assert trtla("build", "--checkpoint-dir", NAME, "--output-dir", "engine", "-q").code == 0
    asked = ("-p", "ab", "-n", "4", "--json")
    said = trtla("run", "-m", str(folder), *asked).json["results"][0]["output_ids"]
    assert trtla("run", "-m", NAME, *asked).json["results"][0]["output_ids"] == said
    assert trtla("run", "-m", "engine", "--tokenizer-dir", NAME, *asked).code == 0
    assert all(trtla(*line).code == 0 for line in known(("inspect", NAME)))
    with LLM(NAME, tokenizer_dir=NAME) as llm:
        [done] = llm.generate("ab", SamplingParams(max_output_len=4))
    assert list(done.output_ids) == said


def test_what_the_hub_does_not_give_is_refused(snapshot: Path) -> None:
    ran = trtla("run", "-m", "some-org/other", "-p", "ab")
    refused(ran, 2, "some-org/other does not exist here and could", "hf download some-org/other")
    with pytest.raises(UsageError, match="could not be fetched from the hub"):
        LLM(f"{NAME}@absent")


@pytest.mark.parametrize(
    "path", ["engine", "./org/name", "../name", "/org/name", "a/b/c", ".org/x", "org/na me", "w/x"]
)
def test_paths_never_reach_the_hub(
    snapshot: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("w").mkdir()
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    assert hub_folder(path) == Path(path)
    refused(trtla("run", "-m", path, "-p", "ab"), 2, "does not exist", "check the path")


def test_weights_that_are_there_twice_are_fetched_once() -> None:
    names = ["config.json", "model-00001-of-00002.safetensors", "consolidated.safetensors"]
    allowed = [*hub._SMALL, "*.safetensors"]
    kept = filter_repo_objects(names, allow_patterns=allowed, ignore_patterns=hub._ELSEWHERE)
    assert list(kept) == names[:2]
