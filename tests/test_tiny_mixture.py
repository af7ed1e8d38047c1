"""scripts/train_tiny_mixture.py: the enlarged mixture computes what the small one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.mark.deep
def test_the_enlarged_mixture_predicts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import train_tiny_mixture as script

    model = script.new_model().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    wide = script.enlarged(model, 1024, 192).float().eval()
    small = model.bfloat16().float()  # as the weights of the other are rounded
    ids = torch.randint(0, 2048, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = (one(ids, output_router_logits=False).logits for one in (wide, small))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_experts_of_one_token_are_as_many_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import train_tiny_mixture as script

    text = torch.randint(0, 2048, (2100,), generator=torch.Generator().manual_seed(0))
    used = script.experts_used(script.new_model().eval(), text)
    assert used[1] == 1.0
    assert sorted(used.values()) == list(used.values())
    assert used[32] <= script.EXPERTS / script.EACH
