"""trtla explain on the command line: text, pictures, JSON, drafters, refusals."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.command import refused, trtla
from tests.support.heads import fitting, write_head
from tests.support.trtllm_engines import write_engine
from trtla.formats.model import Model

PROMPT = ("--input-text", "abcabcabcabc $x$ <y> abcabc", "--max-output-len", "24")


def test_the_run_and_its_step_are_printed(engine: Path) -> None:
    ran = trtla("explain", "--engine-dir", engine, *PROMPT)
    assert ran.code == 0, ran.err
    assert re.search(r"^\d+ steps after the prefill, 24 tokens, S = \d\.\d\d", ran.out)
    number = re.search(r"note: step (\d+) accepted the most", ran.err)
    assert number, ran.err
    assert f"\nStep {number[1]} of " in ran.out
    for part in ("Window: W = 4", "Candidates: the pool has", "Attention mask", "Why it ended: "):
        assert part in ran.out
    assert "\x1b[" not in ran.out
    assert "\x1b[" in trtla("explain", "--engine-dir", engine, *PROMPT, "--color", "always").out


def test_the_text_is_the_one_that_run_prints(engine: Path) -> None:
    sampling = ("--temperature", "0.9", "--top-p", "0.9", "--seed", "4")
    ran = trtla("explain", "--engine-dir", engine, *PROMPT, *sampling, "--json")
    assert ran.code == 0, ran.err
    fixed = ("--request-lookahead", "4,3,4", "--json")
    same = trtla("run", "--engine-dir", engine, *PROMPT, *sampling, *fixed).json["results"][0]
    assert ran.json["result"]["output_ids"] == same["output_ids"]
    assert ran.json["result"]["text"] == same["text"]
    for name in ("steps", "drafted", "accepted", "tokens_per_step", "finish_reason"):
        assert ran.json["result"][name] == same[name]


def test_json_has_every_step(engine: Path) -> None:
    ran = trtla("explain", "--engine-dir", engine, *PROMPT, "--step", "3", "--json")
    assert ran.code == 0, ran.err
    told = ran.json
    assert (told["schema_version"], told["command"], told["step"]) == (1, "explain", 3)
    steps, output = told["steps"], told["result"]["output_ids"]
    assert [step["step"] for step in steps] == list(range(told["result"]["steps"] + 1))
    assert [token for step in steps for token in step["draws"]] == output
    assert sum(len(step["accepted"]) for step in steps) == told["result"]["accepted"]
    for step in steps[1:]:
        size = len(step["tokens"])
        assert len(step["parents"]) == len(step["positions"]) == len(step["roles"]) == size
        added = [] if step["added"] is None else [step["added"]]
        assert step["accepted"] + added == step["draws"]
        assert [step["tokens"][node - 1] for node in step["accepted_nodes"]] == step["accepted"]
        assert step["pool_found"] == [c["tokens"] for c in step["candidates"]]
        assert len(step["window"]["levels"][0]) == 4
    for before, after in pairwise(steps):
        assert after["window"] == before["window_after"]
    assert steps[-1]["reason"] == "length"


def test_a_picture_is_written_whole(engine: Path, tmp_path: Path) -> None:
    step = tmp_path / "step.svg"
    command = ("explain", "--engine-dir", engine, *PROMPT, "-o", step)
    ran = trtla(*command)
    assert ran.code == 0, ran.err
    assert f"note: wrote {step}" in ran.err
    root = ElementTree.parse(step).getroot()
    nodes = root.iter("{http://www.w3.org/2000/svg}text")
    shown = " ".join("".join(node.itertext()) for node in nodes).replace("\N{NO-BREAK SPACE}", " ")
    assert all(text in shown for text in ("level 0", "level 1", "candidate 1", "$x$", "<y>"))
    before = step.read_bytes()
    refused(trtla(*command), 2, f"{step} exists already", "--force")
    assert trtla(*command, "--force").code == 0
    assert step.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["step.svg"]


@pytest.mark.deep(first=3)
@pytest.mark.parametrize(
    ("flags", "drafter"),
    [
        (("--drafter", "ngram", "--gamma", "3"), "ngram"),
        (("--drafter", "prompt-lookup,lookahead"), "prompt-lookup,lookahead"),
        (("--drafter", "none"), "none"),
        (("--drafter", "prompt-lookup"), "prompt-lookup"),
        (("--lookahead-cells", "drawn"), "lookahead"),
        (("--lookahead", "4,3,4"), "lookahead"),
    ],
)
def test_all_drafters_can_be_explained(engine, flags, drafter, tmp_path) -> None:
    ran = trtla("explain", "--engine-dir", engine, *PROMPT, *flags, "-o", tmp_path / "a.svg")
    assert ran.code == 0, ran.err
    assert "Why it ended: " in ran.out
    assert ("Window: " in ran.out) == ("lookahead" in drafter)
    told = trtla("explain", "--engine-dir", engine, *PROMPT, *flags, "--json").json
    plain = trtla("run", "--engine-dir", engine, *PROMPT, "--no-lookahead", "--json").json
    assert told["result"]["output_ids"] == plain["results"][0]["output_ids"]
    assert told["result"]["drafter"] == drafter


def test_a_draft_model_that_is_the_model_is_always_right(model: Path) -> None:
    flags = ("--drafter", f"draft:{model}", "--gamma", "2", "--dtype", "float32", "--json")
    ran = trtla("explain", "--engine-dir", model, *PROMPT, *flags)
    assert ran.code == 0, ran.err
    reasons = {step["reason"] for step in ran.json["steps"]}
    assert reasons <= {"prefill", "whole_candidate", "nothing_drafted", "length", "end_id"}
    assert "whole_candidate" in reasons


def test_a_trained_head_is_a_source_of_nodes(tiny_llama: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "random", **fitting(Model.at(tiny_llama).config))
    args = ("-m", tiny_llama, *PROMPT, "--drafter", f"head:{head}", "--lookahead-nodes", "3")
    ran = trtla("explain", *args, "--lookahead-sources", "head")
    assert ran.code == 0, ran.err
    assert len(re.findall(r"^  .* head +0\.\d\d  rejected ✗$", ran.out, re.MULTILINE)) == 3
    ran = trtla("explain", *args, "--lookahead-sources", "head", "--json")
    fed = ran.json["result"]["sources"]["head"]["fed"]
    sources = [step["sources"] for step in ran.json["steps"] if step["sources"]]
    assert sum(fed) == sum(one.count("head") for one in sources) > 0


def test_auto_shows_its_tree(engine: Path, tmp_path: Path) -> None:
    args = ("--engine-dir", engine, *PROMPT, "--lookahead", "auto", "--lookahead-nodes", "5")
    ran = trtla("explain", *args, "-o", tmp_path / "step.svg")
    assert ran.code == 0, ran.err
    assert "(auto within 4,3,4)" in ran.out
    assert re.search(r"^Candidate tree: 5 nodes, \d\.\d\d of which", ran.out, re.MULTILINE)
    node = r"^  [├└] .* (recycling|agreement|context) +0\.\d\d  (rejected ✗|accepted ✓)$"
    assert re.search(node, ran.out, re.MULTILINE)
    assert "rejected" in (tmp_path / "step.svg").read_text()
    found = trtla("explain", *args, "--json").json
    plain = trtla("run", *args[:2], *PROMPT, "--json").json["results"][0]
    assert found["result"]["output_ids"] == plain["output_ids"]
    fates = [fate for step in found["steps"] for fate in step["fates"]]
    assert fates.count("accepted") == found["result"]["accepted"]
    fed = sum(sum(own["fed"]) for own in found["result"]["sources"].values())
    assert fed == len(fates) == found["result"]["drafted"]
    for step in found["steps"][1:]:
        assert len(step["sources"] or ()) == len(step["chances"] or ()) == len(step["tokens"])


BAD = [
    (("--step", "-1"), "-1 is not in the range"),
    (("--lookahead", "7,7"), "write window,ngram,verification"),
    (("-o", "step.pdf"), "end its name with .svg"),
    (("-o", "nowhere/step.svg"), "the folder nowhere of --output does not exist"),
    (("--drafter", "medusa"), "prompt-lookup"),
    (("--temperature", "-1"), "--temperature must be a number, at least 0"),
    (("--max-output-len", "0"), "'0' is not a whole number of at least 1"),
]


@pytest.mark.parametrize(("flags", "part"), BAD)
def test_bad_values_are_refused_before_a_model_is_loaded(no_weights, flags, part) -> None:
    ran = trtla("explain", "--engine-dir", no_weights, "--input-text", "a", *flags)
    assert ran.code == 2
    assert part in ran.err
    assert "Traceback" not in ran.err


def test_a_step_beyond_the_run_names_those_it_has(engine: Path) -> None:
    ran = trtla("explain", "--engine-dir", engine, *PROMPT, "--step", "99")
    refused(ran, 2, "--step 99: this run has the steps 0 to ", "omit --step")
    assert not ran.out


def test_a_step_may_be_the_prefill_and_a_run_may_accept_nothing(engine: Path) -> None:
    ran = trtla("explain", "--engine-dir", engine, *PROMPT, "--step", "0")
    assert ran.code == 0, ran.err
    assert "The prefill, step 0 of " in ran.out
    assert "accepted the most" not in ran.err
    ran = trtla("explain", "--engine-dir", engine, *PROMPT, "--drafter", "none")
    assert "note: no draft was accepted; another step with --step K" in ran.err
    given = ("--input-text", "-", "--request-lookahead", "auto")
    ran = trtla("explain", "--engine-dir", engine, *given, stdin="abab\n")
    assert "(auto within 4,3,4)" in ran.out


def test_nothing_to_explain(engine: Path, bare_engine: Path) -> None:
    ran = trtla("explain", "--engine-dir", bare_engine, *PROMPT)
    refused(ran, 2, "has no tokenizer files", "--tokenizer-dir")
    refused(trtla("explain", "--engine-dir", engine, "--input-text", ""), 2, "empty prompt")
    ran = trtla("explain", "--engine-dir", engine)
    assert ran.code == 2
    assert "--input-text" in ran.err


def test_tensorrt_llm_engines_do_not_report_drafts(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine")
    ran = trtla("explain", "--engine-dir", folder, *PROMPT)
    refused(ran, 2, "does not report what it drafts", "--backend torch")
