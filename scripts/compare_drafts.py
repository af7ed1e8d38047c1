#!/usr/bin/env python3
"""The drafts of docs/plugins.md beside those of the hosts themselves.

    python scripts/compare_drafts.py texts MODEL texts.json   # greedy texts of trtla/assets/bench
    python scripts/compare_drafts.py replay texts.json        # their steps with each proposer
    python scripts/compare_drafts.py generate FOLDER          # transformers' generate, in turns

`replay` runs in any Python with NumPy and trtla on its path; proposers whose library it lacks
(vllm, arctic-inference, sglang) are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

FUNCTIONS = (
    Path(__file__).resolve().parent.parent / "trtla" / "assets" / "bench" / "functions.jsonl"
)
SETS = f"code,{FUNCTIONS},chat,summarization"
DRAFTED = 5
WARM_UP = ("Once upon a time", False)
ROOM = 8192
Tree = tuple[list[int], list[int]]
"""Tokens, and the parent of each, where 0 is the text's last token."""
Propose = Callable[[int, list[int], int, int, int], Tree]
"""A text's number, the whole text, its tokens so far, those that are new, and the prompt's."""


class Text(NamedTuple):
    """A prompt and what followed greedily."""

    prompt: list[int]
    output: list[int]


def prompts(sets: str, per_set: int) -> Iterator[tuple[str, bool]]:
    """The prompts of files or of sets that come with trtla, and whether each begins a chat."""
    from trtla.data.prompt_sets import load_sets

    for one in load_sets(sets.split(","), (), per_set):
        for question in one.questions:
            yield question.turns[0], question.is_chat


def write_texts(args: argparse.Namespace) -> None:
    """Have trtla itself decode the prompts."""
    from trtla import LLM, SamplingParams

    llm = LLM(args.model, max_batch_size=8)

    def ids(text: str, chat: bool) -> list[int]:
        if chat:
            text = llm.tokenizer.chat_text([{"role": "user", "content": text}])
        return list(llm.tokenizer.encode(text))

    asked = [ids(*prompt) for prompt in prompts(args.sets, args.per_set)]
    outputs = llm.generate(asked, SamplingParams(max_tokens=args.tokens))
    texts = [Text(p, list(o.token_ids)) for p, o in zip(asked, outputs, strict=True)]
    Path(args.texts).write_text(json.dumps(texts), encoding="utf-8")


def chain(tokens: Sequence[int]) -> Tree:
    return list(tokens), list(range(len(tokens)))


def accepted(tree: Tree, rest: Sequence[int]) -> int:
    """Count the tokens of a tree's path that a text has next, all but its last one."""
    below: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(*tree, strict=True), 1):
        below.setdefault((parent, token), node)
    node = 0
    for count, token in enumerate(rest[:-1]):
        if (node, token) not in below:
            return count
        node = below[node, token]
    return max(0, len(rest) - 1)


def replay(texts: Sequence[Text], propose: Propose) -> tuple[float, float, float]:
    """Return tokens a step, drafted tokens a step, and the share of these that was accepted."""
    steps = drafted = right = tokens = 0
    for number, (prompt, output) in enumerate(texts):
        text = [*prompt, *output]
        size, new = len(prompt) + 1, 1  # the prompt's own step brings one
        steps, tokens = steps + 1, tokens + 1
        while size < len(text):
            tree = propose(number, text, size, new, len(prompt))
            fits = accepted(tree, text[size:])
            steps, drafted, right = steps + 1, drafted + len(tree[0]), right + fits
            size, new, tokens = size + fits + 1, fits + 1, tokens + fits + 1
    return tokens / steps, drafted / steps, right / max(1, drafted)


def trees_in_vllm(least_chance: float) -> Propose:
    import numpy as np

    from trtla.extras.hosts.vllm import TreeProposer

    model = SimpleNamespace(max_model_len=ROOM, get_vocab_size=lambda: 1 << 20)
    speculative = SimpleNamespace(num_speculative_tokens=DRAFTED)
    more = {"trtla": {"least_chance": least_chance}}
    proposer = TreeProposer(
        SimpleNamespace(model_config=model, speculative_config=speculative, additional_config=more)
    )
    rows = np.zeros((1, ROOM), np.int32)

    def propose(_number: int, text: list[int], size: int, new: int, _prompt: int) -> Tree:
        rows[0, :size] = text[:size]
        return chain(proposer.propose([[0] * new], np.array([size], np.int32), rows)[0])

    return propose


def ngrams_of_vllm(shortest: int) -> Propose:
    import numpy as np
    from vllm.v1.spec_decode import ngram_proposer

    find = ngram_proposer._find_longest_matched_ngram_and_propose_tokens

    def propose(_number: int, text: list[int], size: int, _new: int, _prompt: int) -> Tree:
        return chain(find(np.array(text[:size], np.int32), shortest, 5, ROOM, DRAFTED).tolist())

    return propose


def suffixes_of_arctic() -> Propose:
    import numpy as np
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(max_tree_depth=24, max_cached_requests=10_000)
    known: list[str] = []

    def propose(number: int, text: list[int], size: int, new: int, prompt: int) -> Tree:
        if known[-1:] != [str(number)]:
            if known:
                cache.stop_request(known[-1])
            known.append(str(number))
            cache.start_request(known[-1], np.array(text[:prompt], np.int32))
        cache.add_active_response(known[-1], text[size - new : size])
        end = np.array(text[max(0, size - 24) : size], np.int32)
        found = cache.speculate(
            known[-1], end, max_spec_tokens=DRAFTED, max_spec_factor=1.0, min_token_prob=0.1
        )
        return chain(found.token_ids)

    return propose


class NoCorpus:
    """Stands in for SGLang's corpus below ours."""

    def __init__(self, draft_token_num: int, **_settings: Any) -> None:
        self.draft_token_num = draft_token_num

    def batch_put(self, _texts: list[list[int]]) -> None: ...
    def erase_match_state(self, _names: list[str]) -> None: ...


def corpus_of_sglang(own: bool, depth: int, nodes: int) -> Propose:
    """The calls of SGLang's worker for a batch of one row."""
    from trtla.extras.hosts.sglang import TreeCorpus

    kind: Any = type("Corpus", (TreeCorpus, NoCorpus), {})
    if own:
        from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus as kind  # noqa: N813
    corpus = kind(
        max_trie_depth=depth, draft_token_num=nodes, min_bfs_breadth=1, max_bfs_breadth=10,
        match_type="BFS", capacity=1_000_000, external_sam_budget=0,
        external_corpus_max_tokens=10_000_000,
    )  # fmt: skip
    known: list[int] = []

    def propose(number: int, text: list[int], size: int, _new: int, _prompt: int) -> Tree:
        tail = text[:size][-depth:]
        if known[-1:] != [number]:
            corpus.erase_match_state([str(one) for one in known[-1:]])
            known.append(number)
        else:
            corpus.batch_put([tail])
        if own:
            corpus.synchronize()
        tokens, mask = corpus.batch_get([str(number)], [tail], [size])
        rows = mask.reshape(nodes, nodes)
        parents = [int(rows[node, :node].nonzero()[0][-1]) for node in range(1, nodes)]
        return tokens[1:].tolist(), parents

    return propose


ARMS: dict[str, Callable[[], Propose]] = {
    "ngram, prompt_lookup_min 5": lambda: ngrams_of_vllm(5),
    "ngram, prompt_lookup_min 2": lambda: ngrams_of_vllm(2),
    "suffix": suffixes_of_arctic,
    **{
        f"trtla in vLLM, least_chance {least}": lambda least=least: trees_in_vllm(least)
        for least in (0.1, 0.05, 0.3)
    },
    **{
        f"{'SGLang' if own else 'trtla in SGLang'}, depth {depth}, {nodes} nodes": (
            lambda own=own, depth=depth, nodes=nodes: corpus_of_sglang(own, depth, nodes)
        )
        for own, depths in ((True, (18, 64, 256)), (False, (18, 32768)))
        for depth in depths
        for nodes in (12, 6)
    },
}


def replay_all(args: argparse.Namespace) -> None:
    """Print the table of all proposers whose libraries are there."""
    texts = [Text(*one) for one in json.loads(Path(args.texts).read_text(encoding="utf-8"))]
    print(f"{len(texts)} texts, {sum(len(text.output) for text in texts)} tokens\n")
    print("| proposer | tokens a step | drafted a step | accepted of these |\n|---|---|---|---|")
    for name, arm in ARMS.items():
        try:
            propose = arm()
        except ImportError as error:
            print(f"| {name} | {error} | | |")
            continue
        each, drafted, right = replay(texts, propose)
        print(f"| {name} | {each:.2f} | {drafted:.2f} | {right:.0%} |", flush=True)


def generate_all(args: argparse.Namespace) -> None:
    """Measure transformers' own loop, its n-grams and trtla's trees in turns."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trtla.extras.hosts.transformers import generate

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    arms: dict[str, dict[str, Any]] = {
        "plain": {},
        f"prompt_lookup_num_tokens={DRAFTED}": {"prompt_lookup_num_tokens": DRAFTED},
        "custom_generate=generate": {"custom_generate": generate},
    }
    forwards, texts = dict.fromkeys(arms, 0), {}
    seconds = dict.fromkeys(arms, 0.0)
    same, tokens = dict.fromkeys(arms, 0), 0
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    asked = list(prompts(args.sets, args.per_set))
    for number, (text, chat) in enumerate([WARM_UP, *asked]):
        if chat:
            said = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        inputs = tokenizer(text, return_tensors="pt", add_special_tokens=not chat)
        for name, options in arms.items() if number % 2 else reversed(arms.items()):
            calls.clear()
            started = time.perf_counter()
            ids = model.generate(**inputs, max_new_tokens=args.tokens, do_sample=False, **options)
            if number:
                seconds[name] += time.perf_counter() - started
                forwards[name] += len(calls)
            texts[name] = ids[0].tolist()
        if number:
            tokens += len(texts["plain"]) - inputs["input_ids"].shape[1]
            for name, ids in texts.items():
                same[name] += ids == texts["plain"]
    print(f"{args.dtype}, {len(asked)} prompts, {tokens} tokens\n")
    print("| drafts | tokens a forward | tokens/s | texts as plain |\n|---|---|---|---|")
    for name in arms:
        rates = f"{tokens / forwards[name]:.2f} | {tokens / seconds[name]:.1f}"
        print(f"| {name} | {rates} | {same[name]} of {len(asked)} |")


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, run, operands in (
        ("texts", write_texts, ("model", "texts")),
        ("replay", replay_all, ("texts",)),
        ("generate", generate_all, ("model",)),
    ):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        for operand in operands:
            command.add_argument(operand)
        command.add_argument("--sets", default=SETS, help="names or .jsonl files")
        command.add_argument("--per-set", type=int, default=12, help="prompts of each set")
        command.add_argument("--tokens", type=int, default=96)
        command.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
