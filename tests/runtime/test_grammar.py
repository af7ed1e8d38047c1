"""Outputs that follow a grammar: the mask belongs to the target, whatever drafts."""

from __future__ import annotations

import copy
import json
import re
import weakref
from functools import lru_cache
from itertools import count as counting
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tests.support.served import SHIPPED
from tests.support.tokenizer_kinds import save_kind
from trtla import LLM, SamplingParams
from trtla.errors import TrtlaError, UsageError
from trtla.llm.grammars import GrammarCompiler
from trtla.llm.text import Tokenizer
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.drafters import grammar as grammar_drafts
from trtla.runtime.drafters.grammar import GrammarGuide
from trtla.runtime.grammar import GrammarState
from trtla.runtime.grammar_lexer import CompiledGrammar
from trtla.runtime.tree.library import Tree, Usual
from trtla.settings.drafting import SOURCES, DrafterSettings, DraftOptions
from trtla.settings.grammar import Grammar
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema_rs")

PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
GRAMMARS = [
    {"json_schema": PET},
    {"regex": r"[a-f]{3}-[0-9]{2,4}(,[a-f]+){0,3}"},
    {"choice": ["def", "class", "import this"]},
    {"lark": 'start: "(" word ("," word)* ")"\nword: /[a-z]{1,6}/'},
    {"lark": 'root ::= "[" [0-9]+ "]"'},
]
DRAWS = [{}, {"temperature": 0.8}, {"temperature": 1.2, "top_p": 0.9, "top_k": 20}]


def allowed_tokens(mask, vocab_size):
    """A mask as booleans, [vocab]."""
    return np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size).view(bool)


@pytest.fixture(scope="module")
def llm():
    with LLM(SHIPPED, dtype="float32", max_batch_size=4) as one:
        yield one


def asked(grammar, **more):
    return SamplingParams(more.pop("length", 96), grammar=grammar, **more)


@pytest.mark.parametrize("draw", DRAWS, ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("grammar", GRAMMARS, ids=["json", "regex", "choice", "lark", "gbnf"])
def test_the_text_is_the_same_whatever_drafts(llm, grammar, draw):
    params = asked(grammar, seed=7, **draw)
    (plain,) = llm.generate("def f(x):", params, lookahead=AUTOREGRESSIVE)
    ways = [
        {},
        {"lookahead": LookaheadConfig(4, 3, 4)},
        {"drafter": DrafterSettings(("ngram",))},
        {"drafter": DrafterSettings(("prompt-lookup", "lookahead"))},
    ]
    for how in ways:
        for _ in range(2):  # the second time texts of the first are drafted from
            (one,) = llm.generate("def f(x):", params, **how)
            assert (one.text, one.finish_reason) == (plain.text, plain.finish_reason)
    many = llm.generate(["def f(x):"] * 3, [params, SamplingParams(9), params])
    assert [many[0].text, many[2].text] == [plain.text] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("draw", DRAWS, ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("grammar", GRAMMARS, ids=["json", "regex", "choice", "lark", "gbnf"])
def test_a_gpu_gives_the_same_texts(llm, grammar, draw):
    params = asked(grammar, seed=7, **draw)
    (plain,) = llm.generate("def f(x):", params, lookahead=AUTOREGRESSIVE)
    with LLM(SHIPPED, dtype="float32", max_batch_size=4, device="cuda") as other:
        for how in ({"lookahead": AUTOREGRESSIVE}, {}, {"lookahead": LookaheadConfig(4, 3, 4)}):
            done = other.generate(["def f(x):"] * 3, params, **how)
            assert [(one.text, one.finish_reason) for one in done] == [
                (plain.text, plain.finish_reason)
            ] * 3


def test_an_output_is_what_the_grammar_says(llm):
    for seed in range(6):
        draw = {"temperature": 1.0, "seed": seed, "length": 200}
        (pet,) = llm.generate("A cat: ", asked({"json_schema": PET}, **draw))
        assert pet.finish_reason == "end_id"
        jsonschema.validate(PET, json.loads(pet.text))
        (word,) = llm.generate("A cat: ", asked({"regex": "[a-f]{3}-[0-9]{2,4}"}, **draw))
        assert re.fullmatch("[a-f]{3}-[0-9]{2,4}", word.text)
        (chosen,) = llm.generate("A cat: ", asked({"choice": ["yes", "no"]}, **draw))
        assert chosen.text in ("yes", "no")
        (thing,) = llm.generate("A cat: ", asked({"json_object": True}, **draw))
        assert thing.text.lstrip().startswith("{")


def test_an_output_that_is_cut_says_so(llm):
    (cut,) = llm.generate("A cat: ", asked({"json_schema": PET}, length=5))
    assert cut.finish_reason == "length"
    (stopped,) = llm.generate("A cat: ", asked({"json_schema": PET}, stop=['"name"']))
    assert stopped.finish_reason == "stop_words"


_KEYS = st.sampled_from(["a", "name", "the key", "é", "list"])
_LEAVES = st.sampled_from(
    [
        {"type": "string", "maxLength": 4},
        {"type": "integer", "minimum": -5, "maximum": 120},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["x", 1, None, "two words"]},
        {"const": {"a": [1]}},
        {"type": "string", "pattern": "^[ab]{2}$"},
        {"type": "string", "format": "date"},
    ]
)


def _objects(parts):
    made = st.dictionaries(_KEYS, parts, min_size=1, max_size=3)
    return made.map(
        lambda own: {
            "type": "object",
            "properties": own,
            "required": sorted(own),
            "additionalProperties": False,
        }
    )


def _arrays(parts):
    return parts.map(lambda one: {"type": "array", "items": one, "minItems": 1, "maxItems": 2})


SCHEMAS = st.recursive(_LEAVES, lambda parts: _objects(parts) | _arrays(parts), max_leaves=5)


@settings(max_examples=25)
@given(
    schema=SCHEMAS,
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    sources=st.sets(st.sampled_from(SOURCES), min_size=1),
    length=st.integers(3, 120),
)
def test_any_schema_is_kept_whatever_drafts(llm, schema, seed, temperature, sources, length):
    params = asked({"json_schema": schema}, seed=seed, temperature=temperature, length=length)
    (plain,) = llm.generate("x = ", params, lookahead=AUTOREGRESSIVE)
    with opened(tuple(sorted(sources))) as other:
        (drafted,) = other.generate("x = ", params)
    assert (drafted.text, drafted.finish_reason) == (plain.text, plain.finish_reason)
    if plain.finish_reason == "end_id":
        jsonschema.validate(schema, json.loads(plain.text))


class opened:  # noqa: N801
    """A model that drafts from some sources alone, opened once for each set of them."""

    def __init__(self, sources):
        self._sources = sources

    def __enter__(self):
        return _opened(self._sources)

    def __exit__(self, *_):
        pass


@lru_cache(maxsize=80)
def _opened(sources, nodes=None):
    options = DraftOptions(sources=sources, nodes=nodes)
    return LLM(SHIPPED, dtype="float32", max_batch_size=1, draft_options=options)


def test_forbidden_nodes_are_not_fed_and_forced_ones_are(llm):
    long = {"regex": "The quick brown fox jumps over the lazy dog\\. (Again|Never)\\."}
    (plain,) = llm.generate("Say: ", asked(long), lookahead=AUTOREGRESSIVE)
    (drafted,) = _opened(("grammar",)).generate("Say: ", asked(long))
    assert drafted.text == plain.text
    assert drafted.stats.steps < plain.stats.steps / 2
    counts = drafted.stats.sources["grammar"]
    assert sum(counts.accepted) > 0.5 * sum(counts.fed)
    assert set(drafted.stats.sources) == {"grammar"}


def test_a_pytorch_forward_draws_the_same(llm, monkeypatch):
    params = asked({"json_schema": PET}, seed=3, temperature=0.9)
    (compiled,) = llm.generate("def f(x):", params)
    monkeypatch.setenv("TRTLA_COMPILED", "0")
    with LLM(SHIPPED, dtype="float32", max_batch_size=2) as torch:
        assert "compiled" not in torch.description
        for how in ({}, {"lookahead": AUTOREGRESSIVE}):
            (one,) = torch.generate("def f(x):", params, **how)
            assert one.text == compiled.text


class Toy:
    """A matcher of "ab" repeated, whose tokens are 0 = a, 1 = b, 2 = the end."""

    computed = 0  # by all of them

    def __init__(self):
        self.read = []

    def _fits(self, token):
        odd = len(self.read) % 2
        return 2 not in self.read and token in ((1,) if odd else (0, 2))

    def compute_bitmask(self):
        Toy.computed += 1
        bits = sum(1 << token for token in range(3) if self._fits(token))
        return bits.to_bytes(4, "little")

    def compute_ff_tokens(self):
        return [1] if len(self.read) % 2 else []

    def try_consume_tokens(self, tokens):
        for count, token in enumerate(tokens):
            if not self._fits(token):
                return count
            self.read.append(token)
        return len(tokens)

    def validate_tokens(self, tokens):
        before = len(self.read)
        count = self.try_consume_tokens(tokens)
        del self.read[before:]
        return count

    def consume_token(self, sampled_token):
        return self.try_consume_tokens([sampled_token]) == 1

    def is_error(self):
        return False

    def get_error(self):
        return ""

    def deep_copy(self):
        return copy.deepcopy(self)


def following(make, *args):
    return GrammarState(CompiledGrammar(lambda ample: make()), *args)


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=8), st.integers(0, 3))
def test_a_state_goes_along_paths_and_back(paths, committed):
    state = following(Toy, (2,), 40)
    output = [0, 1] * committed
    state.follow(output)
    for path in map(tuple, paths):
        mask = state.mask(path)
        fits = all(token == place % 2 for place, token in enumerate(path[:-1]))
        fits &= not path or Toy._fits(Fake(path[:-1]), path[-1])
        if not fits:
            assert mask is None
        elif not path or path[-1] != 2:
            allowed = allowed_tokens(mask, 40).nonzero()[0].tolist()
            assert allowed == ([1] if len(path) % 2 else [0, 2])
            assert state.forced(path) == ([1] if len(path) % 2 else [])
        computed = Toy.computed
        state.mask(path)
        assert Toy.computed == computed  # no mask is computed twice
    state.follow([*output, 0])
    assert allowed_tokens(state.mask(), 40).nonzero()[0].tolist() == [1]


class Fake:
    def __init__(self, read):
        self.read = list(read)


def test_behind_its_end_a_text_may_only_end_again():
    state = following(Toy, (2, 38), 40)
    state.follow([0, 1, 2, 2])
    assert allowed_tokens(state.mask(), 40).nonzero()[0].tolist() == [2, 38]
    assert state.forced() == []
    assert state.allowed((0,)) == 0


def test_behind_a_token_that_only_the_mask_has_allowed_nothing_is():
    state = following(Toy, (2, 38), 40)
    state.follow([0, 0])
    assert not state.mask().any()


def test_a_draft_behind_a_token_that_only_the_mask_has_allowed_ends_there():
    class Wrong(Toy):
        def compute_bitmask(self):
            return (0b11).to_bytes(4, "little")

    state = following(Wrong, (2,), 40)
    assert state.mask().any()
    assert not state.mask((1,)).any()
    assert state.mask((1, 0)) is None
    assert not state.follow([1]).mask().any()


class Rules:
    """A grammar's state that allows all tokens, and counts its masks."""

    def __init__(self):
        self.paths = []

    is_dear = False

    def draft_mask(self, path):
        self.paths.append(path)
        return np.array([len(path) + 2**20], np.uint32)

    def forced(self, path):
        return []


class Kept:
    """A tree that records what usually follows each mask."""

    def set_grammar(self, forced, masks, usual):
        self.usual = dict(usual)

    def drop(self, nodes):
        pass


def test_what_has_followed_a_mask_twice_is_expected_behind_it_again():
    learnt, tree = {}, Kept()
    for time in range(4):
        guide = GrammarGuide(tree, Rules(), learnt)
        guide.look(NO_DRAFT)
        assert tree.usual == ({} if time < 2 else {(): Usual(7, time, time)})
        guide.saw([7, 3])
    assert {known.token for known in learnt.values()} == {7, 3}
    guide = GrammarGuide(tree, Rules(), learnt)
    for token in (4, 5, 6, 4):  # what comes in its place takes over
        guide.look(NO_DRAFT)
        guide.saw([token])
    assert learnt[guide._hashes[()]].token != 7


def test_masks_that_take_long_end_a_draft(monkeypatch):
    clock = counting(0, 0.002)
    monkeypatch.setattr(grammar_drafts, "perf_counter", lambda: next(clock))
    rules = Rules()
    guide = GrammarGuide(Kept(), rules, {})
    draft = Draft((20,) * 9, tuple(range(9)), 1, values=(0.9,) * 9, sources=(0,) * 9)
    guide.look(draft)
    assert len(rules.paths) == 3
    assert guide.allowed(draft).size == 4


class Pet(BaseModel):
    name: str
    legs: int = Field(ge=0, le=8)


def test_a_class_of_pydantic_is_its_schema():
    for value in (Pet, {"json_schema": Pet}):
        grammar = SamplingParams(grammar=value).grammar
        schema = {**Pet.model_json_schema(), "additionalProperties": False}
        assert grammar.value == {"json_schema": schema}
    with pytest.raises(UsageError, match="not an object of one key"):
        SamplingParams(grammar=dict)


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    meows: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    barks: int


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


def test_what_tells_alternatives_apart_is_in_each_text(llm):
    start = llm.grammar_start(asked(Owner), "one")
    texts = '{"pet": {"meows": 1}}', '{"pet": {"kind": "cat", "meows": 1}}'
    with pytest.raises(ValueError, match="Unable to extract tag"):
        Owner.model_validate_json(texts[0])
    ids = [llm.tokenizer.encode(text, special=False) for text in texts]
    assert [start().allowed(one) == len(one) for one in ids] == [False, True]


@pytest.mark.parametrize("front", ["", "<think>ab</th></think>", "<think></think>\n\n"])
def test_a_text_may_begin_with_thoughts_that_the_prompt_has_not_opened(llm, front):
    grammar = Grammar("regex", "[ab]{2}<c>", behind="</think>", opened="<think>")
    state = llm.grammar_start(SamplingParams(grammar=grammar), "one")()
    whole = [*llm.tokenizer.encode(f"{front}ab<c>", special=False), min(llm.end_ids)]
    assert state.allowed(whole) == len(whole)
    assert state.allowed(llm.tokenizer.encode(f"{front}<c>", special=False)) < len(whole)


def test_true_is_a_schema_of_any_json(llm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    anything = Grammar.typed("json_schema", "true")
    assert anything == Grammar.of({"json_schema": {}})
    whole = llm.tokenizer.encode('["a", 1]', special=False)
    assert llm.grammar_start(asked(anything), "one")().allowed(whole) == len(whole)
    (tmp_path / "true").write_text('{"const": 1}')  # a file of that name comes first
    assert Grammar.typed("json_schema", "true") == Grammar.of({"json_schema": {"const": 1}})


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\d\d", "37", "٣٧"),
        (r"[\d\-]+", "3-7", "٣"),
        (r"[^\w]", "é", "e"),
        (r"\w", "_", "é"),
        (r"\\d", "\\d", "3"),
        (r"[]\d]\d", "]3", "]٣"),
        (r"[\d&&[^5]]\w", "3a", "5a"),
    ],
)
def test_digits_and_words_of_expressions_are_ascii(llm, pattern, yes, no):
    start = llm.grammar_start(asked({"regex": pattern}), "one")
    written, forbidden = (llm.tokenizer.encode(text, special=False) for text in (yes, no))
    assert start().allowed(written) == len(written)
    assert start().allowed(forbidden) < len(forbidden)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("pattern", ["", "[ ]?", r"(?:\n[ ]{4}|\x20|\t)*"])
def test_blanks_between_the_parts_of_json_are_what_was_asked(llm, pattern, temperature):
    grammar = {"json_schema": PET, "whitespace_pattern": pattern}
    assert Grammar.of(grammar).value == grammar
    params = asked(grammar, temperature=temperature, length=200)
    (one,) = llm.generate("A pet: ", params)
    (plain,) = llm.generate("A pet: ", params, lookahead=AUTOREGRESSIVE)
    assert one.text == plain.text
    outside = re.sub(r'"(?:[^"\\]|\\.)*"?', "", one.text)  # what is in no text
    assert re.fullmatch(rf"(?:[^ \n\t]|(?:{pattern}))*", outside)
    assert pattern or re.search(r"\s", outside) is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [("json_schema", json.dumps({"enum": ["a" * 500]})), ("lark", f'start: "{"a" * 500}"')],
)
def test_what_is_too_long_for_a_name_of_a_file_is_the_text_itself(kind, text):
    assert Grammar.typed(kind, text) == Grammar.of({kind: text})


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ({}, "not an object of one key"),
        ({"regex": "a", "choice": ["b"]}, "not an object of one key"),
        ({"rgex": "a"}, "did you mean regex"),
        ({"schema": {}}, "did you mean json_schema"),
        ({"pattern": "a"}, "did you mean regex"),
        ({"grammar": "a"}, "did you mean lark"),
        ({"json_schema": False}, "which allows no text"),
        ({"regex": ""}, "the regular expression is empty"),
        ({"regex": 5}, "the regular expression is 5, not a text"),
        ("", "the grammar is empty"),
        ({"choice": []}, "not a list of texts"),
        ({"json_schema": "{"}, "is not JSON"),
        ({"json_schema": [1]}, "not an object"),
        ({"regex": "a" * 70_000}, "the regular expression has 70000 characters, above 65536"),
        (["a"], "not an object of one key"),
        ({"whitespace_pattern": " "}, "not an object of one key"),
        ({"regex": "a", "whitespace_pattern": " "}, "is for JSON, not the regular expression"),
        ({"json_object": True, "whitespace_pattern": 5}, "is 5, not an expression for blanks"),
        *(
            ({"json_schema": {}, "whitespace_pattern": pattern}, "not an expression for blanks")
            for pattern in ("x", r"\s", "[^ ]", ".", "( ", "[ ]{3,2}", "*", r"\x61", " " * 101)
        ),
    ],
)
def test_what_is_no_grammar_is_refused_at_once(grammar, said):
    with pytest.raises(UsageError, match=said):
        SamplingParams(grammar=grammar)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ({"regex": "[a-z"}, "unclosed character class"),
        (
            {"regex": "(?=a)b"},
            "look-around, including look-ahead and look-behind, is not supported",
        ),
        ({"lark": "start: nothing"}, ""),
        ({"json_schema": {"type": "nothing"}}, "Invalid type: nothing"),
        ({"json_schema": {"$ref": "https://example.com/schema.json"}}, ""),
        ({"json_schema": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, ""),
        ({"json_schema": {"type": "string", "pattern": "("}}, "unclosed group"),
        (
            {"json_schema": {"uniqueItems": True}},
            'no text can be kept to its keyword "uniqueItems"',
        ),
        (
            {"json_schema": {"oneOf": [{"type": "string"}, {"minLength": 2}]}},
            "the alternatives of its oneOf cannot be told apart",
        ),
        ({"regex": "a{20000}"}, "its texts begin with 20000 fixed tokens, above 8192"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_in_a_sentence(llm, grammar, reason):
    with pytest.raises(
        UsageError, match=rf"prompt 0: the .* cannot be used: .*{reason}"
    ) as refusal:
        llm.generate("a", asked(grammar))
    assert "\n" not in refusal.value.message
    assert llm.generate("a", SamplingParams(2))[0].token_ids


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ({"regex": r"a\bc"}, "the regular expression cannot be used: lookarounds not"),
        ({"lark": "start: nothing"}, "the grammar cannot be used: at 1(8): unknown name"),
        ({"lark": "root ::= nothing"}, "the grammar cannot be used: Rule 'nothing' not found"),
    ],
)
def test_a_refusal_names_what_was_given(llm, grammar, said):
    with pytest.raises(UsageError) as refusal:
        llm.generate("a", asked(grammar))
    assert refusal.value.message.startswith(f"prompt 0: {said}")


def _chain(count):
    rules = (f'r{place}: "x" r{place + 1}' for place in range(count))
    return "\n".join(("start: r0", *rules, f'r{count}: "e"'))


@pytest.mark.deep(first=1)
@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ({"lark": _chain(3400)}, "it is too large, or nested too deeply"),
        ({"json_schema": {"type": "integer", "multipleOf": 99_999_989}}, "it takes more than 1 s"),
    ],
    ids=["deep", "endless"],
)
def test_a_grammar_that_would_hang_or_end_the_process_is_refused(llm, grammar, why):
    with pytest.raises(UsageError, match=why):
        llm.generate("a", asked(grammar))
    assert llm.generate("a", asked({"json_schema": {"multipleOf": 5}}, length=3))
    assert llm.generate("a", asked({"lark": _chain(400)}, length=3))


def test_a_schema_that_refers_to_itself_ends(llm):
    tree = {
        "$defs": {"node": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}}}},
        "$ref": "#/$defs/node",
    }
    (one,) = llm.generate("a", asked({"json_schema": tree}, length=40, temperature=1.0, seed=2))
    assert one.finish_reason in ("end_id", "length")


def test_tokens_are_spelt_as_the_tokenizer_decodes_them():
    tokenizer = Tokenizer(SHIPPED)
    text = 'def f(x): return {"é": [1, 2]}\n'
    ids = tokenizer.encode(text, special=False)
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()


@pytest.mark.parametrize("kind", ["sentencepiece", "unigram", "llama 3"])
def test_a_text_that_a_tokenizer_cannot_write_is_refused_or_ends_in_nothing(kind, tmp_path):
    save_kind(kind, tmp_path)
    compiler = GrammarCompiler(Tokenizer(tmp_path), 512, (2,))
    assert compiler.start(Grammar("regex", "(a|b) c"))().mask().any()
    if kind == "unigram":  # it has neither bytes nor this letter
        with pytest.raises(UsageError, match="it allows no text that the tokenizer can write"):
            compiler.start(Grammar("regex", "é"))
        state = compiler.start(Grammar.of({"json_object": True}))()
        (blank, *_) = allowed_tokens(state.mask(), 512).nonzero()[0].tolist()
        assert not state.follow([blank]).mask().any()
    else:
        assert compiler.start(Grammar("regex", "(é|日)🦙"))().mask().any()


@pytest.mark.parametrize("kind", ["qwen 2", "sentencepiece"])
def test_what_a_tokenizer_writes_as_another_text_is_written_by_its_tokens(kind, tmp_path):
    save_kind(kind, tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    others = (data["normalizer"] or {}).get("normalizers", [])
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, *others]}
    path.write_text(json.dumps(data))
    tokenizer, text = Tokenizer(tmp_path), "cafe\u0301 \u2581"
    assert tokenizer.decode(tokenizer.encode(text, special=False)).strip() != text
    forced = GrammarCompiler(tokenizer, 512, (2,)).start(Grammar("regex", text))().forced()
    assert b"".join(map(tokenizer.token_bytes, forced)).decode() == text


def test_a_token_that_ends_texts_is_no_text(llm):
    end, letter = min(llm.end_ids), llm.tokenizer.token_id("a")
    compiler = GrammarCompiler(llm.tokenizer, llm.limits.vocab_size, (end, letter))
    state = compiler.start(Grammar("regex", "[ab]"))()
    allowed = allowed_tokens(state.mask(), llm.limits.vocab_size).nonzero()[0].tolist()
    assert allowed == [llm.tokenizer.token_id("b")]
    state.follow(allowed)
    assert {end, letter} == set(allowed_tokens(state.mask(), 2048).nonzero()[0].tolist())


def test_the_name_of_a_control_token_is_text_in_a_grammar(llm):
    for name in llm.tokenizer.special_names:
        for seed in (0, 1):
            params = asked({"regex": f"(a|b){re.escape(name)}c"}, temperature=1.0, seed=seed)
            (one,) = llm.generate("x", params)
            assert one.text[1:] == f"{name}c"
            assert one.finish_reason == "end_id"


def test_one_of_thousands_of_texts_is_chosen(llm):
    texts = [f"the {number:04}" for number in range(3000)]
    (one,) = llm.generate("x", asked({"choice": texts}, temperature=1.0))
    assert one.text in texts


def test_a_grammar_goes_as_an_object_of_json():
    for value in (*GRAMMARS, {"json_object": True}, 'start: "a"'):
        grammar = Grammar.of(value)
        assert Grammar.of(json.loads(json.dumps(grammar.value))) == grammar


def test_masks_of_other_sizes_fit_the_model():
    state = following(Toy, (2,), 100)
    mask = state.mask()
    assert mask.dtype == np.uint32
    assert len(mask) == 4
    assert allowed_tokens(mask, 100).nonzero()[0].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("error", "failure", "tried"),
    [
        ("too complex\nlong trace", "it takes too much computing (too complex)", 4),
        (
            "Parser Error: Current row\n",
            "it takes too much computing (Parser Error: Current row)",
            1,
        ),
        ("NoExtensionBias", "", 1),  # the tokenizer has no token that goes on
    ],
)
def test_where_a_matcher_gives_up_nothing_is_allowed(error, failure, tried):
    made = []

    class Failing(Toy):
        def is_error(self):
            return self.read[:1] == [0]

        def get_error(self):
            return error

    def compiled():
        made.append(Failing())
        return made[-1]

    state = following(compiled, (2,), 40)
    assert not state.mask((0,)).any()
    assert state.is_dear == (tried > 1)
    assert len(made) == tried
    assert allowed_tokens(state.mask(), 40).nonzero()[0].tolist() == [0, 2]
    assert not state.follow([0]).mask().any()
    assert state.failure == failure


def test_a_failure_belongs_to_the_text_that_has_it():
    class Failing(Toy):
        def is_error(self):
            return self.read[:2] in ([0, 1], [2])

        def get_error(self):
            return "lexer error: too many" if self.read[:1] == [0] else "NoExtensionBias"

    drafted, plain = (following(Failing, (2,), 40) for _ in range(2))
    assert not drafted.mask((0, 1)).any()
    assert drafted.is_dear
    assert not drafted.failure
    for state in (drafted, plain):
        assert not state.follow([2]).mask().any()
        assert not state.failure
    assert not drafted.follow([2]).failure


@pytest.mark.parametrize("count", [500, 1500])
def test_an_object_may_have_many_optional_keys(llm, count):
    properties = {f"k{key:04}": {"type": "integer", "maximum": 9} for key in range(count)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    for how in ({}, {"lookahead": AUTOREGRESSIVE}):
        (one,) = llm.generate(
            "x", asked({"json_schema": schema}, temperature=1.0, length=40), **how
        )
        assert one.finish_reason in ("end_id", "length")


def test_rules_may_have_thousands_of_alternatives(llm):
    rules = " | ".join(f"r{rule}" for rule in range(2500))
    each = "\n".join(f'r{rule}: "a{rule}" X' for rule in range(2500))
    text = f"start: {rules}\n{each}\nX: /z/"
    (one,) = llm.generate("x", asked({"lark": text}, temperature=1.0, length=40))
    assert re.fullmatch(r"a\d{1,4}z", one.text)


def attempted(llm, params, **how):
    try:
        (one,) = llm.generate("def f(x):", params, **how)
    except TrtlaError as error:
        return error.message
    return one.text, one.finish_reason


def test_drafts_that_fill_a_lexer_change_no_text(llm, monkeypatch):
    monkeypatch.setattr("trtla.llm.grammar_compiling._MOST_STATES", 250)
    said = set()
    for seed in (1, 2):
        draw = {"seed": seed, "temperature": seed - 1.0, "length": 60}
        params = asked({"regex": r"(a|b|c)(.{0,40}[ab].{30}c){30}"}, **draw)
        said.add(plain := attempted(llm, params, lookahead=AUTOREGRESSIVE))
        for other in (llm, _opened(SOURCES, 30)):
            assert attempted(other, params) == plain
    assert all("allows nothing as output token" in one or one[1] == "length" for one in said)


def test_a_lexer_that_a_request_has_filled_serves_the_next(llm):
    pattern = {"regex": r"[ab]|b(.{0,400}[ab].{300}c){30}"}
    llm.generate("A: ", asked(pattern, temperature=1.0, length=2))
    spent = llm._grammars._compiled[Grammar.of(pattern)].lexer.start()
    while not spent.is_error():
        mask = allowed_tokens(np.frombuffer(spent.compute_bitmask(), np.uint32), 2048)
        spent.try_consume_tokens([int(mask.nonzero()[0][-1])])
    (one,) = llm.generate("A: ", asked(pattern, temperature=1.0, length=20))
    assert one.finish_reason in ("end_id", "length")


def test_a_grammar_without_a_way_on_says_so(llm):
    dead = {"lark": 'start: "a" X "q"\nX: /b+/ & /c+/'}
    for how in ({}, {"lookahead": AUTOREGRESSIVE}, {"lookahead": LookaheadConfig(4, 3, 4)}):
        with pytest.raises(TrtlaError, match="prompt 0: the grammar allows nothing as output tok"):
            llm.generate("x", asked(dead), **how)


def test_masks_live_until_the_tree_has_seen_the_tokens(llm, monkeypatch):
    given, seen = weakref.WeakKeyDictionary(), []
    set_grammar, commit = Tree.set_grammar, Tree.commit

    def setting(tree, forced, masks, usual):
        given[tree] = [weakref.ref(mask) for mask in masks.values()]
        set_grammar(tree, forced, masks, usual)

    def committing(tree, *args):
        seen.extend(mask() is not None for mask in given.pop(tree, ()))
        commit(tree, *args)

    monkeypatch.setattr(Tree, "set_grammar", setting)
    monkeypatch.setattr(Tree, "commit", committing)
    drafter = DrafterSettings(("lookahead", "prompt-lookup"))
    for how in ({}, {"lookahead": LookaheadConfig(4, 3, 4)}):
        params = asked({"regex": "[a-z ]{1,40}"}, length=20)
        llm.generate("def f(x): return", params, drafter=drafter, **how)
        assert len(seen) > 4
        assert all(seen)
        seen.clear()


@pytest.mark.parametrize("rejection", [False, True], ids=["equality", "rejection"])
def test_a_model_that_drafts_for_itself_never_misses_within_a_grammar(rejection):
    drafter = DrafterSettings((f"draft:{SHIPPED}",), gamma=4, rejection=rejection)
    with LLM(SHIPPED, dtype="float32", drafter=drafter) as llm:
        for grammar in GRAMMARS[:2]:
            for draw in ({"temperature": 0.0}, {"temperature": 0.8}):
                (done,) = llm.generate("x", SamplingParams(40, seed=3, grammar=grammar, **draw))
                assert done.stats.accepted == done.stats.drafted > 6
