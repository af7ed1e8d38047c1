"""Executor: opens engines, queues requests, hands out responses; TensorRT-LLM executorImpl.cpp.

No thread: an iteration of the loop runs inside `await_responses`. Where the real executor would
wait for ever, or go on with undefined results, the stand-in raises StandinUndefinedBehaviour, and
from then on nothing but that.
"""

from __future__ import annotations

import copy
import ctypes
import os
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

from .._standin import StandinUndefinedBehaviour
from . import _engine_files as files
from ._configs import ExecutorConfig
from ._cpp import log, throw
from ._engine_model import EngineModel
from ._enums import ModelType
from ._loop import Loop
from ._machine import Ranks, take
from ._requests import Request
from ._responses import Response
from ._start import check_ranks, start

_FILE = "executor/executorImpl.cpp"
_ARGUMENTS = ("model_path", "model_type", "executor_config")


class Executor:
    """Runs requests on an engine folder."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = _arguments(args, kwargs)
        config = copy.deepcopy(given["executor_config"])
        if given["model_type"] != ModelType.DECODER_ONLY:
            raise StandinUndefinedBehaviour(f"{given['model_type']} is not modelled")
        self._ranks = Ranks()
        folder = Path(given["model_path"])
        engine = files.read_config(files.read_text(folder))
        check_ranks(engine, config, self._ranks.world_size)
        tensors = files.read_ranks(folder, engine.world_size)
        if pipe := os.environ.get("TENSORRT_LLM_STANDIN_LOADING"):
            # The GIL is held, as by the binding's constructor, until somebody writes to the pipe.
            ctypes.PyDLL(None).open(os.fsencode(pipe), os.O_RDONLY)
        pool = take(config.kv_cache_config)
        self._destroy = weakref.finalize(self, pool.free)
        try:
            limits = start(engine, config, pool.tokens)
        except Exception:
            self._destroy()
            raise
        model = EngineModel(engine.pretrained, tensors, engine.tp_size)
        self._loop = Loop(engine, limits, model, config, pool.tokens)
        self._max_queue_size: int | None = config.max_queue_size
        self._last_id = 0
        self._terminated: set[int] = set()
        self._shut_down = False
        self._poison: StandinUndefinedBehaviour | None = None

    def can_enqueue_requests(self) -> bool:
        self._check_alive()
        return self._ranks.is_leader and not self._shut_down

    def enqueue_request(self, request: Request) -> int:
        """Queue a request; returns its id."""
        return self.enqueue_requests([request])[0]

    def enqueue_requests(self, requests: list[Request]) -> list[int]:
        """Queue requests; returns their ids."""
        self._check("enqueueRequests", "Shutdown called, cannot enqueue requests")
        for request in requests:
            if not isinstance(request, Request):
                raise TypeError("enqueue_request(): incompatible function arguments.")
            _refuse_unmodelled(request)
        ids = [self._last_id + number for number in range(1, len(requests) + 1)]
        self._last_id += len(requests)
        most = self._max_queue_size or 0
        if most > 0 and len(self._loop.queued) + len(requests) > most:
            raise throw(
                f"Maximum queue size of {most} has been reached, please try again later", _FILE
            )
        self._loop.queued += zip(ids, copy.deepcopy(requests), strict=True)
        self._loop.queued.sort(key=lambda pair: -pair[1]._stored["priority"])
        return ids

    def await_responses(
        self,
        id: int | None = None,  # noqa: A002
        timeout: timedelta | None = None,
    ) -> list[Response]:
        """Of one request or of all; a timeout is a timedelta."""
        if not isinstance(id, int | None) or not isinstance(timeout, timedelta | None):
            raise TypeError("await_responses(): incompatible function arguments.")
        self._check("awaitResponses")
        if id in self._terminated:
            text = f"ReqId {id} has already been processed and was terminated."
            log("ERROR", text)
            return [Response(int(id or 0), text)]
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        self._wait(id, deadline)
        return self._take(id)

    def _wait(self, request_id: int | None, deadline: float | None) -> None:
        ready = self._loop.ready
        while not (ready if request_id is None else request_id in ready):
            if self._loop.idle:
                if deadline is None:
                    self._fail(StandinUndefinedBehaviour("waiting for ever: nothing is in flight"))
                time.sleep(max(0.0, deadline - time.monotonic()))  # type: ignore[operator]
                return
            self._iterate()
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _iterate(self) -> None:
        try:
            self._loop.iterate()
        except StandinUndefinedBehaviour as error:
            self._fail(error)

    def _take(self, request_id: int | None) -> list[Response]:
        """Responses of one id in order; of several ids in no order that callers may count on."""
        ids = list(self._loop.ready) if request_id is None else [request_id]
        taken: list[Response] = []
        for number in sorted(ids, reverse=True):
            responses = self._loop.ready.pop(number, [])
            if any(r.has_error() or r.result.is_final for r in responses):
                self._terminated.add(number)
            taken += responses
        return taken

    def cancel_request(self, id: int) -> None:  # noqa: A002
        """End a request; its final response comes with a later iteration. Ended ids are ignored."""
        self._check("cancelRequest")
        if not isinstance(id, int):
            raise TypeError("cancel_request(): incompatible function arguments.")
        if id not in self._terminated:
            self._loop.cancelled.add(id)

    def get_latest_iteration_stats(self) -> list[Any]:
        self._check("getLatestIterationStats")
        stats = list(self._loop.iteration_stats)
        self._loop.iteration_stats.clear()
        return stats

    def shutdown(self) -> None:
        """End the threads; a serving rank comes back when the leader has called it.

        Engine and K/V pool stay in GPU memory until the object is destroyed.
        """
        self._check_alive()
        if not self._shut_down:
            self._shut_down = True
            self._ranks.shut_down()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        del self._loop
        self._destroy()

    def _check_alive(self) -> None:
        if not self._destroy.alive:
            raise StandinUndefinedBehaviour("the C++ object behind this executor is destroyed")

    def _check(self, method: str, text: str = "Shutdown called") -> None:
        self._check_alive()
        if self._poison is not None:
            raise self._poison
        if self._shut_down:
            raise throw(f"[TensorRT-LLM][ERROR] Assertion failed: {text}", _FILE)
        if not self._ranks.is_leader:
            raise throw(
                f"With LEADER communication mode, only leader rank is expected to call {method}",
                _FILE,
            )

    def _fail(self, error: StandinUndefinedBehaviour) -> None:
        self._poison = error
        raise error


Executor.__module__ = "tensorrt_llm.bindings.executor"


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Of the two constructors the one from a folder; that from a buffer is not modelled."""
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    if (
        len(args) <= len(_ARGUMENTS)
        and given.keys() == set(_ARGUMENTS)
        and isinstance(given["model_path"], str | os.PathLike)
        and isinstance(given["model_type"], ModelType)
        and isinstance(given["executor_config"], ExecutorConfig)
    ):
        return given
    raise TypeError(
        "__init__(): incompatible function arguments. The following argument types are supported:\n"
        f"    1. Executor({', '.join(_ARGUMENTS)})"
    )


def _refuse_unmodelled(request: Request) -> None:
    stored = request._stored
    if request.sampling_config.beam_width > 1 or stored["num_return_sequences"] > 1:
        raise StandinUndefinedBehaviour("beams and several sequences are not modelled")
    for name in (
        "external_draft_tokens_config",
        "prompt_tuning_config",
        "bad_words",
        "stop_words",
        "allotted_time_ms",
    ):
        if stored[name] is not None:
            raise StandinUndefinedBehaviour(f"{name} is not modelled")
