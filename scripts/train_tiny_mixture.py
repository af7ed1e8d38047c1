"""Trains a small mixture of experts, and enlarges it, to measure what learnt routing costs.

    python scripts/train_tiny_mixture.py OUTPUT_DIR               # half an hour on two CPU cores

Which experts neighbouring tokens share is learnt, as in a large mixture. The enlarged one predicts
the same, and each of its experts takes as much memory as a large one's. Corpus and tokenizer are
tiny-llama's. At the end it prints how many experts tokens of unseen text use.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from train_tiny_llama import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    LEARNING_RATE,
    RECIPES,
    SHORT,
    WARMUP_STEPS,
    Batches,
    Corpus,
)
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

HIDDEN, WIDTH, EXPERTS, EACH, LAYERS = 256, 160, 32, 4, 5
BATCH_TOKENS, COOLING = 4096, 0.3
FED = (1, 2, 4, 8, 16, 32)


def new_model() -> Qwen3MoeForCausalLM:
    """A mixture that is trained to use all of its experts, as large ones are."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=2048, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, intermediate_size=HIDDEN, num_experts=EXPERTS,
        num_experts_per_tok=EACH, moe_intermediate_size=WIDTH, norm_topk_prob=True,
        output_router_logits=True, router_aux_loss_coef=0.01, max_position_embeddings=2048,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config)


def train(model: Qwen3MoeForCausalLM, corpus: Corpus, steps: int) -> None:
    """Train; the learning rate falls in the last steps."""
    batches = Batches(corpus.documents, BATCH_TOKENS)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.05)
    for step in range(steps):
        rows = batches.get(step, SHORT)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(input_ids=rows, labels=rows)
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        left = (steps - step) / steps / COOLING
        optimizer.param_groups[0]["lr"] = (
            LEARNING_RATE / 2 * min((step + 1) / WARMUP_STEPS, 1, left)
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step} of {steps}, loss {float(found.loss):.3f}", flush=True)


def enlarged(model: Qwen3MoeForCausalLM, hidden: int, width: int) -> Qwen3MoeForCausalLM:
    """The same predictions from wider states and experts: what is added is zero."""
    ratio = HIDDEN / hidden
    sizes = {"hidden_size": hidden, "moe_intermediate_size": width}
    epsilon = model.config.rms_norm_eps * ratio
    own = {**model.config.to_dict(), **sizes, "rms_norm_eps": epsilon, "dtype": "bfloat16"}
    with torch.device("meta"):
        wide = Qwen3MoeForCausalLM(Qwen3MoeConfig(**own))
    wide = wide.to(torch.bfloat16).to_empty(device="cpu")
    wide.model.rotary_emb = model.model.rotary_emb  # its frequencies are no weights
    old = model.state_dict()
    for name, to in wide.state_dict().items():
        to.copy_(_padded(name, old[name].bfloat16(), to.shape, ratio))
    return wide


def _padded(name: str, old: Tensor, shape: torch.Size, ratio: float) -> Tensor:
    if old.ndim == 1 and old.shape != shape:  # a norm of the states
        old = (old.double() * ratio**0.5).to(old.dtype)
    if name.endswith("gate_up_proj"):
        half = torch.Size((shape[0], shape[1] // 2, shape[2]))
        return torch.cat([_filled(part, half) for part in old.chunk(2, 1)], 1)
    return _filled(old, shape)


def _filled(old: Tensor, shape: torch.Size) -> Tensor:
    out = old.new_zeros(shape)
    out[tuple(slice(0, size) for size in old.shape)] = old
    return out


@torch.no_grad()
def experts_used(model: Qwen3MoeForCausalLM, text: Tensor) -> dict[int, float]:
    """The experts of a layer that so many neighbouring tokens use, over those of one token."""
    found = model(input_ids=text[None, :2048], output_router_logits=True)
    chosen = [logits.topk(EACH, -1).indices for logits in found.router_logits]
    counts = {
        fed: [len(layer[at : at + fed].unique()) for layer in chosen for at in range(64, 2000, 37)]
        for fed in FED
    }
    return {fed: sum(some) / len(some) / EACH for fed, some in counts.items()}


def save(model: Qwen3MoeForCausalLM, corpus: Corpus, folder: Path) -> None:
    """Write a Hugging Face folder."""
    model.config.output_router_logits = False
    model.save_pretrained(folder)
    ends = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=corpus.tokenizer, **ends)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Train, and write OUTPUT_DIR/small and OUTPUT_DIR/wide."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--hidden-size", type=int, default=4096, help="a power of 4 times 256")
    parser.add_argument("--moe-intermediate-size", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus, model = Corpus.load(RECIPES["tiny-llama"]), new_model()
    train(model, corpus, args.steps)
    save(model.eval(), corpus, args.output_dir / "small")
    wide = enlarged(model, args.hidden_size, args.moe_intermediate_size)
    save(wide, corpus, args.output_dir / "wide")
    print("tokens | experts used | by independent choices")
    for fed, used in experts_used(model, corpus.held_out).items():
        print(f"{fed} | {used:.2f} | {EXPERTS / EACH * (1 - (1 - EACH / EXPERTS) ** fed):.2f}")


if __name__ == "__main__":
    main()
