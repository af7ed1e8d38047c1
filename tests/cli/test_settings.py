"""Flag > environment > --config > default, told by --dry-run, kept in the engine; presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import ROOT, Ran, refused, trtla
from trtla.cli.shared.llm_args import as_preset
from trtla.settings.lookahead import LookaheadConfig

FILES = sorted((ROOT / "configs").glob("*.yaml"))
PRESETS = [path for path in FILES if "\narms:" not in path.read_text()]
"""Those of build; others list arms of bench."""


def dry(checkpoint: Path, *args: str | Path, env: dict[str, str] | None = None) -> Ran:
    return trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", "out", "--dry-run", *args, env=env
    )


def rows(ran: Ran) -> dict[str, tuple[str, str]]:
    """The table of --dry-run: setting -> (value, source)."""
    assert ran.code == 0, ran.err
    cells = [line.split("|") for line in ran.out.splitlines() if line.startswith("|")]
    return {c[1].strip(): (c[2].strip(), c[3].strip()) for c in cells[2:]}


def preset(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "preset.yaml"
    path.write_text(text)
    return path


def test_precedence(checkpoint: Path, tmp_path: Path) -> None:
    config = preset(tmp_path, "max_batch_size: 3\nmax_input_len: 30\nmax-seq-len: 90\n")
    env = {"TRTLA_BUILD_MAX_BATCH_SIZE": "5", "TRTLA_BUILD_MAX_INPUT_LEN": "50"}
    found = rows(dry(checkpoint, "--config", config, "--max_batch_size", "7", env=env))
    assert found["max_batch_size"] == ("7", "flag")
    assert found["max_input_len"] == ("50", "environment TRTLA_BUILD_MAX_INPUT_LEN")
    assert found["max_seq_len"] == ("90", f"config {config}")
    assert found["lookahead"] == ("7,7,7", "default")
    assert found["max_draft_len"] == ("83", "computed")
    assert not Path("out").exists()


def test_sources_are_kept_in_the_engine(checkpoint: Path, tmp_path: Path) -> None:
    config = preset(tmp_path, "lookahead: [3, 3, 3]\nmax_num_tokens: 1k\nforce: true\n")
    ran = trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", tmp_path / "out",
        "--config", config, "--max-input-len", "40",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    manifest = json.loads((tmp_path / "out" / "trtla.json").read_text())
    assert manifest["lookahead"] == [3, 3, 3]
    assert manifest["settings"]["lookahead"] == f"config {config}"
    assert manifest["settings"]["max_input_len"] == "flag"
    assert manifest["settings"]["max_batch_size"] == "default"


def test_counts_may_be_written_short(checkpoint: Path) -> None:
    found = rows(dry(checkpoint, "--max-num-tokens", "8k", "--max-batch-size", "1"))
    assert found["max_num_tokens"][0] == "8000"
    assert rows(dry(checkpoint, "--max-num-tokens", "8K"))["max_num_tokens"][0] == "8192"


@pytest.mark.parametrize("triple", ["[7, 7, 7]", "7,7,7", '"[7,7,7]"'])
def test_triples_in_yaml(checkpoint: Path, tmp_path: Path, triple: str) -> None:
    config = preset(tmp_path, f"lookahead: {triple}\n")
    assert rows(dry(checkpoint, "--config", config))["lookahead"][0] == "7,7,7"


def test_run_takes_presets_and_environment(engine: Path, tmp_path: Path) -> None:
    config = preset(
        tmp_path,
        f"engine_dir: {engine}\ninput_text: [one, two]\nrequest_lookahead: [[2, 2, 2], '1,1,0']\n"
        "max_output_len: 3\n",
    )
    ran = trtla("run", "--config", config, "--json")
    assert ran.code == 0, ran.err
    assert [r["lookahead"] for r in ran.json["results"]] == [[2, 2, 2], [1, 1, 0]]
    env = {"TRTLA_RUN_INPUT_TEXT": "a b\nc", "TRTLA_RUN_ENGINE_DIR": str(engine)}
    texts = trtla("run", "--json", env=env).json["results"]
    assert [r["input_text"] for r in texts] == ["a b", "c"]
    config = preset(tmp_path, "drafter: [prompt-lookup, ngram]\n")
    ran = trtla("run", engine, "a", "-n", "3", "-q", "--config", config)
    assert ran.code == 0, ran.err


def test_a_second_name_of_a_flag_is_read_everywhere(engine: Path, tmp_path: Path) -> None:
    for config, env in (
        ("max_tokens: 3\n", {}),
        ("max_tokens: 3\nmax_output_len: 3\n", {}),
        ("max_output_len: 4\n", {"TRTLA_RUN_MAX_TOKENS": "3"}),
        ("max_tokens: 4\n", {"TRTLA_RUN_MAX_TOKENS": "4", "TRTLA_RUN_MAX_OUTPUT_LEN": "3"}),
    ):
        file = preset(tmp_path, config)
        ran = trtla("run", engine, "a", "--json", "--config", file, env=env)
        assert ran.code == 0, ran.err
        (result,) = ran.json["results"]
        assert len(result["output_ids"]) == 3, (config, env)
    file = preset(tmp_path, "max_tokens: 3\nmax_output_len: 4\n")
    refused(trtla("run", engine, "a", "--config", file), 2, "max_output_len is '3' and '4'")


def test_biases_in_yaml_are_text_or_keys_with_values(engine: Path, tmp_path: Path) -> None:
    (ids,) = (r["output_ids"] for r in trtla("run", engine, "a", "-n3", "--json").json["results"])
    for biases in (f"{{{ids[0]}: -100}}", f"'{ids[0]}:-100'"):
        config = preset(tmp_path, f"logit_bias: {biases}\n")
        ran = trtla("run", engine, "a", "-n3", "--json", "--config", config)
        assert ran.code == 0, ran.err
        assert ran.json["results"][0]["output_ids"][0] != ids[0]
    config = preset(tmp_path, "logit_bias: {a: b}\n")
    refused(trtla("run", engine, "a", "--config", config), 2, "logit_bias", "17:-5")


def test_a_preset_for_tensorrt_llm_has_no_effect_on_a_torch_engine(
    engine: Path, tmp_path: Path
) -> None:
    config = preset(tmp_path, "trtllm_executor: [a=1]\nscheduler_policy: max-utilization\n")
    ran = trtla("run", engine, "a", "-n", "3", "--config", config)
    assert ran.code == 0, ran.err
    assert "scheduler_policy, trtllm_executor: for TensorRT-LLM, no effect" in ran.err


def test_a_list_for_one_value_is_refused_with_the_flag(checkpoint: Path, tmp_path: Path) -> None:
    ran = dry(checkpoint, "--config", preset(tmp_path, "max_batch_size: [1, 4]\n"))
    refused(ran, 2, "[1, 4], not a single value", "write one, as behind --max-batch-size")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("max_batchsize: 4\n", '"max_batchsize"'),
        ("max_batch_size: four\n", "'four'"),
        ("max_batch_size: 1.5\n", "'1.5'"),
        ("max_batch_size: true\n", "'True'"),
        ("max_batch_size: {a: 1}\n", "max_batch_size"),
        ("lookahead: [7, 7]\n", "7,7"),
        ("lookahead: 7,1,7\n", "ngram=1"),
        ("backend: onnx\n", "onnx"),
        ("config: other.yaml\n", '"config"'),
        ("- a\n- b\n", "no settings"),
        ("a: [\n", "not YAML"),
    ],
)
def test_bad_presets_name_key_and_file(
    checkpoint: Path, tmp_path: Path, text: str, part: str
) -> None:
    ran = dry(checkpoint, "--config", preset(tmp_path, text))
    refused(ran, 2, part)
    if "lookahead" not in text:
        assert "preset.yaml" in ran.err


def test_a_value_out_of_range_says_where_it_came_from(tmp_path: Path) -> None:
    ran = trtla("serve", env={"TRTLA_SERVE_PORT": "99999"})
    refused(ran, 2, "port is 99999 (from environment TRTLA_SERVE_PORT)")
    ran = trtla("serve", env={"TRTLA_SERVE_PORT": "many"})
    refused(ran, 2, "'many'", "environment TRTLA_SERVE_PORT")
    own = preset(tmp_path, "port: 99999\n")
    refused(trtla("serve", "--config", own), 2, f"port is 99999 (from config {own})")
    refused(trtla("serve", "--port", "99999"), 2, "port is 99999\n")


def test_the_default_batch_size_is_the_builders() -> None:
    from trtla.cli.engines.build import build
    from trtla.formats.engine_limits import BuildSettings

    flag = next(p for p in build.params if p.name == "max_batch_size")
    assert flag.default == BuildSettings().max_batch_size


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The tiny model's config with the positions of a real one; a dry run reads no weights."""
    folder = tmp_path_factory.mktemp("long")
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = 8192
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_dry_run(long_model: Path, path: Path) -> None:
    assert [one.stem for one in PRESETS] == ["llama-70b-tp", "llama-7b", "llama-8b", "tiny-cpu"]
    found = rows(dry(long_model, "--config", path))
    triple = LookaheadConfig.parse(found["lookahead"][0])
    batch, tokens = int(found["max_batch_size"][0]), int(found["max_num_tokens"][0])
    assert found["lookahead"][1] == f"config {path}"
    assert int(found["max_draft_len"][0]) == triple.max_draft_len
    assert f"{triple.max_draft_len} draft tokens" in path.read_text()
    assert batch * (triple.max_draft_len + 1) <= tokens
    assert f"{batch} * {triple.max_draft_len + 1} = {batch * (triple.max_draft_len + 1)}" in (
        path.read_text()
    )


LLM_ARGS = """
speculative_config:
  decoding_type: Lookahead
  max_window_size: 4
  max_ngram_size: 3
kv_cache_config: {dtype: auto}
max_batch_size: 3
backend: tensorrt
"""


@pytest.mark.parametrize("flag", ["--config", "--extra_llm_api_options"])
def test_the_yaml_of_trtllm_serve_is_a_preset(engine: Path, tmp_path: Path, flag: str) -> None:
    ran = trtla("run", engine, flag, preset(tmp_path, LLM_ARGS), "-p", "ab", "-n", "2", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["results"][0]["lookahead"] == [4, 3, 4]


def test_keys_of_the_executor_become_the_flags_of_its_settings(tmp_path: Path) -> None:
    names = (
        *("kv_cache_free_gpu_memory_fraction", "kv_cache_enable_block_reuse"),
        *("scheduler_policy", "enable_chunked_context", "max_seq_len", "tp_size"),
    )
    theirs = {
        "kv_cache_config": {"free_gpu_memory_fraction": 0.5, "enable_block_reuse": True},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        "enable_chunked_prefill": False,
        "build_config": {"max_seq_len": 64},
        "tensor_parallel_size": 2,
    }
    found = as_preset(theirs, names, "extra.yaml", "trtla serve")
    values = (0.5, True, "max-utilization", False, 64, 2)
    assert found == dict(zip(names, values, strict=True))


SPECULATIVE = "speculative_config: {{decoding_type: {}}}\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (SPECULATIVE.format("NGram"), ("decoding_type NGram", "drafter: prompt-lookup")),
        (SPECULATIVE.format("Eagle3"), ("decoding_type Eagle3", "draft:PATH")),
        (SPECULATIVE.format("SA"), ("decoding_type SA", "lookahead: auto")),
        (SPECULATIVE.format("Lookahead, max_window_size: 0"), ("lookahead 0,3,4 is not legal",)),
        (SPECULATIVE.format("Lookahead, max_draft_len: 3"), ("has max_draft_len", "max_ngram")),
        ("speculative_config: 7\n", ("is 7, without a decoding_type",)),
        ("kv_cache_config: 7\n", ("kv_cache_config is 7",)),
        (
            "cuda_graph_config: {a: 1}\nkv_cache_config: {event_buffer_max_size: 4}\nmore: 1\n",
            ("has cuda_graph_config, kv_cache_config.event_buffer_max_size, more, for which",),
        ),
        (
            "max_seq_len: 64\nbuild_config: {max_seq_len: 32}\n",
            ("build_config.max_seq_len is 32, and max_seq_len is 64",),
        ),
        (
            SPECULATIVE.format("Lookahead, max_draft_len: null") + "lookahead: [7, 7, 7]\n",
            ("lookahead is [7, 7, 7], and speculative_config is [4, 3, 4]",),
        ),
    ],
)  # fmt: skip
def test_what_the_yaml_of_trtllm_serve_has_alone_is_named(
    tmp_path: Path, text: str, parts: tuple[str, ...]
) -> None:
    refused(trtla("run", "absent", "-p", "a", "--config", preset(tmp_path, text)), 2, *parts)
