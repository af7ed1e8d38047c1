"""A table of methods: their names in documents, their needs, and when to use them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Method:
    """A method of decoding; the texts are cells of the comparison table."""

    names: tuple[str, ...]
    """Names of its arms in documents."""
    title: str
    training: str = "none"
    memory: str = "none"
    when: str = ""


_DRAFT = (
    "a draft model with the same vocabulary",
    "the draft model's weights and its own K/V cache",
)
_WINDOW = ("none", "an n-gram pool, and K/V rows for the window and candidates of a step")

PLAIN = Method(
    ("ar", "none", "trtla_without_lookahead"),
    "plain decoding",
    when="Large batches, and wherever nothing is faster",
)
_LOOKAHEAD = Method(
    ("lookahead",),
    "lookahead decoding",
    *_WINDOW,
    "No draft model at hand, small batches, and compute to spare; best on code and repeating text",
)
_CHAIN = Method(
    ("chain",),
    "several drafters in one candidate tree",
    "as its parts",
    "as its parts",
    "Kinds of text change, and no single drafter fits them all",
)
_METHODS = (
    PLAIN,
    _LOOKAHEAD,
    _CHAIN,
    Method(
        ("lookahead-auto", "lookahead auto", "auto"),
        "one candidate tree of all sources",
        memory="texts, rows of logits (20 MB at 49,152 tokens), K/V rows for the nodes of a step",
        when="By default: each step feeds what pays by what forwards cost",
    ),
    Method(
        ("nasd", "ngram"),
        "n-grams of the text so far",
        memory="n-gram tables of integers",
        when="Texts that repeat themselves; costs next to nothing, so slow processors too",
    ),
    Method(
        ("prompt-lookup", "hf-prompt-lookup", "llama.cpp-prompt-lookup"),
        "prompt lookup",
        when="Answers that quote their prompt: summaries, edits, code with its context",
    ),
    Method(
        ("sd", "draft", "hf-assisted"),
        "draft model, fixed gamma",
        *_DRAFT,
        "A much smaller model of the same family exists, and memory for it",
    ),
    Method(
        ("egag",),
        "draft model, entropy-guided gamma",
        *_DRAFT,
        "As with a draft model, on text that is now easy, now hard",
    ),
    Method(("trtla",), "the engine as it drafts", "-", "-", "-"),
    Method(
        ("hf", "hugging_face"),
        "transformers' generate",
        when="The reference that most users start from",
    ),
    Method(("llama.cpp",), "llama.cpp", when="A quantised model on a processor"),
    Method(
        ("llama.cpp-converted",),
        "llama.cpp on the weights as trtla runs them",
        when="A comparison of the programs alone",
    ),
)
_UNKNOWN = Method((), "", "-", "-", "-")
_BY_NAME = {name: method for method in _METHODS for name in method.names}
_NO_DRAFTS = ("1", "1", "0")
_TRIPLE = re.compile(r"lookahead (\d+),(\d+),(\d+)")


def method(arm: str) -> Method:
    """Return the method of an arm by its name in the documents."""
    triple = _TRIPLE.fullmatch(arm)
    if triple and triple.groups() == _NO_DRAFTS:
        return PLAIN
    if triple:
        return replace(_LOOKAHEAD, title="W {}, N {}, G {}".format(*triple.groups()))
    if "," in arm:
        return _CHAIN
    return _BY_NAME.get(arm) or _BY_NAME.get(arm.partition(":")[0], _UNKNOWN)
