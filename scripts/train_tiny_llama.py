"""Trains the Llamas that ship with the project, from the source of Python's standard library.

    python scripts/train_tiny_llama.py                            # hours on two CPU cores
    python scripts/train_tiny_llama.py --model tiny-llama-draft   # the small one that drafts for it

It needs no download. `--resume` continues from the latest checkpoint; `--export-only` writes its
folder without training. What the model's README states is printed at the end.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import random
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 20240131
SHORT, LONG, LONG_SHARE = 512, 2048, 0.20
"""Tokens of a row, in the last share of the steps more."""
WARMUP_STEPS, DECAY_SHARE, LEARNING_RATE = 60, 0.35, 3e-3
CHAT_SHARE, CHAT_MAX_CHARS, HELD_OUT_PERCENT = 0.08, 2400, 5
CHECKPOINT_SECONDS = 180.0

LIBRARY = Path(os.__file__).resolve().parent
ASSETS = Path(__file__).resolve().parent.parent / "trtla" / "assets"
END_OF_TEXT, USER, ASSISTANT, END, PAD = SPECIAL_TOKENS = (
    "<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>",
)  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
# Tests, vendored wheels, folders and files that hold data rather than code, and the build's own
# settings, which name the machine that built this Python.
EXCLUDED_FOLDERS = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3",
    "encodings", "pydoc_data", "turtledemo", "__pycache__", "_bundled", "msilib",
}  # fmt: skip
EXCLUDED_FILES = frozenset({"html/entities.py", "stringprep.py", "this.py", "antigravity.py"})
EXCLUDED_PREFIXES = ("_sysconfigdata", "config-", "_sysconfig_vars")
# A newline takes the indentation after it, so "\n        " can become one token. Words take one
# leading space as in GPT-2; digits stand in runs of three at most.
PRE_TOKEN = r"[\r\n]+[ \t]*| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[ \t]+|\s+"


@dataclass(frozen=True)
class Recipe:
    """What the two trainings differ in."""

    sizes: dict[str, int]
    steps: int
    batch_tokens: int
    max_weight_bytes: int
    tokenizer_of: str | None = None
    """The shipped model whose tokenizer it has; None: it trains one."""


def _sizes(hidden: int, inner: int, layers: int, head_dim: int) -> dict[str, int]:
    own = {"hidden_size": hidden, "intermediate_size": inner, "head_dim": head_dim}
    return own | {
        "vocab_size": 2048, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": LONG,
    }  # fmt: skip


RECIPES = {
    "tiny-llama": Recipe(_sizes(256, 640, 5, 64), 1150, 8192, 8_000_000),
    "tiny-llama-draft": Recipe(_sizes(128, 384, 3, 32), 1500, 4096, 2_000_000, "tiny-llama"),
}


def library_files(held_out: bool) -> list[str]:
    """Paths below the library's root, sorted: of the training, or what it never sees."""
    names = (path.relative_to(LIBRARY).as_posix() for path in LIBRARY.rglob("*.py"))
    return sorted(one for one in names if _is_source(one) and is_held_out(one) == held_out)


def _is_source(name: str) -> bool:
    parts = name.split("/")
    return not (
        EXCLUDED_FOLDERS.intersection(parts[:-1])
        or name in EXCLUDED_FILES
        or any(part.startswith(EXCLUDED_PREFIXES) for part in parts)
    )


def is_held_out(name: str) -> bool:
    """Whether a file such as "json/decoder.py" is kept out of training."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100 < HELD_OUT_PERCENT


def read_texts(names: Sequence[str]) -> list[str]:
    """The files' texts; one that is empty or not UTF-8 is left out."""
    texts = []
    for name in names:
        try:
            text = (LIBRARY / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            texts.append(text)
    return texts


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer that adds no token; special tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def _functions(text: str) -> Iterator[tuple[str, str]]:
    """Functions' first docstring lines, and their sources."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    lines = text.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            summary = (ast.get_docstring(node) or "").strip().split("\n")[0].strip()
            source = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).strip()
            if summary and len(source) <= CHAT_MAX_CHARS:
                yield summary, source


def chat_texts(texts: Sequence[str], max_chars: int) -> list[str]:
    """Chats of one to three turns: a docstring's first line asks, the function's source answers."""
    pairs = [pair for text in texts for pair in _functions(text)]
    dice = random.Random(SEED)
    dice.shuffle(pairs)
    chats: list[str] = []
    while pairs and max_chars > 0:
        turns = [pairs.pop() for _ in range(min(len(pairs), dice.choice((1, 1, 2, 3))))]
        chats.append("".join(f"{USER}\n{q}{END}\n{ASSISTANT}\n{a}{END}\n" for q, a in turns))
        max_chars -= len(chats[-1])
    return chats


@dataclass
class Corpus:
    """Encoded text; every file and chat ends in the end-of-text token."""

    tokenizer: Tokenizer
    documents: list[Tensor]
    held_out: Tensor
    held_out_bytes: int

    @classmethod
    def load(cls, recipe: Recipe) -> Corpus:
        """Read the standard library, train or read the tokenizer and encode all."""
        texts, unseen = (read_texts(library_files(held_out)) for held_out in (False, True))
        if recipe.tokenizer_of is None:
            tokenizer = train_tokenizer(texts, recipe.sizes["vocab_size"])
        else:
            tokenizer = Tokenizer.from_file(str(ASSETS / recipe.tokenizer_of / "tokenizer.json"))
        budget = int(CHAT_SHARE / (1 - CHAT_SHARE) * sum(map(len, texts)))
        documents = _encode(tokenizer, texts + chat_texts(texts, budget))
        size = sum(len(text.encode()) for text in unseen)
        return cls(tokenizer, documents, torch.cat(_encode(tokenizer, unseen)), size)


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[Tensor]:
    end = tokenizer.token_to_id(END_OF_TEXT)
    return [torch.tensor([*encoding.ids, end]) for encoding in tokenizer.encode_batch(texts)]


class Batches:
    """Batches that depend on the seed and the step alone, so that a run can be resumed.

    Each epoch joins the documents in a new order, cuts them into rows and shuffles the rows.
    """

    def __init__(self, documents: list[Tensor], batch_tokens: int) -> None:
        self._documents, self._batch_tokens = documents, batch_tokens
        self.epoch_tokens = sum(len(document) for document in documents)
        self._epoch: tuple[int, int] | None = None
        self._rows = torch.empty(0, 0, dtype=torch.long)

    def get(self, step: int, length: int) -> Tensor:
        """A step's rows: int64 [batch_tokens // length, length + 1]."""
        per_epoch, count = (self.epoch_tokens - 1) // length, self._batch_tokens // length
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


def new_model(recipe: Recipe) -> LlamaForCausalLM:
    """A model whose small residual branches keep the first steps stable."""
    config = LlamaConfig(
        **recipe.sizes, rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=SPECIAL_TOKENS.index(PAD),
    )  # fmt: skip
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            scale = 0.3 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            torch.nn.init.normal_(parameter, std=scale * parameter.shape[1] ** -0.5)
    return model


class Trainer:
    """The model, its optimizers and the loop."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.recipe = args, RECIPES[args.model]
        self.corpus, self.model = Corpus.load(self.recipe), new_model(self.recipe)
        self.batches = Batches(self.corpus.documents, self.recipe.batch_tokens)
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim == 1 or "embed" in name]
        self.optimizers = [
            torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.step, self.steps, self.seconds = 0, args.steps or self.recipe.steps, 0.0

    def train_step(self) -> float:
        """Run one optimizer step; its loss in nats a token."""
        is_long = self.step >= int(self.steps * (1 - LONG_SHARE))
        rows = self.batches.get(self.step, LONG if is_long else SHORT)
        loss = self.model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * self._lr_factor()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return float(loss.detach())

    def _lr_factor(self) -> float:
        """Warm-up, constant, then linear to almost zero."""
        left = (self.steps - self.step) / max(1.0, self.steps * DECAY_SHARE)
        return min(1.0, (self.step + 1) / WARMUP_STEPS, left)

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """The mean loss over the held-out text, in nats a token, in rows of the long length."""
        tokens, total = self.corpus.held_out, 0.0
        for start in range(0, len(tokens) - 1, LONG):
            row = tokens[start : start + LONG + 1][None]
            total += float(self.model(input_ids=row, labels=row).loss) * (row.shape[1] - 1)
        return total / (len(tokens) - 1)

    def train(self) -> None:
        """Train from the current step to the last one."""
        saved = time.monotonic()
        while self.step < self.steps:
            start = time.monotonic()
            loss = self.train_step()
            elapsed = time.monotonic() - start
            self.seconds += elapsed
            if self.step % 10 == 0 or self.step < 5:
                rate = self.recipe.batch_tokens / elapsed
                _log(f"step {self.step} loss {loss:.4f} tokens/s {rate:.0f}")
            if time.monotonic() - saved > CHECKPOINT_SECONDS or self.step == self.steps:
                self.save()
                saved = time.monotonic()

    @property
    def checkpoint(self) -> Path:
        """The file of the latest state."""
        return Path(self.args.work_dir) / "checkpoint.pt"

    def save(self) -> None:
        """Write the checkpoint; an interrupted write leaves the one before it."""
        counts = {name: getattr(self, name) for name in ("step", "steps", "seconds")}
        states = [one.state_dict() for one in self.optimizers]
        part = self.checkpoint.with_suffix(".new")
        torch.save({"model": self.model.state_dict(), "optimizers": states, **counts}, part)
        part.replace(self.checkpoint)

    def load(self) -> None:
        """Continue from the latest checkpoint."""
        if not self.checkpoint.is_file():
            sys.exit(f"error: no checkpoint in {self.args.work_dir}; start without --resume")
        state = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]
        self.steps = self.args.steps or state["steps"]

    def report(self) -> None:
        """Print what the model's README states."""
        loss, corpus = self.held_out_loss(), self.corpus
        tokens = self.step * self.recipe.batch_tokens
        per_byte = loss / math.log(2) * len(corpus.held_out) / corpus.held_out_bytes
        _log(f"{sum(p.numel() for p in self.model.parameters()):,} parameters")
        _log(
            f"{self.step} of {self.steps} steps, {tokens:,} tokens, "
            f"{tokens / self.batches.epoch_tokens:.1f} epochs, {self.seconds / 60:.0f} minutes"
        )
        _log(f"held-out loss {loss:.4f} nats/token, {per_byte:.4f} bits/byte")
        _log(f"held-out files: {' '.join(library_files(held_out=True))}")


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path, limit: int) -> None:
    """Write a Hugging Face folder, each file complete before it replaces the one before it.

    Args:
        limit: the most bytes that the weights may take.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.half() for name, value in model.state_dict().items()}
    weights.pop("lm_head.weight", None)  # it is the embedding
    ends = [SPECIAL_TOKENS.index(END_OF_TEXT), SPECIAL_TOKENS.index(END)]
    pad = SPECIAL_TOKENS.index(PAD)
    special = {
        "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": PAD,
        "additional_special_tokens": [USER, ASSISTANT, END],
    }  # fmt: skip
    documents: dict[str, dict[str, Any]] = {
        "config.json": {
            **model.config.to_diff_dict(), "architectures": ["LlamaForCausalLM"],
            "hidden_act": "silu", "rope_theta": 10000.0, "torch_dtype": "float16",
        },
        "generation_config.json": {
            "bos_token_id": ends[0], "eos_token_id": ends, "pad_token_id": pad,
        },
        "special_tokens_map.json": special,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", **special, "add_bos_token": False,
            "add_eos_token": False, "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False, "model_max_length": LONG,
        },
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tiny-llama-") as name:
        part = Path(name)
        save_file(weights, str(part / "model.safetensors"), metadata={"format": "pt"})
        if (size := (part / "model.safetensors").stat().st_size) > limit:
            raise ValueError(f"weights take {size} bytes, more than {limit}")
        tokenizer.save(str(part / "tokenizer.json"))
        for file, content in documents.items():
            (part / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for path in sorted(part.iterdir()):
            path.chmod(0o644)  # safetensors writes files that their owner alone can read
            path.replace(folder / path.name)


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    """Train, unless asked to export only, and write the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(RECIPES), default="tiny-llama")
    parser.add_argument("--output-dir", type=Path, help="default: the model's folder in assets")
    parser.add_argument("--work-dir", type=Path, help="checkpoints go here")
    parser.add_argument("--steps", type=int, help="default: the recipe's, or the checkpoint's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--export-only", action="store_true")
    args = parser.parse_args()
    args.work_dir = args.work_dir or Path(tempfile.gettempdir()) / f"trtla-{args.model}"
    args.work_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    trainer = Trainer(args)
    if args.resume or args.export_only:
        trainer.load()
    if not args.export_only:
        trainer.train()
    folder = args.output_dir or ASSETS / args.model
    limit = trainer.recipe.max_weight_bytes
    export(trainer.model, trainer.corpus.tokenizer, folder, limit)
    trainer.report()


if __name__ == "__main__":
    main()
