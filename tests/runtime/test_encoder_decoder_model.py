"""The T5 decoder alone: logits of transformers, trees of drafts, and prompts that are read once."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.encoder_decoders import (
    KINDS,
    PROMPTS,
    VOCAB,
    executor,
    folder,
    generate,
    load,
    sequence,
    theirs,
)
from tests.support.examples import examples
from tests.support.toys import run, tokens_of
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.errors import TrtlaError, UsageError
from trtla.formats.engine import EncoderDecoder, open_encoder_decoder
from trtla.formats.engine_limits import BuildSettings
from trtla.runtime.draft import Draft
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.load import load_engine
from trtla.runtime.models.t5 import T5Model, distance_buckets
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE

TEXT = (0, 7, 3, 3, 19, 21, 7, 3, 44, 1, 2, 30, 30, 5, 12, 8, 8, 41)


def asked(number: int, prompt: tuple[int, ...], **sampling: Any) -> Request:
    return Request(number, (0,), SamplingParams(**sampling), encoder_ids=prompt)


def all_rows(feed: Feed) -> Feed:
    return Feed(feed.sequence, feed.tokens, tuple(range(feed.length)), feed.draft)


def expected(kind: str, prompt: tuple[int, ...], text: tuple[int, ...]) -> torch.Tensor:
    """transformers' logits after each token of the decoder's text."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder(kind), dtype=torch.float64)
    with torch.inference_mode():
        ids = torch.tensor([prompt]), torch.tensor([text])
        logits: torch.Tensor = model(input_ids=ids[0], decoder_input_ids=ids[1]).logits[0]
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers_however_the_text_is_cut(kind: str) -> None:
    model = load(folder(kind))
    cache, prompt = model.new_cache(2), PROMPTS[0]
    wanted = expected(kind, prompt, TEXT)
    for cuts in ((len(TEXT),), (1, 1, 5, len(TEXT) - 7), (1,) * len(TEXT)):
        own, found = sequence(prompt, TEXT, 0), []
        for length in cuts:
            feed = all_rows(Feed.prompt(own, length, True))
            found.append(torch.from_numpy(model.forward([feed], cache).logits))
            own.num_cached += length
        # transformers' norms are float32 even here
        torch.testing.assert_close(torch.cat(found), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_branch_of_a_tree_sees_what_a_text_of_its_own_would(kind: str) -> None:
    model, base = load(folder(kind)), len(TEXT)
    cache = model.new_cache(4)
    tokens, parents = (4, 5, 6, 9, 9), (0, 1, 2, 0, 4)
    owners = [sequence(prompt, TEXT, block) for block, prompt in enumerate(PROMPTS[:3])]
    for own in owners:
        model.forward([Feed.prompt(own, base, False)], cache)
        own.num_cached, own.output_ids = base, [17]
    drafts = [Draft(tokens, parents), Draft(), Draft((4,), (0,))]
    feeds = [Feed.step(own, draft) for own, draft in zip(owners, drafts, strict=True)]
    found = torch.from_numpy(model.forward(feeds, cache).logits)
    paths = [(17,), (17, 4), (17, 4, 5), (17, 4, 5, 6), (17, 9), (17, 9, 9)]
    for row, path in enumerate(paths):
        wanted = expected(kind, PROMPTS[0], (*TEXT, *path))[-1]
        torch.testing.assert_close(found[row], wanted, rtol=1e-4, atol=1e-5)
    for row, (place, path) in enumerate(((1, (17,)), (2, (17,)), (2, (17, 4))), len(paths)):
        wanted = expected(kind, PROMPTS[place], (*TEXT, *path))[-1]
        torch.testing.assert_close(found[row], wanted, rtol=1e-4, atol=1e-5)


@given(buckets=st.integers(2, 20).map(lambda half: 2 * half), more=st.integers(1, 200))
def test_buckets_are_those_of_transformers(buckets: int, more: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    longest = buckets // 2 + more
    distances = -torch.arange(longest + 1)
    wanted = T5Attention._relative_position_bucket(distances, False, buckets, longest)
    assert distance_buckets(buckets, longest).tolist() == wanted.tolist()


CONFIGS = st.fixed_dictionaries(
    {
        "num_decoder_layers": st.integers(1, 3),
        "num_layers": st.integers(1, 2),
        "num_heads": st.integers(1, 4),
        "d_kv": st.sampled_from([2, 4, 10]),
        "relative_attention_num_buckets": st.sampled_from([4, 6, 8, 32]),
        "relative_attention_max_distance": st.sampled_from([17, 20, 128]),
        "feed_forward_proj": st.sampled_from(["relu", "gated-gelu", "gated-silu"]),
        "tie_word_embeddings": st.booleans(),
        "vocab_size": st.integers(5, 40),
    }
)


@examples(15)
@given(data=st.data(), config=CONFIGS, seed=st.integers(0, 2**20))
def test_any_t5_in_float64_says_what_transformers_says_with_and_without_drafts(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, config: Any, seed: int
) -> None:
    path, vocab = tmp_path_factory.mktemp("t5"), config["vocab_size"]
    reference = theirs("T5", seed, **config)
    reference.save_pretrained(path)
    prompts = data.draw(
        st.lists(
            st.lists(st.integers(1, vocab - 1), min_size=1, max_size=12), min_size=1, max_size=4
        )
    )
    wanted = [generate(reference.double(), prompt, 12) for prompt in prompts]
    names = data.draw(
        st.sampled_from([("none",), ("ngram",), ("prompt-lookup", "lookahead"), ("draft:small",)])
    )
    own = DrafterSettings(names, gamma=data.draw(st.integers(1, 6)))
    model, triple = load(path), LookaheadConfig(3, 3, 3)
    with executor(model, vocab, own, load(path), lookahead=triple) as target:
        requests = [asked(i, tuple(p), max_output_len=12) for i, p in enumerate(prompts)]
        found = run(target, requests)
        assert [tokens_of(found[i]) for i in range(len(prompts))] == list(map(list, wanted))


def counted(model: T5Model, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The prompts that a model's encoder reads from now on."""
    seen: list[tuple[int, ...]] = []
    encode = model._encode

    def noting(prompt: tuple[int, ...]) -> torch.Tensor:
        seen.append(prompt)
        return encode(prompt)

    monkeypatch.setattr(model, "_encode", noting)
    return seen


def test_target_and_draft_model_each_read_a_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, draft = load(folder("T5")), load(folder("T5", noise=0.02))
    seen = [counted(one, monkeypatch) for one in (model, draft)]
    prompts = [*PROMPTS, *PROMPTS, (5, 5)]
    requests = [asked(i, prompt, max_output_len=9) for i, prompt in enumerate(prompts)]
    drafting = DrafterSettings(("draft:small",), gamma=3)
    with executor(model, VOCAB, drafting, draft, max_batch_size=2) as target:
        run(target, requests)
    assert [sorted(one) for one in seen] == [sorted(prompts)] * 2


def test_what_was_read_is_forgotten_with_its_request() -> None:
    model, draft = load(folder("T5")), load(folder("T5", noise=0.02))
    with executor(model, VOCAB, DrafterSettings(("draft:small",)), draft) as target:
        for number, prompt in enumerate(PROMPTS):
            target.submit(asked(number, prompt, max_output_len=8 if number else 2))
        target.poll()
        assert len(model.prompts) == 3, "the batch holds three"
        target.cancel(1)
        while target.poll():
            pass
        gc.collect()
        assert len(model.prompts) == len(draft.prompts) == 0


def test_llm_holds_nothing_when_texts_and_beams_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[T5Model] = []

    def kept(engine: EncoderDecoder, *place: Any) -> T5Model:
        models.append(load_engine(engine, *place))  # type: ignore[arg-type]
        return models[0]

    monkeypatch.setattr("trtla.runtime.loop.start.load_engine", kept)
    with LLM(folder("T5"), lookahead="auto") as llm:
        llm.generate(PROMPTS, SamplingParams(max_output_len=5))
        llm.beam_search(PROMPTS[0], max_output_len=5)
        llm.log_probs(PROMPTS[0], (3, 4))
        for _ in llm.stream(PROMPTS, SamplingParams(max_output_len=5)):
            break
        llm.generate(PROMPTS[0], SamplingParams(max_output_len=5))
    gc.collect()
    assert len(models) == 1
    assert len(models[0].prompts) == 0


@pytest.mark.parametrize("name", ["prompt-lookup", "ngram", "lookahead"])
def test_drafts_are_copied_from_what_the_encoder_reads(name: str) -> None:
    prompt, triple = (5, 6, 7, 8, 9, 20, 21, 22), LookaheadConfig(1, 5, 2)
    settings = DrafterSettings((name,), gamma=4)
    target = executor(load(folder("T5")), VOCAB, settings, lookahead=triple)
    drafter = target._drafting.drafters(triple, asked(0, prompt, max_output_len=30))
    drafter.observe((), prompt[1:3])
    draft = drafter.propose()
    assert prompt[3:7] in {draft.tokens_to(node) for node in draft.candidates}


def test_a_request_without_what_the_encoder_reads_is_refused() -> None:
    limits = executor(load(folder("T5")), VOCAB, NO_DRAFTER).limits
    with pytest.raises(UsageError, match="brings no encoder_ids, and the model is an encoder-dec"):
        limits.check(Request(0, (0,), SamplingParams(8)))
    with pytest.raises(UsageError, match="has an empty prompt"):
        limits.check(asked(0, ()))
    with pytest.raises(UsageError, match="is 65 tokens long, above the encoder's 64"):
        limits.check(asked(0, (1,) * 65))
    with pytest.raises(UsageError, match="token id 48, outside the vocabulary of 48"):
        limits.check(asked(0, (48,), max_output_len=8))
    with pytest.raises(UsageError, match="needs 1 prompt \\+ 64 output tokens"):
        limits.check(asked(0, (1,), max_output_len=64))
    plain = ExecutorLimits(1, 8, 64, 64, VOCAB, AUTOREGRESSIVE)
    with pytest.raises(UsageError, match="brings encoder_ids, and the model is a decoder alone"):
        plain.check(asked(0, (1,)))
    with pytest.raises(TrtlaError, match="has no encoder_ids"):
        load(folder("T5")).prompts.of(Request(0, (0,)))


def test_a_draft_model_of_another_kind_is_refused_before_anything_loads(tiny_llama: Path) -> None:
    with pytest.raises(UsageError, match=r"is a decoder alone, the model .* is an encoder-decoder"):
        LLM(folder("T5"), drafter=DrafterSettings((f"draft:{tiny_llama}",)))
    with pytest.raises(UsageError, match=r"is an encoder-decoder, the model .* is a decoder alone"):
        LLM(tiny_llama, draft_models=[str(folder("T5"))])


def test_limits_follow_the_positions_that_the_config_names() -> None:
    engine = open_encoder_decoder(folder("T5"), BuildSettings(LookaheadConfig(3, 3, 3)))
    assert engine.config.build_config.max_text_len == 1024
    assert engine.max_encoder_len == 4096
    assert engine.decoder_start == 0
    with pytest.raises(UsageError, match="neither converted nor built"):
        engine.weights()
