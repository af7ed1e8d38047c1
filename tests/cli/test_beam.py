"""`trtla run --num-beams`: the beams of `LLM.beam_search`, their output forms, every refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import Ran, refused, trtla
from trtla import LLM, BeamSettings
from trtla.llm.text import Tokenizer

BEAM_KEYS = {"text", "output_ids", "log_prob", "score", "finished"}


def run(engine: Path, *args: str | Path, stdin: str = "") -> Ran:
    return trtla("run", "--engine-dir", engine, *args, stdin=stdin)


def found(ran: Ran) -> list[dict[str, object]]:
    assert ran.code == 0, ran.err
    results: list[dict[str, object]] = ran.json["results"]
    return results


def test_beams_are_those_of_the_library(engine: Path) -> None:
    flags = ("--expansions", "5", "--length-penalty", "0.7", "--length-penalty-offset", "2")
    asked = ("--input-text", "ab", "hello", "--max-output-len", "9", "--json")
    results = found(run(engine, *asked, "--num-beams", "3", *flags))
    with LLM(engine) as llm:
        for prompt, result in zip(("ab", "hello"), results, strict=True):
            expected = llm.beam_search(prompt, BeamSettings(3, 5, 0.7, 2.0), 9)
            assert result["beams"] == [
                {
                    "text": beam.text,
                    "output_ids": list(beam.output_ids),
                    "log_prob": beam.log_prob,
                    "score": beam.score,
                    "finished": beam.finished,
                }
                for beam in expected
            ]


def test_one_beam_with_one_expansion_is_greedy(engine: Path) -> None:
    asked = ("--input-text", "ab", "hello", "--max-output-len", "20", "--json")
    plain = found(run(engine, *asked, "--no-lookahead"))
    single = found(run(engine, *asked, "--num-beams", "1", "--expansions", "1"))
    for greedy, result in zip(plain, single, strict=True):
        [beam] = result["beams"]
        assert (beam["output_ids"], beam["text"]) == (greedy["output_ids"], greedy["text"])
        assert result["input_ids"] == greedy["input_ids"]
    alone = found(run(engine, *asked, "--num_beams", "1", "--num-return-sequences", "1"))
    assert [one["output_ids"] for one in alone] == [one["output_ids"] for one in plain]
    assert alone[0]["lookahead"] == [4, 3, 4]  # ordinary decoding


def test_json_document(engine: Path) -> None:
    ran = run(engine, "--input-text", "ab", "--num-beams", "4", "--max-output-len", "5", "--json")
    [result] = found(ran)
    document = ran.json
    assert set(document) == {"schema_version", "executor", "settings", "results", "stats"}
    assert document["schema_version"] == 1
    assert document["settings"] == {
        "num_beams": 4,
        "expansions": 3,
        "length_penalty": 1.2,
        "length_penalty_offset": 5.0,
    }
    assert document["stats"]["prompts"] == 1
    assert document["stats"]["time_s"] > 0
    assert set(result) == {"index", "input_text", "input_ids", "beams"}
    assert (result["input_text"], result["input_ids"]) == ("ab", [64, 65])
    beams = result["beams"]
    assert len(beams) == 4
    assert all(set(beam) == BEAM_KEYS for beam in beams)
    scores = [beam["score"] for beam in beams]
    assert scores == sorted(scores, reverse=True)
    penalty = BeamSettings().penalty(5)
    assert scores == pytest.approx([beam["log_prob"] / penalty for beam in beams])
    assert len({tuple(beam["output_ids"]) for beam in beams}) == 4


def test_fewer_beams_may_be_returned_than_are_searched(engine: Path) -> None:
    asked = ("--input-text", "ab", "--num-beams", "5", "--max-output-len", "8", "--json")
    [whole], [best] = (
        found(run(engine, *asked)),
        found(run(engine, *asked, "--num-return-sequences", "2")),
    )
    assert best["beams"] == whole["beams"][:2]


def test_texts_are_printed_with_their_beams(engine: Path) -> None:
    asked = ("--input-text", "one", "two", "--num-beams", "2", "--max-output-len", "4")
    ran = run(engine, *asked)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    heads = [line.partition(":")[0] for line in lines if line.startswith(("Input", "Output"))]
    assert heads == [
        f"{kind} [Text {i}{beam}]"
        for i in (0, 1)
        for kind, beam in (("Input", ""), ("Output", " Beam 0"), ("Output", " Beam 1"))
    ]
    [first, *_] = found(run(engine, *asked, "--json"))
    best = first["beams"][0]
    assert f'Input [Text 0]: "one"\nOutput [Text 0 Beam 0]: "{best["text"]}"' in ran.out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    assert rows[0] == ["text", "beam", "tokens", "score", "log prob", "finished"]
    assert [row[:3] for row in rows[2:]] == [[t, b, "4"] for t in "01" for b in "01"]
    assert rows[2][3:] == [f"{best['score']:.4f}", f"{best['log_prob']:.4f}", "no"]
    quiet = run(engine, *asked, "--quiet")
    assert quiet.out.startswith(f"{best['text']}\n")
    assert (quiet.err, "|" in quiet.out.splitlines()[-1]) == ("", False)


def test_a_beam_ends_with_an_end_token_that_its_text_has_not(
    engine: Path, model: Path, tmp_path: Path
) -> None:
    asked = ("--input-text", "ab", "--num-beams", "3", "--max-output-len", "8", "--json")
    end = found(run(engine, *asked))[0]["beams"][0]["output_ids"][2]
    folder = tmp_path / "ends"
    shutil.copytree(model, folder)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, "eos_token_id": end}))
    [result] = found(run(folder, *asked, "--dtype", "float32", "--length-penalty", "0"))
    ended = [beam for beam in result["beams"] if beam["finished"]]
    assert ended
    tokenizer = Tokenizer(folder)
    for beam in result["beams"]:
        ids = beam["output_ids"]
        assert beam["finished"] == (ids[-1] == end)
        assert end not in ids[:-1]
        assert beam["text"] == tokenizer.decode(ids[:-1] if beam["finished"] else ids)


def test_files_bring_prompts_with_lengths_of_their_own(bare_engine: Path, tmp_path: Path) -> None:
    lines = [{"input_ids": [1, 2, 3], "max_output_len": 3}, {"input_ids": [5, 6]}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    asked = ("--num-beams", "2", "--max-output-len", "7")
    results = found(run(bare_engine, "--input-file", file, *asked, "--json"))
    assert [r["input_ids"] for r in results] == [[1, 2, 3], [5, 6]]
    assert [[len(beam["output_ids"]) for beam in r["beams"]] for r in results] == [[3, 3], [7, 7]]
    assert {beam["text"] for r in results for beam in r["beams"]} == {None}
    shown = run(bare_engine, "--input-file", "-", *asked, stdin=file.read_text())
    ids = " ".join(map(str, results[0]["beams"][0]["output_ids"]))
    assert f'Input [Text 0]: "1 2 3"\nOutput [Text 0 Beam 0]: "{ids}"' in shown.out


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (("--temperature", "0.8"), "temperature 0.8 of text 0 does not go", "omit it"),
        (("--processor", "multinomial:0.7"), "temperature 0.7 of text 0", "nothing is drawn"),
        (("--logit-bias", "5:1"), "logit_bias of text 0 does not go", "the model's own"),
        (("--repetition-penalty", "1.1"), "repetition_penalty of text 0 does not go", "omit it"),
        (("--json-schema", "{}"), "json_schema of text 0 does not go", "omit it"),
        (("--regex", "a"), "regex of text 0 does not go", "omit it"),
        (("--grammar", 'start: "a"'), "grammar of text 0 does not go", "omit it"),
        (("--stop", "x"), "stop of text 0 does not go with --num-beams", "end token"),
        (("--allotted-time-ms", "9"), "allotted_time_ms of text 0 does not go", "omit it"),
        (("--stream",), "--stream does not go", "omit it"),
        (("--check-lossless",), "--check-lossless does not go", "omit it"),
        (
            ("--request-lookahead", "2,2,2"),
            "lookahead 2,2,2 of text 0 does not go",
            "without drafts",
        ),
        (("--lookahead", "auto"), "--lookahead auto does not go", "without drafts"),
        (("--corpus", "x"), "--corpus does not go", "without drafts"),
        (("--expected-output", "x"), "expected_output of text 0 does not go", "without drafts"),
        (("--drafter", "ngram"), "--drafter does not go", "without drafts"),
        (("--num-beams", "0"), "num_beams is 0", "at least 1"),
        (("--expansions", "0"), "expansions is 0", "at least 1"),
        (("--length-penalty", "-1"), "length_penalty is -1.0", "0 to 20"),
        (("--length-penalty-offset", "nan"), "length_penalty_offset is nan", "at least 0"),
        (("--num-return-sequences", "3"), "num_return_sequences 3 is above num_beams 2", "at most"),
    ],
)
def test_what_does_not_go_with_beams_is_refused_before_a_model_is_loaded(
    no_weights: Path, flags: tuple[str, ...], message: str, hint: str
) -> None:
    given = flags if flags[0] == "--num-beams" else ("--num-beams", "2", *flags)
    refused(run(no_weights, "--input-text", "a", *given), 2, message, hint)


@pytest.mark.parametrize("flag", ["--expansions", "--length-penalty", "--length-penalty-offset"])
def test_how_to_search_needs_beams(no_weights: Path, flag: str) -> None:
    ran = run(no_weights, "--input-text", "a", flag, "2")
    refused(ran, 2, f"{flag} needs beams", "give --num-beams 4")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"temperature": 0.5}, "temperature 0.5 of line 2"),
        ({"stop": "x"}, "stop of line 2"),
        ({"allotted_time_ms": 5}, "allotted_time_ms of line 2"),
        ({"lookahead": "2,2,2"}, "lookahead 2,2,2 of line 2"),
        ({"lookahead": "auto"}, "lookahead auto of line 2"),
        ({"drafter": "ngram"}, "drafter ngram of line 2"),
        ({"gamma": 2}, "drafter lookahead of line 2"),
    ],
)
def test_lines_of_files_are_refused_by_their_number(
    no_weights: Path, tmp_path: Path, line: dict[str, object], message: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "a"}\n' + json.dumps({"text": "b", **line}))
    refused(run(no_weights, "--input-file", file, "--num-beams", "2"), 2, message, "--num-beams")


def test_what_asks_for_no_drafts_goes_with_beams(engine: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "ab", "lookahead": "1,1,0", "drafter": "none", "top_k": 1}')
    asked = ("--num-beams", "2", "--max-output-len", "3", "--json", "--drafter", "none")
    assert found(run(engine, "--input-file", file, *asked, "--no-lookahead", "--temperature", "0"))


def test_engines_of_tensorrt_llm_have_no_beams(engine: Path, tmp_path: Path) -> None:
    manifest = json.loads((engine / "trtla.json").read_text())
    (tmp_path / "trtla.json").write_text(json.dumps({**manifest, "backend": "tensorrt-llm"}))
    (tmp_path / "config.json").write_text((engine / "config.json").read_text())
    ran = run(tmp_path, "--input-text", "a", "--num-beams", "2")
    refused(ran, 2, "is a TensorRT-LLM engine", "builds none with beams", "--backend torch")


def test_a_prompt_that_does_not_fit_is_named_before_any_is_searched(engine: Path) -> None:
    lines = '{"text": "a"}\n' + json.dumps({"input_ids": [1] * 129})
    ran = run(engine, "--input-file", "-", "--num-beams", "2", stdin=lines)
    refused(ran, 2, "line 2 of stdin is 129 tokens long", "max_input_len 128")
    assert ran.out == ""


def test_beams_without_room_are_refused_with_the_numbers(engine: Path) -> None:
    ran = run(engine, "--input-text", "abc", "--num-beams", "999", "--max-output-len", "5")
    refused(ran, 1, "no room for 999 beams of 8 tokens", "use fewer beams")
