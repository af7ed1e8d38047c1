"""transformers' `generate` with candidate trees: the texts are its own, in fewer forwards."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer

from trtla.errors import UsageError
from trtla.extras.hosts import transformers as plugin
from trtla.extras.hosts.attention import CacheEnd
from trtla.extras.hosts.transformers import generate
from trtla.extras.hosts.trees import ModelTrees, Row
from trtla.settings.sampling import SamplingParams

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 5,
}
OF_GEMMA = {
    "head_dim": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 8}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", OF_GEMMA),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_inner": 48}),
    "phi": ("PhiConfig", "PhiForCausalLM", {}),
    "bloom": ("BloomConfig", "BloomForCausalLM", {}),
    "mamba": ("MambaConfig", "MambaForCausalLM", {}),
}
WITH_TREES = ("llama", "qwen3", "gemma3", "gpt2", "phi")
NEW = 40


class Counted:
    """A model, and the forwards of its calls."""

    def __init__(self, model: Any) -> None:
        self.model, self.forwards, self.fed, self.trees = model, 0, list[int](), 0
        model.register_forward_hook(self._count, with_kwargs=True)

    def _count(self, _model: Any, _args: Any, kwargs: dict[str, Any], _outputs: Any) -> None:
        self.forwards += 1
        ids = kwargs.get("input_ids")
        self.fed.append(0 if ids is None else ids.shape[1])
        mask = kwargs.get("attention_mask")
        self.trees += isinstance(mask, dict) or (mask is not None and mask.dim() == 4)

    def __call__(self, batch: int = 1, **options: Any) -> Any:
        ids = torch.randint(6, 97, (batch, 12), generator=torch.Generator().manual_seed(1))
        mask = torch.ones_like(ids)
        if batch > 1:
            mask[0, :4] = mask[1, :1] = 0
            ids[mask == 0] = 0
        ids, mask = ids.to(self.model.device), mask.to(self.model.device)
        self.forwards, self.fed, self.trees = 0, [], 0
        options = {"max_new_tokens": NEW, "do_sample": False, **options}
        return self.model.generate(ids, attention_mask=mask, **options)


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Counted]:
    """Tiny random models by their names."""
    made: dict[str, Counted] = {}

    def one(kind: str) -> Counted:
        if kind not in made:
            config, model, keys = KINDS[kind]
            torch.manual_seed(2)
            settings = getattr(transformers, config)(**SIZES, **keys)
            made[kind] = Counted(getattr(transformers, model)(settings).eval())
        return made[kind]

    return one


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", [*WITH_TREES, "bloom"])
def test_greedy_ids_are_those_of_generate_in_fewer_forwards(tiny, kind: str, batch: int) -> None:
    model = tiny(kind)
    plain = model(batch)
    forwards = model.forwards
    for _ in range(2):  # the second time its own output is drafted from
        assert torch.equal(model(batch, custom_generate=generate), plain)
    assert model.forwards < forwards


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", [*WITH_TREES, "bloom"])
def test_a_gpu_drafts_too(tiny, kind: str, batch: int, dtype: str) -> None:
    model = tiny(kind)
    before = model.model.to("cuda", getattr(torch, dtype))
    try:
        plain = model(batch)
        forwards = model.forwards
        for _ in range(2):
            found = model(batch, custom_generate=generate)
            assert dtype == "bfloat16" or torch.equal(found, plain)
        assert model.forwards < forwards
    finally:
        before.to("cpu", torch.float32)


@pytest.mark.parametrize("implementation", [None, "static"])
@pytest.mark.parametrize("kind", WITH_TREES)
def test_these_models_get_trees(tiny, kind: str, implementation: str | None) -> None:
    if (kind, implementation) == ("gemma3", "static"):
        pytest.skip("its sliding layers do not go back")
    model = tiny(kind)
    seed = 11 if implementation else 12  # texts that no other test has had it decode
    options = {"do_sample": True, "seed": seed, "cache_implementation": implementation}
    plain = model(drafts=False, custom_generate=generate, **options)
    assert torch.equal(model(custom_generate=generate, **options), plain)
    assert model.trees > 0


def test_a_model_without_tree_masks_gets_chains(tiny) -> None:
    model = tiny("bloom")
    model(custom_generate=generate)
    assert max(model.fed[1:]) > 1
    assert model.trees == 0


@pytest.mark.parametrize("batch", [1, 3])
def test_an_end_id_ends_rows_where_generate_ends_them(tiny, batch: int) -> None:
    model = tiny("llama")
    text = model(batch)
    ends = sorted({int(text[row, 12 + 9 + row]) for row in range(batch)})
    plain = model(batch, eos_token_id=ends)
    assert plain.shape[1] < text.shape[1] or batch > 1
    assert torch.equal(model(batch, eos_token_id=ends, custom_generate=generate), plain)


class Penalised(LogitsProcessor):
    """Forbids each row's last token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, input_ids[:, -1:], -torch.inf)


class LongEnough(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 25)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.4},
        {"logits_processor": LogitsProcessorList([Penalised()])},
        {"stopping_criteria": StoppingCriteriaList([LongEnough()])},
        {"cache_implementation": "static"},
        {"prefix_allowed_tokens_fn": lambda row, ids: range(20 + row, 30 + row)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_generate_takes_has_the_same_effect(tiny, batch: int, options: Any) -> None:
    model = tiny("qwen3")
    plain = model(batch, **options)
    for _ in range(2):
        assert torch.equal(model(batch, custom_generate=generate, **options), plain)


PROMPTS = torch.randint(6, 97, (2, 12), generator=torch.Generator().manual_seed(3))
HIDDEN = {name: torch.ones_like(PROMPTS) for name in ("left", "right", "hole")}
HIDDEN["left"][0, :4] = HIDDEN["right"][0, 9:] = HIDDEN["hole"][1, 5] = 0


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"attention_mask": HIDDEN["right"]}),
        ("gemma3", {"attention_mask": HIDDEN["hole"]}),
        ("llama", {"position_ids": torch.arange(3, 15).repeat(2, 1)}),
        ("gpt2", {"token_type_ids": torch.arange(40, 64).view(2, 12)}),
    ],
    ids=["right", "hole", "positions", "types"],
)
def test_what_comes_with_the_prompts_stays_with_the_text(tiny, kind: str, options: Any) -> None:
    model = tiny(kind).model
    ends = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    plain = model.generate(PROMPTS, **ends, **options)
    for _ in range(2):
        found = model.generate(PROMPTS, custom_generate=generate, **ends, **options)
        assert torch.equal(found, plain)


def test_prompts_may_be_embeddings_with_padding(tiny) -> None:
    model = tiny("llama").model
    prompt = {
        "inputs_embeds": model.get_input_embeddings()(PROMPTS),
        "attention_mask": HIDDEN["left"],
    }
    plain = model.generate(**prompt, max_new_tokens=NEW, do_sample=False)
    options = {"max_new_tokens": NEW, "do_sample": False, "custom_generate": generate}
    assert torch.equal(model.generate(**prompt, **options), plain)


class Kept(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.reshape(-1).tolist()

    def end(self) -> None:
        self.ended = True


def test_a_streamer_gets_prompt_and_tokens(tiny) -> None:
    streamer = Kept()
    (text,) = tiny("llama")(custom_generate=generate, streamer=streamer)
    assert streamer.tokens == text.tolist()
    assert streamer.ended


def _assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Products of other shapes add in other orders."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", [None, "static"])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_cache_holds_the_text_but_its_last_token(tiny, kind, implementation) -> None:
    """And its scores and entries are those of plain decoding."""
    model = tiny(kind)
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options["cache_implementation"] = implementation
    plain = model(**options)
    for _ in range(2):
        found = model(custom_generate=generate, **options)
    assert torch.equal(found.sequences, plain.sequences)
    _assert_near(torch.stack(found.scores), torch.stack(plain.scores))
    _assert_near(torch.stack(found.logits), torch.stack(plain.logits))
    size = plain.sequences.shape[1] - 1
    assert int(found.past_key_values.get_seq_length()) == size
    for ours, theirs in zip(
        found.past_key_values.layers, plain.past_key_values.layers, strict=True
    ):
        count = min(size, theirs.keys.shape[-2], 5)
        at = slice(size - count, size) if implementation else slice(-count, None)
        _assert_near(ours.keys[..., at, :], theirs.keys[..., at, :])
        _assert_near(ours.values[..., at, :], theirs.values[..., at, :])


def test_a_cache_goes_on_with_the_next_turn(tiny) -> None:
    """A caller's own cache of sliding layers stays the one that is used, with chains."""
    model = tiny("gemma3").model
    texts = []
    for options in ({}, {"custom_generate": generate}):
        cache = DynamicCache(config=model.config)
        ids = torch.arange(6, 20)[None]
        for _ in range(2):
            ids = model.generate(
                ids, past_key_values=cache, max_new_tokens=12, do_sample=False, **options
            )
        assert cache.get_seq_length() == ids.shape[1] - 1
        texts.append(ids)
    assert torch.equal(*texts)


@pytest.mark.deep(first=3)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "bloom", "mamba"])
def test_a_seed_has_one_text_however_it_is_drafted(tiny, kind: str, batch: int) -> None:
    model = tiny(kind)
    options = {"do_sample": True, "temperature": 0.7, "top_k": 4, "custom_generate": generate}
    plain = model(batch, seed=3, drafts=False, **options)
    for _ in range(2):
        assert torch.equal(model(batch, seed=3, **options), plain)
    assert not torch.equal(model(batch, seed=4, **options)[:, :20], plain[:, :20])


def test_torchs_seed_is_the_default(tiny) -> None:
    model, texts = tiny("llama"), []  # making it draws numbers
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        options = {"num_return_sequences": 2, "custom_generate": generate}
        texts.append(model(do_sample=True, top_k=9, **options))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0][0], texts[0][1])


def test_sampled_tokens_are_as_frequent_as_their_probabilities(tiny) -> None:
    model = tiny("llama")
    options = {"max_new_tokens": 1, "do_sample": True, "top_k": 3, "return_dict_in_generate": True}
    found = model(
        num_return_sequences=600,
        seed=1,
        output_scores=True,
        custom_generate=generate,
        **options,
    )
    expected = found.scores[0][0].softmax(-1)
    counts = torch.bincount(found.sequences[:, -1], minlength=97) / 600
    assert (counts - expected).abs().max() < 0.07
    assert expected.count_nonzero() == 3


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_lookahead_feeds_its_window_in_every_step(tiny, kind: str) -> None:
    model = tiny(kind)
    plain = model()
    model(custom_generate=generate)  # whether it takes tree masks is tried once
    found = model(custom_generate=generate, lookahead=(4, 3, 4))
    assert torch.equal(found, plain)
    assert min(model.fed[1:]) > 4


def test_what_cannot_go_back_decodes_plainly(tiny) -> None:
    model = tiny("mamba")
    plain, forwards = model(), model.forwards
    assert torch.equal(model(custom_generate=generate), plain)
    assert model.forwards == forwards
    assert CacheEnd.of(None) is None


def test_what_is_known_of_a_model_ends_with_it() -> None:
    torch.manual_seed(2)
    settings = transformers.LlamaConfig(**SIZES)
    model = Counted(transformers.LlamaForCausalLM(settings).eval())
    model(custom_generate=generate)
    known = len(plugin._models)
    assert [len(text) for text in plugin._known(model.model).trees.texts()] == [12, NEW]
    del model
    gc.collect()
    assert len(plugin._models) == known - 1


def test_rows_are_forgotten_and_their_texts_bounded() -> None:
    trees = ModelTrees(50, most_tokens=1000)
    for _ in range(40):
        with trees.open([Row([1, 2, 3, 99, -7] * 20, SamplingParams(), 10)]) as drafts:
            assert set(drafts.plan([0], 8, chains=True)) == {0}
    assert 0 < sum(map(len, trees.texts())) <= 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 3}, "num_beams is 3, and beams are not drafted for"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search is neither greedy"),
        ({"lookahead": (4, 1, 4)}, r"lookahead .* is not legal"),
        ({"lookahead": 7}, "lookahead 7 is not a triple of whole numbers"),
        ({"do_sample": True, "seed": "a"}, "seed is 'a'"),
        ({"drafts": "no"}, "drafts is 'no', neither True nor False"),
        ({"drafts": False, "lookahead": (4, 3, 4)}, r"lookahead is \(4, 3, 4\), and drafts=False"),
        ({"drafts": False, "lookahead": "auto"}, "lookahead is 'auto', and drafts=False"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens drafts, and custom_generate"),
        ({"assistant_early_exit": 1}, "assistant_early_exit drafts, and custom_generate"),
        (
            {"return_dict_in_generate": True, "output_attentions": True},
            "output_attentions and output_hidden_states are not collected",
        ),
    ],
)
def test_what_has_no_drafts_is_refused(tiny, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny("llama")(custom_generate=generate, **options)


def test_auto_names_the_tree(tiny) -> None:
    named, usual = (
        tiny("llama")(custom_generate=generate, **how) for how in ({"lookahead": "auto"}, {})
    )
    assert torch.equal(named, usual)


def test_an_assistant_is_refused(tiny) -> None:
    with pytest.raises(UsageError, match="assistant_model drafts, and"):
        tiny("llama")(custom_generate=generate, assistant_model=tiny("llama").model)


def test_lookahead_without_tree_masks_is_refused(tiny) -> None:
    with pytest.raises(UsageError, match="BloomForCausalLM takes no tree mask"):
        tiny("bloom")(custom_generate=generate, lookahead=(4, 3, 4))


def test_encoder_decoders_are_refused() -> None:
    small = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    settings = transformers.T5Config(
        **small, vocab_size=40, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1
    )
    model = transformers.T5ForConditionalGeneration(settings)
    with pytest.raises(UsageError, match="T5ForConditionalGeneration is an encoder-decoder"):
        model.generate(torch.tensor([[3, 4]]), max_new_tokens=4, custom_generate=generate)
