"""The task sets that ship for the ablation: their sizes, and that each prompt is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import trtla
from trtla.bench.ablation_arms import TASKS, cases, load_tasks
from trtla.data.prompt_sets import load_sets
from trtla.errors import UsageError
from trtla.settings.sampling import parse_processor

FOLDER = Path(trtla.__file__).parent / "assets" / "ablation"
SIZES = {"dialogue": 20, "translation": 20, "continuation": 10, "code": 20}


def test_the_sets_are_complete_and_bench_reads_them() -> None:
    assert tuple(SIZES) == TASKS
    prompts = load_tasks(TASKS)
    sets = load_sets([str(FOLDER / f"{task}.jsonl") for task in TASKS], (), 100)
    assert {one.category: len(one.texts) for one in sets} == SIZES
    assert [prompt.text for prompt in prompts] == [text for one in sets for text in one.texts]
    assert len({prompt.text for prompt in prompts}) == sum(SIZES.values())


def test_translations_have_references_and_come_from_three_languages() -> None:
    prompts = load_tasks(["translation"])
    assert all(prompt.reference for prompt in prompts)
    languages = {prompt.text.split()[2] for prompt in prompts}
    assert languages == {"French", "Spanish", "Chinese"}
    assert not any(prompt.reference for prompt in load_tasks(["code", "dialogue", "continuation"]))


def test_continuations_are_long() -> None:
    assert min(len(prompt.text) for prompt in load_tasks(["continuation"])) > 400


def test_a_task_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="poems"):
        load_tasks(["poems"])


def test_cases_go_round_by_round_and_count_seeds_up() -> None:
    prompts, processors = load_tasks(["code"], 2), [parse_processor("greedy")] * 2
    found = list(cases(prompts, processors, 3, 7))
    assert [case.prompt.prompt_id for case in found] == [0, 1] * 6
    rounds = [(case.repeat, case.seed) for case in found][::2]
    assert rounds == [(0, 7), (1, 8), (2, 9)] * 2
