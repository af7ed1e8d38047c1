#!/usr/bin/env python3
"""One GGUF file of each type from a model: what scripts/measure_quantised.py measures.

    PYTHONPATH=LLAMA_CPP .venv/bin/python scripts/quantise_gguf.py MODEL FOLDER \\
        [--types Q8_0,Q4_K_M] [--vocabulary MODEL.gguf] [--threads 2]

MODEL is a GGUF file, or a Hugging Face or engine folder, whose weights are written first and get
the vocabulary of another GGUF file. llama.cpp's own llama_model_quantize does the rest, always
from F32.gguf, so that each type is rounded once; it replaces a type whose blocks do not divide a
row by another. From a file that is quantised already, F32.gguf has its values, and the type that
it had comes out best: choose an original where there is one.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import torch

from trtla.bench.gguf_file import write_gguf
from trtla.errors import TrtlaError, UsageError
from trtla.formats.gguf.header import is_gguf, read_header
from trtla.llm.open import open_model

llama_cpp: Any = importlib.import_module("llama_cpp")
ORIGINAL = "F32"
_LOG_ERROR = 4
"""GGML_LOG_LEVEL_ERROR of ggml.h."""
TYPES = ("BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_1", "Q5_0", "Q4_K_M", "Q4_1", "Q4_0")


def write_original(model: Path, path: Path, vocabulary: Path | None, threads: int) -> None:
    """Write a model's weights in float32, with a vocabulary.

    Raises:
        UsageError: a folder's weights would have no vocabulary.
        TrtlaError: the model cannot be read.
    """
    if is_gguf(model):
        quantise(model, path, ORIGINAL, threads)
        return
    if vocabulary is None:
        raise UsageError(
            f"{model} is no GGUF file", "give --vocabulary a GGUF file with its tokenizer"
        )
    bare = path.with_suffix(".bare")
    try:
        write_gguf(bare, open_model(model, None), torch.float32)
        _join(gguf.GGUFReader(bare), gguf.GGUFReader(vocabulary), path)
    finally:
        bare.unlink(missing_ok=True)


def _join(weights: Any, vocabulary: Any, path: Path) -> None:
    """One file of a file's weights and another's vocabulary."""
    fields = {name: field for name, field in weights.fields.items() if "tokenizer." not in name}
    fields |= {name: field for name, field in vocabulary.fields.items() if "tokenizer." in name}
    architecture = fields.pop("general.architecture").contents()
    writer = gguf.GGUFWriter(path, architecture)
    for name, field in fields.items():
        if not name.startswith("GGUF."):  # the reader's own names for the file's first numbers
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in weights.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _only_errors(level: int, text: bytes, _: Any) -> None:
    if level == _LOG_ERROR:
        print(text.decode(errors="replace"), end="", file=sys.stderr)


def quantise(source: Path, path: Path, kind: str, threads: int) -> None:
    """Write a GGUF file anew with most weights of a type.

    Args:
        kind: as llama.cpp calls it, such as Q4_K_M.

    Raises:
        TrtlaError: llama.cpp cannot.
    """
    llama_cpp.llama_log_set(_only_errors, None)
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.allow_requantize = threads, True
    prefix = "ALL" if kind == ORIGINAL else "MOSTLY"
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{prefix}_{kind}")
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), params)
    if failed:
        path.unlink(missing_ok=True)
        raise TrtlaError(f"llama.cpp cannot write {path} of {source}", "see its message above")


def describe(path: Path) -> str:
    """A file's name, its size and how many tensors it has of each type."""
    counts = Counter(info.type for info in read_header(path).tensors.values())
    types = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
    return f"{path}: {path.stat().st_size:,} bytes, {types}"


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("output_dir", type=Path, metavar="FOLDER")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--vocabulary", type=Path, help="a GGUF file of the same tokenizer")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> int:
    """Write the files; return 0, or 2 after one sentence on what is wrong."""
    args = parse_args()
    original = args.output_dir / f"{ORIGINAL}.gguf"
    try:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        write_original(args.model, original, args.vocabulary, args.threads)
        print(describe(original), flush=True)
        for kind in args.types.split(","):
            path = args.output_dir / f"{kind}.gguf"
            quantise(original, path, kind, args.threads)
            print(describe(path), flush=True)
    except (TrtlaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
