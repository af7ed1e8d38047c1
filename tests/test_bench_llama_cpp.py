"""llama.cpp as a peer: the engine's texts in float32, whatever the shape, and its own counts."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.gguf_models import model_of, write_gguf
from tests.support.models import LLAMA3, Variant, make_model
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.bench.arms import LLAMA_CPP, Arm
from trtla.data.encoder import Encoder
from trtla.data.prompt_sets import Ids, load_sets

pytest.importorskip("llama_cpp")

from trtla.bench import llama_cpp_model
from trtla.bench.llama_cpp import LlamaCpp, llama_cpp_arms
from trtla.build.engine import build_engine
from trtla.errors import TrtlaError, UsageError
from trtla.formats.engine_limits import BuildSettings

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_output_len=48)
PROMPTS: list[Ids] = [tuple(i * 7 % 101 for i in range(40)), (5, 3), (9,) * 30]


def arms(llm: LLM, end_ids: frozenset[int] = frozenset()) -> list[Arm]:
    given = (llm.engine, CPU, torch.float32, end_ids)
    return llama_cpp_arms(LLAMA_CPP[:2], lambda converted: LlamaCpp(*given, converted=converted))


def texts(llm: LLM, prompts: list[Ids], params: SamplingParams = GREEDY) -> list[Ids]:
    plain = LookaheadConfig(1, 1, 0)
    return [llm.generate(ids, params, plain)[0].output_ids for ids in prompts]


def opened(folder: Path, family: str = "llama", **keys: Any) -> LLM:
    """A model with room for the prompts and heads of 64 numbers, unless the keys say other."""
    sizes = {"max_position_embeddings": 128, "hidden_size": 128}
    sizes |= {"head_dim": 64} if family == "llama" else {}
    make_model(Variant("", {**sizes, **keys}, family=family)).save_pretrained(folder)
    llm = LLM(folder, device="cpu", dtype="float32")
    llm.end_ids = frozenset()
    return llm


def test_the_shipped_models_texts(tiny_llama: Path) -> None:
    with LLM(tiny_llama, device="cpu", dtype="float32") as llm:
        assert llm.tokenizer is not None
        prompts = Encoder(llm.tokenizer).questions(load_sets(("code",), (), 4)[0].questions)
        llm.end_ids = frozenset()
        want = texts(llm, prompts)
        for arm in arms(llm):
            assert [arm.decode([ids], [GREEDY]).outputs[0] for ids in prompts] == want, arm.name


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_key_value_heads": 4},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {"family": "qwen2"},
    ],
    ids=["gqa", "mha", "biases", "tied", "llama3", "linear", "qwen2"],
)
def test_texts_of_random_models(keys: dict[str, Any], tmp_path: Path) -> None:
    with opened(tmp_path, **keys) as llm:
        want = texts(llm, PROMPTS)
        for arm in arms(llm):
            assert [arm.decode([ids], [GREEDY]).outputs[0] for ids in PROMPTS] == want, arm.name


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf_file_runs_as_it_is_and_converted(kind: str, tmp_path: Path) -> None:
    model = model_of(Variant("", {"max_position_embeddings": 128, "hidden_size": 128}))
    vocabulary = {"keys": {"vocab_size": 101}, "tokenizer": {"model": "no_vocab"}}
    file = write_gguf(model, tmp_path / "m.gguf", kind, **vocabulary)
    numbers = tmp_path / "numbers"
    limits = BuildSettings(LookaheadConfig(1, 1, 0), max_seq_len=128)
    build_engine(file, numbers, limits, backend="torch", dtype="float32")
    with LLM(numbers, device="cpu") as llm:
        llm.end_ids = frozenset()
        dequantised = texts(llm, PROMPTS[:1])[0]
    with LLM(file, device="cpu", dtype="float32") as llm:
        given = (llm.engine, CPU, torch.float32, frozenset[int]())
        made = llama_cpp_arms(LLAMA_CPP, lambda converted: LlamaCpp(*given, converted=converted))
        own = "float32" if kind == "F32" else kind
        assert [arm.weight_type for arm in made] == [own, own, "float32"]
        runs = [arm.decode(PROMPTS[:1], [GREEDY]) for arm in made]
        assert runs[2].outputs[0] == dequantised
        if kind == "F32":
            assert runs[0].outputs == runs[1].outputs == runs[2].outputs
        read = [run.weight_bytes or 0 for run in runs]
        assert read[0] == read[1]
        assert (read[0] == read[2]) if kind == "F32" else (3 * read[0] < read[2])


def test_an_engine_of_blocks_runs_as_its_file_does(tmp_path: Path) -> None:
    model = model_of(Variant("", {"max_position_embeddings": 128, "hidden_size": 128}))
    vocabulary = {"keys": {"vocab_size": 101}, "tokenizer": {"model": "no_vocab"}}
    file = write_gguf(model, tmp_path / "m.gguf", "Q4_1", **vocabulary)
    limits = BuildSettings(LookaheadConfig(1, 1, 0), max_seq_len=128)
    engine = build_engine(file, tmp_path / "engine", limits, backend="torch")
    runs = []
    for opened_as in (file, engine.path):
        with LLM(opened_as, device="cpu", dtype="float32") as llm:
            (arm,) = llama_cpp_arms(
                LLAMA_CPP[:1],
                lambda converted, llm=llm: LlamaCpp(  # type: ignore[misc]
                    llm.engine, CPU, torch.float32, frozenset(), converted=converted
                ),
            )
            assert arm.weight_type == "Q4_1"
            runs.append(arm.decode(PROMPTS[:1], [GREEDY]))
    assert runs[0].outputs == runs[1].outputs
    assert runs[0].weight_bytes == runs[1].weight_bytes


def test_counts_of_forwards_and_tokens(tmp_path: Path) -> None:
    with opened(tmp_path) as llm:
        plain, lookup = arms(llm)
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


def test_looped_text_is_looked_up(tiny_llama: Path) -> None:
    with LLM(tiny_llama, device="cpu", dtype="float32") as llm:
        assert llm.tokenizer is not None
        (prompt,) = Encoder(llm.tokenizer).questions(load_sets(("code",), (), 1)[0].questions)
        plain, lookup = arms(llm)
        found = [
            arm.decode([prompt], [replace(GREEDY, max_output_len=96)]) for arm in (plain, lookup)
        ]
        assert found[0].outputs == found[1].outputs
        assert found[1].steps < found[0].steps == 95


def test_texts_end_at_an_end_id_as_the_engines_do(tmp_path: Path) -> None:
    with opened(tmp_path) as llm:
        whole = texts(llm, PROMPTS[:1])[0]
        llm.end_ids = frozenset({whole[9], whole[20]})
        want = texts(llm, PROMPTS[:1])[0]
        assert len(want) <= 10
        for arm in arms(llm, llm.end_ids):
            assert arm.decode(PROMPTS[:1], [GREEDY]).outputs == (want,)


def test_sampling_is_repeatable_and_follows_the_seed(tmp_path: Path) -> None:
    with opened(tmp_path) as llm:
        hot = replace(GREEDY, temperature=1.0, top_k=20, top_p=0.9, seed=3)
        for arm in arms(llm):
            first, again = (arm.decode(PROMPTS[:1], [hot]).outputs for _ in range(2))
            assert first == again
            assert arm.decode(PROMPTS[:1], [replace(hot, seed=4)]).outputs != first
        greedy = [arms(llm)[0].decode(PROMPTS[:1], [replace(hot, top_k=1)]).outputs[0]]
        assert greedy == texts(llm, PROMPTS[:1])


def test_the_file_is_gone_once_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with opened(tmp_path / "model") as llm:
        plain = arms(llm)[0]
        assert list((tmp_path / "tmp").iterdir()) == []
        assert len(plain.decode(PROMPTS[:1], [GREEDY]).outputs[0]) == 48

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(llama_cpp_model._library(), "llama_model_load_from_file", interrupt)
        with pytest.raises(KeyboardInterrupt):
            arms(llm)
        assert list((tmp_path / "tmp").iterdir()) == []


def test_what_cannot_be_loaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "model") as llm:
        library = llama_cpp_model._library()
        if not library.llama_supports_gpu_offload():
            with pytest.raises(UsageError, match="without CUDA"):
                LlamaCpp(llm.engine, torch.device("cuda"), torch.float32, frozenset())
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        with pytest.raises(TrtlaError, match="cannot be written"):
            arms(llm)
        monkeypatch.delattr(library, "llama_memory_seq_rm")
        with pytest.raises(TrtlaError, match="too old"):
            arms(llm)
