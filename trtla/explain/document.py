"""The JSON document of a recorded run: every step in plain values, one of them chosen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trtla.explain.mask import Role, positions, roles
from trtla.explain.record import RecordedRun, RecordedStep, WindowCells
from trtla.explain.step_outcome import Candidate, outcome_of
from trtla.explain.words import Words, why
from trtla.results.documents import SCHEMA_VERSION
from trtla.results.run import result


def document(
    run: RecordedRun, chosen: RecordedStep, words: Words, engine: str, executor: str
) -> dict[str, Any]:
    """The whole run; token ids throughout, texts beside those of the output.

    Args:
        chosen: the step that is drawn.
        engine: the folder.
        executor: what ran it.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "explain",
        "engine": engine,
        "executor": executor,
        "step": chosen.number,
        "result": result(run.completion).document(),
        "steps": [_step(run, step, words) for step in run.steps],
    }


def _step(run: RecordedRun, step: RecordedStep, words: Words) -> dict[str, Any]:
    outcome, draft = outcome_of(run, step), step.draft
    return {
        "step": step.number,
        "input": run.text_before(step)[-1] if step.number else None,
        "position": run.position(step) if step.number else None,
        "tokens": draft.tokens,
        "parents": draft.parents,
        "positions": positions(step, run.position(step))[1:],
        "roles": [_role(role) for role in roles(step)[1:]],
        "draws": step.committed,
        "accepted": outcome.accepted,
        "accepted_nodes": outcome.accepted_nodes,
        "added": outcome.added,
        "reason": outcome.reason,
        "why": why(run, step, outcome, words),
        "candidates": [_candidate(candidate) for candidate in outcome.candidates],
        "window": _window(step.window),
        "new_level": step.observed,
        "window_after": _window(step.window_after),
        "harvest": step.harvest,
        "pool_found": step.found,
        "pool_size": step.pool_size,
        "texts": [words.raw(token) for token in step.committed],
    }


def _role(role: Role) -> dict[str, Any]:
    return {
        "part": role.part,
        "cells": [{"level": level, "column": column} for level, column in role.cells],
        "filler": role.filler,
        "candidates": [{"candidate": number, "place": place} for number, place in role.candidates],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {key: value for key, value in asdict(candidate).items() if key != "nodes"}


def _window(window: WindowCells | None) -> dict[str, Any] | None:
    if window is None:
        return None
    return {key: getattr(window, key) for key in ("levels", "fillers", "full")}
