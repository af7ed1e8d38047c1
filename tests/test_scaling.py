"""scripts/scaling_model.py and docs/scaling.md: exact bytes, limits, and the page's own tables."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import scaling_model  # noqa: E402
import scaling_step as model  # noqa: E402
from scaling_step import Link, Machine, Setup, rank, tokens_a_step  # noqa: E402

from trtla.formats.plan import rank_plan  # noqa: E402
from trtla.tune.roofline import Roofline, find_gpu  # noqa: E402

PAGE = ROOT / "docs" / "scaling.md"
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
PAPER = Machine("peaks", 3.35e12, 989e12, 1979e12, 0.0, 80e9, model.NO_HOST)
SPLITS = (1, 2, 4, 8)


@pytest.mark.parametrize(("name", "parameters"), [("8B", 8_030_261_248), ("70B", 70_553_706_496)])
def test_one_rank_stores_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert rank(name).stored == 2 * parameters


@pytest.mark.parametrize("weights", model.FORMATS)
@pytest.mark.parametrize("tp", [2, 8, 16])
def test_the_first_rank_holds_what_its_plan_says_and_no_rank_more(weights: str, tp: int) -> None:
    config = model.shape("8B", weights, tp)
    sizes = [sum(target.nbytes for target in rank_plan(config, own)) for own in range(tp)]
    assert rank("8B", weights, tp).stored == sizes[0] == max(sizes)


def test_the_embedding_is_stored_whole_and_never_read_whole() -> None:
    one = rank("8B", tp=8)
    embedding, norm = 128256 * 4096 * 2, 4096 * 2
    assert one.stored == one.layer_bytes + one.head_bytes + embedding + norm
    assert one.head_bytes == embedding / 8


def test_keys_and_values_are_shared_out_up_to_the_heads_and_then_replicated() -> None:
    each = [rank("8B", tp=tp).kv_bytes for tp in (*SPLITS, 16)]
    assert each == [131072, 65536, 32768, 16384, 16384]
    weights = [tp * rank("8B", tp=tp).layer_weights for tp in (*SPLITS, 16)]
    assert weights[0] == weights[3]  # nothing is held twice yet
    assert weights[4] - weights[0] == 2 * 32 * 1024 * 4096  # k and v of every layer


def test_fp8_halves_the_layers_and_the_cache_but_not_the_head() -> None:
    plain, fp8 = rank("8B"), rank("8B", "FP8")
    assert 2 * fp8.kv_bytes == plain.kv_bytes
    assert fp8.head_bytes == plain.head_bytes
    assert plain.layer_bytes / fp8.layer_bytes == pytest.approx(2, rel=1e-3)
    assert fp8.layer_weights == plain.layer_weights == rank("8B", "4 bits").layer_weights
    bits = 4 + 32 / 128  # of a number, with a float32 scale for 128
    ratio = plain.layer_bytes / rank("8B", "4 bits").layer_bytes
    assert ratio == pytest.approx(16 / bits, rel=1e-3)


def test_a_step_of_one_token_worked_out_by_hand() -> None:
    layers = 32 * (4096 * 128 * 2 * (32 + 8) + 3 * 4096 * 14336 + 2 * 4096)
    read = 2 * (layers + 128256 * 4096)
    step = Setup("8B", context=1000).step()
    assert step.weights == pytest.approx(read / 2.8e12, rel=1e-6)
    assert step.cache == pytest.approx(1000 * 131072 / 2.8e12, rel=1e-3)
    assert step.gaps == pytest.approx(32 * 22e-6)
    assert (step.link, step.host) == (0.0, 60e-6)
    assert step.total == pytest.approx(step.weights + step.cache + 32 * 22e-6 + 60e-6)


@pytest.mark.parametrize(("sequences", "fed"), [(1, 1), (4, 1), (1, 4096), (16, 1024)])
@pytest.mark.parametrize("weights", ["BF16", "FP8"])
def test_at_the_peaks_it_is_the_roofline_of_tune(sequences: int, fed: int, weights: str) -> None:
    roof = Roofline(model.shape("8B", weights), find_gpu("h100"), context=64)
    found = Setup("8B", weights, machine=PAPER, context=64).forward(sequences, sequences * fed)
    assert found.total == pytest.approx(roof.seconds(sequences, fed), rel=0.02)


def test_the_cpu_steps_that_were_measured_come_out() -> None:
    setup = Setup("0.41B", machine=model.CPU, context=192)
    for fed, measured in scaling_model.MEASURED_STEPS.items():
        assert setup.forward(1, fed).total * 1e3 == pytest.approx(measured, rel=0.06)
        assert f"| {measured} |" in PERFORMANCE


def test_an_all_reduce_worked_out_by_hand() -> None:
    link = Link("a link", 1e9, 10e-6, 5e-6)
    assert link.all_reduce(1e6, 2) == pytest.approx(15e-6 + 1e-3)
    assert link.all_reduce(1e6, 8) == pytest.approx(25e-6 + 1.75e-3)
    assert link.all_gather(1e6, 4) == pytest.approx(20e-6 + 0.75e-3)
    step = Setup("8B", tp=2, link=link).forward(1, 3)
    logits = 15e-6 + 3 * 128256 * 4 / 2 / 1e9
    assert step.link == pytest.approx(64 * (15e-6 + 3 * 4096 * 2 / 1e9) + logits)


@pytest.mark.parametrize("link", model.LINKS, ids=lambda link: link.name)
def test_one_rank_exchanges_nothing_and_more_ranks_wait_longer(link: Link) -> None:
    assert link.all_reduce(1e6, 1) == link.all_gather(1e6, 1) == 0.0
    waits = [Setup("8B", tp=tp, link=link).step().link for tp in SPLITS]
    assert waits[0] == 0.0
    assert waits == sorted(waits)


@pytest.mark.parametrize("tp", SPLITS)
def test_more_nodes_sequences_and_context_never_cost_less(tp: int) -> None:
    setup = Setup("8B", tp=tp)
    by_nodes = [setup.step(4, nodes).total for nodes in model.NODES]
    by_sequences = [setup.step(count, 4).total for count in scaling_model.BATCHES]
    by_context = [replace(setup, context=context).step(4).total for context in (1, 100, 10_000)]
    for times in (by_nodes, by_sequences, by_context):
        assert times == sorted(times)


def test_s_is_what_was_measured_and_its_line_meets_a_point_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for known in model.S_BY_NODES.values():
        assert all(f" {s:.2f} |" in PERFORMANCE for nodes, s in known.items() if nodes)
    assert [tokens_a_step(n, "greedy") for n in (0, 16, 64)] == pytest.approx([1, 2.18, 2.86])
    assert [tokens_a_step(n, "0.7") for n in (0, 16, 64)] == pytest.approx([1, 2.10, 2.75])
    values = [tokens_a_step(nodes) for nodes in range(513)]
    assert values == sorted(set(values))
    assert "1.73 / 2.29 / 3.03" in PERFORMANCE  # at 4, 16 and 64 nodes
    monkeypatch.setitem(model.S_BY_NODES, "others", {0: 1.0, 16: 2.29, 64: 3.03})
    assert tokens_a_step(4, "others") == pytest.approx(1.73, abs=0.01)


def test_drafting_stops_to_pay_as_batches_grow() -> None:
    setup = Setup("8B")
    found = [model.best_nodes(setup, count)[0] for count in scaling_model.BATCHES]
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (64, 0)
    end = model.pays_until(setup, "greedy") or 0
    assert model.gain(setup, end, "greedy")[1] < 1.02 <= model.gain(setup, end - 1, "greedy")[1]
    assert model.pays_until(replace(setup, context=10**7), "greedy") is None


def test_one_replica_is_one_machine_that_computes_accepted_tokens_again() -> None:
    setup = Setup("8B")
    alone = tokens_a_step(64) / setup.step(1, 64).total
    assert 0.97 * alone < model.replicas(setup, 1, 64) <= alone
    nowhere = replace(setup, link=Link("cut", 1e-3, 1.0, 0.0))
    assert model.replicas(nowhere, 2, 64) < 2.0  # two waits of a second and more


def test_at_the_break_even_a_split_model_is_as_fast_as_one_machine() -> None:
    for count in (2, 4, 8):
        wait = model.break_even(Setup("8B"), count, 8)
        link = Link("even", float("inf"), wait, 0.0)
        split = Setup("8B", tp=count, link=link).step(1, 8).total
        assert split - wait == pytest.approx(Setup("8B").step(1, 8).total)  # the gather is apart


def test_memory_that_weights_fill_has_room_for_no_sequence() -> None:
    assert Setup("70B").sequences(1) == 0
    left = 0.9 * (80e9 - 2 * 8_030_261_248) - 3e9
    assert Setup("8B").sequences(4096) == int(left / (4096 * 131072))


def test_the_rates_that_are_expected_are_those_of_the_gpu_page() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    assert "copy rate | GB/s | >= 2800 (H100)" in text
    assert "products of 8192 | TFLOP/s | >= 600 (H100)" in text
    assert "kernels a layer, 8B |  | <= 11" in text
    assert (model.H100.bytes_per_s, model.H100.flops) == pytest.approx((2.8e12, 600e12))


def test_the_page_has_every_table_as_the_script_prints_it() -> None:
    page = PAGE.read_text()
    assert scaling_model.filled(page, scaling_model.Options()) == page, (
        "make it anew: scripts/scaling_model.py --write docs/scaling.md"
    )
    for name in scaling_model.TABLES:
        assert f"<!-- table {name} -->\n| " in page
    other = scaling_model.filled(page, scaling_model.Options(price=5.0))
    assert other != page


def test_the_price_is_that_of_an_hour_of_eight() -> None:
    def cost(price: float) -> float:
        first = scaling_model.markdown("node", scaling_model.Options(price=price)).splitlines()[2]
        return float(first.split(" | ")[4])

    speed = 8 / Setup("8B").step().total
    assert cost(2.5) == pytest.approx(20 / 3600 / speed * 1e6, abs=0.01)
    assert cost(5.0) == pytest.approx(2 * cost(2.5), abs=0.02)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "scaling_model.py"), *args]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_script_prints_a_table_and_names_them_where_one_is_unknown() -> None:
    done = run("memory")
    assert done.returncode == 0, done.stderr
    assert scaling_model.markdown("memory", scaling_model.Options()) in done.stdout
    wrong = run("memori")
    assert wrong.returncode == 2
    assert "no table memori; use inputs, growth" in wrong.stderr
    assert "--context has to be above 0" in run("--context", "0").stderr


def test_a_context_that_fits_nowhere_leaves_out_what_it_is_about() -> None:
    options = scaling_model.Options(context=10**7)
    for name in ("latency", "parallel", "node"):
        assert len(scaling_model.markdown(name, options).splitlines()) == 2
    assert "no room" in scaling_model.markdown("batches", options)


def test_the_figures_between_the_tables_are_the_models() -> None:
    text = " ".join(PAGE.read_text().split())
    one, eight = Setup("8B").step(), Setup("8B", tp=8).step()
    large = Setup("70B", "FP8").step().total / Setup("70B", "FP8", 8).step().total
    stays = (eight.gaps + eight.link + eight.host) / eight.total
    heads = [r.head_bytes / (r.head_bytes + r.layer_bytes) for r in (rank("8B"), rank("8B", "FP8"))]
    embedding = 128256 * 4096 * 2 / rank("8B", tp=8).stored
    over_tcp = Setup("8B", tp=8, link=model.TCP).forward(1, 65).link
    gather = model.TCP.all_gather(65 * 128256 * 4, 8)
    for said in (
        f"{one.total / eight.total:.1f} times as fast, 70B in FP8 {large:.1f} times",
        f"is {stays * 100:.0f} % of a step of 8B in BF16 on eight",
        f"{heads[0] * 100:.0f} % of the weights that a step of 8B reads in BF16 and "
        f"{heads[1] * 100:.0f} % in FP8",
        f"{embedding * 100:.0f} % of what 8B in BF16 takes",
        f"8B's {over_tcp * 1e3:.1f} ms over TCP it is {gather * 1e3:.1f}",
    ):
        assert said in text
