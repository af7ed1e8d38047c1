"""The benchmark's arithmetic on runs with known numbers, its prompt sets, and its turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from tests.support.real_models import folder_and_model
from trtla import LLM
from trtla.data.prompt_sets import SHIPPED, Ids, batches, fit, load_sets
from trtla.errors import UsageError
from trtla.extras.bench.bandwidth import read_bandwidth
from trtla.extras.bench.hf_arms import peer_arms, peer_dtypes
from trtla.extras.bench.rounds import rounds_of, together
from trtla.formats.config import CheckpointConfig
from trtla.formats.hf import HFModel
from trtla.formats.support import plain_bytes
from trtla.measuring.arms import ArmRun, EngineArm, PeerArm
from trtla.measuring.hardware import Hardware, peak_bytes, reset_peak
from trtla.measuring.hugging_face import HuggingFace
from trtla.measuring.turns import CellRuns, Turn, measure, rows
from trtla.results.metrics import add, agreement
from trtla.results.rows import Cell, Row
from trtla.runtime.device import CPU, Device
from trtla.runtime.stats import DraftTotals, HeadTotals, SourceCounts
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.sampling import SamplingParams

CELL = Cell(
    device="cpu", dtype="float32", threads=1, batch_size=2, temperature=0.0, category="code"
)
PLAIN = ArmRun(
    outputs=((1, 2, 3, 4, 5), (1, 1, 1, 1, 1)),
    time_s=2.0,
    first_s=(0.5, 0.7),
    last_s=(1.8, 2.0),
    steps=8,
    fed=8,
    forwards=5,
    forward_s=1.5,
)
"""Two requests of five tokens, one by one."""
FAST = replace(
    PLAIN, time_s=1.25, first_s=(0.4, 0.6), last_s=(0.9, 1.1), steps=4, fed=40, forwards=3
)


class FakeArm:
    """Gives the run it was made with, and remembers what it was asked."""

    same_draws = True
    setting: str | None = None

    def __init__(self, name: str, run: ArmRun) -> None:
        self.name = self.label = self.key = name
        self._run = run
        self.warmed_up = self.rounds = 0
        self.seeds: list[int] = []

    def takes(self, batch_size: int) -> bool:
        return True

    def warm_up(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> None:
        self.warmed_up += 1

    def begin_round(self) -> None:
        self.rounds += 1

    def decode(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> ArmRun:
        self.seeds += [params.seed for params in sampling]
        return self._run


def test_figures_are_the_arithmetic_of_the_runs() -> None:
    arms = [FakeArm("ar", PLAIN), FakeArm("lookahead 7,7,7", FAST)]
    measured = measure(CELL, arms, rounds_of([[(1,), (2,)]], SamplingParams(5), 3))
    plain, fast = rows(measured, Hardware(weight_bytes=10**9, read_bandwidth=4e9))
    assert plain.tokens_per_s == 5.0
    assert plain.tokens_per_step == plain.speedup_vs_ar == plain.efficiency == 1.0
    assert plain.ttft_ms == pytest.approx(600.0)
    assert plain.ms_per_token == pytest.approx(1000 * (1.3 + 1.3) / 8)
    assert plain.host_ms_per_step == pytest.approx(100.0)
    assert plain.read_gb_per_s == pytest.approx(5 / 1.5)
    assert plain.share_of_bandwidth == pytest.approx(5 / 1.5 / 4)
    assert plain.distinct_4grams == 0.75
    assert fast.tokens_per_s == fast.tokens_per_s_min == 8.0
    assert fast.tokens_per_step == 2.0
    assert fast.speedup_vs_ar == pytest.approx(1.6)
    assert fast.efficiency == pytest.approx(0.8)
    assert fast.fed_per_step == 10.0
    assert (fast.texts, fast.equal_texts, fast.first_divergence) == (2, 2, None)
    assert fast.rounds == 3


def test_counters_have_fields_of_their_own_in_the_row() -> None:
    class Wider(Row):
        reused_tokens: int | None = None

    row = Wider.fill(CELL, replace(FAST, drafted=3, reused_tokens=7), arm="x").document()
    assert [row[name] for name in ("steps", "drafted", "reused_tokens")] == [4, 3, 7]
    assert row["device"] == "cpu"


def test_what_a_run_does_not_report_is_none() -> None:
    silent = replace(PLAIN, fed=None, forward_s=None)
    measured = measure(
        CELL, [FakeArm("ar", silent)], rounds_of([[(1,), (2,)]], SamplingParams(), 1)
    )
    (row,) = rows(measured, Hardware(1, 1.0))
    for key in ("fed_per_step", "host_ms_per_step", "read_gb_per_s", "share_of_bandwidth"):
        assert getattr(row, key) is None
    assert add([silent, PLAIN]).fed is None
    assert add([PLAIN, PLAIN]).forward_s == 3.0


def test_a_sum_joins_every_field() -> None:
    first = replace(
        PLAIN,
        drafted=3,
        accepted=1,
        accepted_lengths=((1, 0), (0,)),
        reasons=("length", "end_id"),
        sources={"context": SourceCounts((2,), (2,), (1,), 0.5)},
        draft_model=DraftTotals(forwards=2, steps=1, _gammas=4),
        heads=HeadTotals(forwards=2, pairs=3, seconds=0.5, drafts=2, hits=1),
        peak_bytes=7,
        weight_bytes=100,
    )
    second = replace(first, peak_bytes=5, draft_model=DraftTotals(forwards=1, steps=1, _gammas=2))
    found = add([first, second])
    assert {one.name for one in fields(ArmRun) if getattr(found, one.name) is None} == set()
    assert (found.output_tokens, found.time_s, found.steps, found.drafted) == (20, 4.0, 16, 6)
    assert found.first_s == PLAIN.first_s * 2
    assert found.accepted_lengths == ((1, 0), (0,), (1, 0), (0,))
    assert (found.peak_bytes, found.weight_bytes) == (7, 100)
    assert (found.head_forwards, found.head_s, found.head_share) == (4, 1.0, 0.25)
    assert found.draft_model is not None
    assert (found.draft_model.forwards, found.draft_model.mean_gamma) == (3, 3.0)
    assert add([first, PLAIN]).draft_model is None


def test_a_run_has_the_sums_of_its_requests_counters() -> None:
    folder = folder_and_model("mha")[0]
    drafter = DrafterSettings((f"draft:{folder}",), gamma=2)
    prompts: list[Ids] = [(1, 2, 3), (4, 5)]
    params = [SamplingParams(6), SamplingParams(6, temperature=0.9)]
    with LLM(folder, dtype="float32", max_batch_size=2, draft_models=[str(folder)]) as llm:
        llm.end_ids = frozenset()
        arm = EngineArm(llm, None, drafter)
        arm.warm_up(prompts, params)
        run, done = arm.decode(prompts, params), llm.generate(prompts, params, drafter=drafter)
        assert arm.name == drafter.name
        assert EngineArm(llm, AUTOREGRESSIVE).decode(prompts, params).draft_model is None
    assert run.outputs == tuple(one.output_ids for one in done)
    assert run.reasons == ("length", "length")
    stats = [one.stats for one in done]
    assert run.steps == sum(one.steps for one in stats)
    assert run.drafted == sum(one.drafted or 0 for one in stats) > 0
    assert run.accepted == sum(one.accepted for one in stats) == run.drafted  # it drafts for itself
    assert run.fed == sum(one.fed or 0 for one in stats) - 5
    assert run.draft_model is not None
    assert (run.draft_model.accepted, run.draft_model.steps) == (run.accepted, run.steps)
    assert 0 < run.first_s[0] <= run.last_s[0] <= run.time_s


def test_speed_up_is_the_median_of_the_rounds_own_ratios() -> None:
    """Both arms slow down threefold in one round: the ratio must not."""
    arms = [FakeArm("ar", PLAIN), FakeArm("x", FAST)]
    measured = measure(CELL, arms, rounds_of([[(1,)]], SamplingParams(), 2))
    slow = measured.turns[1].runs
    slow |= {name: replace(run, time_s=run.time_s * 3) for name, run in slow.items()}
    row = rows(measured, Hardware(1, 1.0))[1]
    assert row.speedup_vs_ar_min == pytest.approx(1.6)
    assert row.speedup_vs_ar_max == pytest.approx(1.6)
    assert row.tokens_per_s_min < row.tokens_per_s < row.tokens_per_s_max


def test_arms_take_turns_on_the_same_seeds() -> None:
    arms = [FakeArm("ar", PLAIN), FakeArm("b", FAST), FakeArm("c", FAST)]
    measured = measure(
        CELL, arms, rounds_of([[(1,), (2,)], [(3,), (1,)]], SamplingParams(seed=7), 2)
    )
    assert measured.order == ["ar", "b", "c"] * 2 * 2  # batches, rounds
    assert [len(runs) for runs in measured.runs().values()] == [2, 2, 2]
    assert [(arm.warmed_up, arm.rounds) for arm in arms] == [(1, 2)] * 3
    assert arms[0].seeds == arms[2].seeds == [7, 8, 9, 10] * 2


def test_cells_together_are_one_row_an_arm_and_each_keeps_what_its_arm_chose() -> None:
    peer, found = FakeArm("hf", FAST), []
    for category, setting in (("code", "tokens=3"), ("chat", "tokens=5")):
        peer.setting, cell = setting, CELL.model_copy(update={"category": category})
        batches = rounds_of([[(1,), (2,)]], SamplingParams(5), 2)
        found.append(measure(cell, [FakeArm("ar", PLAIN), peer], batches))
    named = [rows(one)[1] for one in found]
    assert [(one.category, one.setting) for one in named] == [
        ("code", "tokens=3"), ("chat", "tokens=5")
    ]  # fmt: skip
    [whole] = together(found)
    plain, fast = rows(whole)
    assert (fast.category, fast.setting, fast.rounds, fast.texts) == ("all", None, 2, 4)
    assert (plain.output_tokens, fast.speedup_vs_ar) == (20, pytest.approx(1.6))
    assert list(together(found[:1])) == []
    found[1].turns.pop()  # as of an interrupted category
    [whole] = together(found)
    assert [turn.batch.round for turn in whole.turns] == [1, 1]


def test_peers_sampled_texts_are_not_compared() -> None:
    arm = FakeArm("hf", FAST)
    arm.same_draws = False
    for temperature, expected in ((0.0, 2), (0.5, None)):
        cell = CELL.model_copy(update={"temperature": temperature})
        measured = measure(
            cell, [FakeArm("ar", PLAIN), arm], rounds_of([[(1,)]], SamplingParams(), 1)
        )
        assert rows(measured, Hardware(1, 1.0))[1].equal_texts == expected


def test_a_peer_keeps_its_fastest_setting_however_long_the_texts_are() -> None:
    short = replace(PLAIN, outputs=((1,), (1,)), time_s=1.0)
    peer = PeerArm(
        "peer",
        lambda _, __, options: FAST if options["tokens"] == 10 else short,
        [{"tokens": 2}, {"tokens": 10}],
    )
    peer.warm_up([(1,), (2,)], [SamplingParams()] * 2)
    assert peer.setting == "tokens=10"


def test_a_text_that_differs_in_a_later_round_alone_counts() -> None:
    other = replace(PLAIN, outputs=((1, 2, 3, 4, 9), *PLAIN.outputs[1:]))
    batches = rounds_of([[(1,)]], SamplingParams(), 3)
    turns = [
        Turn(batch, {"ar": PLAIN, "fast": other if batch.round == 2 else PLAIN})
        for batch in batches
    ]
    arms = {name: FakeArm(name, PLAIN) for name in ("ar", "fast")}
    fast = rows(CellRuns(CELL, dict(arms), turns), Hardware(1, 1.0))[1]
    assert (fast.texts, fast.equal_texts) == (2, 1)


def test_agreement_names_the_earliest_difference() -> None:
    ours = replace(PLAIN, outputs=((1, 2, 3), (1, 2), (5,)))
    theirs = replace(PLAIN, outputs=((1, 2, 4), (1, 2, 9), (5,)))
    assert agreement(ours, theirs) == {"texts": 3, "equal_texts": 1, "first_divergence": 2}


def test_another_finish_reason_is_a_difference() -> None:
    ours = replace(PLAIN, reasons=("length", "end_id"))
    theirs = replace(PLAIN, reasons=("length", "length"))
    assert agreement(ours, theirs) == {"texts": 2, "equal_texts": 1, "first_divergence": 5}
    assert agreement(ours, PLAIN)["equal_texts"] == 2  # the other does not report it


def test_the_shipped_sets() -> None:
    sets = load_sets(SHIPPED, (), 100)
    assert [found.category for found in sets[:3]] == list(SHIPPED[:3])
    assert all(len(set(found.texts)) >= 12 for found in sets[:3])
    assert [len(found.texts) for found in load_sets(SHIPPED, ("chat",), 5)] == [5]


def test_spec_bench_lines_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "spec.jsonl"
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Shorter."]},
        {"question_id": 101, "category": "math", "turns": ["1 + 1?"], "reference": ["2"]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    writing, math = load_sets([str(path)], (), 10)
    assert (writing.category, writing.texts) == ("writing", ("Write a poem.",))
    assert math.texts == ("1 + 1?",)


def test_lines_need_no_category(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"category": "c", "text": "two"}\n')
    (tmp_path / "b.txt").write_text("three\n\nfour\r\n")
    found = load_sets([str(tmp_path / "a.jsonl"), str(tmp_path / "b.txt")], (), 10)
    assert [(one.category, one.texts) for one in found] == [
        ("prompts", ("one", "three", "four")),
        ("c", ("two",)),
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "holds no prompts"),
        ('{"category": "c"}\n', 'line 1 of .*needs either "text" or "turns"'),
        ('{"category": "c", "turns": []}\n', "empty prompt"),
        ('{"category": "c", "text": "a"}\nno\n', "line 2"),
        ('{"prompt": "a"}\n', 'use "text"'),
    ],
)
def test_bad_sets_are_refused(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=part):
        load_sets([str(path)], (), 1)


def test_prompts_get_the_length_asked_for() -> None:
    prompts = [(1, 2, 3), (4, 5)]
    assert fit(prompts, None, 2) == [(2, 3), (4, 5)]
    assert fit(prompts, 2, 9) == [(2, 3), (4, 5)]
    assert fit(prompts, 5, 9) == [(4, 5, 1, 2, 3), (1, 2, 3, 4, 5)]
    assert fit([(1, 2)], 5, 9) == [(2, 1, 2, 1, 2)]
    with pytest.raises(UsageError, match="--prompt-len 10"):
        fit(prompts, 10, 9)


def test_batches_are_full_and_hold_every_prompt() -> None:
    assert batches([(1,), (2,), (3,)], 2) == [[(1,), (2,)], [(3,), (1,)]]
    assert batches([(1,)], 3) == [[(1,), (1,), (1,)]]


def test_weight_bytes_of_the_shipped_model(tiny_llama: Path) -> None:
    """With a tied embedding the head is all of it, so a forward reads every parameter."""
    from transformers import AutoModelForCausalLM

    from trtla.formats.engine import engine_from_hugging_face

    engine = engine_from_hugging_face(tiny_llama)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    count = sum(p.numel() for p in model.parameters())
    config: CheckpointConfig = engine.config.pretrained_config
    assert plain_bytes(config, 4) == 4 * count
    assert plain_bytes(config, 2, fp8=True) < 2 * count


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_both_executors_count_the_same_weights(
    compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A float32 checkpoint is held as it is by both; the compiled one fills blocks up."""
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    with LLM(folder_and_model("mha")[0], dtype="float32") as llm:
        assert ("compiled" in llm.description) == (compiled == "1")
        config = llm.engine.config.pretrained_config
        expected = plain_bytes(config, 4)
        assert llm.stats().weight_bytes == pytest.approx(expected, rel=0.03)


def test_what_the_machine_does_is_measured() -> None:
    assert 1e8 < read_bandwidth(CPU, 2**24) < 1e13
    reset_peak(CPU)
    assert peak_bytes(CPU) > 2**24


def test_a_peer_computes_in_the_run_type_or_in_the_faster_one_of_two(tmp_path: Path) -> None:
    half, full = "bfloat16", "float32"
    assert peer_dtypes("bfloat16", half, "float16", CPU) == [half]
    assert peer_dtypes("auto", half, "bfloat16", Device("cuda")) == [half]
    assert peer_dtypes("auto", full, "float32", CPU) == [full]
    assert peer_dtypes("auto", full, "bfloat16", CPU) == [half, full]
    folder, _ = folder_and_model("mha")
    peer = HuggingFace(str(folder), CPU, [half, full])
    dtype = peer.model.dtype
    (arm,) = peer_arms(["hf"], peer, None)
    assert arm.weight_type == arm.compute_type == str(dtype).removeprefix("torch.")
    assert arm.weight_type in (half, full)
    for weight in peer.model.parameters():  # both ways round, no bit is lost or added
        assert weight.dtype == dtype
        assert torch.equal(weight, weight.to(torch.bfloat16).to(dtype))
    run = arm.decode([(1, 2, 3)], [SamplingParams(max_output_len=4)])
    own = HFModel.open(folder).config
    assert run.weight_bytes == pytest.approx(plain_bytes(own, dtype.itemsize), rel=0.01)
