"""Draft models with the target's tokenizer and more or fewer rows behind its last token."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from trtla import LLM, DrafterSettings, SamplingParams, UsageError
from trtla.runtime.sampling.logits import fitted
from trtla.settings.lookahead import AUTOREGRESSIVE

PROMPTS = ["def f(", "class A:\n    ", "import "]
ROWS = ("model.embed_tokens.weight", "lm_head.weight")


def padded(model, folder, count, scale=1.0):
    """A copy with so many rows more, which mean nothing."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] += count
    (folder / "config.json").write_text(json.dumps(config))
    weights, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(1)
    for name in weights.keys() & set(ROWS):
        own = weights[name]
        noise = torch.randn((count, own.shape[1]), generator=generator) * own.float().std() * scale
        weights[name] = torch.cat((own, noise.to(own.dtype)))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def wide(tiny_llama, tmp_path_factory):
    """Padding that is the most probable token at times."""
    return padded(tiny_llama, tmp_path_factory.mktemp("wide") / "model", 40, 1.3)


def asked(vocab):
    """Requests of all kinds; the last ones hold ids of padding in prompt and output."""
    last = vocab - 1
    greedy, drawn = SamplingParams(24), SamplingParams(24, temperature=0.9, top_p=0.95, seed=4)
    forced = SamplingParams(12, logit_bias={last: 100}, repetition_penalty=1.5)
    return [*PROMPTS, (5, last, 9), (5, 9)], [greedy, drawn, greedy, drawn, forced]


@pytest.mark.parametrize("which", ["fewer", "more"])
def test_padding_does_not_keep_a_draft_model_from_drafting(tiny_llama, wide, which) -> None:
    target, draft = (wide, tiny_llama) if which == "fewer" else (tiny_llama, wide)
    path = f"draft:{draft}"
    drafters = [DrafterSettings((path,), gamma=3), DrafterSettings((path,), egag=True)]
    with LLM(target, dtype="float32", drafter=drafters[0]) as llm:
        prompts, sampling = asked(llm.limits.vocab_size)
        plain = llm.generate(prompts, sampling, AUTOREGRESSIVE, drafter=DrafterSettings(("none",)))
        for drafter in drafters:
            found = llm.generate(prompts, sampling, AUTOREGRESSIVE, drafter=drafter)
            assert [one.token_ids for one in found] == [one.token_ids for one in plain]
            assert sum(one.stats.accepted for one in found) > 0
        rejection = DrafterSettings((path,), gamma=3, rejection=True)
        found = llm.generate(prompts[1], sampling[1], AUTOREGRESSIVE, drafter=rejection)[0]
        assert max(found.token_ids) < llm.limits.vocab_size
        assert found.stats.drafted > 0


def test_another_tokenizer_is_refused_whatever_the_sizes(tiny_llama, tmp_path, monkeypatch) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_llama, other)
    said = json.loads((other / "tokenizer.json").read_text())
    words = said["model"]["vocab"]
    pair = list(words)[-2:]
    words[pair[0]], words[pair[1]] = words[pair[1]], words[pair[0]]
    (other / "tokenizer.json").write_text(json.dumps(said))
    drafter = DrafterSettings((f"draft:{other}",))
    monkeypatch.setattr("trtla.formats.engine.Engine.weights", lambda *_: pytest.fail("was read"))
    with pytest.raises(UsageError) as refusal:
        LLM(tiny_llama, drafter=drafter)
    token = min(words[one] for one in pair)
    assert refusal.value.message.startswith(f"token {token} is {pair[1]!r} in the draft model")
    assert refusal.value.hint == "use a draft model with the same tokenizer"


def test_without_tokenizers_sizes_decide(tiny_llama, wide, tmp_path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(wide, bare)
    for path in bare.glob("*token*"):
        path.unlink()
    with pytest.raises(UsageError, match=f"{bare.name} has no tokenizer to compare"):
        LLM(tiny_llama, drafter=DrafterSettings((f"draft:{bare}",)))


def test_rows_are_fitted_to_another_vocabulary() -> None:
    for rows in (torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[1.0, 3.0, 2.0]]).numpy()):
        assert fitted(rows, 3) is rows
        assert fitted(rows, 2).tolist() == [[1.0, 3.0]]
        assert fitted(rows, 5).tolist() == [[1.0, 3.0, 2.0, float("-inf"), float("-inf")]]
