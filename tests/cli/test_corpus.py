"""Texts to draft from: --corpus, --save-corpus, --expected-output; what they change and refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import needs, refused, trtla
from tests.support.trtllm_engines import write_engine
from trtla import LLM, SamplingParams, UsageError
from trtla.errors import TrtlaWarning
from trtla.formats.engine import open_engine
from trtla.llm.corpus import MOST_TOKENS, Corpus
from trtla.llm.prompt import PromptRequest
from trtla.llm.text import Tokenizer

PROMPT = ("--input-text", "abcabc", "--max-output-len", "12")


@pytest.fixture
def corpus(engine: Path) -> Corpus:
    return Corpus(open_engine(engine), Tokenizer(engine))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A file of each kind with what it holds."""
    (tmp_path / "a.txt").write_text("one\ntext\n")
    (tmp_path / "b.jsonl").write_text('{"text": "two", "id": 7}\n\n{"text": "three"}\n')
    return {name: tmp_path / name for name in ("a.txt", "b.jsonl")}


def texts(*parts: str) -> list[tuple[int, ...]]:
    """Ids of texts without special tokens: the byte tokenizer's, as the files have them."""
    tokenizer = {letter: index for index, letter in enumerate(_letters())}
    written = (part.replace(" ", "\u0120").replace("\n", "\u010a") for part in parts)
    return [tuple(tokenizer[letter] for letter in part) for part in written]


def _letters() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def test_each_kind_of_file_is_read(corpus: Corpus, files: dict[str, Path]) -> None:
    assert corpus.read(files["a.txt"]) == texts("one\ntext\n")
    assert corpus.read(list(files.values())) == texts("one\ntext\n", "two", "three")


def test_what_is_written_is_read(corpus: Corpus, files: dict[str, Path], tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"  # known by its first line, not by its name
    found = corpus.read(list(files.values()))
    corpus.write(kept, found)
    assert corpus.read(kept) == found
    corpus.write(kept, found[1:])
    assert corpus.read([kept, files["a.txt"]]) == [*found[1:], found[0]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.jsonl", "kept.jsonl"]


@pytest.fixture
def at_most_2000(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is reached sooner than the real one."""
    assert MOST_TOKENS == 1_000_000
    monkeypatch.setattr("trtla.llm.corpus.MOST_TOKENS", 2000)


@pytest.mark.usefixtures("at_most_2000")
def test_of_a_long_corpus_the_last_tokens_are_kept(corpus: Corpus, tmp_path: Path) -> None:
    for name, length in (("a", 5), ("b", 1997), ("c", 3)):
        (tmp_path / name).write_text(name * length)
    with pytest.warns(TrtlaWarning, match="longer than 2,000 tokens"):
        found = corpus.read([tmp_path / name for name in "bac"])
    assert found == texts("b" * 1992, "a" * 5, "c" * 3)
    assert corpus.read([tmp_path / name for name in "bc"]) == texts("b" * 1997, "c" * 3)


@pytest.mark.usefixtures("at_most_2000")
@pytest.mark.filterwarnings("ignore:the corpus is longer")
def test_nothing_of_a_long_corpus_is_lost_when_it_is_saved(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    corpus.write(path, texts("a" * 700, "b" * 900, "c" * 900, "d" * 600))
    found = corpus.read(path)
    assert found == texts("b" * 500, "c" * 900, "d" * 600)
    corpus.write(path, [*found, *texts("e")])
    held = [json.loads(line)["ids"] for line in path.read_text().splitlines()[1:]]
    whole = texts("a" * 700, "b" * 400, "b" * 500, "c" * 900, "d" * 600, "e")
    assert list(map(tuple, held)) == whole
    (tmp_path / "long.txt").write_text("a" * 2500)
    corpus.write(path, corpus.read([tmp_path / "long.txt"]))
    corpus.write(path, corpus.read(path))
    held = [json.loads(line)["ids"] for line in path.read_text().splitlines()[1:]]
    assert sum(map(len, held)) == 2500


def test_outputs_make_no_corpus_go(tiny_llama: Path, tmp_path: Path) -> None:
    """One text of a million tokens was gone with the first answer, and saving left 171 bytes."""
    with LLM(tiny_llama) as llm:
        vocab = llm.limits.vocab_size
        ids = [5 + i * 7919 % (vocab - 5) for i in range(1_000_000)]
        Corpus(llm.engine, llm.tokenizer).write(tmp_path / "corpus", [tuple(ids)])
    with LLM(tiny_llama, corpus=[tmp_path / "corpus"]) as llm:
        (done,) = llm.generate(["def f(x):"], SamplingParams(max_output_len=8))
        llm.save_corpus(tmp_path / "corpus")
    lines = (tmp_path / "corpus").read_text().splitlines()[1:]
    assert [json.loads(line)["ids"] for line in lines] == [ids, list(done.output_ids)]


def test_a_corpus_changes_no_text(engine: Path, files: dict[str, Path], tmp_path: Path) -> None:
    plain = trtla("run", "-m", engine, *PROMPT, "--no-lookahead", "--json").json["results"]
    for number, given in enumerate(files.values()):
        kept = tmp_path / f"kept{number}"
        more = ("--corpus", given, given, "--save-corpus", kept, "--json")
        ran = trtla("run", "-m", engine, *PROMPT, *more)
        assert ran.code == 0, ran.err
        assert f"note: wrote {kept}\n" in ran.err
        again = trtla(
            "run", "-m", engine, *PROMPT, "--corpus", kept, "--save-corpus", kept, "--json"
        )
        assert again.code == 0, again.err
        for results in (ran.json["results"], again.json["results"]):
            assert results[0]["output_ids"] == plain[0]["output_ids"]
        head, *lines = map(json.loads, kept.read_text().splitlines())
        assert (head["trtla_corpus"], head["vocab_size"]) == (1, 258)
        assert all(set(line) == {"ids"} for line in lines)


@pytest.mark.usefixtures("at_most_2000")
def test_a_long_corpus_is_a_note(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("ab" * 1001)
    ran = trtla("run", "-m", engine, *PROMPT, "--corpus", tmp_path / "long.txt")
    assert ran.code == 0, ran.err
    assert "note: the corpus is longer than 2,000 tokens: its last" in ran.err


def test_what_only_the_tree_reads_is_a_note_where_a_triple_drafts(
    engine: Path, files: dict[str, Path]
) -> None:
    given = ("--corpus", files["a.txt"], "--expected-output", "abc", "--lookahead-nodes", "3")
    ran = trtla("run", "-m", engine, *PROMPT, *given, "--lookahead", "4,3,4")
    assert ran.code == 0, ran.err
    for name in ("corpus", "expected_output", "lookahead_nodes"):
        assert ran.err.count(f"note: {name} changes nothing here: only lookahead auto drafts") == 1
    for named in ((), ("--lookahead", "auto", "--drafter", "ngram")):
        ran = trtla("run", "-m", engine, *PROMPT, *given, *named)
        assert (ran.code, "changes nothing" in ran.err) == (0, False), ran.err


@needs("bench", "chat")
def test_chat_summarize_and_bench_take_one(
    engine: Path, files: dict[str, Path], articles: Path, tmp_path: Path
) -> None:
    given, kept = ("-m", engine, "--corpus", files["a.txt"]), ("--save-corpus", tmp_path / "kept")
    ran = trtla("chat", *given, *kept, "-n", "4", stdin="ab\n")
    assert (ran.code, (tmp_path / "kept").is_file()) == (0, True), ran.err
    ran = trtla("summarize", *given, *kept, "--dataset", articles, "--max-output-len", "4",
                "--max-input-len", "100")  # fmt: skip
    assert ran.code == 0, ran.err
    (tmp_path / "p.jsonl").write_text('{"category": "own", "text": "ab"}\n')
    ran = trtla("bench", *given, "--prompts", tmp_path / "p.jsonl", "-n", "4", "--rounds", "1",
                "--temperature", "0", "--json")  # fmt: skip
    assert ran.code == 0, ran.err
    assert {row["equal_texts"] for row in ran.json["rows"]} == {1}


def _bad(folder: Path) -> dict[str, tuple[str, str]]:
    """File names with what is said of them, after writing them."""
    (folder / "empty.txt").write_text(" \n")
    (folder / "empty.jsonl").write_text('{"text": ""}\n')
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "keys.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    (folder / "words.jsonl").write_text("no JSON\n")
    (folder / "folder").mkdir()
    head = {"trtla_corpus": 1, "vocab_size": 258, "vocabulary": None}
    tokens = {
        "newer": (head | {"trtla_corpus": 2}, {"ids": [1]}),
        "other": (head | {"vocabulary": "0" * 64}, {"ids": [1]}),
        "larger": (head | {"vocab_size": 300}, {"ids": [1]}),
        "outside": (head, {"ids": [1, 258]}),
        "broken": (head, {"ids": ["a"]}),
    }
    for name, lines in tokens.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {
        "missing": ("does not exist", "check the path"),
        "empty.txt": ("empty.txt holds no text", "give a text file"),
        "empty.jsonl": ("empty.jsonl holds no text", "give a text file"),
        "latin.txt": ("is not UTF-8 text (byte 3)", "convert it"),
        "keys.jsonl": ('keys.jsonl: "text" is missing', "correct the line"),
        "words.jsonl": ("line 1 of", "is not JSON"),
        "folder": ("cannot be read: Is a directory", "check the path"),
        "newer": ("has format 2", "this release reads 1"),
        "other": ("of another tokenizer", "that it was saved with"),
        "larger": ("of another tokenizer (300 tokens; this model has 258)", "saved with"),
        "outside": ("outside the vocabulary of 258", "--save-corpus"),
        "broken": ("line 1 of", "after its first line"),
    }


def test_bad_files_are_refused(engine: Path, tmp_path: Path) -> None:
    for name, said in _bad(tmp_path).items():
        ran = trtla("run", "-m", engine, *PROMPT, "--corpus", tmp_path / name)
        refused(ran, 2, *said)


def test_the_same_size_is_not_the_same_tokenizer(
    corpus: Corpus, model: Path, tmp_path: Path
) -> None:
    corpus.write(tmp_path / "kept", texts("ab"))
    other = tmp_path / "other"
    shutil.copytree(model, other)
    told = (other / "tokenizer.json").read_text().replace('"a":', '"\u20ac":', 1)
    (other / "tokenizer.json").write_text(told)
    ran = trtla("run", "-m", other, *PROMPT, "--corpus", tmp_path / "kept")
    refused(ran, 2, "holds token ids of another tokenizer", "give the texts themselves")


def test_a_model_without_a_tokenizer_takes_token_files_alone(
    bare_engine: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    own = Corpus(open_engine(bare_engine), None)
    own.write(tmp_path / "kept", [(1, 2, 3)])
    assert own.read(tmp_path / "kept") == [(1, 2, 3)]
    with pytest.raises(UsageError, match="the model has no tokenizer files"):
        own.read(files["a.txt"])
    with LLM(bare_engine, corpus=[tmp_path / "kept"]) as llm:
        (plain, drafted) = (
            llm.generate([5, 6, 7], SamplingParams(12), lookahead, expected_output=expected)
            for lookahead, expected in ((None, [9, 8, 7]), (llm.limits.lookahead, None))
        )
        assert plain[0].output_ids == drafted[0].output_ids
        with pytest.raises(UsageError, match="the expected output of prompt 0 is a text, but"):
            llm.generate([5], expected_output="a")


def test_another_file_is_not_replaced(
    no_weights: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    given = ("run", "-m", no_weights, *PROMPT, "--save-corpus")
    refused(trtla(*given, files["a.txt"]), 2, "was not written by --save-corpus", "another path")
    refused(trtla(*given, tmp_path), 2, "is a folder", "give a file in it")
    ran = trtla(*given, tmp_path / "no" / "kept")
    refused(ran, 2, "of --save-corpus does not exist", "make it first")
    assert files["a.txt"].read_text() == "one\ntext\n"


def test_compiled_engines_draft_from_no_texts(tmp_path: Path, files: dict[str, Path]) -> None:
    folder = write_engine(tmp_path / "compiled", max_draft_len=0)
    (tmp_path / "p.jsonl").write_text('{"text": "a", "expected_output": "b"}\n')
    given = ("run", "-m", folder)
    for flags, what in (
        ((*PROMPT, "--corpus", files["a.txt"]), "brings a corpus"),
        ((*PROMPT, "--save-corpus", tmp_path / "kept"), "brings a corpus"),
        ((*PROMPT, "--expected-output", "b"), "text 0 brings an expected output"),
        (("--input-file", tmp_path / "p.jsonl"), "brings an expected output"),
    ):
        refused(trtla(*given, *flags), 2, what, "build with --backend torch")


def test_an_expected_output_changes_no_text(engine: Path, tmp_path: Path) -> None:
    two = ("--input-text", "abcabc", "cd", "--max-output-len", "12", "--temperature", "0.8")
    plain = trtla("run", "-m", engine, *two, "--no-lookahead", "--json").json["results"]
    expected = tmp_path / "expected.txt"
    expected.write_text("what comes")
    lines = [
        {"text": "abcabc", "expected_output": plain[0]["text"]},
        {"text": "cd", "expected_output": plain[1]["output_ids"]},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for flags, stdin in (
        ((*two, "--expected-output", f"@{expected}"), ""),
        ((*two, "--expected-output", "one", ""), ""),
        ((*two, "--expected-output", "-"), "piped"),
        (("--input-file", tmp_path / "p.jsonl", *two[3:], "--expected-output", "others"), ""),
    ):
        ran = trtla("run", "-m", engine, *flags, "--check-lossless", "--json", stdin=stdin)
        assert ran.code == 0, ran.err
        for ours, theirs in zip(ran.json["results"], plain, strict=True):
            assert ours["output_ids"] == theirs["output_ids"]


def test_an_expected_output_continues_the_prompt(engine: Path) -> None:
    """Ids of the text without the token that begins a text; ids as they are."""
    with LLM(engine) as llm:
        sampling = SamplingParams(4)
        for given in ("two", list(texts("two")[0])):
            request = llm.request(PromptRequest("the prompt", "a", sampling, expected_output=given))
            assert [request.expected_ids] == texts("two")
        assert llm.request(PromptRequest("the prompt", "a", sampling)).expected_ids == ()
        for bad, said in (([3, 258], "token id 258"), ([0.5], "expected outputs hold 0.5")):
            with pytest.raises(UsageError, match=said):
                llm.generate(["a"], sampling, expected_output=bad)
        with pytest.raises(UsageError, match="2 expected outputs for 1 prompt"):
            llm.generate(["a"], sampling, expected_output=["b", "c"])


def test_expected_outputs_that_cannot_be_are_refused(no_weights: Path, tmp_path: Path) -> None:
    given = ("run", "-m", no_weights, *PROMPT, "--expected-output")
    ran = trtla(*given, f"@{tmp_path}/none")
    refused(ran, 2, "none does not exist", "check the path")
    refused(trtla(*given, "a", "b"), 2, "--expected-output has 2 texts for 1 prompt", "one for")
    ran = trtla("run", "-m", no_weights, "-p", "-", "--expected-output", "-", stdin="a")
    refused(ran, 2, "stdin is asked for twice", "--expected-output")
    file = tmp_path / "p.jsonl"
    file.write_text('{"text": "a", "expected_output": 3}')
    refused(trtla("run", "-m", no_weights, "--input-file", file), 2, '"expected_output')
