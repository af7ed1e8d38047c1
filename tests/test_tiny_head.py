"""Training of EAGLE-3 heads, the head that ships with the project, and states for SpecForge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from eagle_head import Batch, EagleHead, Sizes, read_draft_ids  # noqa: E402
from head_texts import ChatTexts, Rows, Text, answers, batches, rows  # noqa: E402
from train_tiny_head import Target  # noqa: E402

from trtla.formats.heads.head import EagleConfig  # noqa: E402
from trtla.formats.heads.reading import read_head  # noqa: E402
from trtla.llm.llm import LLM  # noqa: E402

ASSETS = ROOT / "trtla" / "assets"
PROMPTS = (
    "import os\n\n\nclass Reader:\n    def __init__(self, path):\n",
    "def main():\n    parser = argparse.ArgumentParser()\n",
    "<|user|>\nReturn the number of items.<|end|>\n<|assistant|>\n",
    "class TestCase(unittest.TestCase):\n    def setUp(self):\n",
)
FLOORS = 0.4, 1.7
"""First drafts that are right, and tokens a step with chains of three; measured: 0.54, 2.01."""
TARGET, HEAD = ASSETS / "tiny-llama", ASSETS / "tiny-head"


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "scripts" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_files(folder: Path) -> None:
    """They are of SpecForge's form: names, shapes, types, and both tables of ids agree."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    drafts, size = config["draft_vocab_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    tensors = load_file(folder / "model.safetensors")
    offsets, known = tensors.pop("d2t"), tensors.pop("t2d")
    layer = {
        "self_attn.q_proj": (q, 2 * hidden), "self_attn.k_proj": (kv, 2 * hidden),
        "self_attn.v_proj": (kv, 2 * hidden), "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,), "hidden_norm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    expected = {f"midlayer.{name}.weight": shape for name, shape in layer.items()} | {
        "fc.weight": (hidden, 3 * hidden), "norm.weight": (hidden,),
        "lm_head.weight": (drafts, hidden),
    }  # fmt: skip
    assert {name: tuple(one.shape) for name, one in tensors.items()} == expected
    assert all(one.dtype == torch.float16 and one.isfinite().all() for one in tensors.values())
    assert offsets.dtype == torch.int64
    assert known.dtype == torch.bool
    assert known.shape == (config["vocab_size"],)
    ids = torch.arange(drafts) + offsets
    assert torch.equal(ids, known.nonzero().flatten())
    read = read_head(folder)
    assert isinstance(read.config, EagleConfig)
    assert read.config.boundaries == (2, 3, 4)
    assert read.target_ids is not None
    assert read.target_ids.tolist() == ids.tolist()


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(TARGET)


def test_shipped_head(target: Target) -> None:
    check_files(HEAD)
    assert (HEAD / "model.safetensors").stat().st_size <= 2_000_000
    config = json.loads((HEAD / "config.json").read_text(encoding="utf-8"))
    assert config["vocab_size"] == target.model.config.vocab_size > config["draft_vocab_size"]
    assert config["hidden_size"] == target.model.config.hidden_size


def test_shipped_head_often_says_what_the_target_says(target: Target) -> None:
    """On code that the target writes greedily: that is what it ships for."""
    config = json.loads((HEAD / "config.json").read_text(encoding="utf-8"))
    sizes = Sizes(**{name: config[name] for name in Sizes.__annotations__})
    head = EagleHead(target.model, sizes, [2, 3, 4], read_draft_ids(HEAD))
    head.load(HEAD)
    with LLM(TARGET, dtype="float32", device="cpu") as llm:
        prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
        texts = answers(llm, prompts, 96, [0.0], 0)
    reached, right = head.hits(target.read(rows(texts)), 3).tolist()
    assert right[0] > FLOORS[0] * reached[0]
    assert 1 + sum(right) / reached[0] > FLOORS[1]


@pytest.mark.deep
def test_a_short_training_writes_a_head(tmp_path: Path) -> None:
    printed = run(
        "train_tiny_head.py", "--steps", 3, "--own-texts", 8, "--held-out-texts", 4,
        "--unrolled", 2, "--threads", 1, "--draft-vocabulary", 300, "--output-dir", tmp_path,
    )  # fmt: skip
    check_files(tmp_path)
    assert "3 steps" in printed
    assert printed.count("acceptance by depth") == 2


def test_a_chat_model_s_head_learns_from_its_answers(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"text": "Return the sum."}\n{"turns": ["Close it.", "And now?"]}\n')
    run(
        "train_tiny_head.py", "--steps", 2, "--minutes", 0.05, "--prompts", prompts,
        "--held-out", prompts, "--threads", 1, "--output-dir", tmp_path / "head",
    )  # fmt: skip
    check_files(tmp_path / "head")


@pytest.fixture
def small() -> EagleHead:
    """A head of random weights."""
    torch.manual_seed(3)
    sizes = Sizes(256, 48, 4, 2, 64, 2048, 1000, 64, 1e-5, 10000.0)
    head = EagleHead(Target(TARGET).model, sizes, [2, 3, 4], torch.arange(1000) * 2)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return head


def random_batch(length: int) -> Batch:
    ids = torch.randint(0, 2048, (2, length))
    predicts = torch.ones_like(ids, dtype=torch.bool)
    taps, last = torch.randn(2, length, 768), torch.randn(2, length, 256)
    return Batch(ids, predicts, taps, last, torch.randint(0, 100, ids.shape) * 20)


def test_a_later_step_is_what_drafting_computes(small: EagleHead) -> None:
    """Step 2 at a place: pairs up to it, then two more made of the head's own outputs."""
    batch, place = random_batch(9), 4
    unrolled = [states[:, place] for states in small.unroll(batch, 3)]
    embedded = small.embed(batch.ids)[:, 1:]
    states = small.fc(batch.taps)[:, : place + 1]
    for step in range(3):
        out = small.midlayer(embedded[:, : place + 1 + step], states, [])
        assert torch.allclose(out[:, -1], unrolled[step], atol=1e-4)
        states = torch.cat([states, out[:, -1:]], 1)


def test_hits_count_unbroken_chains(small: EagleHead) -> None:
    """Chains of two from every second token are right, but for one's end; the others are not."""
    batch = random_batch(9)
    first, second = (
        small.draft_ids[small.lm_head(small.norm(states)).argmax(-1)]
        for states in small.unroll(batch, 2)
    )
    best = batch.best.clone()
    best[:, 1::2], best[:, 2::2] = first[:, :-1:2], second[:, :-2:2]
    best[0, 2] = -5
    assert small.hits(batch._replace(best=best), 2).tolist() == [[16, 8], [8, 7]]


def test_batches_hold_every_text_once() -> None:
    texts = [Text(list(range(1, n)), read=2) for n in (9, 4, 30, 5, 8)]
    found = batches(texts, 16)
    assert sum(len(one.ids) for one in found) == 5
    assert all(one.ids.numel() <= 30 for one in found)
    only = rows([texts[1], texts[3]])
    assert only.ids.tolist() == [[1, 2, 3, 0], [1, 2, 3, 4]]
    assert only.predicts.int().tolist() == [[0, 1, 0, 0], [0, 1, 1, 0]]


def test_texts_are_kept_for_later_runs(tmp_path: Path) -> None:
    texts = ChatTexts([Text([1, 2, 3], 1), Text([4, 5], 1)], [Text([6, 7], 1)])
    texts.save(tmp_path / "texts.json")
    again = ChatTexts.load(tmp_path / "texts.json")
    assert (again.texts, again.held_out) == (texts.texts, texts.held_out)
    assert torch.equal(again.get(0).ids, texts.get(0).ids)


def test_the_target_s_states_are_transformers_s() -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    ids = torch.randint(5, 2048, (2, 12))
    predicts = torch.ones_like(ids, dtype=torch.bool)
    batch = Target(TARGET).read(Rows(ids, predicts))
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True)
    assert torch.equal(batch.taps, torch.cat(expected.hidden_states[2:5], -1))
    assert torch.equal(batch.last, expected.hidden_states[-1])
    assert torch.equal(batch.best, expected.logits.argmax(-1))


def test_exported_states_are_transformers_s(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"text": "Return the sum."}\n{"turns": ["Close it.", "And now?"]}\n')
    folder = tmp_path / "states"
    run(
        "export_states.py", "--model", TARGET, "--prompts", prompts, "--output-dir", folder,
        "--max-output-len", 12,
    )  # fmt: skip
    files = sorted(folder.glob("rows_0-2000/data_*.ckpt"))
    assert len(files) == 2
    model: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    for path in files:
        data = torch.load(path, weights_only=True)
        ids, mask = data["input_ids"], data["loss_mask"]
        assert ids.shape == mask.shape
        assert 1 <= mask.sum() <= 12
        assert torch.equal(mask, mask.sort().values)
        with torch.no_grad():
            hidden = model(ids[None], output_hidden_states=True).hidden_states
        assert torch.allclose(data["aux_hidden_state"], torch.cat(hidden[2:5], -1), atol=1e-5)
        assert torch.allclose(data["hidden_state"], hidden[-1], atol=1e-5)
