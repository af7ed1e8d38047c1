"""`trtla build` for TensorRT-LLM without it: dry runs, JSON, refusals, engines of trtllm-build."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.command import Ran, imports, needs, refused, trtla
from tests.support.inspected import inspected
from tests.support.trtllm_engines import write_engine

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}
LIMITS = ("--lookahead", "7,7,7", "--max-input-len", "1024", "--max-seq-len", "2048")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Llama-3.1-8B's config.json alone."""
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder


def dry(model: Path, *args: str | Path, backend: str = "tensorrt-llm") -> Ran:
    return trtla(
        "build", "--checkpoint-dir", model, "--output-dir", "engine", "--backend", backend,
        "--dry-run", *args,
    )  # fmt: skip


def test_a_dry_run_for_people(llama: Path) -> None:
    ran = dry(llama, *LIMITS, "--max-num-tokens", "1024")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert lines[:2] == [
        "lookahead window=7 ngram=7 verification=7, max_draft_len 83",
        "backend tensorrt-llm: asked for with --backend tensorrt-llm",
    ]
    for line in (
        "note: build() raises max_seq_len 2048 by max_draft_len 83 to 2131",
        "note: max_num_tokens 1024 is raised to 2688 = max_batch_size 32 x (max_draft_len 83 + 1)",
        "weights 16.06 GB",
        "KV cache 8.94 GB for a full batch: 32 x 2131 tokens",
        "draft tokens 348.1 MB of the KV cache: 32 x 83 tokens",
        "logits 1.38 GB for a step of a full batch: 2688 tokens",
        "activations are not estimated",
        "would write engine/rank0.engine",
    ):
        assert line in lines
    (row,) = [line for line in lines if line.startswith("| max_num_tokens ")]
    assert [cell.strip() for cell in row.split("|")[2:4]] == ["2688", "flag, corrected"]
    convert, build = (shlex.split(line) for line in lines[-2:])
    assert convert[0] == "python"
    assert build[0] == "trtllm-build"
    assert build[build.index("--max_seq_len") + 1] == "2048"


def test_a_dry_run_as_json(llama: Path) -> None:
    ran = dry(llama, *LIMITS, "--json")
    assert ran.code == 0, ran.err
    plan = ran.json
    assert plan["schema_version"] == 1
    assert (plan["backend"], plan["max_draft_len"]) == ("tensorrt-llm", 83)
    assert plan["engine_max_seq_len"] == 2131
    assert plan["settings"]["max_seq_len"] == {"value": 2048, "from": "flag"}
    assert plan["settings"]["dtype"] == {"value": "bfloat16", "from": "default"}
    assert plan["memory"]["kv_cache_bytes"] == 32 * 2131 * 2 * 32 * 8 * 128 * 2
    assert plan["memory"]["draft_kv_cache_bytes"] == 32 * 83 * 2 * 32 * 8 * 128 * 2
    assert plan["files"] == ["config.json", "rank0.engine", "trtla.json"]
    assert len(plan["commands"]) == 2
    assert any("there is no GPU here" in note for note in plan["notes"])


def test_ranks_are_told_apart(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    config = {k: v for k, v in LLAMA_8B.items() if k not in ("architectures", "torch_dtype")}
    config |= {"architecture": "LlamaForCausalLM", "dtype": "float16"}
    config["mapping"] = {"world_size": 2, "tp_size": 2, "pp_size": 1}
    (folder / "config.json").write_text(json.dumps(config))
    ran = dry(folder, *LIMITS, "--workers", "2")
    assert ran.code == 0, ran.err
    assert "weights 8.56 GB on the largest of 2 ranks, 17.11 GB in all" in ran.out
    assert "would write engine/rank1.engine" in ran.out
    assert ran.out.rstrip().endswith("--workers 2")


def test_a_torch_dry_run_has_no_command(llama: Path) -> None:
    ran = dry(llama, *LIMITS, backend="torch")
    assert ran.code == 0, ran.err
    assert "trtllm-build" not in ran.out
    assert "note: max_seq_len 2048 is raised by max_draft_len 83 to 2131" in ran.out.splitlines()


def test_what_cannot_be_built_is_refused_before_anything_is_written(
    llama: Path, checkpoint: Path, tmp_path: Path
) -> None:
    gather = ("--gather-context-logits", "--max-draft-len", "83")
    refused(dry(llama, *LIMITS, *gather), 2, "gather_context_logits", "7,7,7", "plain engine")
    assert dry(llama, "--gather_context_logits").code == 0
    refused(dry(checkpoint, "--lookahead", "4,3,4"), 2, "float32", "--dtype float16")
    refused(dry(llama, "--workers", "0"), 2, "'0'")
    ran = trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", tmp_path / "o",
        "--backend", "tensorrt-llm", "--dtype", "float16", "--lookahead", "4,3,4",
    )  # fmt: skip
    refused(ran, 1, "TensorRT-LLM is not installed", "--backend torch")
    assert not (tmp_path / "o").exists()


def test_a_build_as_json(checkpoint: Path, tmp_path: Path) -> None:
    ran = trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", tmp_path / "engine",
        "--lookahead", "3,3,3", "--max-num-tokens", "10", "--max-batch-size", "2", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.json == {
        "schema_version": 1,
        "path": str(tmp_path / "engine"),
        "backend": "torch",
        "lookahead": [3, 3, 3],
        "max_draft_len": 11,
        "notes": [
            "max_seq_len 512 is raised by max_draft_len 11 to 523",
            "max_num_tokens 10 is raised to 24 = max_batch_size 2 x (max_draft_len 11 + 1)",
        ],
    }
    notes = [line for line in ran.err.splitlines() if line.startswith("note: ")]
    assert [f"note: {note}" for note in ran.json["notes"]] == notes


def test_adopting_an_engine_of_trtllm_build(model: Path, tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine", "1.0.0")
    ran = trtla(
        "build", "--from-existing", engine, "--lookahead", "7,7,7", "--tokenizer-dir", model
    )
    assert ran.code == 0, ran.err
    assert ran.out == f"wrote {engine}\n"
    manifest = json.loads((engine / "trtla.json").read_text())
    assert manifest["lookahead"] == [7, 7, 7]
    assert manifest["tensorrt_llm_version"] == "1.0.0"
    assert manifest["settings"] == {"lookahead": "flag"}
    assert (engine / "tokenizer.json").is_file()
    if found := inspected(engine):
        assert (found["lookahead"], found["problems"]) == ([7, 7, 7], [])
    again = trtla("build", "--from-existing", engine, "--lookahead", "8,8,4", "--force", "--json")
    assert again.json["lookahead"] == [8, 8, 4]


def test_adopting_refuses_what_it_does_not_do(model: Path, tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine")
    adopt = ("build", "--from-existing", engine)
    refused(trtla(*adopt), 2, "only max_draft_len 83", "7,7,7 or 6,8,6 or 14,4,14")
    refused(trtla(*adopt, "--lookahead", "5,5,5"), 2, "5,5,5", "39", "83", "7,7,7")
    for flag in (("--checkpoint-dir", "x"), ("--max-batch-size", "4"), ("--dry-run",)):
        refused(trtla(*adopt, "--lookahead", "7,7,7", *flag), 2, flag[0], "--from-existing")
    refused(trtla("build", "--from-existing", model), 2, "Hugging Face model")
    assert not (engine / "trtla.json").exists()


@needs("inspect")
def test_inspect_takes_an_engine_of_trtllm_build(tmp_path: Path) -> None:
    ran = trtla("inspect", write_engine(tmp_path / "engine"))
    assert ran.code == 0, ran.err
    assert "| backend " in ran.out
    assert "tensorrt-llm" in ran.out
    broken = write_engine(tmp_path / "broken", kv_cache_type="CONTINUOUS", ranks=2)
    (broken / "rank1.engine").unlink()
    refused(trtla("inspect", broken), 3, "2 problems")
    assert "kv_cache_type is CONTINUOUS" in trtla("inspect", broken).out


def test_run_takes_an_engine_of_trtllm_build(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine")
    run = ("run", "--engine-dir", engine, "--input-text", "a")
    refused(trtla(*run), 2, "only max_draft_len 83", "--lookahead", "7,7,7")
    refused(trtla(*run, "--lookahead", "5,5,5"), 2, "83")
    other = write_engine(tmp_path / "other", kv_cache_type="CONTINUOUS")
    args = ["run", "--engine-dir", str(other), "--input-text", "a"]
    assert "kv_cache_type is CONTINUOUS" in imports(args, heavy=("torch",), code=2).err
