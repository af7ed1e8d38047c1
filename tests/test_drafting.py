"""Drafter settings: what is refused, with the value and the way out, and how large drafts get."""

from __future__ import annotations

import pytest

from trtla.errors import UsageError
from trtla.settings.custom_drafters import name_of
from trtla.settings.drafting import (
    LOOKAHEAD,
    NO_DRAFTER,
    DrafterSettings,
    check_drafts_itself,
    check_used,
    parse_drafter,
)
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import LookaheadConfig

BAD = [
    ({"gamma": 0}, "gamma is 0", "from 1"),
    ({"gamma": 10**9}, "gamma is 1000000000", "to 256"),
    ({"gamma_min": -1}, "gamma_min is -1", "--gamma-min"),
    ({"gamma_min": 5}, "gamma_min 5 is above gamma_max 4", "--gamma-max"),
    ({"gamma_min": 3, "gamma_max": 2}, "gamma_min 3 is above gamma_max 2", "--gamma-max"),
    ({"gamma_max": 0}, "gamma_max is 0", "--gamma-max"),
    ({"ema": 1.0}, "ema is 1.0", "below 1"),
    ({"ema": float("nan")}, "ema is nan", "below 1"),
    ({"ngram_kind": "both"}, "ngram_kind is 'both'", "onelevel"),
    ({"ngram_order": 1}, "ngram_order is 1", "from 2"),
    ({"top_k_filler": 0}, "top_k_filler is 0", "--top-k-filler"),
    ({"drafter": ()}, "no drafter", "prompt-lookup"),
    ({"drafter": ("medusa",)}, "'medusa' is not known", "draft:PATH"),
    ({"drafter": ("draft:",)}, "names no draft model", "draft:PATH"),
    ({"drafter": ("ngram", "lookahead", "ngram")}, "ngram is named twice", "once"),
    ({"drafter": ("draft:a", "draft:b")}, "draft is named twice", "once"),
    ({"drafter": ("ideas:A", "ideas:A")}, "ideas:A is named twice", "once"),
    ({"drafter": ("ideas:A-1",)}, "'ideas:A-1' is not known", "module:Name"),
    ({"drafter": ("none", "ngram")}, "none cannot be combined with others", "alone"),
]


@pytest.mark.parametrize(("given", "message", "hint"), BAD)
def test_bad_values_are_refused_with_the_value_and_a_hint(given, message, hint) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        DrafterSettings(**given)
    assert hint in refusal.value.hint


@pytest.mark.parametrize("given", [object(), 3, {"propose": 1}])
def test_what_cannot_draft_is_refused_with_what_can(given: object) -> None:
    with pytest.raises(UsageError, match=r"drafter is .*, which has no propose\(ids\)") as caught:
        ExecutorOptions(drafter=given)
    assert caught.value.hint.endswith("or an object with propose(ids)")


def test_a_chain_is_written_with_commas() -> None:
    assert parse_drafter("draft:a/b, lookahead,ngram") == ("draft:a/b", "lookahead", "ngram")
    settings = DrafterSettings(parse_drafter("draft:a/b,lookahead"))
    assert (settings.draft_model, settings.uses_lookahead) == ("a/b", True)
    assert settings.name == "draft:a/b,lookahead"
    mine = DrafterSettings(parse_drafter("ideas:A,ideas:B,ngram,a/b.py:A,draft:c"))
    assert mine.custom == ("ideas:A", "ideas:B", "a/b.py:A")
    assert mine.most_tokens == mine.gamma


def test_every_object_has_a_name_that_settings_take() -> None:
    class Mine:
        pass

    for module, name in (
        ("__main__", "__main__:Mine"), ("a.b", "a.b:Mine"), ("draft", "draft.py:Mine"),
        ("my-file", "my_file:Mine"), ("7b", "7b:Mine"),
    ):  # fmt: skip
        Mine.__module__ = module
        assert name_of(Mine) == name_of(Mine()) == name
        assert DrafterSettings((name,)).custom == (name,)
    assert name_of(lambda: Mine()) == f"{__name__}:lambda"


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        (LOOKAHEAD, 83),
        (NO_DRAFTER, 0),
        (DrafterSettings(("ngram",), gamma=5), 5),
        (DrafterSettings(("ngram", "prompt-lookup"), gamma=5), 5),
        (DrafterSettings(("lookahead", "ngram"), gamma=5), 88),
        (DrafterSettings(("draft:a",), gamma=3, gamma_max=8), 3),
        (DrafterSettings(("draft:a",), gamma=3, gamma_max=8, egag=True), 8),
    ],
)
def test_the_largest_draft_follows_from_the_settings(settings, tokens) -> None:
    assert settings.max_draft_len(LookaheadConfig(7, 7, 7)) == tokens


def test_egag_needs_a_draft_model_somewhere() -> None:
    egag = DrafterSettings(("ngram",), egag=True)
    with pytest.raises(UsageError, match="egag needs a draft model, and the drafter is ngram"):
        check_used([egag])
    check_used([egag, DrafterSettings(("draft:a",), egag=True)])


def test_tensorrt_llm_knows_lookahead_alone() -> None:
    ngram = DrafterSettings(("ngram",))
    with pytest.raises(UsageError, match="compiled for lookahead"):
        check_drafts_itself(ngram, "--drafter")
    with pytest.raises(UsageError, match="asks for the drafter ideas:Mine"):
        check_drafts_itself(DrafterSettings(("ideas:Mine",)), "--drafter")
    check_drafts_itself(NO_DRAFTER, "--drafter")
