"""Train the Llamas that ship with the project, from the standard library's own source.

`python scripts/train_tiny_llama.py` does the whole run, well over an hour on two CPU cores;
`--model tiny-llama-draft` trains the small sibling that drafts for the first one. `--resume` goes
on from the latest checkpoint; `--export-only` writes the latest checkpoint's folder without
training.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_llama_data import (
    END_OF_TEXT,
    chat_texts,
    held_out_files,
    read_texts,
    train_tokenizer,
    training_files,
)
from tiny_llama_export import TrainingFacts, export
from tiny_llama_model import TinyLlama
from tiny_llama_muon import StackedMuon
from tiny_llama_recipes import RECIPES, Recipe
from tiny_llama_workers import Workers, run_workers
from tokenizers import Tokenizer
from torch import Tensor

SEED = 20240131
SHORT, LONG = 512, 2048
LONG_SHARE = 0.20
WARMUP_STEPS = 60
DECAY_SHARE = 0.35
MUON_LR = 3e-3
ADAM_LR = 3e-3
CHAT_SHARE = 0.08
CHECKPOINT_SECONDS = 180.0
EVAL_EVERY = 100
EVAL_ROWS = 12

ASSETS = Path(__file__).resolve().parent.parent / "trtla" / "assets"


@dataclass
class Corpus:
    """Encoded text.

    Attributes:
        tokenizer: trained on the training files, or another shipped model's.
        documents: one int64 [n] tensor a file or chat, each ending in the end-of-text token.
        held_out: int64 [n], all held-out files, each ending in the end-of-text token.
        held_out_bytes: the held-out files' size in bytes.
    """

    tokenizer: Tokenizer
    documents: list[Tensor]
    held_out: Tensor
    held_out_bytes: int


def load_corpus(recipe: Recipe) -> Corpus:
    """Read the standard library, train or read the tokenizer and encode all."""
    texts, unseen = read_texts(training_files()), read_texts(held_out_files())
    tokenizer = _tokenizer(recipe, texts)
    budget = int(CHAT_SHARE / (1 - CHAT_SHARE) * sum(map(len, texts)))
    documents = _encode(tokenizer, texts + chat_texts(texts, budget, SEED))
    size = sum(len(text.encode("utf-8")) for text in unseen)
    return Corpus(tokenizer, documents, torch.cat(_encode(tokenizer, unseen)), size)


def _tokenizer(recipe: Recipe, texts: list[str]) -> Tokenizer:
    if recipe.tokenizer_of is None:
        return train_tokenizer(texts, recipe.config.vocab_size)
    return Tokenizer.from_file(str(ASSETS / recipe.tokenizer_of / "tokenizer.json"))


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[Tensor]:
    end = tokenizer.token_to_id(END_OF_TEXT)
    return [torch.tensor([*encoding.ids, end]) for encoding in tokenizer.encode_batch(texts)]


class Batches:
    """Batches that depend on the seed and the step alone, so that a run can be resumed.

    Each epoch joins the documents in a new order, cuts them into rows and shuffles the rows.
    """

    def __init__(self, documents: list[Tensor], batch_tokens: int) -> None:
        self._documents, self._batch_tokens = documents, batch_tokens
        self._total = sum(len(document) for document in documents)
        self._epoch: tuple[int, int] | None = None
        self._rows = torch.empty(0, 0, dtype=torch.long)

    @property
    def epoch_tokens(self) -> int:
        """Number of tokens in one pass over the documents."""
        return self._total

    def get(self, step: int, length: int) -> Tensor:
        """Return step's rows: int64 [batch_tokens // length, length + 1]."""
        per_epoch = (self._total - 1) // length
        count = self._batch_tokens // length
        rows = range(step * count, (step + 1) * count)
        return torch.stack([self._row(n // per_epoch, n % per_epoch, length) for n in rows])

    def _row(self, epoch: int, index: int, length: int) -> Tensor:
        if self._epoch != (epoch, length):
            self._epoch, self._rows = (epoch, length), self._shuffled(epoch, length)
        return self._rows[index]

    def _shuffled(self, epoch: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(SEED + 1000 * length + epoch)
        order = torch.randperm(len(self._documents), generator=generator).tolist()
        rows = torch.cat([self._documents[n] for n in order]).unfold(0, length + 1, length)
        return rows[torch.randperm(len(rows), generator=generator)]


def row_length(step: int, steps: int) -> int:
    """Return the row length of a step: the last steps see long rows."""
    return LONG if step >= int(steps * (1 - LONG_SHARE)) else SHORT


def lr_factor(step: int, steps: int) -> float:
    """Return the learning rate's factor: warm-up, constant, then linear to almost zero."""
    left = (steps - step) / max(1.0, steps * DECAY_SHARE)
    return min(1.0, (step + 1) / WARMUP_STEPS, left)


class Trainer:
    """The model, its optimizers and the loop."""

    def __init__(self, corpus: Corpus, args: argparse.Namespace, workers: Workers) -> None:
        torch.manual_seed(SEED)
        self.args, self.recipe = args, RECIPES[args.model]
        self.workers = workers
        self.corpus = corpus
        self.model = TinyLlama(self.recipe.config)
        self.batches = Batches(corpus.documents, self.recipe.batch_tokens)
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.model.named_parameters() if p.ndim == 1 or "embed" in n]
        muon = StackedMuon(matrices, lr=MUON_LR, workers=workers)
        adam = torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
        self.optimizers: list[torch.optim.Optimizer] = [muon, adam]
        self.base_lrs = [MUON_LR, ADAM_LR]
        self.step, self.steps, self.seconds = 0, args.steps or self.recipe.steps, 0.0
        self.loss_of = torch.compile(self.model) if args.compile else self.model

    def train_step(self) -> float:
        """Run one optimizer step and return its loss, in nats a token."""
        length = row_length(self.step, self.steps)
        rows = self.batches.get(self.step, length)[self.workers.share]
        loss = self.loss_of(rows[:, :-1], rows[:, 1:])
        loss.backward()
        mean = loss.detach()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.workers.average([mean, *gradients])
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = lr_factor(self.step, self.steps)
        for optimizer, base in zip(self.optimizers, self.base_lrs, strict=True):
            optimizer.param_groups[0]["lr"] = base * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return float(mean)

    @torch.no_grad()
    def held_out_loss(self, max_rows: int | None = None) -> float:
        """Return the mean held-out loss, in nats a token, over rows of the long length."""
        tokens = self.corpus.held_out
        starts = list(range(0, len(tokens) - 1, LONG))
        if max_rows is not None:
            starts = starts[:: max(1, len(starts) // max_rows)][:max_rows]
        total, count = 0.0, 0
        for start in starts:
            row = tokens[start : start + LONG + 1][None]
            total += self.model(row[:, :-1], row[:, 1:]).item() * (row.shape[1] - 1)
            count += row.shape[1] - 1
        return total / count

    def train(self) -> None:
        """Train from the current step to the last one."""
        saved = time.monotonic()
        while self.step < self.steps:
            started = time.monotonic()
            loss = self.train_step()
            elapsed = time.monotonic() - started
            self.seconds += elapsed
            if self.workers.rank:
                continue
            if self.step % 10 == 0 or self.step < 5:
                speed = self.recipe.batch_tokens / elapsed
                _log(f"step {self.step} loss {loss:.4f} tokens/s {speed:.0f}")
            if self.step % EVAL_EVERY == 0:
                _log(f"step {self.step} held-out {self.held_out_loss(EVAL_ROWS):.4f} nats/token")
            if time.monotonic() - saved > CHECKPOINT_SECONDS or self.step == self.steps:
                self.save()
                saved = time.monotonic()

    def save(self) -> None:
        """Write the checkpoint; an interrupted write leaves the one before it."""
        path: Path = self.args.work_dir / "checkpoint.pt"
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "steps": self.steps,
            "seconds": self.seconds,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self) -> None:
        """Take up the latest checkpoint."""
        path = self.args.work_dir / "checkpoint.pt"
        if not path.is_file():
            raise SystemExit(
                f"error: no checkpoint in {self.args.work_dir}; start without --resume"
            )
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]
        self.steps = self.args.steps or state["steps"]

    def facts(self) -> TrainingFacts:
        """Measure the held-out loss on all held-out text and collect what the README states."""
        loss = self.held_out_loss()
        per_byte = loss / math.log(2) * len(self.corpus.held_out) / self.corpus.held_out_bytes
        return TrainingFacts(
            step=self.step,
            steps=self.steps,
            tokens=self.step * self.recipe.batch_tokens,
            epoch_tokens=self.batches.epoch_tokens,
            seconds=self.seconds,
            threads=self.args.threads,
            held_out_tokens=len(self.corpus.held_out),
            held_out_nats=loss,
            held_out_bits_per_byte=per_byte,
            held_out_files=held_out_files(),
        )


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=list(RECIPES), default="tiny-llama")
    parser.add_argument("--output-dir", type=Path, help="default: the model's folder in assets")
    parser.add_argument("--work-dir", type=Path, help="checkpoints go here")
    parser.add_argument("--steps", type=int, help="default: the recipe's, or the checkpoint's")
    parser.add_argument("--threads", type=int, default=2, help="processes, one a core")
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint")
    parser.add_argument("--export-only", action="store_true", help="write the latest checkpoint")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args(argv)
    args.output_dir = args.output_dir or ASSETS / args.model
    args.work_dir = args.work_dir or Path(tempfile.gettempdir()) / f"trtla-{args.model}"
    return args


def _work(rank: int, count: int, args: argparse.Namespace) -> None:
    """Do one process's part; the first one also writes files and the log."""
    workers = Workers(rank, count, args.work_dir)
    corpus = load_corpus(RECIPES[args.model])
    trainer = Trainer(corpus, args, workers)
    if rank == 0:
        size = sum(p.numel() for p in trainer.model.parameters())
        _log(f"{size} parameters, {trainer.batches.epoch_tokens} tokens an epoch")
        _log(f"held out: {' '.join(held_out_files())}")
    if args.resume or args.export_only:
        trainer.load()
    if not args.export_only:
        trainer.train()
    workers.close()
    if rank == 0:
        facts = trainer.facts()
        export(trainer.model, corpus.tokenizer, facts, args.output_dir, args.model)
        _log(f"step {facts.step}: held-out {facts.held_out_nats:.4f} nats/token over all files")


def main(argv: list[str] | None = None) -> int:
    """Train (unless asked to export only) and write the model's folder."""
    args = parse_args(argv)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    run_workers(_work, 1 if args.export_only else args.threads, args.work_dir, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
