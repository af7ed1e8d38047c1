"""llama.cpp as a peer: the engine's texts of a float32 GGUF file, and its own counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.gguf_models import model_of, write_gguf
from tests.support.models import Variant
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.data.prompt_sets import Ids
from trtla.extras.bench.peers import LLAMA_CPP
from trtla.measuring.arms import Arm

pytest.importorskip("llama_cpp")

from trtla.errors import TrtlaError, UsageError
from trtla.extras.bench.llama_cpp import LlamaCpp, llama_cpp_arms
from trtla.runtime.device import CPU, Device

GREEDY = SamplingParams(max_output_len=48)
PROMPTS: list[Ids] = [tuple(i * 7 % 101 for i in range(40)), (5, 3), (9,) * 30]


@pytest.fixture(scope="module", params=["F32", "Q8_0"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = model_of(Variant("", {"max_position_embeddings": 128, "hidden_size": 128}))
    path = tmp_path_factory.mktemp(request.param) / f"{request.param}.gguf"
    vocabulary = {"keys": {"vocab_size": 101}, "tokenizer": {"model": "no_vocab"}}
    return write_gguf(model, path, request.param, **vocabulary)


@pytest.fixture(scope="module")
def llm(file: Path) -> Iterator[LLM]:
    with LLM(file, device="cpu", dtype="float32") as opened:
        opened.end_ids = frozenset()
        yield opened


def arms(file: Path, end_ids: frozenset[int] = frozenset()) -> list[Arm]:
    return llama_cpp_arms(LLAMA_CPP, file, CPU, end_ids, "float32", lambda _: None)


def texts(llm: LLM, prompts: list[Ids]) -> list[Ids]:
    plain = LookaheadConfig(1, 1, 0)
    return [llm.generate(ids, GREEDY, plain)[0].output_ids for ids in prompts]


def test_float32_has_the_engines_texts_and_blocks_are_read_as_they_are(
    file: Path, llm: LLM
) -> None:
    kind = "float32" if file.stem == "F32" else file.stem
    made = arms(file)
    assert [arm.weight_type for arm in made] == [kind, kind, "float32"]
    runs = [[arm.decode([ids], [GREEDY]) for ids in PROMPTS] for arm in made]
    if file.stem == "F32":
        assert all([run.outputs[0] for run in own] == texts(llm, PROMPTS) for own in runs)
    read = [own[0].weight_bytes or 0 for own in runs]
    assert read[0] == read[1]
    assert (read[0] == read[2]) if file.stem == "F32" else (3 * read[0] < read[2])


def test_counts_of_forwards_and_tokens(file: Path) -> None:
    plain, lookup, _ = arms(file)
    for arm in (plain, lookup):
        arm.warm_up(PROMPTS[2:], [GREEDY])
        run = arm.decode(PROMPTS[2:], [GREEDY])
        assert run.forwards == run.steps + 1
        assert run.fed is not None
        assert run.fed >= run.steps
        assert run.forward_s is not None
        assert 0 < run.first_s[0] < run.last_s[0] <= run.time_s
        assert run.forward_s < run.time_s
    assert plain.decode(PROMPTS[:1], [GREEDY]).steps == 47
    assert plain.decode(PROMPTS[:1], [GREEDY]).fed == 47
    assert (plain.setting, plain.takes(1), plain.takes(2)) == (None, True, False)
    assert lookup.setting is not None
    assert lookup.setting.startswith("num_pred_tokens=")


def test_texts_end_at_an_end_id(file: Path) -> None:
    whole = arms(file)[0].decode(PROMPTS[:1], [GREEDY]).outputs[0]
    ends = frozenset({whole[9], whole[20]})
    want = whole[: next(i for i, token in enumerate(whole, 1) if token in ends)]
    for arm in arms(file, ends)[:2]:
        assert arm.decode(PROMPTS[:1], [GREEDY]).outputs == (want,)


def test_sampling_is_repeatable_and_follows_the_seed(file: Path) -> None:
    hot = replace(GREEDY, temperature=1.0, top_k=20, top_p=0.9, seed=3)
    arm = arms(file)[0]
    first, again = (arm.decode(PROMPTS[:1], [hot]).outputs for _ in range(2))
    assert first == again
    assert arm.decode(PROMPTS[:1], [replace(hot, seed=4)]).outputs != first


def test_what_cannot_be_loaded_is_refused(tmp_path: Path, file: Path) -> None:
    import llama_cpp

    if not llama_cpp.llama_supports_gpu_offload():
        with pytest.raises(UsageError, match="without CUDA"):
            LlamaCpp(file, Device("cuda"), frozenset())
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(TrtlaError, match=r"cut\.gguf"):
        LlamaCpp(cut, CPU, frozenset()).decode(PROMPTS[:1], [GREEDY], {})
