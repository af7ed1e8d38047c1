"""A round of `stress texts`: a model, how it is opened and used, and requests, all at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from stress.models import KINDS, TOKENIZERS, ModelSpec

from trtla.llm.llm import Completion
from trtla.settings.drafting import SOURCES

PARTS = ("threads", "interrupts", "text")
"""What can be omitted with --without."""
_TRIPLES = ((1, 1, 0), (2, 2, 2), (4, 4, 4), (7, 3, 2), (3, 5, 5), (5, 2, 0), (1, 3, 4))


@dataclass(frozen=True)
class Request:
    """One request, in plain values."""

    prompt: tuple[int, ...]
    sampling: dict[str, Any]
    lookahead: tuple[int, int, int] | str | None
    drafter: dict[str, Any] | None
    call: int
    """Requests of one call go into one batch."""
    expected: tuple[int, ...] = ()
    """The output that is expected, right or wrong."""
    private: bool = False
    logprobs: int | None = None
    leave: int | None = None
    """Chunks after which the consumer of the call leaves."""


@dataclass(frozen=True)
class World:
    """A model, how it is opened and what it is used for: a round is a function of it."""

    seed: int
    model: ModelSpec
    drafts: tuple[ModelSpec, ...]
    heads: tuple[int, ...]
    """Seeds of random trained heads."""
    triple: tuple[int, int, int]
    batch: int
    max_num_tokens: int
    spare_blocks: int | None
    """Cache blocks beyond those of one longest request; None: as many as the batch can need."""
    reuse: bool
    bounded_steps: bool
    ahead: bool
    """Each step is begun before the outputs of the one before are read, as on GPUs."""
    options: dict[str, Any]
    compiled: bool
    torch_threads: int
    callers: int
    """Threads that use the one LLM."""
    interrupts: bool
    """A signal raises KeyboardInterrupt at random moments."""
    text: bool
    """Texts are compared and have stop strings."""
    requests: tuple[Request, ...] = field(default=())


def world_of(values: dict[str, Any]) -> World:
    """A world from its JSON."""
    return World(
        **{
            **values,
            "model": ModelSpec(**values["model"]),
            "drafts": tuple(ModelSpec(**one) for one in values["drafts"]),
            "heads": tuple(values["heads"]),
            "options": {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in values["options"].items()
            },
            "requests": tuple(Request(**one) for one in values["requests"]),
        }
    )


def random_world(seed: int, without: Sequence[str]) -> World:
    """A world without requests yet."""
    dice = Random(seed)
    model = ModelSpec(dice.choice(list(KINDS)), dice.choice(list(TOKENIZERS)), dice.randrange(4))
    drafts = (model, replace(model, noise=dice.choice((0.1, 0.3, 1.0))))
    triple, batch = dice.choice(_TRIPLES[1:]), dice.choice((1, 2, 3, 5, 8))
    how = dice.random()
    return World(
        seed=seed,
        model=model,
        drafts=drafts[: dice.randrange(3)],
        heads=tuple(range(dice.choice((0, 0, 1, 2)))),
        triple=triple,
        batch=batch,
        max_num_tokens=fed(triple) * batch + dice.choice((0, 1, 7, 100)),
        spare_blocks=dice.choice((None, 0, 1, 4)),
        reuse=dice.random() < 0.5,
        bounded_steps=dice.random() < 0.3,
        ahead=dice.random() < 0.5,
        options=_options(dice),
        compiled=dice.random() < 0.7,
        torch_threads=dice.choice((1, 1, 2, 3)),
        callers=dice.choice((2, 3)) if how < 0.2 and "threads" not in without else 1,
        interrupts=0.2 <= how < 0.4 and "interrupts" not in without,
        text="text" not in without,
    )


def fed(triple: tuple[int, int, int]) -> int:
    """Tokens of a step with this triple."""
    window, ngram, verification = triple
    return 1 if ngram == 1 else ngram - 1 + (window - 1 + verification) * (ngram - 1)


def _options(dice: Random) -> dict[str, Any]:
    choices = {
        "cells": dice.choice(("greedy", "drawn")),
        "reference": dice.random() < 0.5,
        "sources": tuple(dice.sample(SOURCES, dice.randrange(len(SOURCES) + 1))) or SOURCES,
        "nodes": dice.choice((0, 1, 3, 16)),
        "by_noise": dice.random() < 0.5,
    }
    return {name: value for name, value in choices.items() if dice.random() < 0.4}


Answer = Callable[[Sequence[int], dict[str, Any]], Completion]
"""A prompt's plain answer with these sampling settings."""


def random_requests(world: World, vocab_size: int, answer: Answer) -> World:
    """The world with requests; stop strings are cut out of what plain decoding says.

    Drafters name a draft model or a trained head by its number, as draft:0 or head:1.
    """
    dice = Random(world.seed + 1)
    openings = [_ids(dice, vocab_size, dice.randrange(1, 90)) for _ in range(3)]
    requests = []
    for call in range(dice.randrange(5, 30)):
        leave = dice.randrange(12) if dice.random() < 0.2 else None
        for _ in range(dice.choice((1, 1, 2, 4))):
            opening = dice.choice(openings)
            prompt = opening[: dice.randrange(len(opening) + 1)]
            prompt += _ids(dice, vocab_size, dice.randrange(1, 20))
            sampling = _sampling(dice)
            if world.text and dice.random() < 0.3:
                sampling["stop"] = _stops(dice, answer(prompt, sampling).text or "")
            lookahead, drafter = _drafting(dice, world)
            expected: tuple[int, ...] = ()
            if dice.random() < 0.3:
                expected = _nearly(dice, vocab_size, answer(prompt, sampling).output_ids)
            options = (dice.random() < 0.2, dice.choice((None, None, None, 0, 3)))
            requests.append(
                Request(prompt, sampling, lookahead, drafter, call, expected, *options, leave)
            )
    return replace(world, requests=tuple(requests))


def _nearly(dice: Random, vocab_size: int, ids: tuple[int, ...]) -> tuple[int, ...]:
    """The right output, or a part of it, with other tokens instead of some and in front."""
    wrong = _ids(dice, vocab_size, dice.choice((0, 0, 1, 20)))
    share = dice.choice((0.0, 0.0, 0.1, 0.5, 1.0))
    first = dice.randrange(len(ids) + 1) if dice.random() < 0.3 else 0
    return wrong + tuple(
        dice.randrange(3, vocab_size) if dice.random() < share else token for token in ids[first:]
    )


def _ids(dice: Random, vocab_size: int, length: int) -> tuple[int, ...]:
    """Random tokens that repeat themselves."""
    few = [dice.randrange(3, vocab_size) for _ in range(dice.choice((2, 6, 40)))]
    return tuple(dice.choice(few) for _ in range(length))


def _sampling(dice: Random) -> dict[str, Any]:
    heat = dice.choice((0.0, 0.0, 1e-6, 0.3, 0.8, 1.0, 2.0, 100.0))
    sampling: dict[str, Any] = {
        "max_output_len": dice.choice((1, 2, 9, 30, 60)),
        "temperature": heat,
    }
    sampling["seed"] = dice.choice((0, dice.randrange(1000), 2**63 - 1))
    if dice.random() < 0.5:
        sampling["top_k"] = dice.choice((1, 2, 4, 40, 10**6))
    if dice.random() < 0.4:
        sampling["top_p"] = dice.choice((1e-9, 0.3, 0.9, 0.999))
    sampling |= _beyond(dice)
    if dice.random() < 0.1:
        sampling["allotted_time_ms"] = dice.choice((1, 5, 20, 80))
    return sampling


def _beyond(dice: Random) -> dict[str, Any]:
    """min_p, penalties and biases: mostly none, sometimes several."""
    if dice.random() < 0.6:
        return {}
    choices = {
        "min_p": dice.choice((1e-6, 0.05, 0.5, 1.0)),
        "repetition_penalty": dice.choice((0.01, 0.7, 1.05, 1.3, 100.0)),
        "presence_penalty": dice.choice((-2.0, 0.4, 2.0)),
        "frequency_penalty": dice.choice((-0.3, 0.2, 2.0)),
        "logit_bias": {str(dice.randrange(3, 90)): dice.choice((-100.0, -1.0, 3.0, 100.0))},
    }
    return {name: value for name, value in choices.items() if dice.random() < 0.4}


def _stops(dice: Random, text: str) -> tuple[str, ...]:
    """Stretches of the text of one to four characters, wherever tokens begin and end."""
    stops = ["\n"] if dice.random() < 0.2 else []
    for _ in range(dice.randrange(1, 3)):
        start = dice.randrange(max(1, len(text)))
        stops.append(text[start : start + dice.randrange(1, 5)])
    return tuple(stop for stop in stops if stop and "\ufffd" not in stop)


def _drafting(
    dice: Random, world: World
) -> tuple[tuple[int, int, int] | str | None, dict[str, Any] | None]:
    """A request's triple, or auto, and its drafter."""
    smaller = tuple(
        min(own, most) for own, most in zip(dice.choice(_TRIPLES), world.triple, strict=True)
    )
    lookahead = (1, 1, 0) if smaller[1] == 1 else smaller
    if dice.random() < 0.4:
        return dice.choice((None, "auto", world.triple, lookahead)), None
    drafts = [f"draft:{number}" for number in range(len(world.drafts))]
    heads = [f"head:{number}" for number in range(len(world.heads))]
    known = ["lookahead", "ngram", "prompt-lookup", *drafts[:1], *heads[:1]]
    chain = dice.sample(known, dice.choice((1, 1, 2, 3)))
    if (drafts or heads) and dice.random() < 0.4:
        chain = [dice.choice(drafts + heads)]
    settings: dict[str, Any] = {"drafter": tuple(chain), "gamma": dice.choice((1, 3, 8, 16))}
    if "ngram" in chain:
        settings |= {
            "ngram_kind": dice.choice(("basic", "onelevel")),
            "ngram_order": dice.choice((2, 3, 5)),
            "top_k_filler": dice.choice((1, 3)),
            "stop_if_unknown": dice.random() < 0.5,
            "reset_in_between": dice.random() < 0.5,
        }
    if chain[0].startswith("draft:") and dice.random() < 0.4:
        settings |= {"egag": True, "gamma_min": dice.choice((0, 1)), "ema": dice.choice((0.0, 0.9))}
    return dice.choice((None, lookahead, world.triple)), settings
