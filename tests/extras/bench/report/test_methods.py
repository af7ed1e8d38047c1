"""Every arm that commands name is known; unknown ones are shown without guesses."""

from __future__ import annotations

import pytest

from trtla.extras.bench.ablation_arms import METHODS
from trtla.extras.bench.peers import PEERS
from trtla.extras.bench.report.methods import method
from trtla.settings.drafting import DRAFTERS


@pytest.mark.parametrize("arm", [*METHODS, *PEERS, *DRAFTERS, "draft:small", "auto"])
def test_arms_of_all_commands_are_known(arm: str) -> None:
    known = method(arm)
    assert known.title
    assert "-" not in (known.training, known.memory, known.when)


def test_a_triple_is_told_with_its_names() -> None:
    assert method("lookahead 7,5,3").title == "W 7, N 5, G 3"
    assert method("lookahead 7,5,3").training == "none"


def test_a_chain_is_no_single_drafter() -> None:
    assert method("lookahead,prompt-lookup") == method("chain")


def test_plain_decoding_has_several_names() -> None:
    plain = ("ar", "none", "lookahead 1,1,0", "trtla_without_lookahead")
    assert len(set(map(method, plain))) == 1
    assert method("ar") not in map(method, ("hf", "lookahead 1,2,1", "auto", "something new"))


def test_an_unknown_arm_is_not_guessed() -> None:
    assert method("something new").when == "-"
