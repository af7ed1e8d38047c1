"""The prompts that ship for the ablation: their sizes, and that each prompt is its own."""

from __future__ import annotations

from trtla.data.prompt_sets import load_sets

SIZES = {"dialogue": 20, "translation": 20, "continuation": 10, "code": 20}
SETS = {one.category: one for one in load_sets(["ablation"], (), 100)}


def test_the_sets_are_complete() -> None:
    assert {name: len(one.questions) for name, one in SETS.items()} == SIZES
    assert len({text for one in SETS.values() for text in one.texts}) == sum(SIZES.values())


def test_translations_have_references_and_come_from_three_languages() -> None:
    questions = SETS["translation"].questions
    assert all(one.reference for one in questions)
    assert {one.turns[0].split()[2] for one in questions} == {"French", "Spanish", "Chinese"}
    others = [one for name in ("code", "dialogue") for one in SETS[name].questions]
    assert not any(one.reference for one in others)


def test_continuations_are_long() -> None:
    assert min(map(len, SETS["continuation"].texts)) > 400
