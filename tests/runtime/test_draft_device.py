"""A draft model in another type or on another device than the target: the text is the target's.

The second device is a stand-in that lets no tensor of one meet one of the other; tests marked gpu
do the same with CUDA.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.draft_models import DRAFT, alone, opened
from tests.support.second_device import AWAY, Elsewhere, SecondDevice, elsewhere
from tests.support.toys import hash_scores, request, run
from trtla import LLM, DrafterSettings, LookaheadConfig, SamplingParams, UsageError

PROMPTS = ["def read(path):", "To be, or not to be", "The ferry was late"]
PLAIN = LookaheadConfig(1, 1, 0)


def test_the_second_device_refuses_what_pytorch_refuses():
    here, away = torch.ones(3), torch.ones(3).as_subclass(Elsewhere)
    with SecondDevice():
        assert here.to(AWAY).device == AWAY == (away + 1).device
        assert torch.arange(3, device=AWAY).device == AWAY
        assert away.to(here.device).device == here.device
        for together in (lambda: here + away, lambda: torch.stack([away, here])):
            with pytest.raises(RuntimeError, match="same device"):
                together()


CHOSEN = [
    DrafterSettings(DRAFT, gamma=3),
    DrafterSettings(DRAFT, gamma=3, rejection=True),
    DrafterSettings(DRAFT, egag=True, gamma_max=5, ema=0.5),
]


def asked():
    sampling = [{}, {"temperature": 0.9, "top_p": 0.95, "seed": 3}, {"temperature": 1.2, "seed": 4}]
    return [request([1, 2 + i], 30, None, i, **own) for i, own in enumerate(sampling)]


def drafted(chosen, place=lambda decoded: None):
    decoded = opened(hash_scores(7, 1, 6.0), hash_scores(7, 1, 5.0), 7, chosen)
    place(decoded)
    with SecondDevice():
        decoded.outputs = run(decoded.executor, asked())
    return [decoded.text(i) for i in range(3)], decoded.group.totals


def draft_away(decoded):
    decoded.group._forward = elsewhere(decoded.group._forward)


def target_away(decoded):
    decoded.executor._stepper.forward = elsewhere(decoded.executor._stepper.forward)


@pytest.mark.parametrize("chosen", CHOSEN, ids=["equality", "rejection", "egag"])
@pytest.mark.parametrize("place", [draft_away, target_away])
def test_a_draft_model_elsewhere_drafts_as_one_beside_the_target(chosen, place):
    texts, totals = drafted(chosen, place)
    expected, same = drafted(chosen)
    assert texts == expected
    assert (totals.drafted, totals.accepted) == (same.drafted, same.accepted)
    assert totals.accepted > 0
    if not chosen.rejection:
        assert texts == [alone(hash_scores(7, 1, 6.0), 7, one) for one in asked()]


def texts_of(folder, draft=None, heat=0.0, **options):
    """Output ids of `PROMPTS`, and the share of drafts that was accepted."""
    drafter = DrafterSettings((f"draft:{draft}",), gamma=4) if draft else None
    sampling = SamplingParams(max_output_len=48, temperature=heat, seed=5)
    with LLM(folder, lookahead=PLAIN, drafter=drafter, max_batch_size=3, **options) as llm:
        done = llm.generate(PROMPTS, sampling)
        totals = llm.stats().draft_models
    return [one.output_ids for one in done], totals.accepted / max(totals.drafted, 1)


@pytest.fixture(
    params=[True, pytest.param(False, marks=pytest.mark.deep)], ids=["compiled", "pytorch"]
)
def compiled(request, monkeypatch):
    if not request.param:
        monkeypatch.setenv("TRTLA_COMPILED", "0")


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_a_model_drafts_for_itself_in_bfloat16_and_is_mostly_right(tiny_llama, heat):
    expected, _ = texts_of(tiny_llama, heat=heat, dtype="float32")
    texts, rate = texts_of(
        tiny_llama, tiny_llama, heat, dtype="float32", draft_dtype="bfloat16", draft_device="cpu"
    )
    assert texts == expected
    assert rate > 0.7  # how many near-ties bfloat16 turns depends on the processor


def test_the_draft_model_has_a_type_of_its_own(tiny_llama):
    drafter = DrafterSettings((f"draft:{tiny_llama}",))
    for given, expected in (
        ({}, 4),
        ({"draft_dtype": "bfloat16"}, 2),
    ):
        with LLM(tiny_llama, dtype="float32", device="cpu", drafter=drafter, **given) as llm:
            assert llm.description.startswith(("torch on cpu, float32", "cpu, float32"))
            [group] = llm._executor._drafting.drafters._models.values()
            config = llm.engine.config.pretrained_config
            width = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_size
            assert group.cache.data.nbytes == group.cache.num_slots * width * expected


def test_unknown_types_and_missing_devices_are_refused_by_name(tiny_llama):
    drafter = DrafterSettings((f"draft:{tiny_llama}",))
    with pytest.raises(UsageError, match="'float64' is not known"):
        LLM(tiny_llama, drafter=drafter, draft_dtype="float64")
    with pytest.raises(UsageError, match="'cuda:99' is not available") as refusal:
        LLM(tiny_llama, drafter=drafter, draft_device="cuda:99")
    assert "--draft-device cpu" in refusal.value.hint


@pytest.mark.parametrize("given", [{"draft_device": "cpu"}, {"draft_dtype": "float32"}])
def test_without_a_draft_model_they_are_refused(tiny_llama, given):
    [(name, value)] = given.items()
    with pytest.raises(UsageError, match=f"{name} {value} needs a draft model"):
        LLM(tiny_llama, **given)
    with LLM(tiny_llama, draft_models=[str(tiny_llama)], **given) as llm:  # requests may name it
        assert llm.limits.draft_models == (str(tiny_llama),)


@pytest.mark.gpu
@pytest.mark.parametrize(("device", "draft_device"), [("cuda", "cpu"), ("cpu", "cuda")])
@pytest.mark.parametrize("rejection", [False, True])
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_cuda_and_cpu_draft_for_each_other(tiny_llama, device, draft_device, rejection, heat):
    alike = {"dtype": "float32", "device": device}
    drafter = DrafterSettings((f"draft:{tiny_llama}",), gamma=4, rejection=rejection)
    sampling = SamplingParams(max_output_len=48, temperature=heat, seed=5)
    with LLM(
        tiny_llama, lookahead=PLAIN, drafter=drafter, draft_device=draft_device, **alike
    ) as llm:
        done = llm.generate(PROMPTS, sampling)
        totals = llm.stats().draft_models
    assert totals.accepted > 0.9 * totals.drafted > 0
    if not rejection:
        assert [one.output_ids for one in done] == texts_of(tiny_llama, heat=heat, **alike)[0]
