"""What splits a text is tokenizer.json: the same ids, whatever the files beside it say."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
from functools import partial
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from transformers import AutoTokenizer

from tests.support.gguf_models import vocabulary
from tests.support.models import Variant, make_model, save_model
from tests.support.tokenizer_kinds import KINDS, PRE, TEXTS, gguf_keys, save_kind
from trtla.errors import UsageError
from trtla.formats.folder import copy_side_files
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import end_tokens
from trtla.llm import other_reading
from trtla.llm.reading import reading_notes
from trtla.llm.text import Tokenizer

CONFIG = "tokenizer_config.json"


@pytest.fixture(scope="module")
def shipped(tiny_llama):
    return Tokenizer(tiny_llama)


@pytest.fixture(scope="module")
def theirs(tiny_llama):
    return AutoTokenizer.from_pretrained(tiny_llama)


@pytest.fixture
def folder(tiny_llama, tmp_path):
    for name in ("tokenizer.json", CONFIG):
        shutil.copy(tiny_llama / name, tmp_path / name)
    return tmp_path


def change(path, **changes):
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **changes}))


@given(text=st.text())
def test_texts_become_the_same_ids_as_in_transformers(shipped, theirs, text):
    assert shipped.encode(text) == tuple(theirs.encode(text)) == tuple(shipped.inner.encode(text))


@given(ids=st.lists(st.integers(0, 2047)))
def test_ids_become_the_same_text_as_in_transformers(shipped, theirs, ids):
    expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert shipped.decode(ids) == expected == shipped.inner.decode(ids, skip_special_tokens=True)


def ids_of_file(folder, text):
    return tuple(Fast.from_file(str(folder / "tokenizer.json")).encode(text).ids)


CLASSES = (None, "GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizer", "LlamaTokenizerFast",
           "CodeGenTokenizer", "CohereTokenizer", "NoSuchTokenizer")  # fmt: skip
TYPES = ("llama", "mistral", "qwen2", None)


@pytest.mark.parametrize("kind", KINDS)
def test_no_class_and_no_model_type_changes_an_id(kind, tmp_path):
    save_kind(kind, tmp_path)
    expected = [ids_of_file(tmp_path, text) for text in TEXTS]
    others = zip(CLASSES, cycle(TYPES), cycle((None, False, True)))
    for name, model, flag in others:
        config = {"tokenizer_class": name, "legacy": flag, "add_prefix_space": flag}
        (tmp_path / CONFIG).write_text(
            json.dumps({k: v for k, v in config.items() if v is not None})
        )
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model} if model else {}))
        assert [Tokenizer(tmp_path).encode(text) for text in TEXTS] == expected


@pytest.mark.parametrize("kind", [*PRE, "sentencepiece"])
def test_folder_engine_and_gguf_file_have_the_same_ids(kind, tmp_path):
    """The file's vocabulary is what llama.cpp's converter makes of the folder."""
    for name in ("model", "engine"):
        (tmp_path / name).mkdir()
    save_kind(kind, tmp_path / "model", tokenizer_class="GPT2Tokenizer")
    copy_side_files(tmp_path / "model", tmp_path / "engine")
    folder, engine = Tokenizer(tmp_path / "model"), Tokenizer(tmp_path / "engine")
    keys = gguf_keys(kind, tmp_path / "model")
    made = Fast.from_str(json.dumps(vocabulary(keys).tokenizer()))
    for text in TEXTS:
        assert folder.encode(text) == engine.encode(text) == tuple(made.encode(text).ids), text


def test_a_sentencepiece_tokenizer_keeps_the_word_mark_behind_a_special_token(tmp_path):
    save_kind("sentencepiece", tmp_path, tokenizer_class="LlamaTokenizer", legacy=False)
    names = [
        Tokenizer(tmp_path).token_name(token) for token in Tokenizer(tmp_path).encode("a</s>a")
    ]
    assert names == ["<s>", "▁a", "</s>", "▁a"]


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        ({}, ("<s>",), ()),
        ({"add_bos_token": True}, ("<s>",), ()),
        ({"add_bos_token": False}, (), ()),
        ({"add_eos_token": True}, ("<s>",), ("</s>",)),
        ({"add_bos_token": False, "add_eos_token": True}, (), ("</s>",)),
        ({"add_bos_token": None}, ("<s>",), ()),
    ],
)
def test_flags_of_the_config_go_before_the_frame_of_the_file(flags, before, after, tmp_path):
    save_kind("sentencepiece", tmp_path, tokenizer_class="LlamaTokenizer", **flags)
    tokenizer = Tokenizer(tmp_path)
    assert (tokenizer.frame.before, tokenizer.frame.after) == (before, after)
    inside = tokenizer.encode("ab", special=False)
    ids = [tuple(map(tokenizer.token_id, side)) for side in (before, after)]
    assert tokenizer.encode("ab") == (*ids[0], *inside, *ids[1])


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        (CONFIG, {"eos_token": "def"}),
        (CONFIG, {"eos_token": {"content": "def"}}),
        (CONFIG, {"additional_special_tokens": ["def"]}),
        (CONFIG, {"extra_special_tokens": {"own_token": "def"}}),
        ("special_tokens_map.json", {"eos_token": "def"}),
    ],
)
def test_tokens_that_a_config_names_are_special(file, keys, folder, tiny_llama):
    (token,) = Tokenizer(tiny_llama).encode("def")
    change(folder / file, **keys)
    tokenizer = Tokenizer(folder)
    assert tokenizer.encode("xdefx")[1] == token
    assert tokenizer.decode([token]) == ""


def test_a_name_that_the_vocabulary_has_not_gets_no_id(folder):
    change(folder / CONFIG, pad_token="[PAD]", added_tokens_decoder={"9": {"content": "[PAD]"}})
    tokenizer = Tokenizer(folder)
    assert tokenizer.token_id("[PAD]") is None
    assert max(tokenizer.encode("[PAD]")) < 2048
    change(folder / CONFIG, added_tokens_decoder={"2048": {"content": "[PAD]", "special": True}})
    assert Tokenizer(folder).encode("a[PAD]")[-1] == 2048


@pytest.mark.parametrize("name", ["tokenizer.json", CONFIG])
def test_a_broken_file_is_named(name, folder):
    (folder / name).write_text('{"model"')
    with pytest.raises(UsageError, match=name):
        Tokenizer(folder)


def test_one_note_says_that_transformers_reads_a_folder_otherwise(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def notes(ask=True):
        return [*reading_notes(Tokenizer(folder), ask=ask)]

    assert notes() == []
    change(folder / CONFIG, tokenizer_class="LlamaTokenizer")
    change(folder / "config.json", model_type="llama")
    assert notes() == []  # it follows this file, too
    save_kind("digits", folder, tokenizer_class="GPT2Tokenizer")
    assert notes(ask=False) == []  # it is known to who asks
    first = notes()
    assert "as tokenizer.json in" in first[0]
    assert "GPT2Tokenizer" in first[0]
    monkeypatch.setattr(other_reading, "load_tokenizer", None)  # it is asked once
    assert notes() == notes(ask=False) == first
    change(folder / CONFIG, tokenizer_class="PreTrainedTokenizerFast")
    assert notes() == []


def test_a_text_that_brings_its_beginning_gives_one_note(tmp_path, caplog):
    save_kind("sentencepiece", tmp_path, bos_token="<s>")
    tokenizer = Tokenizer(tmp_path)
    with caplog.at_level(logging.WARNING, "trtla"):
        tokenizer.prompt_ids("ab")
        assert caplog.messages == []
        assert tokenizer.prompt_ids("<s>ab")[:2] == (1, 1)
        tokenizer.prompt_ids("<s>ab")
    (note,) = caplog.messages
    assert "begins with <s> twice" in note
    assert "tokenizer.json" in note


def test_the_engine_of_a_vocabulary_without_tokenizer_json_reads_it_alike(tmp_path):
    """transformers chooses the class by the kind of model, which an engine has elsewhere."""
    variant = Variant("qwen2")
    hf = save_model(make_model(variant), variant, tmp_path / "hf")
    change(hf / "config.json", model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    save_kind("byte level", tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (hf / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (" ".join(one) for one in model["merges"])
    (hf / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    made = tmp_path / "ckpt"
    made.mkdir()
    copy_side_files(hf, made)
    change(made / "config.json", architecture="Qwen2ForCausalLM", mapping={})
    first, second = Tokenizer(hf), Tokenizer(made)
    assert type(first.inner) is type(second.inner)
    assert [first.encode(text) for text in TEXTS] == [second.encode(text) for text in TEXTS]


@pytest.mark.parametrize(
    ("content", "package"),
    [(b"IQ== 0\nIg== 1\n", "tiktoken"), (b"\n\x0e\n\x05<unk>\x15", "sentencepiece")],
)
def test_a_package_that_a_tokenizer_takes_is_named(content, package, tmp_path, monkeypatch):
    (tmp_path / "tokenizer.model").write_bytes(content)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"tokenizer.model takes {package}") as found:
        Tokenizer(tmp_path)
    assert f"pip install {package}" in (found.value.hint or "")


def test_saved_truncation_does_not_shorten_a_text(folder, shipped):
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=cut)
    text = "def main(arguments):\n    return 0\n"
    assert Tokenizer(folder).encode(text) == shipped.encode(text)


def test_a_long_text_does_not_stop_other_threads(shipped):
    """A server answers while it reads one; here no thread gives way unless it has to."""
    lengths = (60_000, 60_000, 240_000)  # it may have ended before a busy machine comes back
    assert any(gives_way(partial(shipped.encode, "def read(path): " * n)) for n in lengths)


def gives_way(work):
    """Whether this thread goes on while another works."""
    working, before = threading.Thread(target=work), sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        working.start()
        return working.is_alive()
    finally:
        sys.setswitchinterval(before)
        working.join()


@pytest.mark.parametrize(
    "keys",
    [
        {"added_tokens_decoder": {"\u00b2": {"content": "<x>", "special": True}}},
        {"additional_special_tokens": 5},
        {"extra_special_tokens": True},
        {"additional_special_tokens": "<x>"},
    ],
)
def test_odd_lists_of_tokens_say_nothing(keys, folder):
    ids = Tokenizer(folder).encode("def <x>")
    change(folder / CONFIG, eos_token="<y>", **keys)
    assert Tokenizer(folder).encode("def <x>") == ids
    files = ModelFolder(folder)
    assert end_tokens(files) == end_tokens(files, find=Tokenizer(folder).token_id)


def test_a_frame_without_a_place_for_the_text_is_refused(folder):
    data = json.loads((folder / "tokenizer.json").read_text())
    second = [{"Sequence": {"id": "B", "type_id": 0}}]
    data["post_processor"] = {
        "type": "TemplateProcessing", "single": second, "pair": second, "special_tokens": {},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match="no place for a text alone"):
        Tokenizer(folder)


def test_a_template_that_makes_no_text_is_told(folder):
    change(folder / CONFIG, chat_template="\ud800{{ messages[0].content }}")
    with pytest.raises(UsageError, match="what the chat template makes is not UTF-8"):
        Tokenizer(folder).prompt_ids([{"role": "user", "content": "Hi"}])
