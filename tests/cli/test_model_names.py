"""How a model is named: by one flag with three names everywhere, or first, without a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import refused, trtla
from trtla.cli.app import cli
from trtla.cli.shared.params import ModelPath

_SHORT = ("-p", "ab", "-n", "4", "-q")


def test_one_flag_has_the_same_names_everywhere() -> None:
    for name, command in cli.commands.items():
        opts = {opt for param in command.params for opt in param.opts}
        if name not in ("report", "completion"):
            assert {"-m", "--model"} <= opts, name
        if name not in ("report", "completion", "convert", "build"):
            assert "--engine-dir" in opts, name


def test_a_model_stands_first_or_behind_a_flag(engine: Path) -> None:
    said = trtla("run", "-m", engine, *_SHORT).out
    for args in (("--model", engine, *_SHORT), ("--engine-dir", engine, *_SHORT),
                 (engine, *_SHORT), (engine, "ab", "-n", "4", "-q"),
                 ("-n", "4", "-q", engine, "ab"), (engine, "-m", engine, *_SHORT)):  # fmt: skip
        ran = trtla("run", *args)
        assert (ran.code, ran.out) == (0, said), (args, ran.err)
    both = trtla("run", engine, "ab", "-p", "cd", "-n", "4", "-q").out
    assert both == said + trtla("run", engine, "cd", "-n", "4", "-q").out
    assert trtla("chat", engine, "-q", stdin="").code == 0
    for command in ("doctor", "inspect"):
        ran = trtla(command, engine, "--json")
        for flag in ("-m", "--model", "--engine-dir"):
            assert trtla(command, flag, engine, "--json").code == ran.code


@pytest.mark.parametrize("command", ["run", "chat", "serve", "doctor", "inspect"])
def test_two_models_are_one_too_many(command: str, engine: Path) -> None:
    ran = trtla(command, engine, "-m", "other")
    refused(ran, 2, f"two models are named: other and {engine}", "name one")
    assert ("a prompt is given with -p" in ran.err) is (command == "run")


def test_what_stands_first_wins_over_the_environment(engine: Path) -> None:
    ran = trtla("run", engine, *_SHORT, env={"TRTLA_RUN_ENGINE_DIR": "absent"})
    assert ran.code == 0, ran.err
    ran = trtla("run", *_SHORT, env={"TRTLA_RUN_ENGINE_DIR": str(engine)})
    assert ran.code == 0, ran.err


def test_what_is_left_over_is_explained(engine: Path) -> None:
    refused(trtla("run", engine, "to", "be"), 2, "argument (be)", "put quotes around a prompt")
    refused(trtla("inspect"), 2, "missing option", "give -m")


def test_every_flag_that_needs_a_model_takes_one_by_name() -> None:
    flags = {
        opt for command in cli.commands.values() for param in command.params
        if isinstance(param.type, ModelPath) for opt in param.opts
    }  # fmt: skip
    assert {"-m", "--tokenizer-dir", "--checkpoint-dir", "--model-dir"} <= flags
