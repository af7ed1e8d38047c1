"""Tokenising without transformers: the same ids and texts, and only where that is certain."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtla.llm.text import Tokenizer
from trtla.llm.tokenizer_files import open_tokenizer_json


@pytest.fixture(scope="module")
def shipped(tiny_llama):
    return Tokenizer(tiny_llama)


@pytest.fixture
def folder(tiny_llama, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_llama / name, tmp_path / name)
    return tmp_path


def change(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_shipped_tokenizer_needs_no_transformers(folder):
    assert open_tokenizer_json(folder) is not None


@given(text=st.text())
def test_texts_become_the_same_ids_as_in_transformers(shipped, text):
    assert shipped.encode(text) == tuple(shipped.inner.encode(text))


@given(ids=st.lists(st.integers(0, 2047)))
def test_ids_become_the_same_text_as_in_transformers(shipped, ids):
    expected = shipped.inner.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert shipped.decode(ids) == expected


CONFIG = "tokenizer_config.json"


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (CONFIG, {"tokenizer_class": "LlamaTokenizer"}),
        (CONFIG, {"add_bos_token": True}),
        (CONFIG, {"eos_token": "<|elsewhere|>"}),
        (CONFIG, {"eos_token": {"content": "<|elsewhere|>"}}),
        (CONFIG, {"additional_special_tokens": ["<|elsewhere|>"]}),
        (CONFIG, {"added_tokens_decoder": {"7": {"content": "x", "special": True}}}),
        (CONFIG, None),
        ("tokenizer.json", {"post_processor": {"type": "TemplateProcessing"}}),
    ],
)
def test_what_is_not_all_of_it_in_tokenizer_json_is_left_to_transformers(folder, file, changes):
    if changes is None:
        (folder / file).unlink()
    else:
        change(folder / file, **changes)
    assert open_tokenizer_json(folder) is None


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
