"""A setting is declared once: flag, environment, preset, prompt file, chat and Python follow."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.support.more_settings import ARGS, NEW, More
from trtla import LLM, AsyncLLM
from trtla.api.errors import refused
from trtla.cli.shared.command import Command
from trtla.cli.shared.options import options_of
from trtla.data.prompts import prompt_line
from trtla.errors import UsageError, named, trtllm_cannot
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ExecutorOptions, TrtllmSettings
from trtla.settings.fields import declared, flag_name, parsed, wrong
from trtla.settings.sampling import BeamSettings, SamplingParams


@dataclass(frozen=True)
class DraftFlags:
    loud: bool
    drafter: More


@click.command(cls=Command)
@click.option("--loud", is_flag=True)
@options_of(More, "Drafters")
@click.pass_context
def draft(ctx: click.Context, /, **flags: Any) -> None:
    ctx.obj.append(parsed(DraftFlags, flags))


def made(*args: str, **env: str) -> More:
    kept: list[DraftFlags] = []
    ran = CliRunner().invoke(
        draft, args, obj=kept, env=env, auto_envvar_prefix="TRTLA_DRAFT", catch_exceptions=False
    )
    assert ran.exit_code == 0, ran.output
    assert not kept[0].loud
    return kept[0].drafter


def test_flags_environment_and_presets_come_from_the_declaration(tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    given = {**NEW, "names": ["a", "b"], "order": "first-come"}
    preset.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in given.items()))
    assert made() == More()
    assert made(*ARGS) == made("--config", str(preset)) == More(**NEW)
    assert made(TRTLA_DRAFT_WIDTH="5", TRTLA_DRAFT_CAREFUL="0") == More(width=5, careful=False)
    assert made("--branches", "4").width == 4
    assert made("--branches", "4", TRTLA_DRAFT_WIDTH="5").width == 4
    assert made("--width", "6", "--branches", "6").width == 6
    preset.write_text('"": 4')
    with pytest.raises(UsageError, match='unknown key ""'):
        made("--config", str(preset))


def test_the_help_says_what_the_declaration_says() -> None:
    shown = "".join(CliRunner().invoke(draft, ["--help"]).output.split())
    for one in declared(More).values():
        assert "".join(one.option.help.split()) in shown
    for part in ("--careful/--no-careful", "[first-come|best]", "default:(--width)"):
        assert part in shown
    assert "--branches" not in shown


def test_a_line_of_a_prompt_file_has_the_keys() -> None:
    line = prompt_line(SamplingParams, More)
    given = {**NEW, "names": ["a", "b"], "text": "a"}
    read = line.model_validate_json(json.dumps(given))
    assert {key: getattr(read, key) for key in given} == given
    for key in NEW:
        with pytest.raises(ValueError, match=key):
            line.model_validate({"text": "a", key: {}})


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("width", 10, "a whole number, from 1 to 9"),
        ("width", True, "a whole number, from 1 to 9"),
        ("weight", "1", "a number, from 0 to 1"),
        ("eager", 1, "true or false"),
        ("order", "last", "first_come or best"),
        ("room", 0, "a whole number, at least 1"),
        ("names", ("a", 1), "made of non-empty texts"),
    ],
)
def test_values_of_another_type_or_out_of_range_are_refused(
    name: str, value: object, rule: str
) -> None:
    with pytest.raises(UsageError, match=f"{name} is ") as refusal:
        More(**{name: value})
    assert refusal.value.hint == f"--{name} must be {rule}"


def test_keyword_arguments_of_a_model_are_the_fields_of_its_options(tiny_llama: Path) -> None:
    names = [one.name for one in fields(ExecutorOptions)]
    for kind in (LLM, AsyncLLM):
        shown = signature(kind)
        assert list(shown.parameters) == ["model", "options", *names]
        assert "kv_cache_dtype: Type of cached keys" in str(kind.__init__.__doc__)
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
    unnamed = [name for name in names if f"`{name}`" not in page]
    assert not unnamed, f"docs/python.md lacks these options: {unnamed}"
    with LLM(tiny_llama, ExecutorOptions(dtype="float32", max_batch_size=2)) as llm:
        assert llm.limits.max_batch_size == 2


def test_a_flag_that_no_field_takes_is_an_error() -> None:
    with pytest.raises(TypeError, match="DraftFlags has no field for wings, zeal"):
        parsed(DraftFlags, {"wings": 2, "zeal": 1})


@pytest.mark.parametrize("kind", [SamplingParams, DrafterSettings, DraftOptions, BeamSettings,
                                  ExecutorOptions, TrtllmSettings])  # fmt: skip
def test_python_reads_the_names_of_its_arguments(kind: type) -> None:
    """The command line reads the flags of the same refusal."""
    for one in declared(kind).values():
        with pytest.raises(UsageError) as caught:
            kind(**{one.name: object()})
        said = str(caught.value)
        assert "--" not in said
        assert said.startswith(f"{one.name} is <object"), said
        assert f"hint: {one.name} must be " in said
        assert flag_name(one.flag) in (caught.value.hint or "")


def test_settings_are_spelt_where_an_error_leaves_and_flags_of_commands_stay() -> None:
    rebuild = "or rebuild with a larger --max-seq-len"
    hint = f"lower {named('max_output_len')}, {rebuild}; or {named('no_x')}"
    error = UsageError(f"{named('top_k')} is 3", hint, "top_k")
    assert str(error) == f"top_k is 3\nhint: lower max_output_len, {rebuild}; or x=False"
    assert error.message == "--top-k is 3"
    assert error.hint == f"lower --max-output-len, {rebuild}; or --no-x"
    assert error.within("line 1: ").message == "line 1: --top-k is 3"
    assert copy.deepcopy(error).spelt(str) == error.spelt(str)
    assert refused(error).message == "top_k is 3; omit top_k"
    assert (
        refused(wrong("top_k", 3, "at least 4")).message == "top_k is 3; top_k must be at least 4"
    )
    refusal = trtllm_cannot("e", "which drafts itself", "run trtla build e --backend torch")
    assert str(refusal).endswith("hint: run trtla build e --backend torch")
