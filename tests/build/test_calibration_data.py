"""Where calibration texts come from: files, CNN/DailyMail, and how long texts are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.fp8_models import PROMPTS
from trtla.build.activations import calibrate
from trtla.build.quantize import Calibration
from trtla.data.calibration import calibration, texts
from trtla.errors import TrtlaError, UsageError
from trtla.formats.hf import HFModel


def test_texts_of_files(tmp_path: Path) -> None:
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"text": "one", "id": 3}\n\n{"article": "two", "highlights": "x"}\n')
    assert list(texts(str(lines), 9)) == ["one", "two"]
    plain = tmp_path / "t.txt"
    plain.write_text("a" * 2048 + "b" * 10)
    assert list(texts(str(plain), 9)) == ["a" * 2048, "b" * 10]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("t.jsonl", '{"text": "a"}\n{"title": "b"}\n', 'line 2 of .* needs either "text" or'),
        ("t.jsonl", "[1]\n", "line 1 of .* is not a JSON object"),
        ("t.csv", "a", "neither cnn_dailymail nor a .txt or .jsonl file"),
    ],
)
def test_bad_files_are_refused(name: str, content: str, named: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=named):
        list(texts(str(tmp_path / name), 9))
    with pytest.raises(UsageError, match="does not exist"):
        list(texts(str(tmp_path / "absent.txt"), 9))


def test_articles_come_from_the_train_split(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def rows(*args: Any) -> list[dict[str, str]]:
        asked.append(args)
        return [{"article": f"def f{i}(): pass", "highlights": ""} for i in range(3)]

    monkeypatch.setattr("trtla.data.calibration.load_rows", rows)
    assert len(list(calibration(tiny_llama, size=2).prompts)) == 2
    assert asked[0][:2] == ("train", 2)


def test_a_missing_package_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtla.data.calibration.find_spec", lambda name: None)
    with pytest.raises(TrtlaError, match='"datasets" package') as caught:
        list(texts("cnn_dailymail", 3))
    assert "pip install" in str(caught.value.hint)
    assert "--calib-data PATH" in str(caught.value.hint)


def test_long_texts_are_cut_to_512_tokens_and_to_the_models_positions(
    biased_hf: Path, tmp_path: Path
) -> None:
    """The model knows 16 positions: what comes later is not read."""
    config = HFModel.open(biased_hf).config
    prompt = PROMPTS[2]
    longer = calibrate(biased_hf, config, Calibration([[*prompt, 99, 98, 97]]))
    assert longer == calibrate(biased_hf, config, Calibration([prompt]))
