"""From checkpoint to text on every release that the stand-in plays, against the torch executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.standin import EVERY_RELEASE, Standin
from trtla import LLM, SamplingParams
from trtla.build.engine import build_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.settings.lookahead import LookaheadConfig

PROMPTS = ["def read(path):\n    ", "aaaaaaaaaaaa", "x"]
TRIPLES = [None, LookaheadConfig(2, 2, 1), LookaheadConfig(1, 1, 0)]


@pytest.fixture(scope="module")
def expected(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[int, ...]]:
    folder = tmp_path_factory.mktemp("torch") / "engine"
    build_engine(tiny_checkpoint, folder, BuildSettings(max_seq_len=256), backend="torch")
    with LLM(folder, device="cpu", dtype="float32") as llm:
        return [c.output_ids for c in llm.generate(PROMPTS, SamplingParams(max_output_len=24))]


@EVERY_RELEASE
@pytest.mark.usefixtures("fake_gpu")
def test_every_release_builds_and_decodes(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    asked = BuildSettings(LookaheadConfig(4, 4, 4), max_batch_size=4, max_seq_len=256)
    engine = build_engine(tiny_checkpoint, tmp_path / "engine", asked, backend="tensorrt-llm")
    assert engine.config.version == standin.version
    with LLM(tmp_path / "engine") as llm:
        for triple in TRIPLES:
            done = llm.generate(PROMPTS, SamplingParams(max_output_len=24), triple)
            assert [c.output_ids for c in done] == expected
        assert standin.version in llm.description
