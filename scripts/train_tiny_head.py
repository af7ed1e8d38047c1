"""Trains EAGLE-3 heads: the one that ships with the project, and those of other small Llamas.

    python scripts/train_tiny_head.py                    # the shipped model's: half an hour
    python scripts/train_tiny_head.py --model SmolLM2-135M-Instruct --prompts train.jsonl \
        --held-out held-out.jsonl --draft-vocabulary 8192 --minutes 120 --output-dir head

The target writes the texts itself. A model that chats answers the prompts of `--prompts` and
questions of its own for a quarter of the time; the rest is training. The head's folder is written
every few minutes, with its acceptance by depth on answers to prompts that it was not trained on.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from eagle_head import Batch, EagleHead, Sizes, read_draft_ids
from head_texts import ChatTexts, ChatWriter, LibraryTexts, Rows, batches
from torch import Tensor
from train_tiny_llama import ASSETS
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from trtla.llm.llm import LLM

SHIPPED = ASSETS / "tiny-llama"
SHIPPED_SIZES = {
    "intermediate_size": 288, "num_attention_heads": 2, "num_key_value_heads": 1,
    "draft_vocab_size": 1536,
}  # fmt: skip
MATRIX_RATE, OTHER_RATE, WARMUP_STEPS = 1e-2, 2e-3, 20
ANSWERS_SHARE, SAVE_SECONDS = 0.25, 180.0
COUNTED_STEPS = 300
"""Steps whose tokens decide which ids are in the draft vocabulary."""


class Target:
    """The model that the head drafts for; it is not trained."""

    def __init__(self, folder: Path, keeps: bool = False) -> None:
        """Load it; with `keeps` the states of a batch are computed once."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        self.model: LlamaForCausalLM = model if model.dtype == torch.bfloat16 else model.float()
        layers = self.model.config.num_hidden_layers
        if layers < 5:
            sys.exit(f"error: {folder} has {layers} layers, and a head reads between 5 or more")
        self.boundaries = [2, 3, 4] if layers < 7 else [2, layers // 2, layers - 3]
        self._kept: dict[int, Batch] | None = {} if keeps else None

    @torch.no_grad()
    def read(self, rows: Rows) -> Batch:
        """What it makes of the rows."""
        if self._kept is not None and id(rows) in self._kept:
            return self._kept[id(rows)]
        hidden = self.model.model(rows.ids, output_hidden_states=True, use_cache=False)
        last = hidden.last_hidden_state
        best = torch.full_like(rows.ids, -1)
        best[rows.predicts] = self.model.lm_head(last[rows.predicts]).argmax(-1)
        taps = torch.cat([hidden.hidden_states[n] for n in self.boundaries], -1)
        batch = Batch(rows.ids, rows.predicts, taps, last, best)
        if self._kept is not None:
            self._kept[id(rows)] = batch
        return batch


class Trainer:
    """A head, its optimizers and the loop."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.begin = args, time.monotonic()
        self.texts = self._texts()
        self.target = Target(args.model, keeps=bool(args.prompts))
        self.held_out = batches(self.texts.held_out, 2048)
        known = read_draft_ids(args.output_dir) if args.resume else self._draft_ids()
        sizes = replace(self._sizes(), draft_vocab_size=len(known))
        self.head = EagleHead(self.target.model, sizes, self.target.boundaries, known)
        if args.resume:
            self.head.load(args.output_dir)
        matrices = [p for p in self.head.midlayer.parameters() if p.ndim == 2]
        matrices.append(self.head.fc.weight)
        others = [p for p in self.head.parameters() if all(p is not one for one in matrices)]
        self.optimizers = [
            torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.step, self.tokens, self.trained_from = 0, 0, time.monotonic()

    def _texts(self) -> LibraryTexts | ChatTexts:
        args = self.args
        if args.texts and args.texts.is_file():
            return ChatTexts.load(args.texts)
        model = args.answers_model or args.model
        options = {"max_batch_size": 32, "max_seq_len": 1024, "threads": args.threads}
        with LLM(model, drafter="none", **options) as llm:
            if not args.prompts:
                return LibraryTexts(llm, args.own_texts, args.held_out_texts)
            writer = ChatWriter(llm, args.model, args.prompts)
            found = writer.write(args.held_out, 60 * args.minutes * ANSWERS_SHARE)
        if args.texts:
            found.save(args.texts)
        return found

    def _sizes(self) -> Sizes:
        config = self.target.model.config
        found = {
            name: getattr(config, name)
            for name in Sizes.__annotations__
            if name not in ("rope_theta", "draft_vocab_size")
        }
        parameters = getattr(config, "rope_parameters", None) or {}
        found["rope_theta"] = float(parameters.get("rope_theta", 10000.0))
        own = SHIPPED_SIZES if self.args.model.resolve() == SHIPPED.resolve() else {}
        size = self.args.draft_vocabulary or own.get("draft_vocab_size", config.vocab_size)
        return Sizes(**found | own | {"draft_vocab_size": min(size, config.vocab_size)})

    def _draft_ids(self) -> Tensor:
        """The most frequent ids among those that a head is asked for, then the lowest others."""
        size = self._sizes().vocab_size
        counts = torch.zeros(size, dtype=torch.long)
        for step in range(COUNTED_STEPS):
            rows = self.texts.get(step)
            counts += rows.ids[:, 1:][rows.predicts[:, :-1]].bincount(minlength=size)
        order = counts * size - torch.arange(size)
        return order.topk(self._sizes().draft_vocab_size).indices.sort().values

    def train(self) -> None:
        """Train until the time or the steps are over."""
        log(f"{sum(p.numel() for p in self.head.parameters()):,} parameters")
        saved = self.trained_from = time.monotonic()
        self.report(self.held_out[:: max(1, len(self.held_out) // 4)])
        while (left := self._left()) > 0:
            loss = self.train_step(left)
            if self.step % 20 == 0 or self.step < 3:
                rate = self.tokens / (time.monotonic() - self.trained_from)
                log(f"step {self.step} loss {loss:.3f} tokens/s {rate:.0f} left {left:.2f}")
            if time.monotonic() - saved > SAVE_SECONDS:
                self.head.save(self.args.output_dir)
                self.report(self.held_out[:: max(1, len(self.held_out) // 4)])
                saved = time.monotonic()
        self.head.save(self.args.output_dir)
        log(f"{self.step} steps, {self.tokens:,} tokens, {self._minutes():.0f} minutes in all")
        self.report(self.held_out)

    def _minutes(self) -> float:
        return (time.monotonic() - self.begin) / 60

    def _left(self) -> float:
        """The share of the training that is left."""
        end = self.begin + 60 * self.args.minutes
        by_time = (end - time.monotonic()) / max(1e-9, end - self.trained_from)
        return min(by_time, 1 - self.step / self.args.steps) if self.args.steps else by_time

    def train_step(self, left: float) -> float:
        """Run one optimizer step; its loss."""
        batch = self.target.read(self.texts.get(self.step))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.args.bfloat16):
            loss = self.head.loss(batch, self.args.unrolled)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        factor = min((self.step + 1) / WARMUP_STEPS, 1.0, left / 0.7)
        for optimizer, rate in zip(self.optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step, self.tokens = self.step + 1, self.tokens + batch.ids.numel()
        return float(loss.detach())

    def report(self, held_out: list[Rows]) -> None:
        """Print how many chains that reach a depth are right there, on greedy texts."""
        reached, right = sum(
            (self.head.hits(self.target.read(rows), 5) for rows in held_out),
            torch.zeros(2, 5, dtype=torch.long),
        ).tolist()
        shares = [b / max(1, a) for a, b in zip(reached, right, strict=True)]
        chain = [1 + sum(right[:n]) / max(1, reached[0]) for n in (1, 3, 5)]
        log(
            "acceptance by depth " + " ".join(f"{share:.3f}" for share in shares)
            + f", tokens a step with chains of 1, 3, 5: {chain[0]:.2f} {chain[1]:.2f} "
            f"{chain[2]:.2f} ({reached[0]} places)"
        )  # fmt: skip


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    """Train, and write the head's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=SHIPPED, help="a Llama's folder")
    parser.add_argument("--output-dir", type=Path, help="default: the shipped head's folder")
    parser.add_argument("--minutes", type=float, default=25.0, help="of answers and training")
    parser.add_argument("--steps", type=int, help="most optimizer steps")
    parser.add_argument("--draft-vocabulary", type=int, help="default: the whole vocabulary")
    parser.add_argument("--prompts", type=Path, nargs="+", help=".jsonl files, for a chat model")
    parser.add_argument(
        "--answers-model", type=Path, help="the same model in a form that is faster, such as GGUF"
    )
    parser.add_argument("--held-out", type=Path, help="the .jsonl file of prompts to test with")
    parser.add_argument("--texts", type=Path, help="a file that keeps answers for later runs")
    parser.add_argument("--resume", action="store_true", help="go on with the head in the folder")
    parser.add_argument("--own-texts", type=int, default=3000, help="of the shipped model")
    parser.add_argument("--held-out-texts", type=int, default=64)
    parser.add_argument("--unrolled", type=int, default=4, help="steps of a training-time test")
    parser.add_argument("--bfloat16", action="store_true", help="train with bfloat16 products")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.model.resolve() != SHIPPED.resolve() and not (args.prompts and args.held_out):
        parser.error("a model of your own needs --prompts and --held-out")
    if args.output_dir is None and args.model.resolve() != SHIPPED.resolve():
        parser.error("a model of your own needs --output-dir")
    args.output_dir = args.output_dir or ASSETS / "tiny-head"
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    Trainer(args).train()


if __name__ == "__main__":
    main()
