"""Text, held-out split, tokenizer and chat examples of the Llama that ships with the project.

Everything is made from the source of the running Python's standard library, so a training run
needs no download.
"""

from __future__ import annotations

import ast
import hashlib
import os
import random
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = [END_OF_TEXT, USER, ASSISTANT, END, PAD]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

# Tests, vendored wheels, and folders that hold data rather than code.
_EXCLUDED_FOLDERS = frozenset(
    [
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idlelib",
        "idle_test",
        "lib2to3",
        "encodings",
        "pydoc_data",
        "turtledemo",
        "__pycache__",
        "_bundled",
        "msilib",
    ]
)
_EXCLUDED_FILES = frozenset({"html/entities.py", "stringprep.py", "this.py", "antigravity.py"})
# The build's own settings: they name the machine that built this Python.
_EXCLUDED_PREFIXES = ("_sysconfigdata", "config-", "_sysconfig_vars")

_HELD_OUT_PERCENT = 5
_CHAT_MAX_CHARS = 2400

# A newline takes the indentation after it, so "\n        " can become one token. Words take one
# leading space as in GPT-2; digits stand in runs of three at most.
_PRE_TOKEN = r"[\r\n]+[ \t]*| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[ \t]+|\s+"


def library_root() -> Path:
    """Return the folder of the running Python's standard library."""
    return Path(os.__file__).resolve().parent


def _is_source(relative: str) -> bool:
    parts = relative.split("/")
    return not (
        _EXCLUDED_FOLDERS.intersection(parts[:-1])
        or relative in _EXCLUDED_FILES
        or any(part.startswith(_EXCLUDED_PREFIXES) for part in parts)
    )


def is_held_out(relative: str) -> bool:
    """Tell whether a file is kept out of training.

    Args:
        relative: path below the library's root, with forward slashes ("json/decoder.py").
    """
    digest = hashlib.sha256(relative.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") % 100 < _HELD_OUT_PERCENT


def library_files() -> list[str]:
    """Return the relative paths of all files used, training and held out, sorted."""
    root = library_root()
    found = (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return sorted(relative for relative in found if _is_source(relative))


def held_out_files() -> list[str]:
    """Return the relative paths that training never sees, sorted."""
    return [relative for relative in library_files() if is_held_out(relative)]


def training_files() -> list[str]:
    """Return the relative paths that training reads, sorted."""
    return [relative for relative in library_files() if not is_held_out(relative)]


def read_texts(relatives: Sequence[str]) -> list[str]:
    """Return the texts of the named files; a file that is empty or not UTF-8 is left out."""
    texts: list[str] = []
    for relative in relatives:
        try:
            text = (library_root() / relative).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            texts.append(text)
    return texts


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer that adds nothing to what it encodes.

    Args:
        texts: the training files' texts.
        vocab_size: number of tokens, special tokens included; the specials take the first ids.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def _functions(text: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    lines = text.splitlines(keepends=True)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        summary = (ast.get_docstring(node) or "").strip().split("\n")[0].strip()
        source = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).strip()
        if summary and len(source) <= _CHAT_MAX_CHARS:
            yield summary, source


def chat_texts(texts: Sequence[str], max_chars: int, seed: int) -> list[str]:
    """Return chats made from functions: the docstring's first line asks, the source answers.

    Args:
        texts: the training files' texts.
        max_chars: about how many characters to return in all.
        seed: seed of the choice of functions and of the number of turns (one to three) a chat.
    """
    pairs = [pair for text in texts for pair in _functions(text)]
    rng = random.Random(seed)
    rng.shuffle(pairs)
    chats: list[str] = []
    while pairs and max_chars > 0:
        turns = [pairs.pop() for _ in range(min(len(pairs), rng.choice((1, 1, 2, 3))))]
        chats.append("".join(_turn(question, answer) for question, answer in turns))
        max_chars -= len(chats[-1])
    return chats


def _turn(question: str, answer: str) -> str:
    return f"{USER}\n{question}{END}\n{ASSISTANT}\n{answer}{END}\n"
