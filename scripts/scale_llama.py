"""Enlarge a Llama checkpoint without changing what it computes.

    python scripts/scale_llama.py --model-dir trtla/assets/tiny-llama --output-dir big \\
        --hidden-size 2048 --num-hidden-layers 16 --num-attention-heads 32 \\
        --num-key-value-heads 8 --intermediate-size 8192 --vocab-size 128256

The result costs as much as any Llama of its shape and predicts the same tokens as its source, so
a large model's cost can be measured together with a real acceptance rate. The module
scale_llama_weights says how each part grows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from scale_llama_weights import INDEX_FILE, ScaleError, Scaler, Shape, Source
from torch import Tensor

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_COPIED = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
]
_DEFAULT_SHARD_BYTES = 2_000_000_000


def _shards(scaler: Scaler, limit: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name in scaler.names():
        tensor = scaler.tensor(name)
        if shard and size + tensor.nbytes > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _write_weights(scaler: Scaler, folder: Path, limit: int) -> int:
    """Write the weights, holding one shard at a time, and return their size in bytes."""
    files: list[tuple[Path, list[str]]] = []
    total = 0
    for shard in _shards(scaler, limit):
        path = folder / f"part-{len(files)}.safetensors"
        save_file(shard, str(path), metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors writes files that their owner alone can read
        files.append((path, list(shard)))
        total += sum(tensor.nbytes for tensor in shard.values())
    if len(files) == 1:
        files[0][0].rename(folder / "model.safetensors")
        return total
    weight_map: dict[str, str] = {}
    for number, (path, names) in enumerate(files, start=1):
        target = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        path.rename(folder / target)
        weight_map.update(dict.fromkeys(names, target))
    _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return total


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def scale(args: argparse.Namespace) -> int:
    """Write the enlarged checkpoint's folder and return its weights' size in bytes.

    Args:
        args: the parsed command line.
    """
    source = Source(args.model_dir)
    sizes = {name: getattr(args, name) or size for name, size in vars(source.shape).items()}
    scaler = Scaler(source, Shape(**sizes), _DTYPES.get(args.dtype))
    folder: Path = args.output_dir
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ScaleError(f"{folder} exists and is not an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    total = _write_weights(scaler, folder, args.max_shard_bytes)
    for name in _COPIED:
        if (args.model_dir / name).is_file():
            shutil.copyfile(args.model_dir / name, folder / name)
    _write_json(folder / "config.json", scaler.config())
    return total


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive whole number")
    return int(text)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a size that is not given stays the source's."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--model-dir", type=Path, required=True, help="the checkpoint to enlarge")
    parser.add_argument("--output-dir", type=Path, required=True, help="a new or empty folder")
    for name in Shape.__annotations__:
        parser.add_argument(f"--{name.replace('_', '-')}", type=_positive)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="default: the source's")
    parser.add_argument("--max-shard-bytes", type=_positive, default=_DEFAULT_SHARD_BYTES)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 2 after one sentence on what is wrong."""
    args = parse_args(argv)
    try:
        total = scale(args)
    except (ScaleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {total:,} bytes of weights to {args.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
