"""What a request of the API may set its drafter to: all settings that are declared, by name."""

from __future__ import annotations

import sys

import pytest

from tests.support.served import open_shipped, refused, serving
from trtla.settings.drafting import DrafterSettings

LOOP = {"prompt": "import os\nimport sys\nimport os\nimport sys\n", "max_tokens": 24}
LOOP |= {"temperature": 0, "metrics": True, "cache": "private"}
LOOKUP = {**LOOP, "drafter": "prompt-lookup"}


def answered(served, path="completions", **body):
    asked = dict(body)
    if path != "completions":
        asked["messages"] = [{"role": "user", "content": asked.pop("prompt")}]
    answer = served.http.post(f"/v1/{path}", json=asked)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    text = choice["text"] if path == "completions" else choice["message"]["content"]
    return text, choice["metrics"] if "metrics" in choice else answer.json()["metrics"]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_request_chooses_how_much_its_drafter_proposes(served, path):
    plain, _ = answered(served, path, **LOOP, drafter="none")
    texts, steps = set(), []
    for gamma in (1, 8):
        text, metrics = answered(served, path, **LOOP, drafter="prompt-lookup", gamma=gamma)
        texts.add(text)
        steps.append(metrics)
    assert texts == {plain}
    drafted = [metrics["drafted"] / metrics["steps"] for metrics in steps]
    assert drafted[0] <= 1
    assert drafted[0] < drafted[1]


def test_what_a_request_does_not_say_is_as_the_model_was_opened():
    drafter = DrafterSettings(("prompt-lookup",), gamma=1)
    with serving(lambda: open_shipped(drafter=drafter)) as started:
        _, metrics = answered(started, **LOOP, stop_if_unknown=False)
        _, other = answered(started, **LOOP, gamma=8)
    assert metrics["drafted"] <= metrics["steps"]
    assert other["drafted"] > other["steps"]


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"gamma": 0}, "gamma", "gamma must be from 1 to 256; the drafter none drafts nothing"),
        ({"gamma": 30}, "gamma", "30 tokens, above 16; omit gamma"),
        ({"gamma": True}, "gamma", "gamma must be from 1"),
        ({"ema": 1}, "ema", "ema must be at least 0 and below 1"),
        ({"ngram_kind": "both"}, "ngram_kind", "ngram_kind must be basic or onelevel"),
        ({"gamma_min": 5}, "gamma_min", "gamma_min 5 is above gamma_max 4; omit gamma_min"),
        ({"egag": True}, "egag", "egag needs a draft model"),
        ({"rejection": True}, "rejection", "rejection needs a draft model"),
        ({"reset_in_between": False}, "reset_in_between", "start with --no-reset-in-between"),
        ({"lookahead_sources": ["own"]}, "lookahead_sources", "start with --lookahead-sources"),
        ({"threads": 2}, "threads", "start with --threads"),
        ({"bounded_steps": True}, "bounded_steps", "is not supported; omit it"),
    ],
)
def test_a_setting_that_cannot_be_is_named(served, more, param, said):
    message = refused(served.complete(**LOOKUP, **more), 400, param)
    assert said in message
    assert "--" not in message.replace("start with --", "")


def test_what_is_for_draft_models_goes_with_the_draft_model():
    started = DrafterSettings(("draft:model",), egag=True, rejection=True)
    assert started.changed({"gamma": 3}).egag
    alone = started.changed({"drafter": ("ngram",)})
    assert (alone.egag, alone.rejection, alone.drafter) == (False, False, ("ngram",))


class LastTime:
    """What followed the last token when it came before."""

    def propose(self, ids):
        before = [place for place, token in enumerate(ids[:-1]) if token == ids[-1]]
        return ids[before[-1] + 1 :] if before else []


MINE = f"{__name__}:LastTime"


def test_no_request_imports_code(served, tmp_path, monkeypatch):
    """A module of the server's folder stays untouched, whatever asks for it."""
    (tmp_path / "not_imported.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for drafter in (
        "not_imported:Name",
        "lookahead,not_imported:Name",
        f"{tmp_path}/not_imported.py:Name",
    ):
        for path in ("completions", "chat/completions"):
            asked = dict(LOOP, drafter=drafter)
            if path != "completions":
                asked["messages"] = [{"role": "user", "content": asked.pop("prompt")}]
            message = refused(served.http.post(f"/v1/{path}", json=asked), 400, "drafter")
            assert "which the model was not opened with; omit drafter" in message
    assert "not_imported" not in sys.modules


def test_a_request_may_name_a_custom_drafter_of_the_start():
    opened = ["lookahead", LastTime]
    with serving(lambda: open_shipped(drafter=opened)) as started:
        plain, _ = answered(started, **LOOP, drafter="none")
        text, metrics = answered(started, **LOOP, drafter=MINE, lookahead="auto")
        assert text == plain
        assert [*metrics["sources"]] == [MINE]
        assert f'source="{MINE}"' in started.http.get("/metrics").text
        refused(started.complete(**LOOP, drafter=f"{__name__}:answered"), 400, "drafter")
