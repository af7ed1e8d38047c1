"""CNN/DailyMail from the Hugging Face hub or its cache: articles for summaries and calibration."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from typing import Any

from trtla.errors import UsageError, first_line

CNN_DAILYMAIL = "cnn_dailymail"
"""The data set's name on the command line."""

_HUB_NAMES = ("abisee/cnn_dailymail", "ccdv/cnn_dailymail")
_HUB_VERSION = "3.0.0"
_HUB_TIMEOUT_S = 10.0


def load_rows(split: str, count: int, hint: str, seed: int | None = None) -> list[dict[str, Any]]:
    """The first `count` rows of a split, shuffled before if there is a seed.

    Rows have `article` and `highlights`. The package `datasets` must be installed.
    """
    if not _hub_answers():
        os.environ["HF_HUB_OFFLINE"] = "1"  # then the cache is looked at, without retries
    import datasets

    problem: Exception | None = None
    for name in _HUB_NAMES:
        try:
            rows = datasets.load_dataset(
                name,
                _HUB_VERSION,
                split=split,
                trust_remote_code=False,
                download_config=datasets.DownloadConfig(max_retries=1),
            )
        except Exception as error:  # the hub's client raises dozens of kinds, none of them ours
            problem = error
            continue
        rows = rows if seed is None else rows.shuffle(seed=seed)
        return [dict(row) for row in rows.select(range(min(count, len(rows))))]
    reason = first_line(problem)
    raise UsageError(f"{CNN_DAILYMAIL} cannot be loaded from the Hugging Face hub: {reason}", hint)


def _hub_answers() -> bool:
    """One quick question: the hub's client itself gives up only after a minute of retries."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urllib.request.urlopen(endpoint, timeout=_HUB_TIMEOUT_S):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
