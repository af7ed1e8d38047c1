"""Of a model that is split, rank 0's hidden states are those of the whole one."""

from __future__ import annotations

import pytest

from tests.support.states import Seen, check_states
from tests.support.toys import Made
from tests.support.unchanged import RANK_SOURCES
from trtla import LLM, SamplingParams

pytestmark = RANK_SOURCES

PROMPTS = [list(range(100, 140)), list(range(7))]


@pytest.mark.parametrize("compiled", ["1", pytest.param("0", marks=pytest.mark.deep)])
def test_rank_0_has_the_states_of_the_whole_model(tiny_llama, compiled, monkeypatch):
    """Of prompts and of accepted drafts."""
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    chosen, drafters = SamplingParams(12, temperature=0.8, seed=3), {}
    with (
        LLM(tiny_llama, dtype="float32") as one,
        LLM(tiny_llama, dtype="float32", tp_size=2) as llm,
    ):
        assert ("compiled" in llm.description) == (compiled == "1")
        texts = {
            tuple(prompt): done.output_ids
            for prompt, done in zip(PROMPTS, one.generate(PROMPTS, chosen), strict=True)
        }

        def drafter(_, asked):
            seen = drafters[asked.input_ids] = Seen(texts[asked.input_ids])
            return seen

        def tap(executor):
            executor._stepper.model.taps = (0, 2, 3)
            executor._drafting.drafters = Made(drafter)

        llm.executor.call(tap)
        done = llm.generate(PROMPTS, chosen)
        assert [one.output_ids for one in done] == list(texts.values())
        assert sum(one.stats.accepted for one in done) > 4
        model = one._executor._stepper.model
        model.taps = (0, 2, 3)
        for prompt, output in texts.items():
            check_states(model, drafters[prompt], (*prompt, *output), exact=False)
