"""What others call our settings: `max_tokens` everywhere, and what an unknown argument meant."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command import refused, there, trtla
from tests.support.models import Variant, make_model, save_model
from trtla import LLM, DrafterSettings, LookaheadConfig, SamplingParams, UsageError, other_tools
from trtla.cli.commands import COMMANDS
from trtla.errors import TrtlaWarning, closest
from trtla.other_tools import instead, plain
from trtla.runtime.threads import num_threads, set_threads
from trtla.settings.sampling import USUAL_LEN

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "trtla" / "assets" / "tiny-llama"


@pytest.fixture(scope="module")
def llm():
    with LLM(MODEL, dtype="float32", lookahead=LookaheadConfig(2, 2, 2)) as opened:
        yield opened


def test_max_tokens_is_max_output_len() -> None:
    given = SamplingParams(max_tokens=5)
    assert given == SamplingParams(5) == SamplingParams(5, max_tokens=5)
    assert given.max_tokens == given.max_output_len == 5
    assert replace(given, max_output_len=7).max_tokens == 7
    assert replace(given, temperature=0.5).max_output_len == 5
    with pytest.raises(UsageError, match="max_output_len is 5 and max_tokens is 6"):
        SamplingParams(5, max_tokens=6)
    with pytest.raises(UsageError, match="max_output_len is 0"):
        SamplingParams(max_tokens=0)


def test_a_drafter_is_named_as_after_its_flag() -> None:
    with LLM(MODEL, drafter="lookahead,prompt-lookup") as llm:
        assert llm.limits.drafter == DrafterSettings(("lookahead", "prompt-lookup"))
        params = SamplingParams(8)
        (named,) = llm.generate("def f(", params, drafter="ngram")
        classes = llm.generate(["def f("], params, drafter=[DrafterSettings(("ngram",))])
        assert named.stats.steps == classes[0].stats.steps
        assert named.token_ids == classes[0].token_ids
    with pytest.raises(UsageError, match="prompt-lokup"):
        LLM(MODEL, drafter="prompt-lokup")


def test_none_is_no_stop() -> None:
    given = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None)  # type: ignore[arg-type]
    assert given == SamplingParams()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda llm: SamplingParams(max_new_tokens=5), "did you mean max_output_len?"),
        (lambda llm: SamplingParams(max_token=5), "did you mean max_tokens?"),
        (lambda llm: SamplingParams(temprature=0.5), "did you mean temperature?"),
        (lambda llm: LLM(MODEL, max_batch=2), "did you mean max_batch_size?"),
        (lambda llm: LLM(MODEL, num_threads=2), "did you mean threads?"),
        (lambda llm: LLM(MODEL, n_ctx=512), "did you mean max_seq_len?"),
        (lambda llm: SamplingParams(structured_outputs={}), "did you mean grammar?"),
        (lambda llm: SamplingParams(guided_decoding={}), "did you mean grammar?"),
        (lambda llm: llm.generate("a", sampling_params=3), "did you mean sampling?"),
        (lambda llm: LLM(MODEL, tensor_parallel_size=2), "did you mean tp_size?"),
        (lambda llm: LLM(MODEL, enable_prefix_caching=True), "did you mean block_reuse?"),
        (lambda llm: LLM(MODEL, seed=1), "it is a setting: SamplingParams(seed=...)"),
        (lambda llm: SamplingParams(logprobs=3), "it is an argument of LLM.generate"),
        (lambda llm: SamplingParams(min_tokens=3), "there are allotted_time_ms"),
        (lambda llm: llm.generate("a", assistant_model=3), "did you mean drafter?"),
        (lambda llm: llm.generate("a", samplng=SamplingParams()), "did you mean sampling?"),
        (lambda llm: llm.generate("a", max_output_len=3), "SamplingParams(max_output_len=...)"),
        (lambda llm: llm.generate("a", max_tokens=3), "SamplingParams(max_tokens=...)"),
        (lambda llm: llm.generate("a", gamma=3), "DrafterSettings(gamma=...)"),
        (lambda llm: llm.stream("a", max_new_tokens=3), "SamplingParams(max_output_len=...)"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_one_that_was_meant(
    call: Callable[[LLM], object], says: str, llm: LLM
) -> None:
    with pytest.raises(UsageError, match="has no argument") as caught:
        call(llm)
    assert says in (caught.value.hint or "")


def test_the_usual_length_is_one_and_shrinks_to_what_the_context_leaves(tmp_path: Path) -> None:
    assert SamplingParams().max_output_len == USUAL_LEN == 2048
    short = Variant("short", {"max_position_embeddings": 300})
    with LLM(save_model(make_model(short), short, tmp_path), dtype="float32") as llm:
        llm.end_ids = frozenset()
        prompt = [5 + index % 90 for index in range(llm.limits.max_text_len - 10)]
        for sampling in (
            None,
            *(kept(SamplingParams(seed=1)) for kept in (copy.deepcopy, replace)),
        ):
            assert len(llm.generate([prompt], sampling)[0].output_ids) == 10
        with pytest.raises(UsageError, match="2048 output tokens"):
            llm.generate([prompt], SamplingParams(2048))
        assert len(llm.beam_search(prompt)[0].output_ids) == 10


@pytest.mark.parametrize("command", there("run", "chat", "explain", "bench", "tune"))
def test_commands_take_max_tokens(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(trtla(command, "--max-tokens", "x", "-m", MODEL), 2, "'--max-tokens'")


def test_max_tokens_comes_from_flag_environment_and_preset(tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("max_tokens: 3\n")
    asked = ("run", "-m", MODEL, "-p", "def", "--dtype", "float32", "--json")
    for more, env in (
        (("--max-tokens", 3), {}),
        (("--config", preset), {}),
        ((), {"TRTLA_RUN_MAX_OUTPUT_LEN": "3"}),
        (("--max-tokens", 3), {"TRTLA_RUN_MAX_OUTPUT_LEN": "8"}),
    ):
        (result,) = trtla(*asked, *more, env=env).json["results"]
        assert len(result["output_ids"]) == 3


def test_threads_are_those_of_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    before = num_threads()
    try:
        with LLM(MODEL, dtype="float32", threads=2), LLM(MODEL, dtype="float32", threads=3):
            assert num_threads() == 3
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(num_threads).result() == 3
            with LLM(MODEL, dtype="float32"):
                assert num_threads() == 3
    finally:
        set_threads(before)


def test_more_threads_than_processors_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before = num_threads()
    try:
        with pytest.warns(TrtlaWarning, match="threads 999 is above the 2 processors"):
            LLM(MODEL, dtype="float32", threads=999).close()
        assert num_threads() == 2
    finally:
        set_threads(before)


@pytest.mark.parametrize("threads", [0, -1, 10**6, "2", True])
def test_threads_that_are_no_number_of_threads_are_refused(threads: object) -> None:
    with pytest.raises(UsageError, match=r"^threads is "):
        LLM(MODEL, threads=threads)


def test_a_name_of_another_tool_has_one_hint() -> None:
    rows = [(row, name) for row, names in other_tools._TABLE.items() for name in names.split()]
    assert len(rows) == len(set(rows))
    hints = Counter(plain(name) for row, name in rows if " " in row)
    assert [name for name, count in hints.items() if count > 1] == []


def test_the_flags_on_the_page_of_other_tools_are_known() -> None:
    page = (ROOT / "docs" / "other-tools.md").read_text(encoding="utf-8")
    rows = page.partition("## Flags")[2].partition("## Requests")[0].split("\n|")[3:]
    theirs = re.findall(r"`(--?[a-z][a-z-]*)", " ".join(row.partition("|")[0] for row in rows))
    theirs += re.findall(r"`(--?[a-z][a-z-]*)", page.partition("\n`-fa`")[2].partition("trtla")[0])
    own = {name for param in COMMANDS["run"].params for name in param.opts}
    lost = [name for name in theirs if name not in own and not instead(name)]
    assert len(theirs) > 25
    assert [name for name in lost if closest(name, own) is None] == []
