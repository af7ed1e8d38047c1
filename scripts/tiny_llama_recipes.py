"""The Llamas that ship with the project: their shapes, and how long each is trained.

Both are trained on the same text; the small one drafts for the other and reads its tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny_llama_model import TinyLlamaConfig


@dataclass(frozen=True)
class Recipe:
    """What the two trainings differ in.

    Attributes:
        config: the model's shape.
        purpose: what its README says it ships for.
        steps: optimizer steps.
        batch_tokens: tokens a step.
        max_weight_bytes: of the file with the weights.
        tokenizer_of: the shipped model whose tokenizer it has; None trains one.
    """

    config: TinyLlamaConfig
    purpose: str
    steps: int
    batch_tokens: int
    max_weight_bytes: int
    tokenizer_of: str | None = None


RECIPES = {
    "tiny-llama": Recipe(
        TinyLlamaConfig(),
        "It ships with this project so that tests, examples and measurements have a real model\n"
        "without a download.",
        steps=1150,
        batch_tokens=8192,
        max_weight_bytes=8_000_000,
    ),
    "tiny-llama-draft": Recipe(
        TinyLlamaConfig(hidden_size=128, intermediate_size=384, num_hidden_layers=3, head_dim=32),
        "It ships with this project as the draft model of tiny-llama, whose tokenizer it has: a\n"
        "smaller sibling, trained on the same text.",
        steps=1500,
        batch_tokens=4096,
        max_weight_bytes=2_000_000,
        tokenizer_of="tiny-llama",
    ),
}
