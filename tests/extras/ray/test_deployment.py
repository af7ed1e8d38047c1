"""How a server stays in touch with its replicas; Ray's handle and clock are stand-ins."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace

import pytest

from trtla import TrtlaError
from trtla.extras.ray import deployment as module
from trtla.extras.ray.deployment import Deployment
from trtla.extras.ray.replica import ReplicaReport
from trtla.runtime.stats import ExecutorStats

REPORT = ReplicaReport("one", 1, ExecutorStats())


class Answers:
    """What replicas say next, for the handle that a deployment asks."""

    def __init__(self) -> None:
        self.said: list[object] = [REPORT]
        self.asked = 0

    def broadcast(self, method: str) -> Answers:
        assert method == "report"
        self.asked += 1
        return self

    def results(self, timeout_s: float, return_exceptions: bool) -> list[object]:
        assert return_exceptions
        return self.said


class Watched(Deployment):
    """A deployment of which nothing was deployed."""

    def __init__(self, handle: Answers) -> None:
        self.handle, self.starting = handle, False
        self.said: list[str] = []
        self.raised = ""
        self._log, self._least = self.said.append, 2
        self._last_beat, self._heard = 0.0, 1000.0
        self._alive, self._cause = 0, ""

    def _parts(self) -> list:
        return [SimpleNamespace(message=self.raised)]

    def _is_starting(self) -> bool:
        return self.starting


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_replicas_hear_of_their_server_every_ten_seconds(clock):
    answers = Answers()
    watched = Watched(answers)
    for _ in range(100):
        watched.touch()
        clock.now += 1
    assert answers.asked == 10


def test_one_that_answers_is_enough(clock):
    answers = Answers()
    answers.said = [ConnectionError("gone"), REPORT]
    assert Watched(answers).reports() == [REPORT]


def test_silence_is_a_failure_unless_replicas_come_up(clock):
    answers = Answers()
    answers.said = [ConnectionError("gone")]
    watched = Watched(answers)
    watched.starting = True
    for _ in range(60):
        watched.touch()
        clock.now += 10
    watched.starting = False
    for _ in range(11):
        watched.touch()
        clock.now += 10
    clock.now += 10
    with pytest.raises(TrtlaError, match="no replica has answered for 120 seconds"):
        watched.touch()


def test_the_log_has_what_was_lost_and_why_nothing_comes_up(clock):
    answers = Answers()
    answers.said = [REPORT, REPORT]
    watched = Watched(answers)

    def later(*said: object) -> None:
        answers.said = list(said)
        clock.now += 10
        watched.touch()

    later(REPORT, REPORT)
    later(REPORT, ConnectionError("gone"))
    assert watched.said == ["1 of 2 replicas answer"]
    watched.raised = (
        "RuntimeError: Traceback\nx.ReplicaLost: the model is failed: no file\nRetrying 2 times."
    )
    later(REPORT)
    later(REPORT)
    assert watched.said[1:] == ["a replica does not come up: the model is failed: no file"]
    later(REPORT, REPORT)
    later(ConnectionError("gone"))
    assert watched.said[2:] == ["0 of 2 replicas answer"]


def test_nobody_waits_for_a_cluster_that_is_gone(clock):
    gone = Event()
    with pytest.raises(TimeoutError):
        module._in_time(gone.wait, 0.05)
    gone.set()
    assert module._in_time(gone.wait, 120)
    with pytest.raises(KeyError):
        module._in_time(lambda: {}["nothing"])
