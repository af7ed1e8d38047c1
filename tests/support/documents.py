"""Small documents of every kind, as the commands write them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ENVIRONMENT = {
    "command": "trtla bench --engine-dir engine -o json",
    "trtla": "0.1.0",
    "cpu": "AMD EPYC",
    "cores": 2,
    "memory_bytes": 2**34,
    "gpus": [],
    "torch": "2.13.0",
}


def bench_row(arm: str, category: str, speedup: float, **more: Any) -> dict[str, Any]:
    return {
        "device": "cpu", "dtype": "float32", "threads": 2, "batch_size": 1, "prompt_len": None,
        "temperature": 0.0, "category": category, "arm": arm, "setting": None, "rounds": 5,
        "tokens_per_s": 100.0 * speedup, "tokens_per_step": 1.0 if arm == "ar" else 2.5,
        "speedup_vs_ar": speedup, "speedup_vs_ar_min": speedup - 0.1,
        "speedup_vs_ar_max": speedup + 0.1, "peak_memory_mb": 300.0 if arm == "ar" else 312.0,
        "distinct_4grams": 0.9, "texts": 3, "equal_texts": 3, "first_divergence": None, **more,
    }  # fmt: skip


def bench(rows: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    rows = rows or [
        row
        for category, speedup in (("code", 4.0), ("chat", 1.0))
        for row in (
            bench_row("ar", category, 1.0),
            bench_row("lookahead 7,7,7", category, speedup),
            bench_row("lookahead 7,7,7", category, speedup / 2, batch_size=4),
        )
    ]
    rows = [*rows, *_over_all(rows)]
    return {
        "schema_version": 1,
        "environment": ENVIRONMENT,
        "settings": {"model": "/models/llama", "rounds": 5, "max_output_len": 64},
        "cells": [],
        "rows": rows,
    }


def _over_all(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows over all categories, where there are several; speed-ups are geometric means."""
    keys = ("arm", "setting", "temperature", "batch_size")
    if len({row["category"] for row in rows}) == 1:
        return []
    found = []
    for key in dict.fromkeys(tuple(row[name] for name in keys) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in keys) == key]
        sums = {name: sum(row[name] for row in own) for name in ("texts", "equal_texts")}
        speedup = geometric_mean(row["speedup_vs_ar"] for row in own)
        found.append({**own[0], **sums, "category": "all", "speedup_vs_ar": speedup})
    return found


def ablation() -> dict[str, Any]:
    rows = [bench_row("ar", "all", 1.0), bench_row("sd", "all", 1.3, setting="gamma 4")]
    return {**bench(rows), "environment": {}}


def tune() -> dict[str, Any]:
    rows = [
        bench_row(arm, "all", speedup, executor="torch on cpu")
        for arm, speedup in (("ar", 1.0), ("lookahead 4,3,3", 2.9), ("prompt-lookup", 1.7))
    ]
    return {
        "schema_version": 1, "command": "tune", "environment": ENVIRONMENT,
        "settings": {"model": "/models/llama", "costs": "this machine"}, "rows": rows,
        "recommendation": {"lookahead": [4, 3, 3], "batch_size": 1, "measured_speedup": 2.9},
        "time_s": 61.0,
    }  # fmt: skip


def summarize() -> dict[str, Any]:
    rouge = {"rouge1": 31.4, "rouge2": 12.0, "rougeL": 25.0, "rougeLsum": 26.0, "time_s": 2.0}
    sides = (("trtla", 1.5), ("trtla_without_lookahead", 1.0))
    return {
        "schema_version": 1, "items": 20,
        "settings": {"model": "/models/llama", "dataset": "cnn_dailymail", "batch_size": 1},
        "rows": [bench_row(name, "cnn_dailymail", ratio, **rouge) for name, ratio in sides],
    }  # fmt: skip


def everything() -> dict[str, dict[str, Any]]:
    return {
        "bench.json": bench(), "ablation.json": ablation(), "tune.json": tune(),
        "summary.json": summarize(),
    }  # fmt: skip


def put(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
