#!/usr/bin/env python3
"""Compares the token ids of GGUF files with llama.cpp's, on random texts of many scripts.

    python scripts/check_tokenizer.py model.gguf [more.gguf ...]

Needs llama-cpp-python, of trtla's extra `bench`, which loads the vocabulary alone. Files need no
weights. Exit code 3 where an id differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trtla.errors import UsageError
from trtla.formats.gguf.header import read_header
from trtla.formats.gguf.tokenizer import Vocabulary

SCRIPTS = (
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "àéîõüßøåçñœ",
    "αβγδεζηθλμπσω", "абвгдежзийклмн", "אבגדהוזח", "ابتثجحخد", "अआइईकखगघ्ाि", "กขคงจฉชซ็่",
    "あいうえおかき", "カキクケコサシ", "日本語中文字符", "한국어가나다라", "½⅓²³①②Ⅷ", "ǅǈʰˢªº",
    "🙂🚀👩\u200d👩\u200d👧🇩🇪✊🏽", ".,;:!?-_/\\|@#$%^&*+=~`'\"()[]{}<>", "٠١٢٣४५६", "▁Ġ",
    "€£¥§©®™°…\u2013\u2014\u2018\u2019\u201c\u201d«»", "\x00\x01\x07\x7f\x85\u2028",
    "\u0301\u0308\u200d\u200b\ufeff\u00ad",
)  # fmt: skip
SPACES = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "     ", " \n ", "\t\t")
WORDS = ("don't", "I'LL", "we've", "it'S", "1234567", "3.14159", "x_y", "http://a.b/c?d=e", "C++",
         "can't", "'tis", "naïve", "Ünïcödé", "def f(x):", "return", "the", "and")  # fmt: skip


def texts(count: int, special: list[str], seed: int = 0) -> list[str]:
    """Random texts of scripts, words, spaces and special tokens."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        parts: list[str] = []
        for _ in range(rng.randint(1, 12)):
            kind = rng.random()
            if kind < 0.45:
                letters = rng.choice(SCRIPTS)
                parts.append("".join(rng.choice(letters) for _ in range(rng.randint(1, 8))))
            elif kind < 0.65:
                parts.append(rng.choice(WORDS))
            elif kind < 0.95 or not special:
                parts.append(rng.choice(SPACES))
            else:
                parts.append(rng.choice(special))
        made.append("".join(parts))
    return made


def llama_cpp_ids(path: Path) -> Callable[[str], list[int]]:
    """llama.cpp's tokenizer of a file."""
    from llama_cpp import Llama

    model: Any = Llama(str(path), vocab_only=True, verbose=False)
    return lambda text: model.tokenize(text.encode(), add_bos=True, special=True)


def compare(path: Path, count: int) -> int:
    """Print the texts whose ids differ; how many they are."""
    vocabulary = Vocabulary(path, read_header(path).metadata)
    content = vocabulary.tokenizer()
    ours, theirs = Tokenizer.from_str(json.dumps(content)), llama_cpp_ids(path)
    special = [token["content"] for token in content["added_tokens"]][:200]
    wrong = 0
    for text in texts(count, special):
        one, other = ours.encode(text).ids, theirs(text)
        if one != other:
            wrong += 1
            if wrong <= 5:
                print(f"{text!r}\n  trtla     {one}\n  llama.cpp {other}")
    print(f"{path.name}: {count - wrong} of {count} texts have llama.cpp's ids")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare token ids with llama.cpp's.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    args = parser.parse_args()
    try:
        return 3 if sum(compare(path, args.count) for path in args.files) else 0
    except UsageError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
