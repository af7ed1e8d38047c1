"""Turns become prompts, old turns make room, and files keep both; other files are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.extras.chat.conftest import lines
from trtla.errors import UsageError
from trtla.extras.chat.conversation import Turn, fitted, load, prompt_of, save
from trtla.extras.chat.settings import ChatSettings, changed
from trtla.settings.lookahead import LookaheadConfig

USUAL = ChatSettings()
TURNS = [Turn("a", "b"), Turn("c é", "d\n")]


class Letters:
    """A tokenizer with an id for each character."""

    def prompt_ids(self, prompt: str | Sequence[dict[str, str]]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            prompt = "".join(f"[{m['role'][0]}]{m['content']}." for m in prompt) + "[a]"
        return tuple(map(ord, prompt))


words = st.text("abc ", min_size=1, max_size=6)


@given(
    st.lists(st.builds(Turn, words, words), max_size=4), words, st.integers(0, 60), st.booleans()
)
def test_the_oldest_turns_make_room_and_no_more_than_needed(past, message, room, chat):
    settings = ChatSettings(chat=chat, system="s" * chat)

    def ids_without(count: int) -> tuple[int, ...]:
        return Letters().prompt_ids(prompt_of(past[count:], message, settings))

    ids, dropped = fitted(past, message, Letters(), settings, room)
    assert ids == ids_without(dropped)
    if len(ids) > room:
        assert dropped == len(past)
    if dropped:
        assert len(ids_without(dropped - 1)) > room


def test_a_prompt_is_messages_or_a_text_with_each_message_on_a_line() -> None:
    messages = prompt_of(TURNS[:1], "c", ChatSettings(system="s"))
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"),
    ]  # fmt: skip
    assert prompt_of(TURNS[:1], "c", ChatSettings(chat=False)) == "ab\nc"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "chat.json"
    save(path, TURNS, changed(USUAL, {"gamma": 6}), USUAL)
    return path


def test_a_file_holds_messages_and_the_settings_that_differ(file):
    data = json.loads(file.read_text())
    assert data["settings"] == {"gamma": 6}
    assert data["messages"][2] == {"role": "user", "content": "c é"}


@pytest.mark.parametrize(
    "values",
    [
        {"system": "Be\nbrief.", "max_output_len": 64, "repetition_penalty": 1.1, "stop": ["END"]},
        {"logit_bias": {17: -5, 3: 2.5}, "stop_token_ids": [9], "lookahead": "auto"},
        {"lookahead": LookaheadConfig(5, 4, 3), "drafter": ("ngram", "lookahead"), "ema": 0.5},
        {"grammar": {"regex": "a+"}, "chat": True, "speculative": False, "debug": True},
    ],
)
def test_every_kind_of_setting_is_kept(file, values):
    settings = changed(USUAL, values)
    save(file, TURNS, settings, USUAL)
    assert load(file) == (TURNS, settings)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "not questions with answers"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "is not UTF-8"),
        ({"messages": None}, "not a list"),
        ({"settings": None}, "not a saved chat"),
        ({"settings": {"gama": 6}}, "unknown setting 'gama'"),
        ({"settings": {"gamma": "6"}}, "gamma is '6'"),
        ({"settings": {"debug": 1}}, "debug is 1"),
        ({"settings": {"lookahead": 5}}, "not a triple"),
    ],
)
def test_other_contents_are_refused(file, change, part):
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UsageError, match=part):
        load(file)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, '{"a": ' + "9" * 5000])
def test_no_text_breaks_loading(file, text, session):
    file.write_text(text)
    assert lines(session, f"/load {file}").refusals


def test_files_of_others_stay(tmp_path):
    path = tmp_path / "notes.json"
    path.write_text('{"mine": 1}')
    with pytest.raises(UsageError, match="not a saved chat"):
        save(path, TURNS, USUAL, USUAL)
    assert path.read_text() == '{"mine": 1}'


def test_a_refused_setting_names_the_file(file, session):
    file.write_text('{"messages": [], "settings": {"temperature": -1}}')
    (refusal,) = lines(session, f"/load {file}").refusals
    assert refusal.startswith(f"{file}: temperature is -1")


@pytest.mark.parametrize("line", ["/save /dev/zero", "/load /dev/zero"])
def test_a_device_without_end_is_not_read(session, line):
    assert "is not a regular file" in lines(session, line).refusals[0]


@pytest.mark.parametrize("name", ["no/such/folder/chat.json", "a\0b", ".", "", "~nobody/chat"])
def test_a_path_that_cannot_be_written_is_refused(session, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert lines(session, f"/save {name}").refusals
