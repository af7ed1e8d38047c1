"""Medusa heads of all kinds of files beside the shipped model: texts are plain decoding's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.support.heads import MEDUSA_STYLES, write_head
from tests.support.served import SHIPPED
from trtla import LLM, SamplingParams
from trtla.runtime.drafters.medusa import MedusaDrafters
from trtla.settings.drafting import DraftOptions
from trtla.settings.grammar import Grammar
from trtla.settings.lookahead import AUTOREGRESSIVE

PROMPTS = ["Once upon a time", "def add(a, b):", "import os\nimport", "for i in range("]
GREEDY, DRAWN = SamplingParams(24), SamplingParams(24, temperature=0.8, seed=3)
IN_GRAMMAR = SamplingParams(24, grammar=Grammar("regex", "[a-z ]{3,20}"))
KINDS: dict[str, dict[str, Any]] = {
    **{style: {"style": style} for style in MEDUSA_STYLES},
    "two blocks": {"style": "medusa", "num_layers": 2},
    "without lm_head": {"style": "medusa-pt", "lm_head": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_plain_decodings_alone_and_in_a_batch(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, rows = list[int](), MedusaDrafters.begin

    def counted(self, due):
        read.append(len(begun := rows(self, due)))
        return begun

    monkeypatch.setattr(MedusaDrafters, "begin", counted)
    head = write_head(tmp_path / "head", **KINDS[kind])
    given = [GREEDY, DRAWN]
    if kind == "medusa":
        pytest.importorskip("llguidance")
        given.append(IN_GRAMMAR)
    with LLM(SHIPPED, drafter=f"head:{head}") as llm:
        for sampling in given:
            plain = llm.generate(PROMPTS, sampling, AUTOREGRESSIVE, drafter="none")
            drafted = llm.generate(PROMPTS, sampling)
            alone = llm.generate(PROMPTS[:1], sampling)
            assert [one.output_ids for one in drafted] == [one.output_ids for one in plain]
            assert alone[0].output_ids == plain[0].output_ids
    assert sum(read) > 24


@torch.no_grad()
def knowing(ids: list[int], path: Path) -> Path:
    """Write two heads that know what follows in one text: the solution of its linear equations."""
    model = LlamaForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0].double()

    def change(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for k in range(2):
            wanted = torch.nn.functional.one_hot(torch.tensor(ids[k + 2 :]), 2048).double()
            lm_head = torch.linalg.lstsq(states[: len(wanted)], 20 * wanted).solution.T
            tensors[f"{k}.1.weight"] = lm_head.float().contiguous()
            tensors[f"{k}.0.linear.weight"] *= 0
            tensors[f"{k}.0.linear.bias"] *= 0

    return write_head(path, "medusa", num_heads=2, change=change)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_heads_that_know_a_text_are_right(dtype: str, tmp_path: Path) -> None:
    """Head k reads the normalised last state, and draws the token k + 2 places behind it.

    In float16 they run in PyTorch, as their model does.
    """
    options = DraftOptions(sources=("head",))
    with LLM(SHIPPED, dtype=dtype) as llm:
        (plain,) = llm.generate(PROMPTS[:1], SamplingParams(120), AUTOREGRESSIVE)
        prompt = llm.tokenizer.encode(PROMPTS[0])
    head = knowing([*prompt, *plain.output_ids], tmp_path / "head")
    with LLM(SHIPPED, drafter=f"head:{head}", dtype=dtype, draft_options=options) as llm:
        (drafted,) = llm.generate(PROMPTS[:1], SamplingParams(120))
    assert drafted.output_ids == plain.output_ids
    counts = drafted.stats.sources["head"]
    assert sum(counts.accepted) > 0.9 * sum(counts.fed) > 40
    assert np.all(np.array(counts.accepted)[:2] > 20)
