"""--isolate-keys: what one key asks does not show in the answers of another."""

from __future__ import annotations

import pytest

from tests.support.command import refused, trtla
from tests.support.served import serving
from trtla.errors import UsageError
from trtla.settings.serving import ServeSettings

PROMPT = "def add(first, second):\n    return first + second\n\n" * 6


def asked_by(served, key, **body):
    served.http.headers["Authorization"] = f"Bearer {key}"
    answer = served.complete(prompt=PROMPT, max_tokens=24, temperature=0, metrics=True, **body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    sources = said["metrics"]["sources"]
    cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached, sources.get("requests", {}).get("accepted", 0), said["choices"][0]["text"]


def test_keys_share_unless_they_are_isolated():
    with serving(keys=(b"a", b"b")) as served:
        asked_by(served, "a")
        assert asked_by(served, "b")[0] > 0


def test_isolated_keys_share_nothing():
    with serving(keys=(b"a", b"b"), api_key_file="keys", isolate_keys=True) as served:
        alone = asked_by(served, "a")
        assert alone[:2] == (0, 0)
        assert asked_by(served, "b") == alone
        again = asked_by(served, "a")
        assert again[0] > 0
        assert again[2] == alone[2]
        assert asked_by(served, "b", cache="private") == alone


def test_isolation_needs_keys_and_nothing_that_mixes_them(tiny_llama, tmp_path):
    with pytest.raises(UsageError, match="isolate_keys keeps keys apart, and there are none"):
        ServeSettings(isolate_keys=True)
    serve = ("serve", "--engine-dir", tiny_llama, "--isolate-keys")
    refused(trtla(*serve), 2, "--api-key-file")
    (tmp_path / "keys").write_text("a\n")
    (tmp_path / "corpus.txt").write_text("def add(first, second):\n")
    serve += ("--api-key-file", tmp_path / "keys")
    saved = trtla(*serve, "--save-corpus", tmp_path / "corpus.jsonl")
    refused(saved, 2, "--save-corpus writes the texts of all keys")
    drafted_from = trtla(*serve, "--corpus", tmp_path / "corpus.txt")
    refused(drafted_from, 2, "corpus.txt is drafted from for all keys")
