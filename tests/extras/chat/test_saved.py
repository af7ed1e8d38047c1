"""/save and /load: strict files, one-line refusals, nothing of others overwritten."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.extras.chat.conftest import lines
from trtla.errors import UsageError
from trtla.extras.chat.conversation import Turn
from trtla.extras.chat.settings import Chat, ChatSettings, changed, load, save
from trtla.settings.sampling import SamplingParams

CHAT = Chat("tiny", 2048, ChatSettings(), (Turn("a", "b", (1, 2), "cancelled"),))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "chat.json"
    save(path, CHAT)
    return path


def test_a_file_holds_everything(file):
    assert load(file, ChatSettings()) == CHAT
    assert json.loads(file.read_text())["schema_version"] == 1


@pytest.mark.parametrize("grammar", [None, {"regex": "a+"}, {"choice": ["a", "b"]}])
def test_penalties_biases_and_grammars_are_kept(tmp_path, grammar):
    own = SamplingParams(repetition_penalty=1.1, logit_bias={17: -5, 3: 2.5}, grammar=grammar)
    settings = changed(ChatSettings(), {"sampling": own})
    save(tmp_path / "chat.json", replace(CHAT, settings=settings))
    assert load(tmp_path / "chat.json", ChatSettings()).settings == settings


def test_a_system_message_is_kept(tmp_path):
    settings = changed(ChatSettings(), {"system": "Be\nbrief."})
    save(tmp_path / "chat.json", replace(CHAT, settings=settings))
    assert load(tmp_path / "chat.json", ChatSettings()).settings == settings


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"extra": 1}, 'unknown key "extra"'),
        ({"turns": [{"message": "a"}]}, "answer"),
        ({"turns": None}, "turns"),
        ({"vocab_size": "2048"}, "vocab_size"),
        ({"settings": {}}, 'settings: "max_output_len" is missing'),
    ],
)
def test_other_files_are_refused(file, change, part):
    data = json.loads(file.read_text()) | change
    file.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=part):
        load(file, ChatSettings())


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_no_text_breaks_loading(file, text, session):
    file.write_text(text)
    assert lines(session, f"/load {file}").refusals


def test_impossible_settings_are_refused(file, session):
    data = json.loads(file.read_text())
    data["settings"] |= {"drafter": ["draft:elsewhere"], "max_output_len": 24}
    file.write_text(json.dumps(data))
    (refusal,) = lines(session, f"/load {file}").refusals
    assert "--draft-model elsewhere" in refusal
    assert session.turns == []


@pytest.mark.parametrize(("key", "value"), [("vocab_size", 99), ("ids", [5000])])
def test_another_models_chat_is_refused(file, session, key, value):
    data = json.loads(file.read_text())
    if key == "ids":
        data["turns"][0]["answer_ids"] = value
    else:
        data[key] = value
    file.write_text(json.dumps(data))
    (refusal,) = lines(session, f"/load {file}").refusals
    assert "vocabulary" in refusal


def test_files_of_others_stay(tmp_path):
    path = tmp_path / "notes.json"
    path.write_text('{"mine": 1}')
    with pytest.raises(UsageError, match="no saved chat"):
        save(path, CHAT)
    assert path.read_text() == '{"mine": 1}'


@pytest.mark.parametrize("name", ["no/such/folder/chat.json", "a\0b", "."])
def test_what_cannot_be_written_is_said(tmp_path, monkeypatch, name):
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        save(Path(name), CHAT)
