#!/usr/bin/env python3
"""What FP8 costs in accuracy: KL divergence and perplexity on text that calibration has not seen.

    .venv/bin/python scripts/measure_fp8.py [--model-dir MODEL --text HELD_OUT --calib-data TEXTS]

The model is converted to bfloat16 and to FP8, and both run on trtla's torch executor. The reference
is the bfloat16 checkpoint in float32 arithmetic. Without flags it is the shipped model, calibrated
on files of its training and judged on the held-out ones (scripts/tiny_llama_data.py says which).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tiny_llama_data import held_out_files, read_texts, training_files
from torch import Tensor

import trtla
from trtla.build.convert import convert
from trtla.data.calibration import TEXT_CHARS, calibration
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.config import Quantization
from trtla.llm.text import Tokenizer
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import NoDrafter
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.load import resolve_device
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as TokenSequence
from trtla.settings.lookahead import AUTOREGRESSIVE

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"


@dataclass(frozen=True)
class Side:
    """One way to run the model: which checkpoint, in which arithmetic."""

    name: str
    checkpoint: str
    dtype: torch.dtype = torch.float32
    products: bool = False
    fp8_kv_cache: bool = False


SIDES = (
    Side("bfloat16, in float32 arithmetic", "bfloat16"),
    Side("bfloat16, in bfloat16 arithmetic", "bfloat16", torch.bfloat16),
    Side("FP8 weights, dequantised", "fp8"),
    Side("FP8 weights, dequantised, FP8 K/V cache", "fp8", fp8_kv_cache=True),
    Side("FP8 products", "fp8", products=True),
    Side("FP8 products, FP8 K/V cache", "fp8", products=True, fp8_kv_cache=True),
)


def load(folder: Path, side: Side, device: torch.device) -> LlamaModel:
    """A side's model; its cache is FP8 only if the side says so."""
    checkpoint = Checkpoint.open(folder / side.checkpoint)
    kept = checkpoint.config.quantization.quant_algo
    quantization = Quantization(
        quant_algo=kept, kv_cache_quant_algo="FP8" if side.fp8_kv_cache else None
    )
    config = checkpoint.config.model_copy(update={"quantization": quantization})
    return LlamaModel(config, checkpoint.full_tensors(), side.dtype, device, side.products)


def log_probabilities(model: LlamaModel, windows: Sequence[list[int]]) -> Iterator[Tensor]:
    """Of every window, those of the next token at all places but the last, [tokens - 1, vocab]."""
    cache = model.new_cache(-(-max(map(len, windows)) // TOKENS_PER_BLOCK))
    blocks = tuple(range(cache.pool.num_blocks))
    for number, window in enumerate(windows):
        request = Request(number, tuple(window))
        sequence = TokenSequence(request, AUTOREGRESSIVE, NoDrafter(), blocks=blocks)
        feed = Feed(sequence, tuple(window), tuple(range(len(window) - 1)))
        yield F.log_softmax(model.forward([feed], cache).logits, dim=-1)


@dataclass(frozen=True)
class Score:
    """Means over all predicted tokens, in nats."""

    loss: float
    divergence: float

    @property
    def perplexity(self) -> float:
        """exp of the mean loss."""
        return math.exp(self.loss)


def score(model: LlamaModel, windows: Sequence[list[int]], reference: Sequence[Tensor]) -> Score:
    """Loss on the windows, and KL(reference || model) of the next token's distribution."""
    loss = divergence = 0.0
    predictions = log_probabilities(model, windows)
    for window, known, found in zip(windows, reference, predictions, strict=True):
        targets = torch.tensor(window[1:], device=found.device)
        loss += F.nll_loss(found, targets, reduction="sum").item()
        divergence += F.kl_div(found, known, reduction="sum", log_target=True).item()
    count = sum(len(window) - 1 for window in windows)
    return Score(loss / count, divergence / count)


def cut(tokenizer: Tokenizer, text: str, length: int, number: int) -> list[list[int]]:
    """Windows of `length` tokens, evenly spread over the text."""
    ids = tokenizer.encode(text)
    starts = range(0, len(ids) - length + 1, length)
    chosen = [starts[i * len(starts) // number] for i in range(min(number, len(starts)))]
    return [list(ids[start : start + length]) for start in chosen]


def machine(device: torch.device) -> str:
    """Where the figures come from."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"
    return f"{name}; Python {platform.python_version()}, torch {torch.__version__}"


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model-dir", type=Path, default=SHIPPED)
    parser.add_argument("--text", type=Path, help="held-out text; default: standard library")
    parser.add_argument("--calib-data", help="as for trtla convert; default: standard library")
    parser.add_argument("--calib-size", type=int, default=512)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--length", type=int, default=512, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--work-dir", type=Path)
    return parser.parse_args()


def write_calibration(path: Path, count: int) -> None:
    """Texts from all over the files that the shipped model was trained on."""
    texts = read_texts(training_files())
    pieces = [
        text[at : at + TEXT_CHARS] for text in texts for at in range(0, len(text), TEXT_CHARS)
    ]
    chosen = random.Random(0).sample(pieces, count)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in chosen))


def make_checkpoints(args: argparse.Namespace, work: Path, device: torch.device) -> None:
    """Convert to bfloat16, and to FP8 with scales for the cache too."""
    data = args.calib_data
    if data is None:
        data = str(work / "calibration.jsonl")
        write_calibration(Path(data), args.calib_size)
    convert(args.model_dir, work / "bfloat16", dtype="bfloat16")
    found = calibration(args.model_dir, data, args.calib_size, device=str(device))
    convert(args.model_dir, work / "fp8", dtype="bfloat16", calibration=found, fp8_kv_cache=True)


def main() -> None:
    """Print a table with a row for every side."""
    args = parse_args()
    device = resolve_device(args.device)
    text = args.text.read_text() if args.text else "\n".join(read_texts(held_out_files()))
    windows = cut(Tokenizer(args.model_dir), text, args.length, args.windows)
    with tempfile.TemporaryDirectory(dir=args.work_dir) as folder:
        work = Path(folder)
        make_checkpoints(args, work, device)
        print(f"{len(windows)} windows of {args.length} tokens; {machine(device)}\n")
        print("| | perplexity | change % | mean KL, nats |\n|---|---|---|---|")
        reference = list(log_probabilities(load(work, SIDES[0], device), windows))
        base = 0.0
        for side in SIDES:
            found = score(load(work, side, device), windows, reference)
            base = base or found.perplexity
            change = 100 * (found.perplexity / base - 1)
            print(
                f"| {side.name} | {found.perplexity:.4f} | {change:+.3f} "
                f"| {found.divergence:.2e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
