"""The page of `trtla serve` in a real browser, on the real server with the shipped model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.served import Served, serving

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
expect.set_options(timeout=120_000)

_BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(_BROWSER is None, reason="no chromium is installed")
QUESTION = "Return the absolute path of a file."
CODE = "    def read_line(self):\n        "


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests; Playwright's own loop must end with them."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A fresh page on the server, and all that it complained about."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(120_000)
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._console)
        self.page.goto(address)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def ready(self, max_tokens: int = 24) -> Visit:
        """Wait for the model, and keep answers short."""
        expect(self.page.locator("#send")).to_be_enabled()
        self.page.get_by_label("Max tokens").fill(str(max_tokens))
        return self

    def ask(self, text: str, button: str = "Send") -> Visit:
        """Type a question, press a button, wait for the end."""
        self.page.get_by_label("Message").fill(text)
        return self.press(button)

    def press(self, button: str) -> Visit:
        """Press a button, and wait until nothing runs."""
        self.page.get_by_role("button", name=button, exact=True).click()
        expect(self.page.locator("#send")).to_be_enabled()
        return self

    def texts(self) -> list[str]:
        """All answers, exactly."""
        return self.page.locator(".text").evaluate_all("all => all.map(one => one.textContent)")


@pytest.fixture
def visit(browser: Any, served: Served) -> Iterator[Visit]:
    """A page that must not complain."""
    visit = Visit(browser, served.address)
    yield visit.ready()
    visit.page.context.close()
    assert visit.complaints == []


def streamed(*pieces: dict[str, Any]) -> str:
    """Return the events of an answer in pieces."""
    chunk = {"choices": [{"delta": {}, "pieces": pieces}]}
    return f": a comment\n\ndata: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"


def test_streams_what_the_api_answers_and_colours_what_was_accepted(
    visit: Visit, served: Served
) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    settings = {"max_tokens": 64, "temperature": 0.3, "seed": 0}
    first = served.chat(messages=messages, **settings).json()["choices"][0]["message"]
    messages += [first, {"role": "user", "content": "And close it."}]
    second = served.chat(messages=messages, **settings).json()["choices"][0]["message"]
    visit.ready(64).page.get_by_label("Temperature").fill("0.3")
    visit.ask(QUESTION).ask("And close it.")
    assert visit.texts() == [first["content"], second["content"]]
    marks = visit.page.locator(".text mark[title^='drafted by ']")
    assert "".join(marks.all_text_contents()).strip()
    expect(visit.page.locator(".figures").first).to_contain_text("tokens per step")


def test_compares_plain_decoding_with_drafts(visit: Visit) -> None:
    visit.ready(64).ask(QUESTION).press("Compare")  # without a message: the last question
    plain, drafted = visit.page.locator(".run").all()
    expect(plain).to_contain_text("1.00 tokens per step")
    assert plain.locator("mark").count() == 0
    expect(drafted.get_by_role("heading")).to_have_text("auto")
    first, second = visit.texts()
    assert first == second
    verdict = visit.page.locator(".verdict")
    expect(verdict).to_contain_text(f"all {len(first)} characters")
    expect(verdict).to_contain_text("times the speed")


def test_a_warm_up_that_was_stopped_is_done_again(visit: Visit) -> None:
    bodies: list[Any] = []

    def note(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.continue_()

    path = "**/v1/chat/completions"
    visit.page.route(path, lambda route: None)  # never answers
    visit.page.get_by_label("Message").fill(QUESTION)
    visit.page.get_by_role("button", name="Compare", exact=True).click()
    visit.press("Stop").page.unroute(path)
    visit.page.route(path, note)
    visit.press("Compare")
    assert [body["max_tokens"] for body in bodies] == [8, 8, 24, 24]


def test_a_difference_of_texts_is_shown(visit: Visit) -> None:
    def answer(route: Any) -> None:
        text = "one too" if '"auto"' in route.request.post_data else "one two"
        route.fulfill(body=streamed({"text": text, "source": None}))

    visit.page.route("**/v1/chat/completions", answer)
    visit.ask(QUESTION, "Compare")
    expect(visit.page.locator(".verdict.differs")).to_contain_text("from character 6 on")
    expect(visit.page.locator(".verdict q")).to_have_text(["one two", "one too"])


def test_stop_keeps_what_was_written(visit: Visit) -> None:
    page = visit.ready(1500).page
    slow = {"offline": False, "latency": 0, "downloadThroughput": 5_000, "uploadThroughput": -1}
    network = page.context.new_cdp_session(page)
    network.send("Network.emulateNetworkConditions", slow)  # the model may be done in no time
    page.get_by_label("Temperature").fill("2")  # writes on and on
    page.get_by_label("Message").fill(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator(".text")).not_to_be_empty()
    visit.press("Stop")
    expect(page.locator(".note")).to_have_text("Stopped.")
    assert visit.texts()[0]
    network.detach()
    visit.ready().ask("Close the file.")
    expect(page.locator(".figures").nth(1)).to_contain_text("tokens/s")


def test_what_models_and_people_write_stays_text(visit: Visit) -> None:
    bad = "<img src=x onerror=\"document.title='bad'\"><script>document.title='bad'</script>"
    pieces = {"text": bad, "source": None}, {"text": bad, "source": "<b>own</b>"}
    events = streamed(*pieces)
    visit.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=events))
    visit.ask(bad)
    assert visit.texts() == [2 * bad]
    expect(visit.page.locator(".question")).to_have_text(bad)
    assert visit.page.locator("#log :is(img, script, b)").count() == 0
    assert visit.page.title() == "trtla"


@pytest.mark.deep
def test_asks_for_the_key(browser: Any) -> None:
    with serving(keys=(b"secret",)) as served:
        visit = Visit(browser, served.address)
        expect(visit.page.locator("#model")).to_contain_text("the API key is missing")
        for key in ("\u043a\u043b\u044e\u0447", "wrong", "secret"):
            visit.page.get_by_label("API key").fill(key)
            visit.page.keyboard.press("Tab")
        visit.ready().ask(QUESTION)
        assert visit.texts()[0]
        assert visit.page.evaluate("localStorage.length + sessionStorage.length") == 0
        visit.page.context.close()


def test_says_in_a_sentence_what_went_wrong(browser: Any, served: Served) -> None:
    visit = Visit(browser, served.address).ready()
    note, path = visit.page.locator(".note"), "**/v1/chat/completions"
    visit.page.route(path, lambda route: route.abort())
    visit.ask(QUESTION)
    expect(note).to_contain_text("The connection failed")
    visit.page.unroute(path)
    visit.press("Send")  # the question has come back
    assert visit.texts()[1]
    visit.ready(2040).ask("Too long.")
    expect(note.last).to_contain_text("The server refused: the conversation needs")
    visit.page.context.close()


@pytest.mark.deep
def test_continues_plain_text_where_there_is_no_template(browser: Any, served: Served) -> None:
    visit = Visit(browser, "about:blank")
    models = served.http.get("/v1/models").json()
    models["data"][0]["chat"] = False
    visit.page.route("**/v1/models", lambda route: route.fulfill(json=models))
    visit.page.goto(served.address)
    visit.ready().ask(CODE)
    asked = {"prompt": CODE, "max_tokens": 24, "temperature": 0}
    answer = served.complete(**asked).json()
    assert visit.texts() == [answer["choices"][0]["text"]]
    visit.page.context.close()


@pytest.mark.deep
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fits_a_phone_in_both_themes(browser: Any, served: Served, theme: str) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "color_scheme": theme}
    visit = Visit(browser, served.address, **phone).ready().ask(40 * "long" + " word", "Compare")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    red = visit.page.evaluate("Number(getComputedStyle(document.body).color.match(/[0-9]+/)[0])")
    assert (red > 128) == (theme == "dark")
    assert visit.complaints == []
    visit.page.context.close()
