"""Trained heads beside their models draft by themselves; `build --head` puts one there."""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command import Ran, needs, refused, trtla
from tests.support.gguf_models import BYTE_LEVEL, byte_vocabulary, write_gguf
from tests.support.heads import at, fitting, tensors, write_head
from tests.support.models import Variant, make_model
from trtla import LLM, SamplingParams
from trtla.formats.gguf.folder import model_folder
from trtla.formats.heads.reading import read_head
from trtla.formats.hf_config import read_hf_config
from trtla.settings.executor import ExecutorOptions

PROMPT = "def add(a, b):"
HEAD = re.compile(r"\bhead\b")
DRAFTS, GOES_WITHOUT = "drafts; the drafter lookahead goes without it", "does not draft: "


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    """A Hugging Face folder without a head."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = byte_vocabulary()
    keys = {"vocab_size": len(tokens), "max_position_embeddings": 256, "num_hidden_layers": 4}
    tokenizer = {**BYTE_LEVEL, "tokens": tokens, "merges": ["a b"], "eos_token_id": 257}
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return write_gguf(make_model(Variant("small", keys)), path, tokenizer=tokenizer)


@pytest.fixture
def alone(gguf: Path, tmp_path: Path) -> Path:
    """A GGUF file in a folder of its own."""
    return Path(shutil.copy(gguf, tmp_path))


def head_for(gguf: Path, name: str, **sizes: object) -> Path:
    config = read_hf_config(model_folder(gguf))[0]
    return write_head(gguf.with_name(name), "gguf", **{**fitting(config), **sizes})


class _Notes(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def command(*line: str | Path) -> Ran:
    """Run a command line that succeeds; `err` has the notes that are logged as well."""
    notes, log = _Notes(), logging.getLogger("trtla")
    log.addHandler(notes)
    try:
        done = trtla(*line)
    finally:
        log.removeHandler(notes)
    assert done.code == 0, done.err
    return replace(done, err="\n".join([*notes.lines, done.err]))


def ran(model: Path, *flags: str) -> Ran:
    return command("run", "-m", model, "-p", PROMPT, "-n", "12", "--json", *flags)


def ids(done: Ran) -> list[int]:
    return done.json["results"][0]["output_ids"]


@pytest.mark.parametrize("style", ["specforge", "sharded", "official", "medusa", "medusa-pt"])
def test_a_head_in_a_models_folder_drafts(style: str, model: Path) -> None:
    plain = ran(model)
    assert not HEAD.search(plain.err)
    write_head(model / "head", style)
    found = ran(model)
    assert f"note: the trained head {model / 'head'} {DRAFTS}" in found.err
    assert found.json["results"][0]["drafter"] == f"lookahead,head:{model / 'head'}"
    assert ids(found) == ids(plain)


@pytest.mark.parametrize(
    "flags", ["--drafter lookahead", "--no-lookahead", "--drafter none", "--lookahead 3,3,3"]
)
def test_a_named_drafter_goes_without(flags: str, model: Path) -> None:
    write_head(model / "head")
    done = ran(model, *flags.split())
    assert not HEAD.search(done.err)
    assert "head:" not in done.json["results"][0]["drafter"]


@pytest.mark.parametrize(
    "flags", ["--num-beams 2", "--lookahead-sources context,window", "--lookahead-nodes 0"]
)
def test_a_head_is_not_said_to_draft_where_it_does_not(flags: str, model: Path) -> None:
    write_head(model / "head")
    assert not HEAD.search(ran(model, *flags.split()).err)


def test_prompts_that_name_their_drafters_go_without(model: Path, tmp_path: Path) -> None:
    write_head(model / "head")
    lines = [json.dumps({"text": PROMPT, "drafter": name}) for name in ("ngram", "none")]
    for count in (2, 1):
        (tmp_path / "prompts.jsonl").write_text("\n".join(lines[:count]))
        done = command("run", "-m", model, "--input-file", tmp_path / "prompts.jsonl", "-n", "4")
        assert not HEAD.search(done.err)
    (tmp_path / "prompts.jsonl").write_text("\n".join([*lines, json.dumps({"text": PROMPT})]))
    done = command("run", "-m", model, "--input-file", tmp_path / "prompts.jsonl", "-n", "4")
    assert DRAFTS in done.err


def test_a_named_head_is_used_in_place_of_the_one_beside(model: Path, tmp_path: Path) -> None:
    write_head(model / "head")
    other = write_head(tmp_path / "other", "medusa")
    done = ran(model, "--drafter", f"head:{other}")
    assert DRAFTS not in done.err
    assert done.json["results"][0]["drafter"] == f"head:{other}"


def test_a_named_head_drafts_alone_without_lookahead(model: Path, tmp_path: Path) -> None:
    head = f"head:{write_head(tmp_path / 'head')}"
    for flags in (("--no-lookahead",), ("--lookahead", "1,1,0")):
        done = ran(model, "--drafter", head, *flags).json
        assert done["results"][0]["drafter"] == head
        assert done["results"][0]["sources"].keys() <= {"head"}
        assert done["stats"]["head_forwards"]


def test_layers_that_are_none_are_refused_whoever_would_read_them(model: Path) -> None:
    for layers in ("no", "0,1,2", "3,2,5"):
        done = trtla("run", "-m", model, "-p", PROMPT, "--head-layers", layers)
        refused(done, 2, f"head_layers is '{layers}'", "rising whole numbers")
        write_head(model / "head")
    assert ExecutorOptions(head_layers=[2, 3, 4]).boundaries == (2, 3, 4)


def test_a_head_that_does_not_fit_is_a_note(model: Path) -> None:
    plain = ids(ran(model))
    head = write_head(model / "head", vocab_size=512)
    done = ran(model)
    assert ids(done) == plain
    assert f"note: the head beside the model {GOES_WITHOUT}{head} holds an EAGLE-3 head" in done.err
    assert "for a vocab_size of 512, and the model has 2048" in done.err


@pytest.mark.parametrize("broken", ["empty", "no weights", "truncated", "no json", "a model"])
def test_a_broken_head_is_a_note(broken: str, model: Path, tiny_llama: Path) -> None:
    plain, head = ids(ran(model)), model / "head"
    if broken == "empty":
        head.mkdir()
    elif broken == "a model":
        shutil.copytree(tiny_llama, head)
    else:
        weights = write_head(head) / "model.safetensors"
        if broken == "no weights":
            weights.unlink()
        elif broken == "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        else:
            (head / "config.json").write_text("{")
    done = ran(model)
    assert ids(done) == plain
    assert done.err.count(f"note: the head beside the model {GOES_WITHOUT}") == 1


@pytest.mark.parametrize("style", ["specforge", "official", "medusa-pt", "gguf"])
def test_a_head_that_fails_while_it_loads_is_a_note_unless_it_is_named(
    style: str, model: Path
) -> None:
    plain = ids(ran(model))
    name = {"medusa-pt": "0.0.linear.bias", "gguf": "output_norm.weight"}.get(style, "norm.weight")
    broken = tensors(**{name: at(0, float("nan"))})
    (model / "head").mkdir()
    place = model / "head" / "a.gguf" if style == "gguf" else model / "head"
    head = write_head(place, style, change=broken)
    done = ran(model)
    assert ids(done) == plain
    assert f"note: the head beside the model {GOES_WITHOUT}" in done.err
    assert "holds NaN or infinities" in done.err
    assert DRAFTS not in done.err
    assert done.json["results"][0]["drafter"] == "lookahead"
    named = trtla("run", "-m", model, "-p", PROMPT, "--drafter", f"head:{head}")
    refused(named, 2, "holds NaN or infinities", "export the head again")


def test_a_gguf_head_beside_a_gguf_file_drafts(alone: Path) -> None:
    plain = ran(alone)
    assert not HEAD.search(plain.err)
    head = head_for(alone, "its head.gguf")
    done = ran(alone)
    assert f"note: the trained head {head} {DRAFTS}" in done.err
    assert ids(done) == ids(plain)
    assert not HEAD.search(ran(alone, "--drafter", "lookahead").err)


def test_of_several_gguf_heads_the_one_that_fits_drafts(alone: Path, gguf: Path) -> None:
    shutil.copy(gguf, alone.with_name("another model.gguf"))
    (alone.with_name("broken.gguf")).write_bytes(b"GGUF")
    fits = head_for(alone, "b.gguf")
    head_for(alone, "a.gguf", vocab_size=999)
    assert f"the trained head {fits} {DRAFTS}" in ran(alone).err
    head_for(alone, "c.gguf")  # which of the two is meant cannot be known
    assert not HEAD.search(ran(alone).err)


def test_a_gguf_head_that_does_not_fit_is_a_note(alone: Path) -> None:
    head = head_for(alone, "head.gguf", vocab_size=999)
    assert f"{GOES_WITHOUT}{head} holds an EAGLE-3 head for a vocab_size of 999" in ran(alone).err


def test_an_opened_model_drafts_with_it_if_no_drafter_is_named(model: Path) -> None:
    head, sampling, texts = write_head(model / "head"), SamplingParams(8), set[str | None]()

    def drafter(**options: object) -> str:
        with LLM(model, **options) as llm:
            texts.add(llm.generate(PROMPT, sampling)[0].text)
            return ",".join(llm.limits.drafter.drafter)

    assert drafter() == f"lookahead,head:{head}"
    assert drafter(drafter="lookahead") == "lookahead"
    assert drafter(find_head=False) == "lookahead"
    assert drafter(drafter="none") == "none"
    assert len(texts) == 1


@needs("bench")
def test_bench_uses_it_in_the_arms_that_name_it(model: Path) -> None:
    head = write_head(model / "head")
    flags = (
        "--prompt-len",
        "16",
        "-n",
        "8",
        "--num-prompts",
        "1",
        "--categories",
        "code",
        "--rounds",
        "1",
        "--json",
    )
    done = command("bench", "-m", model, *flags)
    assert not HEAD.search(done.err)
    assert "head:" not in json.dumps(done.json)
    done = command("bench", "-m", model, *flags, "--drafter", "lookahead", f"head:{head}")
    assert DRAFTS not in done.err
    assert f"head:{head.name}" in {row["arm"] for row in done.json["rows"]}


def build(model: Path, engine: Path, *flags: str | Path) -> Ran:
    return trtla("build", model, "-o", engine, "--lookahead", "4,3,4", *flags)


@pytest.mark.parametrize("style", ["sharded", "official", "medusa-pt", "gguf"])
def test_build_puts_a_head_into_the_engine(style: str, tiny_llama: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / ("mine.gguf" if style == "gguf" else "mine"), style)
    if head.is_dir():
        (head / "README.md").write_text("How it was trained.")
        (head / "training_args.bin").write_text("")
        wanted = {path.name for path in head.iterdir()} - {"README.md", "training_args.bin"}
    else:
        wanted = {"mine.gguf"}
    engine = tmp_path / "engine"
    planned = build(tiny_llama, engine, "--head", head, "--dry-run", "--json")
    assert {f"head/{name}" for name in wanted} <= {*planned.json["files"]}
    done = build(tiny_llama, engine, "--head", head)
    assert done.code == 0, done.err
    assert {path.name for path in (engine / "head").iterdir()} == wanted
    copied = engine / "head" / "mine.gguf" if style == "gguf" else engine / "head"
    assert {*read_head(copied).tensors} == {*read_head(head).tensors}
    found = ran(engine)
    assert f"note: the trained head {copied} {DRAFTS}" in found.err
    assert ids(found) == ids(ran(engine, "--drafter", "none"))


def test_build_replaces_a_head_with_force_alone(model: Path, tmp_path: Path) -> None:
    write_head(model / "head")  # of the input, which is not named
    first, second = write_head(tmp_path / "first"), write_head(tmp_path / "second", "medusa")
    engine = tmp_path / "engine"
    assert build(model, engine, "--head", first).code == 0
    refused(build(model, engine, "--head", second), 2, "is not empty", "--force")
    assert (engine / "head" / "model.safetensors").is_file()
    assert build(model, engine, "--head", second, "--force").code == 0
    assert not (engine / "head" / "model.safetensors").exists()
    assert build(model, engine, "--head", engine / "head", "--force").code == 0
    assert (engine / "head" / "medusa_lm_head.safetensors").is_file()
    assert build(model, engine, "--force").code == 0
    assert not (engine / "head").exists()
    (engine / "head").mkdir()
    (engine / "head" / "notes.md").write_text("mine")
    refused(build(model, engine, "--force"), 2, "has a head that belongs to no checkpoint")
    assert (engine / "head" / "notes.md").is_file()


def test_a_plain_engine_has_no_head(tiny_llama: Path, tmp_path: Path) -> None:
    engine, head = tmp_path / "engine", write_head(tmp_path / "head")
    for flags in (("--no-lookahead",), ("--lookahead", "1,1,0")):
        done = trtla("build", tiny_llama, "-o", engine, *flags, "--head", head)
        refused(done, 2, f"a plain engine has no room for the drafts of the head {head}")
        assert not engine.exists()
    command("build", tiny_llama, "-o", engine, "--no-lookahead")
    shutil.copytree(head, engine / "head")
    done = ran(engine)
    assert "built without room for drafts" in done.err
    assert not HEAD.search(done.err)


def test_what_is_no_head_of_the_model_is_refused_before_anything_is_written(
    tiny_llama: Path, tmp_path: Path
) -> None:
    engine, other = tmp_path / "engine", write_head(tmp_path / "other", vocab_size=512)
    for flags, parts in (
        ((other,), ("for a vocab_size of 512, and the model has 2048",)),
        ((tiny_llama,), ("is a whole model", "trtla run ENGINE --drafter draft:PATH")),
        (
            (write_head(tmp_path / "deep", boundaries=(2, 3, 9)),),
            ("reads layer 9, and the model has", "give a head that was trained for this model"),
        ),
        ((tmp_path / "none",), ("does not exist",)),
        (
            (write_head(tmp_path / "head"), "--backend", "tensorrt-llm"),
            ("an engine of tensorrt-llm has no place for the head", "--backend torch"),
        ),
    ):
        refused(build(tiny_llama, engine, "--head", *flags), 2, *parts)
        refused(build(tiny_llama, engine, "--dry-run", "--head", *flags), 2, *parts)
        assert not engine.exists()
    adopted = trtla("build", "--from-existing", engine, "--head", other)
    refused(adopted, 2, "--head does not go with --from-existing")
