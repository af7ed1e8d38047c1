"""Every family of decoders against transformers, from folders and GGUF files, compiled or not."""

from __future__ import annotations

import functools

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from tests.support.families import (
    GGUF_NAMES,
    NAMES,
    OTHERS,
    VARIANTS,
    expected_logits,
    folder_and_model,
    gguf_file,
    logits_of,
    routes,
)
from tests.support.real_models import greedy_text, prompts_for
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.formats.gguf.folder import model_folder

COUNT, KNOWN = 24, 9
TEXT = tuple((7 * i + i * i) % 101 for i in range(40))


@functools.cache
def generated(name, prompt):
    return greedy_text(folder_and_model(name)[1], prompt, COUNT)


def open_llm(path, triple=None, **options):
    lookahead = None if triple is None else LookaheadConfig(*triple)
    llm = LLM(path, lookahead=lookahead, max_seq_len=96, **options)
    llm.end_ids = frozenset()
    return llm


@pytest.mark.parametrize("compiled", ["1", "0"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name, compiled, monkeypatch):
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    found = logits_of(folder_and_model(name)[0], TEXT, KNOWN)
    torch.testing.assert_close(found, expected_logits(name, TEXT, KNOWN), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("as_bin", [False, True])
@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral", "granite-moe"])
def test_experts_that_transformers_5_stacks_are_the_same(name, as_bin, tmp_path):
    folder_and_model(name)[1].save_pretrained(tmp_path, save_original_format=False)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert any(one.endswith(".0.mlp.experts.gate_up_proj") for one in tensors) is (
        name != "granite-moe"
    )
    if as_bin:
        torch.save(tensors, tmp_path / "pytorch_model.bin")
        file.unlink()
    found = logits_of(tmp_path, TEXT, KNOWN)
    assert torch.equal(found, logits_of(folder_and_model(name)[0], TEXT, KNOWN))


@pytest.mark.parametrize("types", [("Q8_0", "BF16"), ("F16", "F32"), ("Q4_0", "F16")])
@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe"])
def test_parts_of_a_product_may_be_stored_in_different_types(name, types, tmp_path, monkeypatch):
    """Gate and up are multiplied together, and so are q, k and v."""

    def kind(tensor):
        return types["ffn_up" in tensor or "attn_k" in tensor]

    file, found = gguf_file(name, tmp_path / "model.gguf", kind), []
    for compiled in "10":
        monkeypatch.setenv("TRTLA_COMPILED", compiled)
        found.append(logits_of(model_folder(file), TEXT, KNOWN, dtype="auto"))
    assert (found[0] - found[1]).abs().mean() < 0.03 < 0.3 < found[0].std()


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_those_of_generate_plain_and_drafted(name):
    prompts = prompts_for(name, 4)
    expected = [generated(name, prompt) for prompt in prompts]
    for triple, batch in (((1, 1, 0), 1), ((5, 4, 5), 4), (None, 4)):
        with open_llm(folder_and_model(name)[0], triple, max_batch_size=batch) as llm:
            texts = llm.generate(prompts, SamplingParams(max_output_len=COUNT))
        assert [text.output_ids for text in texts] == expected


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["auto", "plain"])
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_gives_the_same_texts(name, path, monkeypatch):
    monkeypatch.setenv("TRTLA_CUDA_PATH", path)
    prompts = prompts_for(name, 4)
    expected = [generated(name, prompt) for prompt in prompts]
    options = {"max_batch_size": 4, "device": "cuda", "dtype": "float32"}
    for triple in ((1, 1, 0), (5, 4, 5), None):
        with open_llm(folder_and_model(name)[0], triple, **options) as llm:
            texts = llm.generate(prompts, SamplingParams(max_output_len=COUNT))
        assert [text.output_ids for text in texts] == expected


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_a_gguf_file_gives_the_folders_logits(name, tmp_path):
    file = gguf_file(name, tmp_path / "model.gguf")
    found = logits_of(model_folder(file), TEXT, KNOWN)
    torch.testing.assert_close(found, expected_logits(name, TEXT, KNOWN), rtol=1e-5, atol=1e-5)


BLOCKS = {
    "Q4_1": "qwen3",
    "Q5_0": "gemma3",
    "Q5_1": "phi3",
    "Q8_0": "granite",
    "IQ4_NL": "qwen3",
    "MXFP4": "phi3",
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"), "gemma3-wide"),
}
"""The family that each of the other block types is tested with."""


@pytest.mark.parametrize("name", [*GGUF_NAMES, *BLOCKS])
def test_quantised_texts_are_the_same_for_every_draft(name, tmp_path):
    kind, name = (name, BLOCKS[name]) if name in BLOCKS else ("Q4_0", name)
    file = gguf_file(name, tmp_path / "model.gguf", kind)
    prompts = prompts_for(name, 4)
    for params in (SamplingParams(COUNT), SamplingParams(COUNT, 1.0, seed=7)):
        found = []
        for triple, batch in (((1, 1, 0), 1), ((5, 4, 5), 4), ((3, 3, 2), 2)):
            with open_llm(file, triple, max_batch_size=batch) as llm:
                texts = llm.generate(prompts, params, margins=True)
            found.append([(text.output_ids, text.margins) for text in texts])
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_model_for_long_texts_has_longropes_other_factors(kind, tmp_path):
    """Of all its texts: keys that one table has turned do not go with queries of the other."""
    name, text = "phi3-longrope", tuple(5 * i % 101 for i in range(130))
    made = folder_and_model(name)[0] if kind == "folder" else gguf_file(name, tmp_path / "m.gguf")
    found = logits_of(model_folder(made) if kind == "gguf" else made, text, 100, longest=140)
    expected = expected_logits("phi3-longrope", text, 100)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.deep
@pytest.mark.parametrize("triple", [(1, 1, 0), (5, 4, 5)])
def test_long_texts_of_longrope_are_those_of_generate(triple):
    folder, model = folder_and_model("phi3-longrope")
    prompts = [tuple((5 * i + k) % 101 for i in range(100 + k)) for k in range(3)]
    with LLM(folder, lookahead=LookaheadConfig(*triple), max_seq_len=160) as llm:
        llm.end_ids = frozenset()
        texts = llm.generate(prompts, SamplingParams(max_output_len=COUNT))
    assert [text.output_ids for text in texts] == [greedy_text(model, p, COUNT) for p in prompts]


def from_llama_cpp(file, texts, known):
    """llama.cpp's logits behind token `known` of each text and all tokens after it."""
    llama_cpp = pytest.importorskip("llama_cpp")
    files_own = {"yarn_attn_factor": -1.0, "yarn_beta_fast": -1.0, "yarn_beta_slow": -1.0}
    model = llama_cpp.Llama(
        str(file), n_ctx=256, logits_all=True, n_threads=1, type_k=0, type_v=0, verbose=False,
        **files_own,
    )  # fmt: skip
    found = []
    for text in texts:
        model.reset()
        model.eval(list(text))
        found.append(torch.tensor(model.scores[known : len(text)]))
    model.close()
    return torch.stack(found)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "MXFP4"])
@pytest.mark.parametrize("name", GGUF_NAMES)
def test_a_gguf_file_gives_what_llama_cpp_gives(name, kind, tmp_path):
    """Up to its table of GELU's values, and the scales of rounded inputs, which it has in float16.

    Files with biases of Qwen3 and with a factor of yarn's magnitudes are left out: llama.cpp reads
    neither.
    """
    if name in ("qwen3-biases", "olmoe"):
        pytest.skip("llama.cpp has no place for biases, and none for norms of fewer K/V heads")
    bytes_ = [f"<0x{n:02X}>" for n in range(98)]
    tokens = {"tokens": ["<unk>", "<s>", "</s>", *bytes_], "token_type": [2, 3, 3, *[6] * 98]}
    vocabulary = {"model": "llama", **tokens, "scores": [0.0] * 101}
    keys = {**(VARIANTS | OTHERS)[name].gguf_keys, "rope.scaling.yarn_attn_factor": None}
    file = gguf_file(name, tmp_path / "model.gguf", kind, tokenizer=vocabulary, keys=keys)
    number = 1 if kind == "F32" else 6  # of texts, since rounding scatters
    texts = torch.randint(101, (number, 150), generator=torch.Generator().manual_seed(0))
    expected = from_llama_cpp(file, texts.tolist(), KNOWN)
    dtype = "float32" if kind == "F32" else "auto"
    folder = model_folder(file)
    found = torch.stack([logits_of(folder, tuple(t), KNOWN, 160, dtype) for t in texts.tolist()])
    losses = [
        cross_entropy(one[:, :-1].flatten(0, 1), texts[:, KNOWN + 1 :].flatten())
        for one in (found, expected)
    ]
    assert abs(float(losses[0] - losses[1])) < 0.005  # of perplexities 0.5 %
    best, next_best = expected.topk(2).values.unbind(-1)
    clear = best - next_best > (0 if kind == "F32" else 0.5)
    same = found.argmax(-1)[clear] == expected.argmax(-1)[clear]
    # A router's near ties fall to one side or the other, and change the whole layer.
    assert same.float().mean() >= (0.98 if kind != "F32" and routes(name) else 1)
    if kind == "F32":
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)
