"""The numbers of weights whose type is not the one that config.json names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.families import BASE
from tests.support.models import Variant, make_model, save_model
from tests.support.real_models import greedy_text
from trtla import LLM, SamplingParams
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.formats.engine_limits import BuildSettings

_PROMPT, _COUNT = tuple(range(3, 20)), 24


def _decoded(path: Path, dtype: str = "float32") -> tuple[list[int], list[float]]:
    with LLM(path, dtype=dtype, max_seq_len=96) as llm:
        llm.end_ids = frozenset()
        (text,) = llm.generate([_PROMPT], SamplingParams(_COUNT), margins=True)
    return text.output_ids, text.margins


@pytest.mark.parametrize("named", ["bfloat16", "float16"])
def test_float32_weights_stay_float32_where_config_json_names_another_type(
    named: str, tmp_path: Path
) -> None:
    variant = Variant("gqa", {**BASE})
    model = make_model(variant)
    exact = save_model(model, variant, tmp_path / "exact")
    folder = shutil.copytree(exact, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": named}))
    convert(folder, tmp_path / "checkpoint", dtype="float32")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", BuildSettings(max_seq_len=96))
    expected = _decoded(exact)
    assert expected[0] == greedy_text(model, _PROMPT, _COUNT)
    assert _decoded(folder) == _decoded(tmp_path / "engine") == expected
    assert _decoded(folder, named) != expected
