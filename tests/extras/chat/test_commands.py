"""The table of commands: complete in help and completion, values that survive a round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.more_settings import NEW, More
from trtla.errors import UsageError
from trtla.extras.chat.settings import ChatSettings, changed, read
from trtla.extras.chat.slash_commands import (
    TABLE,
    commands_of,
    complete,
    find,
    help_text,
    one_line,
    split,
)
from trtla.extras.chat.values import Known
from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import declared
from trtla.settings.grammar import Grammar
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

SETTINGS = {**declared(SamplingParams), **declared(DrafterSettings)}
del SETTINGS["allotted_time_ms"]
REFERENCE = [
    *("help", "quit", "clear", "debug", "chat", "speculative", "target", "ngram"),
    *("processor", "cache"),
]
OURS = [
    *("lookahead", "system"),
    *("json_schema", "regex", "grammar"),
    *("exit", "retry", "undo", "stats", "save", "load", "reset", "colors"),
]
HIDDEN = {
    "length": "max_output_len", "egag_gamma_min": "gamma_min", "egag_gamma_max": "gamma_max",
    "egag_ema": "ema", "?": "help", "q": "quit",
    "bye": "quit", "new": "reset", "regen": "retry",
}  # fmt: skip
NAMES = [command.name for command in TABLE]


def others(kind: type) -> dict[str, object]:
    """Another value than the default of every setting that is a number, a switch or a choice."""
    values: dict[str, object] = {}
    for name, one in declared(kind).items():
        if one.type is bool:
            values[name] = not one.default
        elif one.choices:
            values[name] = one.choices[-1]
        elif one.type in (int, float) and not one.optional and name not in GIVEN:
            values[name] = one.default + 1 if one.type is int else 0.75
    return values


GIVEN = ("max_output_len", "temperature", "top_k", "top_p")
OTHER = ChatSettings(
    SamplingParams(
        max_output_len=64,
        temperature=0.7,
        top_k=40,
        top_p=0.9,
        stop=("END", "\n\n, "),
        logit_bias={17: -100, 4: 2.5},
        stop_token_ids=[9, 3],
        **others(SamplingParams),
    ),
    DrafterSettings(("ngram", "lookahead"), gamma_max=8, **others(DrafterSettings)),
    LookaheadConfig(5, 4, 3),
    speculative=False,
    target=True,
    debug=True,
    colors="source",
    system="Be brief.",
)


def completed(line: str, known: Known | None = None) -> list[str]:
    typed, items = complete(line, known or Known())
    return [line.removesuffix(typed) + item.value for item in items]


def apply(line: str, settings: ChatSettings) -> ChatSettings:
    command, text = split(line)
    return command.apply(text, settings)


def test_the_table_has_every_command_once():
    assert sorted(NAMES) == sorted([*REFERENCE, *OURS, *SETTINGS])


def test_every_setting_of_an_answer_has_the_command_of_its_own_name():
    assert [find(name).name for name in SETTINGS] == list(SETTINGS)


def everything(now=ChatSettings(), start=ChatSettings()):  # noqa: B008
    return help_text(now, start, whole=True, width=200)


@pytest.mark.parametrize("now", ["", "You are a patient teacher."])
def test_help_fits_a_screen(now):
    """24 lines, one of which is for what is typed next; narrower screens only make it longer."""
    settings = changed(ChatSettings(), {"system": now})
    lines = help_text(settings, settings, whole=False, width=80).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[:2]] == ["/help", "/quit"]
    assert "/temperature X " in "\n".join(lines)
    assert "/help all lists" in lines[-2]
    narrow = help_text(settings, settings, whole=True, width=60).splitlines()
    assert len(narrow) > len(TABLE)


@pytest.mark.parametrize("name", HIDDEN)
def test_other_names_are_understood_and_not_shown(name):
    assert find(name).name == HIDDEN[name]
    assert f"/{name} " not in everything()
    assert f"/{name}" not in completed(f"/{name}")


def test_the_storage_of_ngrams_is_two_settings():
    drafter = apply("/set_ngramstorage onelevel 4", ChatSettings()).drafter
    assert (drafter.ngram_kind, drafter.ngram_order) == ("onelevel", 4)
    for wrong in ("onelevel", "7", "basic x", "basic 3 4"):
        with pytest.raises(UsageError, match="/set_ngramstorage"):
            apply(f"/set_ngramstorage {wrong}", ChatSettings())


def test_help_shortens_a_long_value():
    long = changed(ChatSettings(), {"system": "You are a patient teacher. " * 20})
    (line,) = [one for one in everything(long, long).splitlines() if "/system" in one]
    assert "You are a patient..." in line


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_in_help_and_completion(name):
    text = everything()
    assert any(line.split()[0] == f"/{name}" for line in text.splitlines() if line)
    assert f"/{name}" in completed("/")
    assert f"/{name}" in completed(f"/{name[:2]}")


@pytest.mark.parametrize("settings", [ChatSettings(), OTHER])
@pytest.mark.parametrize("command", [c for c in TABLE if c.paths], ids=lambda c: c.name)
def test_a_shown_value_means_itself(command, settings):
    shown = command.shown(settings)
    if shown != "the default":
        assert command.apply(shown, settings) == settings


def test_one_grammar_replaces_another_from_a_file_or_as_it_is(tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    by_file = apply(f"/json_schema {tmp_path / 'schema.json'}", ChatSettings())
    assert by_file.sampling.grammar == Grammar.of({"json_schema": {"type": "object"}})
    assert apply('/json-schema {"type": "object"}', ChatSettings()) == by_file
    assert find("json_schema").shown(by_file) == '{"type":"object"}'
    assert find("regex").shown(by_file) == "off"
    by_regex = apply("/regex [a b]+", by_file)
    assert by_regex.sampling.grammar == Grammar("regex", "[a b]+")
    assert apply('/grammar start: "a"', by_file).sampling.grammar == Grammar("lark", 'start: "a"')
    assert apply("/regex off", by_regex) == ChatSettings()
    with pytest.raises(UsageError, match="/json_schema: the JSON schema is not JSON"):
        apply("/json_schema {a", by_regex)


def test_help_shows_values_now_and_at_the_start():
    text = everything(OTHER)
    (line,) = [line for line in text.splitlines() if line.startswith("/max_output_len")]
    assert line.endswith(" Most tokens to write. [64, at the start 2048]")
    (line,) = [line for line in text.splitlines() if line.startswith("/processor")]
    assert "topknucleus 0.7 40 0.9" in line


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("/length 64", "sampling.max_output_len", 64),
        ("/length    64  ", "sampling.max_output_len", 64),
        ("/SEED 3", "sampling.seed", 3),
        ("/egag-gamma-max 8", "drafter.gamma_max", 8),
        ("/egag_gamma_max gamma", "drafter.gamma_max", None),
        ("/system  Be  brief.", "system", "Be  brief."),
        ("/system off", "system", ""),
        ("/temperature 0.5", "sampling.temperature", 0.5),
        ("/stop END of it", "sampling.stop", ("END of it",)),
        ('/stop "a, b", "\\n"', "sampling.stop", ("a, b", "\n")),
        ("/stop none", "sampling.stop", ()),
        ("/stop_token_ids 17, 4", "sampling.stop_token_ids", (17, 4)),
        ("/stop_token_ids none", "sampling.stop_token_ids", ()),
        ("/speculative off", "speculative", False),
        ("/speculative", "speculative", False),
        ("/debug on", "debug", True),
        ("/drafter lookahead, ngram", "drafter.drafter", ("lookahead", "ngram")),
        ("/lookahead 5,4,3", "lookahead", LookaheadConfig(5, 4, 3)),
        ("/lookahead off", "lookahead", LookaheadConfig(1, 1, 0)),
        ("/lookahead auto", "lookahead", "auto"),
    ],
)
def test_lines_change_settings(line, path, value):
    assert read(apply(line, ChatSettings()), path) == value


def test_a_processor_changes_three_settings():
    sampling = apply("/processor  topk   0.5 40", OTHER).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 40, 1.0)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("/lokahead 7,7,7", ["/lokahead is not a command", "did you mean /lookahead?"]),
        ("/spec", ["did you mean /speculative?"]),
        ("/len 64", ["did you mean /max_output_len?"]),
        ("/ngram_", ["did you mean /ngram_kind or /ngram_order?"]),
        ("/system_prompt Be brief.", ["did you mean /system?"]),
        ("/num_predict 64", ["did you mean /max_output_len?"]),
        ("/max_tokens 64", ["did you mean", "/max_output_len"]),
        ('/stop "a', ["is not texts in quotes", '"END"']),
        ("/system \udce4", ["the system message is not UTF-8"]),
        ("/", ["/ is not a command", "/help"]),
        ("/gamma many", ["/gamma: 'many' is not a valid integer"]),
        ("/gamma 0", ["gamma is 0", "/gamma must be"]),
        ("/length 0", ["max_output_len is 0", "/max_output_len must be"]),
        ("/egag_gamma_min 9", ["gamma_min 9 is above gamma_max 4", "/gamma_max"]),
        ("/egag_ema 1", ["ema is 1.0", "/ema must be"]),
        ("/processor topk 0.5", ["/processor: processor topk:0.5 has 1 values"]),
        ("/processor beam", ["processor beam is not known"]),
        ("/debug maybe", ["'maybe' is not one of 'on', 'off'", "write /debug [on|off]"]),
        ("/drafter on", ["drafter 'on' is not known", "use none, lookahead"]),
        ("/drafter gpt", ["drafter 'gpt' is not known"]),
        ("/lookahead 7,7", ["is not a triple"]),
        ("/ngram_kind tree", ["'tree' is not one of 'basic', 'onelevel'"]),
    ],
)
def test_wrong_lines_are_one_line_that_helps(line, parts):
    with pytest.raises(UsageError) as caught:
        apply(line, ChatSettings())
    said = one_line(caught.value)
    assert "\n" not in said
    for part in parts:
        assert part in said
    assert "--" not in said


@given(st.sampled_from(NAMES), st.text(max_size=20))
def test_no_argument_breaks_a_command(name, text):
    command = find(name)
    said = "nothing"
    try:
        command.parse(text)
        if command.paths:
            command.apply(text, OTHER)
    except UsageError as error:
        said = one_line(error)
    assert said
    assert "\n" not in said


@given(st.text(max_size=30))
def test_completion_takes_any_line(line):
    typed, _ = complete("/" + line, Known())
    assert ("/" + line).endswith(typed)


def test_completion_knows_values():
    known = Known("5,5,5", ("small",))
    assert completed("/lookahead ", known) == [
        "/lookahead 5,5,5", "/lookahead auto", "/lookahead off",
    ]  # fmt: skip
    assert "/drafter draft:small" in completed("/drafter dr", known)
    assert completed("/drafter lookahead,ng", known) == ["/drafter lookahead,ngram"]
    assert completed("/debug o", known) == ["/debug on", "/debug off"]
    assert completed("hello", known) == []
    assert completed("/processor topk", known) == [
        "/processor topk 0.8 40", "/processor topknucleus 0.8 40 0.9",
    ]  # fmt: skip


def test_completion_lists_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.json").touch()
    (tmp_path / "old").mkdir()
    assert completed("/load ") == ["/load chat.json", "/load old/"]
    assert completed(f"/load {tmp_path}/ch") == [f"/load {tmp_path}/chat.json"]


def test_the_chat_has_a_command_for_each() -> None:
    commands = {one.name: one for one in commands_of(More, "drafter")}
    typed = {"width": "3", "weight": "0.25", "eager": "on", "careful": "off", "room": "7"}
    for name, text in {**typed, "order": "first_come"}.items():
        assert commands[name].parse(text) == NEW[name]
        assert commands[name].paths == (f"drafter.{name}",)
        assert commands[name].help == declared(More)[name].option.help
    assert commands["room"].parse("width") is None
    assert commands["order"].usage == "/order first_come|best"
