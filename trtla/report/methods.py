"""What is known of each way of decoding without measuring it: training, memory, when to use it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Method:
    """A way of decoding; the texts are cells of the comparison table."""

    title: str
    training: str
    memory: str
    when: str


_WINDOW = "an n-gram pool, and K/V rows for the window and candidates of a step"
_DRAFT = "the draft model's weights and its own K/V cache"
_ITS_DRAFT = "a draft model with the same vocabulary"

_PLAIN = Method("plain decoding", "none", "none", "Large batches, and wherever nothing is faster")
_LOOKAHEAD = Method(
    "lookahead decoding",
    "none",
    _WINDOW,
    "No draft model at hand, small batches, and compute to spare; best on code and repeating text",
)
_AUTO = Method(
    "lookahead, fitted to each step",
    "none",
    _WINDOW,
    "As lookahead, where batch size or kind of text changes",
)
_NGRAM = Method(
    "n-grams of the text so far",
    "none",
    "n-gram tables of integers",
    "Texts that repeat themselves; costs next to nothing, so slow processors too",
)
_PROMPT = Method(
    "prompt lookup",
    "none",
    "none",
    "Answers that quote their prompt: summaries, edits, code with its context",
)
_DRAFT_MODEL = Method(
    "draft model, fixed gamma",
    _ITS_DRAFT,
    _DRAFT,
    "A much smaller model of the same family exists, and memory for it",
)
_EGAG = Method(
    "draft model, entropy-guided gamma",
    _ITS_DRAFT,
    _DRAFT,
    "As with a draft model, on text that is now easy, now hard",
)
_CHAIN = Method(
    "several drafters in turn",
    "as its parts",
    "as its parts",
    "Kinds of text change, and no single drafter fits them all",
)
_HF = Method("transformers' generate", "none", "none", "The reference that most users start from")
_LLAMA_CPP = Method("llama.cpp", "none", "none", "A quantised model on a processor")
_UNKNOWN = Method("", "-", "-", "-")

_NAMES = {
    "ar": _PLAIN,
    "none": _PLAIN,
    "trtla_without_lookahead": _PLAIN,
    "lookahead": _LOOKAHEAD,
    "lookahead-auto": _AUTO,
    "lookahead auto": _AUTO,
    "auto": _AUTO,
    "nasd": _NGRAM,
    "ngram": _NGRAM,
    "prompt-lookup": _PROMPT,
    "sd": _DRAFT_MODEL,
    "draft": _DRAFT_MODEL,
    "egag": _EGAG,
    "chain": _CHAIN,
    "hf": _HF,
    "hugging_face": _HF,
    "hf-prompt-lookup": _PROMPT,
    "hf-assisted": _DRAFT_MODEL,
    "llama.cpp": _LLAMA_CPP,
    "llama.cpp-prompt-lookup": _PROMPT,
}
_NO_DRAFTS = ("1", "1", "0")
_TRIPLE = re.compile(r"lookahead (\d+),(\d+),(\d+)")


def method(arm: str) -> Method:
    """What an arm is, by the name that the documents give it."""
    triple = _TRIPLE.fullmatch(arm)
    if triple and triple.groups() == _NO_DRAFTS:
        return _PLAIN
    if triple:
        return replace(_LOOKAHEAD, title="W {}, N {}, G {}".format(*triple.groups()))
    if "," in arm:
        return _CHAIN
    return _NAMES.get(arm) or _NAMES.get(arm.partition(":")[0], _UNKNOWN)


def is_plain(arm: str) -> bool:
    """Whether an arm is what all others are compared with."""
    return method(arm) is _PLAIN
