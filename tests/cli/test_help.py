"""--help: complete, pinned in docs/commands.md, and light: no torch, no transformers, no rich."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import pytest

from tests.support.command import ROOT, imports, known, needs, process, refused, there, trtla
from trtla.cli.app import cli
from trtla.cli.commands import COMMANDS, ORDER, extension
from trtla.cli.shared.command import ALL
from trtla.cli.shared.params import ModelPath, Setting
from trtla.errors import flag_name

SHIPPED = ROOT / "trtla" / "assets" / "tiny-llama"
DOCS = ROOT / "docs" / "commands.md"
_HEAVY = ("torch", "transformers", "numpy", "datasets", "rich", "safetensors", "pydantic",
          "prompt_toolkit")  # fmt: skip


def render() -> str:
    """docs/commands.md: the help of every command, 100 columns wide."""
    parts = [
        "# The command line\n",
        "The output of `trtla --help` and of each command's `--help-all`; made by\n"
        "`TRTLA_UPDATE_DOCS=1 scripts/test.sh tests/cli/test_help.py`.\n",
    ]
    root = click.Context(cli, info_name="trtla", terminal_width=100, **cli.context_settings)
    parts.append(f"## trtla\n\n```\n{cli.get_help(root)}\n```\n")
    for name in COMMANDS:
        command = COMMANDS[name]
        ctx = click.Context(command, parent=root, info_name=name, terminal_width=100)
        ctx.meta[ALL] = True
        parts.append(f"## trtla {name}\n\n```\n{command.get_help(ctx)}\n```\n")
    return "\n".join(parts)


@pytest.mark.skipif(extension("serve") is None, reason="serve has no --ray")
@needs(*ORDER)
def test_docs_are_the_help() -> None:
    if os.environ.get("TRTLA_UPDATE_DOCS"):
        DOCS.write_text(render(), encoding="utf-8")
    assert DOCS.read_text(encoding="utf-8") == render(), "set TRTLA_UPDATE_DOCS=1 to regenerate"


_TEXT = ["--engine-dir", "e", "--input-text", "a"]


def test_help_imports_nothing_heavy() -> None:
    helps = known(["run", "--help"], ["build", "-h"], ["chat", "--help-all"])
    imports(["--help"], ["--version"], *helps, heavy=_HEAVY)


def test_a_command_imports_no_other() -> None:
    others = ("trtla.cli.serve.serve", "trtla.cli.run.summarize", "trtla.extras.bench.command")
    imports(["--help"], heavy=("trtla.runtime", "trtla.cli.run.run", *others))
    imports(["run", "--help"], heavy=others)


def test_the_list_says_what_each_command_says() -> None:
    listed = " ".join(trtla("--help").out.split())
    for name, command in COMMANDS.items():
        assert f" {name} {command.get_short_help_str(limit=200)}" in listed


def test_commands_that_take_gguf_files_say_so() -> None:
    listed = trtla("--help").out
    for name in ("convert", "build"):
        assert re.search(rf"^  {name} .*GGUF file", listed, re.MULTILINE)
        assert f"trtla {name} model.gguf" in trtla(name, "--help").out


def test_what_is_refused_without_a_model_never_loads_torch() -> None:
    lines = known(
        ["run", *_TEXT, "--request-lookahead", "1,2"],
        ["run", *_TEXT, "--temperature", "-1"],
        ["run", *_TEXT],
        ["summarize", "--engine-dir", "absent", "--dataset", "absent.jsonl"],
        ["bench", "--engine-dir", "absent"],
        ["build", "--checkpoint-dir", "c", "--output-dir", "o", "--lookahead", "0,7,7"],
        ["convert", "--model-dir", "m", "--output-dir", "o", "--calib-size", "3"],
    )
    imports(*lines, heavy=("torch",), code=2)


def test_help_shows_defaults_and_says_once_how_the_environment_is_read() -> None:
    text = " ".join(trtla("run", "--help-all").out.split())
    assert "-n, --max-output-len COUNT Most tokens to write. [default: (the room " in text
    assert text.count("TRTLA_RUN_") == 2
    assert "set as TRTLA_RUN_<OPTION> in the environment" in text
    assert "TRTLA_COMPLETION" not in trtla("completion", "--help").out


@pytest.mark.parametrize("args", [(), ("-q",)])
def test_without_a_command_the_help_is_printed(args: tuple[str, ...]) -> None:
    ran = trtla(*args)
    assert (ran.code, ran.out, ran.err) == (2, trtla("--help").out, "")
    assert trtla("-h").out == ran.out
    assert trtla("--version").out.startswith("trtla 0.")
    assert trtla("-V").out == trtla("--version").out
    assert len(ran.out.splitlines()) > 20


def test_python_m_trtla_prints_the_help_too() -> None:
    done = process()
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("Usage: trtla [OPTIONS] COMMAND [ARGS]...\n")
    assert "Start with:\n  trtla run model.gguf " in done.stdout


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--dtype", "qqq"), "bfloat16"),
        (("--bogus",), "--bogus"),
        (("--dtype", "float8"), "--dtype"),
        (("--dtype", "int8"), "--dtype"),
    ],
)
def test_what_is_like_nothing_or_another_name_is_not_guessed(
    args: tuple[str, ...], part: str
) -> None:
    ran = trtla("run", *_TEXT, *args)
    refused(ran, 2, args[-1], part)
    assert "did you mean" not in ran.err


def test_a_typo_is_guessed(tmp_path: Path) -> None:
    preset = tmp_path / "own.yaml"
    preset.write_text("max_batch_sise: 4\n")
    refused(trtla("build", "--config", preset), 2, "max_batch_sise", "did you mean max_batch_size?")
    refused(trtla("biuld"), 2, "biuld is not a command", "did you mean build? see trtla --help")
    refused(trtla("generate"), 2, "generate is not a command", "did you mean run?")
    refused(trtla("run", "--egine-dir", "x"), 2, "--egine-dir", "--engine-dir")


@pytest.mark.parametrize(
    ("args", "wrong", "meant"),
    [
        (["run", *_TEXT, "--drafter", "ngarm"], "ngarm", "ngram"),
        (["run", *_TEXT, "--processor", "nuclues:1:1"],
         "nuclues", "nucleus"),
        (["bench", "--engine-dir", str(SHIPPED), "--compare", "hf-asisted"], "hf-asisted",
         "hf-assisted"),
        (["bench", "--engine-dir", str(SHIPPED), "--prompts", "cod"], "cod", "code"),
    ],
)  # fmt: skip
def test_a_mistyped_value_is_guessed(args: list[str], wrong: str, meant: str) -> None:
    if not there(args[0]):
        pytest.skip(f"there is no command {args[0]}")
    ran = trtla(*args)
    refused(ran, 2, wrong, "did you mean ")
    assert meant in ran.err.partition("did you mean ")[2].partition("?")[0]


@pytest.mark.parametrize(
    ("command", "wrong", "parts"),
    [
        ("run", "--verbos", ("no such option '--verbos'", "hint: did you mean --verbose? see tr")),
        ("run", "--max-output", ("hint: did you mean --max-output-len? see trtla run",)),
        ("run", "--max-tokns", ("hint: did you mean --max-tokens? see trtla run",)),
        ("run", "--max-new-tokens", ("hint: did you mean --max-output-len? see trtla run",)),
        ("run", "--temp", ("hint: did you mean --temperature? see trtla run",)),
        ("run", "--prompts", ("hint: did you mean --input-file? see trtla run",)),
        ("bench", "--input-file", ("hint: did you mean --prompts? see trtla bench",)),
        ("run", "--prompt", ("hint: did you mean --input-text? see trtla run",)),
        ("run", "--model-path", ("hint: did you mean --model? see trtla run",)),
        ("serve", "--n-gpu-layers", ("hint: did you mean --device?",)),
        ("serve", "--ctx-size", ("hint: did you mean --max-seq-len?",)),
        ("serve", "--max-model-len", ("hint: did you mean --max-seq-len?",)),
        ("serve", "-np", ("no such option '-np'", "hint: did you mean --max-batch-size?")),
        ("serve", "--speculative-config", ("hint: did you mean --drafter?",)),
        ("serve", "--enable-prefix-caching", ("did you mean --kv-cache-enable-block-reuse?",)),
        ("serve", "--tool-call-parser", ("hint: omit it, the model's chat template decides",)),
        ("run", "--model-draft", ("hint: name the draft model by --drafter draft:PATH",)),
        ("run", "-md", ("no such option '-md'", "--drafter draft:PATH")),
        ("run", "-ctk", ("no such option '-ctk'", "--kv-cache-dtype int8")),
        ("run", "-fa", ("no such option '-fa'", "hint: omit it")),
        ("run", "-ngl", ("no such option '-ngl'", "hint: did you mean --device?")),
        ("run", "-f", ("-p - < FILE",)),
        ("chat", "-cnv", ("no such option '-cnv'", "trtla chat talks")),
        ("run", "--lora", ("hint: trtla has nothing of the kind",)),
        ("run", "--port", ("hint: trtla serve has --port",)),
        ("run", "--api-key", ("hint: trtla serve has --api-key-file",)),
        ("serve", "--prompt", ("hint: trtla run has --input-text",)),
        ("serve", "--top-k", ("hint: requests bring top_k",)),
        ("serve", "--temp", ("hint: requests bring temperature",)),
        ("serve", "-n", ("hint: requests bring max_tokens",)),
        ("serve", "--alias", ("hint: did you mean --served-model-name?",)),
        ("serve", "--cache-reuse", ("did you mean --kv-cache-enable-block-reuse?",)),
        ("run", "--draft-max", ("hint: did you mean --gamma?",)),
        ("run", "--grammar-file", ("hint: did you mean --grammar?",)),
        ("run", "--system-prompt", ("hint: did you mean --system?",)),
    ],
)
def test_a_mistyped_flag_is_guessed(command: str, wrong: str, parts: tuple[str, ...]) -> None:
    if not there(command):
        pytest.skip(f"there is no command {command}")
    refused(trtla(command, "-m", "x", wrong, "9"), 2, *parts)


def test_options_of_one_dash_are_no_values_but_may_be() -> None:
    several = ("run", "-m", "x", "-p", "hi", "-np", "4", "-n", "2")
    refused(trtla(*several), 2, "no such option '-np'", "did you mean --max-batch-size?")
    for taken in (("-p", "-np"), ("--", "x", "-np")):
        refused(trtla("run", "-m", "x", *taken), 2, "x does not exist")
    refused(trtla("pull", "llama3"), 2, "pull is not a command", "org/name")
    refused(trtla("run", "llama3", "hi"), 2, "llama3 does not exist", "the hub is org/name")


def test_a_model_in_a_wrong_place_is_shown_its_place(tmp_path: Path) -> None:
    model = tmp_path / "a_model.gguf"
    model.touch()
    refused(trtla(model), 2, f"{model} is not a command", f"trtla chat {model}")
    refused(trtla("run", "-p", "hi"), 2, "missing option", "give -m a model folder or a GGUF")
    for name, hint in (("model.safetensors", "the folder that holds it"), ("a.png", "a GGUF file")):
        (tmp_path / name).touch()
        refused(trtla("run", tmp_path / name, "-p", "a"), 2, f"{name} is not a folder", hint)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_short_and_help_all_is_complete(name: str) -> None:
    ran = trtla(name, "--help")
    assert (ran.code, ran.out) == (0, trtla(name, "-h").out)
    assert "Examples:" in ran.out
    assert f"trtla {name}" in ran.out
    short = ran.out.splitlines()
    assert len(short) <= 42, len(short)
    assert max(map(len, short)) <= 100
    words = " ".join(ran.out.split())
    for one in COMMANDS[name].params:
        if isinstance(one, Setting) and one.basic and not one.hidden:
            sentence = (one.help or "").partition(". ")[0]
            assert sentence in re.sub(r"(?<=\w-) ", "", words), "it wraps, and is not cut"
    if any("--help-all shows all" in line for line in short):
        ran = trtla(name, "--help-all")
        assert ran.code == 0
        shown = {param for param in COMMANDS[name].params if isinstance(param, click.Option)}
        for param in shown:
            assert param.hidden or any(name in ran.out for name in param.opts), param.opts


_SHORT = ("-p", "ab", "-n", "4", "-q")


def test_one_flag_has_the_same_names_everywhere() -> None:
    for name, command in COMMANDS.items():
        opts = {opt for param in command.params for opt in param.opts}
        if name not in ("report", "completion"):
            assert {"-m", "--model", "model"} <= opts, name
        if name not in ("report", "completion", "convert", "build"):
            assert "--engine-dir" in opts, name
        shown = {
            opt
            for param in command.params
            if not getattr(param, "hidden", False)
            for opt in param.opts
            if opt != flag_name(getattr(param, "alias", ""))
        }
        if "--output" in shown or "--output-dir" in shown:
            assert "-o" in shown, name
        assert not shown & {"--output-len", "--max-input-length"}


def test_a_model_stands_first_or_behind_a_flag(engine: Path) -> None:
    said = trtla("run", "-m", engine, *_SHORT).out
    for args in (("--model", engine, *_SHORT), ("--engine-dir", engine, *_SHORT),
                 (engine, *_SHORT), (engine, "ab", "-n", "4", "-q"),
                 ("-n", "4", "-q", engine, "ab"), (engine, "-m", engine, *_SHORT)):  # fmt: skip
        ran = trtla("run", *args)
        assert (ran.code, ran.out) == (0, said), (args, ran.err)
    both = trtla("run", engine, "ab", "-p", "cd", "-n", "4", "-q").out
    assert both == said + trtla("run", engine, "cd", "-n", "4", "-q").out
    for line in known(("chat", engine, "-q")):
        assert trtla(*line, stdin="").code == 0
    for command in there("doctor", "inspect"):
        ran = trtla(command, engine, "--json")
        for flag in ("-m", "--model", "--engine-dir"):
            assert trtla(command, flag, engine, "--json").code == ran.code


def test_tensorrt_llms_names_of_flags_are_taken() -> None:
    """A value that is refused after both are known names the same in both cases."""
    names = {"--max-input-length": "--max-input-len", "--output-len": "--max-output-len"}
    for theirs, flag in names.items():
        for name in (theirs, flag):
            said = ("'0' is not a whole number", f"'{name}'")
            refused(trtla("summarize", SHIPPED, name, "0"), 2, *said)


@pytest.mark.parametrize(
    "command",
    there("run", "chat", "serve", "explain", "bench", "tune", "summarize", "build", "convert",
          "doctor", "inspect"),
)  # fmt: skip
def test_two_models_are_one_too_many(command: str, engine: Path) -> None:
    needed = {"explain": ("-p", "a"), "convert": ("-o", "out")}.get(command, ())
    ran = trtla(command, engine, "-m", "other", *needed)
    refused(ran, 2, f"two models are named: other and {engine}", "name one")
    assert ("a prompt is given with -p" in ran.err) is (command in ("run", "explain"))


def test_what_stands_first_wins_over_the_environment(engine: Path) -> None:
    ran = trtla("run", engine, *_SHORT, env={"TRTLA_RUN_ENGINE_DIR": "absent"})
    assert ran.code == 0, ran.err
    ran = trtla("run", *_SHORT, env={"TRTLA_RUN_ENGINE_DIR": str(engine)})
    assert ran.code == 0, ran.err


def test_what_is_left_over_is_explained(engine: Path) -> None:
    refused(trtla("run", engine, "to", "be"), 2, "argument (be)", "put quotes around a prompt")
    refused(trtla("run", "-p", "a"), 2, "missing option", "give -m")


def test_every_flag_that_needs_a_model_takes_one_by_name() -> None:
    flags = {
        opt for command in COMMANDS.values() for param in command.params
        if isinstance(param.type, ModelPath) for opt in param.opts
    }  # fmt: skip
    assert {"-m", "--tokenizer-dir", "--checkpoint-dir", "--model-dir"} <= flags


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["run", *_TEXT, "--num-predict", "5"], ["did you mean --max-output-len?"]),
        (["run", *_TEXT, "--num-ctx", "5"], ["did you mean --max-seq-len?"]),
        (["build", str(SHIPPED), "-o", "x", "--tp-size", "2"], ["trtla convert has --tp-size"]),
        (["build", str(SHIPPED), "-o", "x", "--dtype", "fp8"],
         ["trtla convert MODEL -o CKPT --dtype fp8, and trtla build CKPT -o ENGINE"]),
    ],
)  # fmt: skip
def test_hints_lead_to_what_serves(args: list[str], parts: list[str]) -> None:
    refused(trtla(*args), 2, *parts)
