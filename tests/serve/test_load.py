"""`trtla bench --serve` on the real server: texts under load are those of the requests alone."""

from __future__ import annotations

from tests.support.command import trtla
from tests.support.served import Served


def test_load_on_our_server(served: Served) -> None:
    args = ("bench", "--serve", served.api, "--prompts", "code", "-n", "12", "--json")
    loads = ("--concurrency", "3", "--num-prompts", "4", "--temperature", "0,0.8")
    ran = trtla(*args, *loads, "--check-texts")
    assert ran.code == 0, ran.err
    settings, runs = ran.json["settings"], ran.json["runs"]
    assert (settings["owned_by"], settings["tokens_from"]) == ("trtla", "usage")
    assert [(one["completed"], one["failed"]) for one in runs] == [(4, 0)] * 2
    assert all(one["tokens_per_step"] >= 1 for one in runs)
    assert ran.json["checked_texts"]["equal"] == ran.json["checked_texts"]["texts"] == 8
    ran = trtla(*args, "--ignore-eos", "--num-prompts", "1")
    assert (ran.code, ran.json["runs"][0]["completed"]) == (0, 1)
