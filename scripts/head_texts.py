"""The texts that heads are trained on, most of them written by their target, through trtla.

The shipped model continues files of Python's standard library, and reads others. Models that chat
answer the prompts of files, and questions that they write themselves.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from train_tiny_llama import RECIPES, SEED, Batches, Corpus
from transformers import AutoTokenizer

from trtla.llm.llm import LLM
from trtla.settings.sampling import SamplingParams

ROW, BATCH_TOKENS = 512, 1024
PREFIX, CONTINUATION = 48, 128
"""Tokens of a file that the shipped model continues, and of what it writes."""
TOGETHER = 32
"""Prompts that are answered at a time."""
MOST_PROMPT, MOST_ANSWER, MOST_QUESTION = 640, 256, 96
TEMPERATURES = (0.0, 0.7)


class Text(NamedTuple):
    """Token ids, and how many of the first ones are only read."""

    ids: list[int]
    read: int


class Rows(NamedTuple):
    """Texts, one a row; behind the end of a shorter one lies padding."""

    ids: Tensor
    """int64 [rows, tokens]."""
    predicts: Tensor
    """bool [rows, tokens]: a head is asked for the token behind this one."""


def rows(texts: Sequence[Text]) -> Rows:
    """The texts as rows, filled up to the longest."""
    length = max(len(text.ids) for text in texts)
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    predicts = torch.zeros(len(texts), length, dtype=torch.bool)
    for n, text in enumerate(texts):
        ids[n, : len(text.ids)] = torch.tensor(text.ids)
        predicts[n, max(0, text.read - 1) : len(text.ids) - 1] = True
    return Rows(ids, predicts)


def batches(texts: Sequence[Text], tokens: int) -> list[Rows]:
    """All texts, those of like length together, about so many tokens in each batch."""
    found: list[Rows] = []
    waiting: list[Text] = []
    for text in sorted(texts, key=lambda one: len(one.ids)):
        if waiting and len(text.ids) * (len(waiting) + 1) > tokens:
            found.append(rows(waiting))
            waiting = []
        waiting.append(text)
    return found + ([rows(waiting)] if waiting else [])


def answers(
    llm: LLM, prompts: Sequence[list[int]], length: int, temperatures: Sequence[float], seed: int
) -> list[Text]:
    """The model's outputs behind their prompts; prompt n has seed + n, and temperatures in turn."""
    settings = [
        SamplingParams(
            max_output_len=length, temperature=temperatures[n % len(temperatures)], seed=seed + n
        )
        for n in range(len(prompts))
    ]
    outputs = llm.generate(list(prompts), settings)
    return [
        Text([*prompt, *output.output_ids], len(prompt))
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


class LibraryTexts:
    """Half rows of the standard library, half the shipped model's own continuations of them."""

    def __init__(self, llm: LLM, count: int, held_out: int) -> None:
        corpus = Corpus.load(RECIPES["tiny-llama-draft"])  # reads the shipped tokenizer
        dice = random.Random(SEED)
        prefixes = [_prefix(dice.choice(corpus.documents), dice) for _ in range(count)]
        own = answers(llm, prefixes, CONTINUATION, (0.0, 0.8), SEED)
        unseen = [_prefix(corpus.held_out, dice) for _ in range(held_out)]
        self.held_out = answers(llm, unseen, CONTINUATION, (0.0,), SEED)
        documents = [torch.tensor(text.ids) for text in own]
        self._halves = [Batches(one, BATCH_TOKENS // 2) for one in (corpus.documents, documents)]

    def get(self, step: int) -> Rows:
        """The rows of a training step."""
        ids = torch.cat([half.get(step, ROW) for half in self._halves])
        return Rows(ids, torch.ones_like(ids, dtype=torch.bool))


def _prefix(document: Tensor, dice: random.Random) -> list[int]:
    start = dice.randrange(max(1, len(document) - PREFIX))
    return document[start : start + PREFIX].tolist()


class ChatTexts:
    """Answers to prompts, in an order by chance that is new in each epoch."""

    def __init__(self, texts: Sequence[Text], held_out: Sequence[Text]) -> None:
        self.texts, self.held_out = texts, held_out
        self._batches = batches(texts, BATCH_TOKENS)
        self._dice = random.Random(SEED)
        self._epoch: list[Rows] = []

    def get(self, _step: int) -> Rows:
        """The next batch."""
        if not self._epoch:
            self._epoch = self._dice.sample(self._batches, len(self._batches))
        return self._epoch.pop()

    def save(self, path: Path) -> None:
        """Write them for a later run."""
        both = {"texts": self.texts, "held_out": self.held_out}
        part = path.with_name(path.name + ".new")
        part.write_text(json.dumps(both) + "\n", encoding="utf-8")
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> ChatTexts:
        """Those that an earlier run wrote."""
        both = json.loads(path.read_text(encoding="utf-8"))
        return cls(*([Text(*text) for text in both[name]] for name in ("texts", "held_out")))


class ChatWriter:
    """A model that answers prompts of files and questions of its own, for as long as asked."""

    def __init__(self, llm: LLM, folder: Path, files: Sequence[Path]) -> None:
        self._llm, self._dice, self._written = llm, random.Random(SEED), 0
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._folder = folder
        self._prompts = [ids for path in files for ids in self._read(path)]

    def write(self, held_out: Path, seconds: float) -> ChatTexts:
        """Answer the held-out prompts greedily, then others until the time is over."""
        unseen = answers(self._llm, self._read(held_out), MOST_ANSWER // 2, (0.0,), SEED)
        texts, end = self._round(), time.monotonic() + seconds
        while time.monotonic() < end:
            texts += self._round()
        return ChatTexts(texts, unseen)

    def _read(self, path: Path) -> list[list[int]]:
        return [ids for ids in chat_prompts(self._folder, path) if len(ids) <= MOST_PROMPT]

    def _round(self) -> list[Text]:
        taken = self._dice.sample(self._prompts, min(TOGETHER // 2, len(self._prompts)))
        taken += self._questions(TOGETHER - len(taken))
        self._dice.shuffle(taken)
        self._written += len(taken)
        return answers(self._llm, taken, MOST_ANSWER, TEMPERATURES, SEED + self._written)

    def _questions(self, count: int) -> list[list[int]]:
        """What the model writes where a user's message stands."""
        before = _as_chat(self._tokenizer, "\N{BULLET}").split("\N{BULLET}")[0]
        ids = self._tokenizer.encode(before, add_special_tokens=False)
        seed = SEED + 1_000_003 + self._written
        written = answers(self._llm, [ids] * count, MOST_QUESTION, (1.0,), seed)
        texts = [self._tokenizer.decode(a.ids[a.read :], skip_special_tokens=True) for a in written]
        chats = [_as_chat(self._tokenizer, text.strip() or "Hello") for text in texts]
        return [self._tokenizer.encode(chat, add_special_tokens=False) for chat in chats]


def chat_prompts(model: Path, path: Path) -> list[list[int]]:
    """The prompts of a .jsonl file as the model's chats; a line has `turns` (the first counts) or
    `text`."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    texts = [line["turns"][0] if "turns" in line else line["text"] for line in lines]
    chats = [_as_chat(tokenizer, text) for text in texts]
    return [tokenizer.encode(chat, add_special_tokens=False) for chat in chats]


def _as_chat(tokenizer: Any, text: str) -> str:
    message = [{"role": "user", "content": text}]
    chat: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return chat
