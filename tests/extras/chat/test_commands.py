"""Slash commands: each setting is parsed, shown and described as the flag of its name."""

from __future__ import annotations

import click
import pytest

from trtla.errors import UsageError
from trtla.extras.chat.command import chat
from trtla.extras.chat.settings import ChatSettings, read
from trtla.extras.chat.slash_commands import ACTIONS, SlashCommands
from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import declared
from trtla.settings.grammar import Grammar
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

COMMANDS = SlashCommands(click.Context(chat))
SETTINGS = {**declared(SamplingParams), **declared(DrafterSettings), **declared(ChatSettings)}
del SETTINGS["allotted_time_ms"]
OTHERS = ("lookahead", "processor", "json_schema", "regex", "grammar")
SPECULATIVE_DECODING = {
    **{name: name for name in ("help", "quit", "clear", "debug", "chat", "speculative", "target")},
    **{name: name for name in ("ngram", "drafter", "processor", "cache", "gamma", "egag")},
    **{name: name for name in ("top_k_filler", "reset_in_between", "set_ngramstorage")},
    "length": "max_output_len", "egag_gamma_min": "gamma_min", "egag_gamma_max": "gamma_max",
    "egag_ema": "ema",
}  # fmt: skip


def apply(line: str, settings: ChatSettings | None = None) -> ChatSettings:
    name, _, text = line.removeprefix("/").partition(" ")
    return COMMANDS.apply(COMMANDS.find(name), text.strip(), settings or ChatSettings())


def test_every_setting_of_an_answer_has_the_command_of_its_own_name() -> None:
    assert sorted(COMMANDS.names) == sorted([*ACTIONS, *SETTINGS, *OTHERS])


@pytest.mark.parametrize("name", SPECULATIVE_DECODING)
def test_commands_of_speculative_decoding_are_understood(name: str) -> None:
    assert COMMANDS.find(name) == SPECULATIVE_DECODING[name]


@pytest.mark.parametrize(
    ("line", "name", "value", "shown"),
    [
        ("/max_output_len 64", "max_output_len", 64, "64"),
        ("/max_output_len 1k", "max_output_len", 1000, "1000"),
        ("/length 64", "max_output_len", 64, "64"),
        ("/max_tokens 64", "max_output_len", 64, "64"),
        ("/SEED 3", "seed", 3, "3"),
        ("/egag-gamma-max 8", "gamma_max", 8, "8"),
        ("/gamma_max none", "gamma_max", None, "none"),
        ("/system Be  brief.", "system", "Be  brief.", "Be  brief."),
        ("/system none", "system", "", "none"),
        ("/temperature 0.5", "temperature", 0.5, "0.5"),
        ("/stop END of it", "stop", ("END of it",), '"END of it"'),
        ('/stop "a, b", "\\n"', "stop", ("a, b", "\n"), '"a, b", "\\n"'),
        ("/stop none", "stop", (), "none"),
        ("/stop_token_ids 17 4", "stop_token_ids", (17, 4), "17, 4"),
        ("/logit_bias 17:-5,4:2.5", "logit_bias", ((4, 2.5), (17, -5.0)), "4:2.5,17:-5"),
        ("/speculative off", "speculative", False, "off"),
        ("/speculative", "speculative", False, "off"),
        ("/debug on", "debug", True, "on"),
        ("/drafter lookahead, ngram", "drafter", ("lookahead", "ngram"), "lookahead,ngram"),
        ("/drafter none", "drafter", ("none",), "none"),
        ("/ngram_kind onelevel", "ngram_kind", "onelevel", "onelevel"),
        ("/lookahead 5,4,3", "lookahead", LookaheadConfig(5, 4, 3), "5,4,3"),
        ("/lookahead auto", "lookahead", "auto", "auto"),
        ("/regex [a b]+", "grammar", Grammar("regex", "[a b]+"), "[a b]+"),
    ],
)
def test_a_line_changes_a_setting_and_its_shown_value_means_itself(line, name, value, shown):
    command = COMMANDS.find(line.removeprefix("/").partition(" ")[0])
    settings = apply(line)
    assert read(settings, name) == value
    assert COMMANDS.shown(command, settings) == shown
    assert apply(f"/{command} {shown}", settings) == settings


def test_a_processor_changes_three_settings_and_a_storage_two() -> None:
    sampling = apply("/processor  topk   0.5 40", apply("/top_p 0.5")).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 40, 1.0)
    drafting = apply("/set_ngramstorage onelevel 4").drafting
    assert (drafting.ngram_kind, drafting.ngram_order) == ("onelevel", 4)


def test_one_grammar_replaces_another_from_a_file_or_as_it_is(tmp_path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    by_file = apply(f"/json_schema {tmp_path / 'schema.json'}")
    assert by_file.sampling.grammar == Grammar.of({"json_schema": {"type": "object"}})
    assert apply('/json-schema {"type": "object"}') == by_file
    by_rules = apply('/grammar start: "a"', by_file)
    assert by_rules.sampling.grammar == Grammar("lark", 'start: "a"')
    assert COMMANDS.shown("json_schema", by_rules) == "none"
    assert apply("/regex none", by_rules) == ChatSettings()


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("/lokahead 7,7,7", ["/lokahead is not a command", "did you mean /lookahead?"]),
        ("/num_predict 64", ["did you mean /max_output_len?"]),
        ("/threads 4", ["/threads is not a command; start again with --threads"]),
        ("/", ["/ is not a command", "/help all lists them"]),
        ('/stop "a', ['is not END, or "END"']),
        ('/stop "a", null', ['is not END, or "END"']),
        ('/stop "a", ' + "[" * 100_000, ['is not END, or "END"']),
        ("/system \udce4", ["system is not UTF-8"]),
        ("/gamma many", ["/gamma: 'many' is not a valid integer; write /gamma INTEGER"]),
        ("/gamma 0", ["gamma is 0; /gamma must be from 1 to 256"]),
        ("/gamma_min 9", ["gamma_min 9 is above gamma_max 4", "/gamma_max"]),
        ("/processor beam", ["processor beam is not known"]),
        ("/set_ngramstorage basic x", ["/ngram_order: 'x' is not a valid integer"]),
        ("/debug maybe", ["'maybe' is not a valid boolean; write /debug [on|off]"]),
        ("/drafter gpt", ["drafter 'gpt' is not known"]),
        ("/lookahead 7,7", ["/lookahead '7,7' is not a triple"]),
        ("/ngram_kind onelevl", ["'basic', 'onelevel'", "did you mean onelevel?"]),
        ("/json_schema {a", ["the JSON schema is not JSON"]),
    ],
)
def test_wrong_lines_are_one_line_that_helps(line, parts) -> None:
    with pytest.raises(UsageError) as caught:
        apply(line)
    said = COMMANDS.one_line(caught.value)
    assert "\n" not in said
    assert all(part in said for part in parts), said


def test_help_fits_a_screen_and_all_of_it_has_every_command() -> None:
    settings = apply("/system " + "You are a patient teacher. " * 9)
    lines = COMMANDS.help(settings, whole=False).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[0] == "/help"
    assert "[You are a patient...]" in " ".join(" ".join(lines).split())
    whole = COMMANDS.help(apply("/gamma 6"), whole=True)
    assert {line.split()[0] for line in whole.splitlines() if line.startswith("/")} == {
        f"/{name}" for name in COMMANDS.names
    }
    assert "propose in a step. [6]" in " ".join(whole.split())


def test_the_help_names_settings_by_their_commands() -> None:
    text = " ".join(COMMANDS.help(ChatSettings(), whole=True).split())
    assert "or /regex, /grammar. [none]" in text
    assert "Without one, or with /chat off, they are" in text
    assert "--" not in text
