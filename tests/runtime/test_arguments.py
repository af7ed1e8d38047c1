"""What people give in Python: one string for a list of one, and a sentence for another type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trtla import (
    LLM,
    BeamSettings,
    DrafterSettings,
    DraftOptions,
    LookaheadConfig,
    SamplingParams,
    UsageError,
)

PLAIN = LookaheadConfig(1, 1, 0)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path):
    with LLM(tiny_llama, dtype="float32", lookahead=LookaheadConfig(2, 2, 2)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_output_len", 2.5),
        ("max_output_len", "8"),
        ("max_output_len", True),
        ("max_output_len", None),
        ("max_output_len", 0),
        ("max_output_len", 2**63),
        pytest.param("max_output_len", 10**5000, id="thousands-of-digits"),
        ("temperature", "0"),
        ("temperature", None),
        ("temperature", True),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -0.1),
        ("temperature", 10**400),
        ("top_k", -1),
        ("top_k", 1.0),
        ("top_k", False),
        ("top_p", 0),
        ("top_p", "1"),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("seed", True),
        ("seed", 2**63),
        ("seed", -1),
        ("stop", [b"x"]),
        ("stop", b"x"),
        ("stop", ["x", ""]),
        ("stop", ""),
        ("stop", 3),
        ("stop", {"x"}),
        ("stop", ["\ud800"]),
        ("allotted_time_ms", 0),
        ("allotted_time_ms", 1.5),
        ("allotted_time_ms", 10**400),
    ],
)
def test_a_setting_of_another_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name} is ") as caught:
        SamplingParams(**{name: value})
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: DrafterSettings(gamma="4"), "gamma"),
        (lambda: DrafterSettings(ema=None), "ema"),
        (lambda: DrafterSettings(drafter=(3,)), "drafter"),
        (lambda: DrafterSettings(drafter=None), "drafter"),
        (lambda: DraftOptions(cells=2), "cells"),
        (lambda: BeamSettings(num_beams="4"), "num_beams"),
        (lambda: BeamSettings(length_penalty="1"), "length_penalty"),
    ],
)
def test_other_settings_name_what_is_of_another_type(make: Callable[[], object], name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} is "):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    given = SamplingParams(np.int64(8), np.float32(0.5), np.int32(3), np.float64(0.9), np.int64(7))
    assert given == SamplingParams(8, 0.5, 3, 0.9, 7)
    assert type(given.max_output_len) is int
    assert type(given.temperature) is float


def test_a_text_stands_for_a_list_of_one() -> None:
    assert (
        SamplingParams(stop="END") == SamplingParams(stop=["END"]) == SamplingParams(stop=("END",))
    )
    assert SamplingParams(stop="END").stop == ("END",)
    assert DrafterSettings("ngram,lookahead") == DrafterSettings(("ngram", "lookahead"))


@pytest.mark.parametrize("compiled", ["1", "0"])
def test_a_top_k_above_the_vocabulary_keeps_all(
    compiled: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    texts = []
    with LLM(tiny_llama, dtype="float32", lookahead=PLAIN) as opened:
        for top_k in (0, 2048, 2**31, 2**63, 2**64 + 1):
            settings = SamplingParams(12, temperature=1.0, seed=4, top_k=top_k)
            texts.append(opened.generate("Once upon a time", settings)[0].text)
    assert len(set(texts)) == 1


@pytest.mark.parametrize(
    "prompts",
    [
        None,
        3,
        b"abc",
        {"a": 1},
        [],
        "",
        [""],
        [[]],
        ["a", 3],
        ["a", None],
        ["a", b"b"],
        [1, "a"],
        [1, 2.5],
        [True],
        [[1, "a"]],
        [[1, None]],
        [-1],
        [2**70],
        "a\ud800",
        torch.tensor([1, 2]),
        (text for text in ("a", "b")),
    ],
)
def test_what_is_no_prompt_is_refused_before_anything_runs(llm: LLM, prompts: Any) -> None:
    steps = llm.stats().steps
    with pytest.raises(UsageError, match="prompt") as caught:
        llm.generate(prompts)
    assert caught.value.hint
    assert llm.stats().steps == steps


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"names": ["one"]}, "1 names for 2 prompts"),
        ({"names": ["one", "two", "three"]}, "3 names for 2 prompts"),
        ({"names": []}, "0 names for 2 prompts"),
        ({"names": [1, 2]}, "names hold 1"),
        ({"lookahead": (7, 7, 7)}, "(7, 7, 7)"),
        ({"lookahead": "7,7,7"}, "'7,7,7'"),
        ({"lookahead": [PLAIN, "fast"]}, "fast"),
        ({"sampling": {"max_output_len": 3}}, "max_output_len"),
        ({"sampling": [SamplingParams(), None]}, "None"),
        ({"drafter": "n-gram"}, "n-gram"),
        ({"private": "yes"}, "private is 'yes'"),
        ({"private": [True]}, "1 private settings for 2 prompts"),
        ({"private": [True, None]}, "private settings hold None"),
    ],
)
def test_settings_of_another_kind_are_named(llm: LLM, options: Any, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        llm.generate(["a", "b"], **options)
    assert part in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"lookahead": (7, 7, 7)},
        {"lookahead": "7,7,7"},
        {"max_batch_size": 0},
        {"max_batch_size": -1},
        {"max_batch_size": "4"},
        {"max_batch_size": 2.5},
        {"device": 5},
        {"dtype": torch.float32},
        {"draft_models": [b"x"]},
        {"drafter": "n-gram"},
        {"drafter": ("ngram", 5)},
    ],
)
def test_a_model_is_not_opened_with_settings_of_another_kind(
    tiny_llama: Path, options: Any
) -> None:
    (name,) = options
    with pytest.raises(UsageError, match=name):
        LLM(tiny_llama, **options)


@pytest.mark.parametrize("path", [None, 5, b"model"])
def test_a_path_of_another_type_is_named(path: Any) -> None:
    with pytest.raises(UsageError) as caught:
        LLM(path)
    assert caught.value.message == f"model is {path!r}, not the path of a model"
    assert "Hugging Face folder" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"lookahead": (7, 7, 7)}, "lookahead is (7, 7, 7), not a LookaheadConfig",
         "give LookaheadConfig(7, 7, 7)"),
        ({"lookahead": "5,3,2"}, "lookahead is '5,3,2', not a LookaheadConfig",
         "give LookaheadConfig(5, 3, 2)"),
        ({"lookahead": [[2, 2, 2]]}, "lookahead triples hold [2, 2, 2] in [[2, 2, 2]]",
         "give LookaheadConfig(2, 2, 2)"),
        ({"lookahead": (7, 7)}, "lookahead triples hold 7 in (7, 7)",
         "give a LookaheadConfig, such as LookaheadConfig(7, 7, 7), or 'auto'"),
        ({"sampling": {"max_output_len": 3}}, "sampling is {'max_output_len': 3}, "
         "not SamplingParams", "give SamplingParams(max_output_len=3)"),
        ({"sampling": {"max_tokens": 3}}, "sampling is {'max_tokens': 3}, not SamplingParams",
         "give SamplingParams(max_tokens=3)"),
        ({"sampling": {"max_toks": 3}}, "sampling is {'max_toks': 3}, not SamplingParams",
         "give SamplingParams, such as SamplingParams(max_tokens=32)"),
    ],
)  # fmt: skip
def test_the_hint_is_what_to_pass_instead(llm: LLM, options: Any, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        llm.generate(["a"], **options)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_model_is_opened_with_a_triple_and_not_a_tuple(tiny_llama: Path) -> None:
    with pytest.raises(UsageError) as caught:
        LLM(tiny_llama, lookahead=(7, 7, 7))  # type: ignore[arg-type]
    assert caught.value.message == "lookahead is (7, 7, 7), not a LookaheadConfig"
    assert caught.value.hint == "give LookaheadConfig(7, 7, 7)"


def test_a_closed_model_says_so(tiny_llama: Path) -> None:
    opened = LLM(tiny_llama, dtype="float32", lookahead=PLAIN)
    description = opened.description
    opened.close()
    assert opened.description == description
