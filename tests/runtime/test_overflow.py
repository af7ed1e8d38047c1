"""A token whose numbers overflow: those that do not see it compute as if it were another one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support import encoder_decoders
from tests.support.examples import examples
from tests.support.paged import attend_packed, empty_cache, steps
from trtla import LLM, SamplingParams
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import Draft
from trtla.runtime.models.batch import guarded, make_batch
from trtla.runtime.sequence import Feed
from trtla.settings.drafting import NO_DRAFTER

NAN, INF = float("nan"), float("inf")
ILL = 7
"""The token that alone overflows, in the first layer."""
PARAMS = SamplingParams(max_output_len=24, logit_bias={ILL: -100})


def seen_from(feed, row):
    """The fed tokens of its own sequence that a token sees."""
    if feed.draft is None:
        return {*range(row + 1)}
    seen = {0}
    while row:
        seen.add(row)
        row = feed.draft.parents[row - 1]
    return seen


@examples(30)
@given(steps(), st.sampled_from([NAN, INF, -INF]), st.booleans(), st.data())
def test_what_is_not_seen_may_be_anything(feeds, bad, of_values, data):
    cache = empty_cache()
    batch = make_batch(feeds, cache, 2, torch.float32)
    queries = torch.randn(len(batch.tokens), 4, 16, generator=torch.Generator().manual_seed(1))
    ill = [data.draw(st.integers(0, feed.length - 1)) for feed in feeds]
    starts = [sum(feed.length for feed in feeds[:index]) for index in range(len(feeds))]
    slots = batch.slots[[start + node for start, node in zip(starts, ill, strict=True)]]
    wanted = attend_packed(queries, *cache.layer(0), batch.groups)
    cache.layer(0)[of_values][slots, 1, 3] = bad
    found = attend_packed(queries, *cache.layer(0), guarded(batch).groups)
    for start, feed, node in zip(starts, feeds, ill, strict=True):
        for row in range(feed.length):
            own, other = found[start + row].view(2, -1)[1], wanted[start + row].view(2, -1)[1]
            if node in seen_from(feed, row):
                assert own.isnan().all()
            else:
                torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    heads = (part.view(len(part), 2, -1)[:, 0] for part in (found, wanted))
    torch.testing.assert_close(*heads, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of finite weights that gives float16 more than it can hold for one token."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 48, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    ends = {"bos_token_id": 0, "eos_token_id": None, "tie_word_embeddings": False}
    made = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **ends, max_position_embeddings=256))
    with torch.no_grad():
        embedding, layer = made.model.embed_tokens.weight, made.model.layers[0]
        embedding[:, 0] = embedding[ILL] = 0
        embedding[ILL, 0] = 10
        layer.self_attn.o_proj.weight[0] = 0
        for weight in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
            weight[0] = 0
            weight[0, 0] = 300
        layer.mlp.down_proj.weight[1, 0] = 10
    folder = tmp_path_factory.mktemp("overflow")
    made.save_pretrained(folder)
    return folder


def opened(model, **options):
    return LLM(model, dtype="float16", threads=1, max_batch_size=4, **options)


def test_a_wrong_draft_that_overflows_changes_nothing(model):
    with opened(model) as llm:
        (plain,) = llm.generate([[1, 2, 3] * 5], PARAMS, drafter=NO_DRAFTER)
        wrong = [*plain.output_ids[:2], *[ILL] * 4] * 9
        (drafted,) = llm.generate([[1, 2, 3] * 5], PARAMS, expected_output=wrong)
        assert drafted.output_ids == plain.output_ids
        assert drafted.stats.drafted


def test_a_prompt_that_overflows_leaves_its_beginning_to_others(model):
    begins = [index % 5 + 1 for index in range(TOKENS_PER_BLOCK + 3)]
    with opened(model, block_reuse=False) as llm:
        (plain,) = llm.generate([begins], PARAMS)
    with opened(model) as llm:
        with pytest.raises(Exception, match="are not finite"):
            llm.generate([[*begins, ILL, *begins]], PARAMS)
        (again,) = llm.generate([begins], PARAMS)
        assert again.output_ids == plain.output_ids


def test_a_draft_that_overflows_an_encoder_decoder_changes_nothing():
    model = encoder_decoders.load(encoder_decoders.folder("T5-1.1"))
    model._weights.embedding[ILL] = INF
    cache, text = model.new_cache(2), (0, 3, 4)
    own = encoder_decoders.sequence(encoder_decoders.PROMPTS[1], text, 0)
    model.forward([Feed.prompt(own, len(text), False)], cache)
    own.num_cached, own.output_ids = len(text), [17]
    (alone,) = model.forward([Feed.step(own, Draft())], cache).logits
    rows = model.forward([Feed.step(own, Draft((ILL, 5), (0, 1)))], cache).logits
    torch.testing.assert_close(*map(torch.from_numpy, (rows[0], alone)), rtol=1e-5, atol=1e-5)
    assert not torch.from_numpy(rows[1:]).isfinite().any()
