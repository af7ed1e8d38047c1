"""TensorRT-LLM's own command lines, unchanged but for the program's name, and the table of them."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import click
import numpy as np
import pytest

from tests.support.command import ROOT, Ran, refused, trtla
from tests.support.models import Variant, make_model, save_model
from tests.support.tables import assert_tables
from tests.support.trtllm_options import NAMES as UPSTREAM
from tests.support.trtllm_options import SHORT
from trtla.cli.app import cli
from trtla.cli.commands import COMMANDS
from trtla.cli.shared.upstream import UpstreamOption, trtllm_settings
from trtla.errors import UsageError
from trtla.settings.fields import flag_name
from trtla.settings.upstream.option import (
    Accepted,
    Flag,
    Needless,
    PassedOn,
    Program,
    Refused,
)
from trtla.settings.upstream.programs import PROGRAMS

PAGE = ROOT / "docs" / "migrate-from-tensorrt-llm.md"
ROWS = [
    (program, param.flag)
    for program in PROGRAMS.values()
    for param in COMMANDS[program.command].params
    if isinstance(param, UpstreamOption)
]
NAMES = [f"{program.name} --{one.name}" for program, one in ROWS]
NEEDED = {
    "convert": ("--model-dir", "m", "--output-dir", "o"),
    "build": ("--checkpoint-dir", "c", "--output-dir", "o"),
    "run": ("--engine-dir", "e"),
    "summarize": ("--engine-dir", "e"),
}
EXAMPLES = {
    "speculative_decoding_mode": "lookahead_decoding",
    "max_draft_len": "83",
    "lookahead_config": "[7,7,7]",
    "hf_data_type": "fp16",
    "calib_dataset": "ccdv/cnn_dailymail",
    "group_size": "128",
    "dtype": "float16",
    "kv_cache_type": "paged",
    "gpt_attention_plugin": "float16",
    "weight_only_precision": "int4",
    "gemm_plugin": "float16",
}
"""Values of options whose type has no usual one."""


def parsed(program: Program, *args: str) -> click.Context:
    """A command line as the command gets it; nothing is run."""
    parent = click.Context(cli, info_name="trtla", **cli.context_settings)
    command = COMMANDS[program.command]
    return command.make_context(program.command, [*NEEDED[program.command], *args], parent=parent)


def value_of(one: Flag) -> str:
    kinds = [program.passing.kinds for program in PROGRAMS.values() if program.passing]
    setting = one.fate.setting if isinstance(one.fate, PassedOn) else ""
    kind = next((known[setting] for known in kinds if setting in known), "")
    choice = kind[0] if isinstance(kind, tuple) else ""
    return choice or EXAMPLES.get(one.name) or one.default or "1"


def given(name: str, one: Flag) -> list[str]:
    spelling = name if name.startswith("-") else f"--{name}"
    if one.words:
        return [spelling]
    return [spelling, value_of(one)]


@pytest.mark.parametrize(("program", "one"), ROWS, ids=NAMES)
def test_every_option_does_what_the_table_says(program: Program, one: Flag) -> None:
    for name in one.names:
        outcome = refusal = None
        try:
            outcome = parsed(program, *given(name, one))
        except UsageError as error:
            refusal = error
        if isinstance(one.fate, Refused) and not one.is_default(value_of(one)):
            assert refusal is not None
            assert refusal.message.startswith(flag_name(one.name) + " ")
            if not one.words:
                assert refusal.message.startswith(f"{flag_name(one.name)} {value_of(one)} ")
            assert refusal.hint
            continue
        assert refusal is None, refusal
        assert outcome is not None
        if isinstance(one.fate, Accepted):
            setting = one.fate.setting
            assert outcome.params[setting] not in (None, ()), setting
            assert outcome.get_parameter_source(setting) is click.core.ParameterSource.COMMANDLINE
        if isinstance(one.fate, PassedOn):
            (pair,) = trtllm_settings(outcome, trtllm=lambda: True)
            assert pair.partition("=")[0] == one.fate.setting
        own = {param.name for param in outcome.command.params} - set(one.names)
        assert set(outcome.params) <= own | set(one.names)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda one: one.name)
def test_the_table_is_of_one_piece(program: Program) -> None:
    params = {str(param.name): param for param in COMMANDS[program.command].params}
    for one in program.options:
        if isinstance(one.fate, Accepted):
            setting = params[one.fate.setting]
            assert not getattr(setting, "hidden", False)
            assert one.takes != "!" or getattr(setting, "is_flag", False) or one.fate.gives
        if isinstance(one.fate, PassedOn):
            assert program.passing is not None
            assert one.fate.setting not in program.passing.held
            assert one.fate.setting in program.passing.kinds or one.name == "fuse_fp4_quant"
    names = Counter(name for one in program.options for name in one.names)
    assert [name for name, count in names.items() if count > 1] == []


def own_flag(program: Program, name: str) -> bool:
    flags = COMMANDS[program.command].params
    return any(
        flag_name(name) in (*flag.opts, *flag.secondary_opts)
        for flag in flags
        if not getattr(flag, "hidden", False)
    )


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda one: one.name)
def test_every_option_of_every_release_is_known(program: Program) -> None:
    theirs = {name for names in UPSTREAM[program.name].values() for name in names.split()}
    listed = {name for one in program.listed for name in one.names if name[0] != "-"}
    assert listed - theirs == set()
    assert [name for name in listed if own_flag(program, name)] == []
    known = {name for one in program.options for name in one.names}
    assert [name for name in theirs - known if not own_flag(program, name)] == []
    shorts = {name for one in program.listed for name in one.names if name[0] == "-"}
    assert shorts == set(SHORT.get(program.name, {}).values())


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (("-sq", "0.5"), "error: --smoothquant 0.5 is a quantisation"),
        (("--weight_only_precision", "int4_gptq"), "'int4_gptq' is not one of 'int8', 'int4'"),
        (("--use_weight_only", "--use_fp8"), "quantises to w8a16, and --use-fp8 to something else"),
        (("--dtype=int8", "--calib_data=c.txt", "--calib_size=0"), "or -1 for all"),
    ],
)
def test_conversions_as_there(
    model: Path, tmp_path: Path, asked: tuple[str, ...], part: str
) -> None:
    refused(trtla("convert", "--model_dir", model, "-o", tmp_path / "c", *asked), 2, part)


def test_weights_alone_are_quantised_as_there(tmp_path: Path) -> None:
    keys = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "vocab_size": 320}
    wide = Variant("wide", keys)
    model = save_model(make_model(wide), wide, tmp_path / "model")
    for number, (precision, algorithm) in enumerate(
        (("", "W8A16"), ("int4", "W4A16"), ("int4_awq", "W4A16_AWQ"))
    ):
        asked = ["--use_weight_only", *(["--weight_only_precision", precision] * bool(precision))]
        for dtype in ("float16", "bfloat16"):
            folder = tmp_path / f"{number}-{dtype}"
            ran = trtla("convert", "--model_dir", model, "--dtype", dtype, *asked, "-o", folder)
            assert ran.code == 0, ran.err
            config = json.loads((folder / "config.json").read_text())
            assert (config["dtype"], config["quantization"]["quant_algo"]) == (dtype, algorithm)


def test_a_precision_alone_quantises_nothing_and_says_so(model: Path, tmp_path: Path) -> None:
    asked = ("--weight_only_precision", "int4")
    ran = trtla("convert", "--model_dir", model, *asked, "-o", tmp_path / "c")
    assert ran.code == 0, ran.err
    said = "note: --weight-only-precision int4 has no effect without --use-weight-only\n"
    assert said in ran.err


def test_all_texts_calibrate_and_a_precision_may_have_no_value(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("abcdefgh " * 600)  # 3 texts
    asked = ("convert", "--model_dir", model, "--calib_data", tmp_path / "c.txt", "--dtype=fp8")
    for name, more in (("all", ("--calib_size", "-1")), ("three", ("--calib_size=3",))):
        ran = trtla(*asked, *more, "--weight_only_precision", "-o", tmp_path / name)
        assert ran.code == 0, ran.err
    weights = [(tmp_path / name / "rank0.safetensors").read_bytes() for name in ("all", "three")]
    assert weights[0] == weights[1]


def test_the_options_are_hidden_from_the_help() -> None:
    for program in PROGRAMS.values():
        text = trtla(program.command, "--help-all").out
        assert "--log-level" not in text
        assert "--medusa-choices" not in text


def build(model: Path, folder: Path, *args: str) -> Ran:
    asked = (f"--checkpoint_dir={model}", f"--output_dir={folder}")
    return trtla("build", *asked, "--max_seq_len=256", *args)


LOOKAHEAD = ("--max_draft_len=83", "--speculative_decoding_mode=lookahead_decoding")


@pytest.fixture(scope="module")
def by_length(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of TensorRT-LLM's own example: only max_draft_len is said."""
    folder = tmp_path_factory.mktemp("by_length")
    ran = trtla(
        "convert", f"--model_dir={model}", f"--output_dir={folder / 'ck'}", "--dtype=float16",
        "--tp_size=1", "--pp_size=1",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    ran = build(
        folder / "ck", folder / "en", "--gpt_attention_plugin=float16", "--gemm_plugin=float16",
        "--max_batch_size=32", "--max_input_len=128", "--max_beam_width=1", "--log_level=error",
        *LOOKAHEAD,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "gemm_plugin: for TensorRT-LLM, no effect on torch engines" in ran.err
    assert (
        "max_draft_len 83 without a triple: lookahead is 7,7,7; trtla run --lookahead 6,8,6 "
        in ran.err
    )
    assert "lookahead window=7 ngram=7 verification=7, max_draft_len 83" in ran.out
    return folder / "en"


PROMPTS = ("Once upon", "To be, or not", "Be not afraid of greatness")


def test_the_example_runs_when_only_the_name_changes(by_length: Path, model: Path) -> None:
    asked = (f"--tokenizer_dir={model}", f"--engine_dir={by_length}", "--max_output_len=8")
    ran = trtla(
        "run", *asked, "--lookahead_config=[7,7,7]", "--log_level=verbose", "--input_text", *PROMPTS
    )
    assert ran.code == 0, ran.err
    assert all(f'Input [Text {index}]: "{text}"' in ran.out for index, text in enumerate(PROMPTS))


def test_settings_of_its_executor_have_no_effect_on_torch_engines(by_length: Path) -> None:
    given = ("--kv_cache_free_gpu_memory_fraction", "0.5", "--kv_cache_enable_block_reuse")
    ran = trtla("run", by_length, "abcdefgh", "-n", "4", *given, "--length_penalty=1.0")
    assert ran.code == 0, ran.err
    names = "kv_cache_free_gpu_memory_fraction, kv_cache_enable_block_reuse"
    assert f"note: {names}: for TensorRT-LLM, no effect on torch engines" in ran.err


def test_the_yaml_of_trtllm_serve_has_no_effect_on_torch_engines_either(
    by_length: Path, tmp_path: Path
) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text(
        "speculative_config: {decoding_type: Lookahead, max_window_size: 7, max_ngram_size: 7, "
        "max_verification_set_size: 7}\n"
        "kv_cache_config: {free_gpu_memory_fraction: 0.5, enable_block_reuse: true}\n"
        "scheduler_config: {capacity_scheduler_policy: MAX_UTILIZATION}\n"
    )
    ran = trtla("run", by_length, "abcdefgh", "-n", "4", "--extra_llm_api_options", file)
    assert ran.code == 0, ran.err
    names = "kv_cache_free_gpu_memory_fraction, kv_cache_enable_block_reuse, scheduler_policy"
    assert f"note: {names}: for TensorRT-LLM, no effect on torch engines" in ran.err


@pytest.mark.parametrize("triple", ["[7,7,7]", "[3,15,3]", "[6,8,6]", "14,4,14"])
def test_the_server_chooses_among_the_triples_of_that_length(by_length: Path, triple: str) -> None:
    plain = trtla("run", by_length, "abcdefgh", "-n", "8", "--no-lookahead", "--json").json
    ran = trtla("run", by_length, "abcdefgh", "-n", "8", "--lookahead_config", triple, "--json")
    assert ran.code == 0, ran.err
    (ours,), (theirs,) = ran.json["results"], plain["results"]
    assert ours["lookahead"] == json.loads(f"[{triple.strip('[]')}]")
    assert ours["output_ids"] == theirs["output_ids"]


def test_a_triple_of_another_length_is_refused(by_length: Path) -> None:
    ran = trtla("run", by_length, "ab", "--lookahead_config=[5,5,5]")
    refused(ran, 2, "lookahead 5,5,5 needs max_draft_len 39", "built with max_draft_len 83")


def test_summaries_as_in_the_example(by_length: Path, model: Path, articles: Path) -> None:
    ran = trtla(
        "summarize", "--test_hf", "--test_trt_llm", f"--hf_model_dir={model}",
        f"--engine_dir={by_length}", "--data_type=fp16", "--lookahead_config=[7,7,7]",
        "--output_len=8", "--max_ite=1",
        env={"TRTLA_SUMMARIZE_DATASET": str(articles)},
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "hugging_face (total latency" in ran.out
    assert "summaries equal to plain decoding's: 1 of 1" in ran.out


def test_a_lookahead_engine_needs_a_size(model: Path, tmp_path: Path) -> None:
    asked = ("--speculative_decoding_mode", "lookahead_decoding")
    refused(build(model, tmp_path / "e", *asked), 2, "size of a draft", "--lookahead 7,7,7")
    ran = build(model, tmp_path / "e", *asked, "--max_draft_len=83", "--lookahead=4,3,4")
    refused(ran, 2, "max_draft_len 83 disagrees with lookahead 4,3,4")
    ran = build(model, tmp_path / "e", "--speculative_decoding_mode=medusa")
    refused(ran, 2, "--speculative-decoding-mode medusa is none of", "--lookahead 7,7,7")
    ran = build(model, tmp_path / "e", "--max_draft_len=83", "--dry-run", "--json")
    assert ran.json["settings"]["lookahead"] == {"value": "7,7,7", "from": "max_draft_len"}


def test_settings_for_tensorrt_llm_are_in_its_command(model: Path, tmp_path: Path) -> None:
    ran = build(
        model, tmp_path / "e", "--gemm_plugin=float16", "--reduce_fusion=enable",
        "--weight_streaming", "--backend", "tensorrt-llm", "--dtype=float16", "--dry_run", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    settings = ran.json["settings"]
    assert settings["trtllm plugin_config.gemm_plugin"]["value"] == "float16"
    assert settings["trtllm plugin_config.reduce_fusion"]["value"] is True
    assert settings["trtllm weight_streaming"]["value"] is True


def test_the_attention_plugin_has_the_type_of_the_model(checkpoint: Path, tmp_path: Path) -> None:
    ran = build(checkpoint, tmp_path / "e", "--gpt_attention_plugin=float16", "--dry-run")
    assert "note: gpt_attention_plugin is float32, the model's type, not float16" in ran.err
    ran = build(checkpoint, tmp_path / "e", "--gpt_attention_plugin=float32", "--dry-run")
    assert "gpt_attention_plugin" not in ran.err


def test_an_engine_that_is_there_is_not_built_otherwise(tmp_path: Path) -> None:
    ran = trtla("build", "--from-existing", tmp_path, "--gemm_plugin=float16")
    refused(ran, 2, "--gemm-plugin does not go with --from-existing")


_TEXT = ("abcdefgh", "-n", "4", "-q")


@pytest.mark.parametrize(
    "asked",
    [
        ("--use_py_session", "false"), ("--use_py_session=false",), ("--top_p", "0.0"),
        ("--temperature=1.0", "--top_k=1", "--top_p=0.0"), ("--random_seed=3",), ("--streaming",),
        ("--num_beams=1",), ("--end_id", "257"), ("--multi_block_mode", "false"),
        ("--lora_ckpt_source=hf",),
    ],
)  # fmt: skip
def test_what_asks_for_nothing_here_changes_no_text(engine: Path, asked: tuple[str, ...]) -> None:
    said = trtla("run", engine, *_TEXT).out
    ran = trtla("run", *asked, engine, *_TEXT)
    assert (ran.code, ran.out) == (0, said), ran.err


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        (("--use_py_session",), ("--use-py-session asks for the Python session", "omit it")),
        (("--end_id=1000",), ("end_id 1000 is no token id", "use 0 to 257, or -1")),
        (("--lookahead_config=[7,7]",), ("lookahead-config '[7,7]' is not a triple", "7,7,7")),
        (("--lookahead_config=[4,3,4]", "--lookahead", "2,5,2"), ("names of one setting",)),
        (("--log_level=loud",), ("--log-level loud is none of", "--verbose")),
        (("--gpu_weights_percent=many",), ("--gpu-weights-percent many is not a number", "omit")),
        (("--streaming=maybe",), ("--streaming maybe is not true or false",)),
        (("--bad_words", "a", "b"), ("--bad-words a b is ignored", "--logit-bias")),
    ],
)
def test_refusals_say_why(engine: Path, asked: tuple[str, ...], parts: tuple[str, ...]) -> None:
    refused(trtla("run", engine, *_TEXT, *asked), 2, *parts)


def test_texts_that_end_an_output(engine: Path) -> None:
    whole = trtla("run", engine, *_TEXT).out.rstrip("\n")
    ran = trtla("run", engine, *_TEXT, "--stop_words", whole[1], whole[2])
    assert ran.out == whole[0] + "\n"


def test_any_token_ends_an_output(engine: Path, articles: Path) -> None:
    whole = trtla("run", engine, *_TEXT, "--json").json["results"][0]
    ids = whole["output_ids"]
    ran = trtla("run", engine, *_TEXT, f"--end_id={ids[2]}", "--json").json["results"][0]
    assert ran["output_ids"] == ids[: ids.index(ids[2]) + 1]
    assert ran["finish_reason"] == "end_id"
    assert whole["text"].startswith(ran["text"])


def test_an_end_id_takes_the_place_of_the_models(model: Path, tmp_path: Path) -> None:
    asked = ("--input-text", "abcdefgh", "-n", "6", "--json")
    whole = trtla("run", model, *asked, "--end_id", "-1").json["results"][0]["output_ids"]
    copy = shutil.copytree(model, tmp_path / "model")
    config = json.loads((copy / "generation_config.json").read_text())
    config["eos_token_id"] = whole[1]
    (copy / "generation_config.json").write_text(json.dumps(config))
    lengths = [
        len(trtla("run", copy, *asked, *more).json["results"][0]["output_ids"])
        for more in ((), ("--end_id", "-1"), (f"--end_id={whole[3]}",))
    ]
    assert lengths == [whole.index(whole[1]) + 1, 6, whole.index(whole[3]) + 1]


def test_stop_words_of_each_prompt(engine: Path, tmp_path: Path) -> None:
    asked = ("run", engine, "--max_output_len=4", "--input_text", "abcdefgh", "one two")
    first, second = (result["text"] for result in trtla(*asked, "--json").json["results"])
    ran = trtla(*asked, "--json", "--stop_words", "never", first[1], "--stop_words", "never")
    assert [result["text"] for result in ran.json["results"]] == [first[0], second]
    ran = trtla(*asked, *(["--stop_words", "never"] * 3))
    refused(ran, 2, "--stop-words is given 3 times for 2 prompts", "once for each")
    ran = trtla(*asked, "--stop", "a", *(["--stop_words", "never"] * 2))
    refused(ran, 2, "--stop-words is given 2 times beside --stop", "give one of them")


def test_files_of_token_ids(engine: Path, tmp_path: Path) -> None:
    rows, args = [[97, 98, 99], [100, 101]], ("-n", "4", "--json")
    (tmp_path / "x.jsonl").write_text("".join(f'{{"input_ids": {row}}}\n' for row in rows))
    (tmp_path / "x.csv").write_text("97,98,99\n100,101\n")
    padded = np.array([rows[0], [*rows[1], 257]], dtype=np.int32)
    np.save(tmp_path / "x.npy", padded)
    np.savez(tmp_path / "x.npz", a=padded[0], b=padded[1:])
    files = [tmp_path / f"x.{kind}" for kind in ("jsonl", "csv", "npy", "npz")]
    runs = [trtla("run", engine, "--input_file", file, *args) for file in files]
    assert [ran.code for ran in runs] == [0] * 4, runs[-1].err
    answers = [[one["output_ids"] for one in ran.json["results"]] for ran in runs]
    assert answers == [answers[0]] * 4


def archive(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with ZipFile(made, "w") as file:
        file.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "parts"),
    [
        ("x.csv", b"1,2\n3,b\n", ("row 1 of", "'b', which is no token id")),
        ("x.csv", b"1," + b"9" * 5000, ("row 0 of", "which is no token id")),
        ("x.csv", b"", ("holds no prompts",)),
        ("x.npy", b"no array", ("cannot be read as an array",)),
        ("x.npy", b"\x93NUMPY\x01\x00\x08\x00{'a': (\n", ("cannot be read as an array",)),
        ("x.npz", b"PK\x03\x04", ("cannot be read as an array",)),
        ("x.npz", archive("a.txt", b"no array"), ("a.txt of", "is a 0-dimensional array of |S8")),
        ("x.bin", b"abc", ("is no file of prompts", ".csv, .npy or .npz")),
    ],
)
def test_files_without_token_ids(
    engine: Path, tmp_path: Path, name: str, data: bytes, parts: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(data)
    refused(trtla("run", engine, "--input_file", tmp_path / name), 2, *parts)
    if name == "x.npy":
        np.save(tmp_path / name, np.ones((2, 2)))
        refused(trtla("run", engine, "--input_file", tmp_path / name), 2, "array of float64")


def test_a_plain_engine_is_offered_no_smaller_triple(model: Path, tmp_path: Path) -> None:
    assert build(model, tmp_path / "e", "--no-lookahead").code == 0
    ran = trtla("run", tmp_path / "e", "ab", "--lookahead=7,7,7")
    refused(ran, 2, "built with max_draft_len 0", "rebuild with trtla build")
    assert "--request-lookahead" not in ran.err


def test_what_has_no_effect_though_it_would_there_is_said(engine: Path) -> None:
    ran = trtla("run", engine, "ab", "-n", "4", "--max_input_length=100")
    assert ran.code == 0, ran.err
    assert "note: --max-input-length 100 has no effect: prompts are not cut" in ran.err


def test_a_tokenizer_is_found_by_both_names(bare_engine: Path, model: Path) -> None:
    for asked in (("--hf_model_dir", model), ("--hf_model_dir=nowhere", "--tokenizer_dir", model)):
        ran = trtla("run", bare_engine, *_TEXT, *asked)
        assert ran.code == 0, ran.err


def cell(program: Program, one: Flag) -> str:
    """What the option is here."""
    fate = one.fate
    if isinstance(fate, Accepted):
        setting = next(p for p in COMMANDS[program.command].params if p.name == fate.setting)
        names = setting.opts
        flag = flag_name(fate.setting) if flag_name(fate.setting) in names else names[-1]
        return f"`{flag} {fate.gives}`" if fate.gives else f"`{flag}`"
    if isinstance(fate, PassedOn):
        assert program.passing is not None
        return f"`{program.passing.flag}`"
    if isinstance(fate, Needless) and 0 < len(fate.values) < 5:
        return f"no effect; {', '.join(f'`{value}`' for value in fate.values)} only"
    return "no effect" if isinstance(fate, Needless) else "refused"


def table(*programs: Program) -> str:
    """The table of programs on the migration page, a row for each thing that an option is here;
    options of one of two programs name it."""
    theirs, ours = (
        ", ".join(f"`{text}`" for text in column)
        for column in zip(*((one.name, f"trtla {one.command}") for one in programs), strict=True)
    )
    kept = {program.name: cells(program) for program in programs}
    rows: dict[tuple[str, str], list[str]] = {}
    for program, entries in kept.items():
        for name, here in entries.items():
            shared = all(other.get(name) == here for other in kept.values())
            row = rows.setdefault(("" if shared else f"{program}: ", here), [])
            row += [] if f"`--{name}`" in row else [f"`--{name}`"]
    lines = [f"|{where}{', '.join(names)}|{here}|" for (where, here), names in rows.items()]
    return "\n".join([f"|{theirs}|{ours}|", "|---|---|", *lines])


def cells(program: Program) -> dict[str, str]:
    """What each of a program's options is here, by its name."""
    known = {name: cell(program, one) for one in program.options for name in one.names}
    names = [name for names in UPSTREAM[program.name].values() for name in names.split()]
    return {name: known.get(name, "the same") for name in names}


def test_the_migration_page_has_the_tables_and_is_short() -> None:
    convert, build_, run, summarize = PROGRAMS.values()
    assert_tables(PAGE, (table(convert), table(build_), table(run, summarize)))
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 1700
