"""The page of `trtla serve` in a real browser, on the real server with the shipped model."""

from __future__ import annotations

import json
import re
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
        self.page.evaluate("n => document.getElementById('max_tokens').value = n", max_tokens)
        return self

    def ask(self, text: str, button: str = "Send") -> Visit:
        """Type a question, press a button, wait for the end."""
        self.page.get_by_label("Message", exact=True).fill(text)
        return self.press(button)

    def press(self, button: str) -> Visit:
        """Press a button, and wait until nothing runs."""
        self.page.get_by_role("button", name=button, exact=True).click()
        expect(self.page.locator("#send")).to_be_visible()
        return self

    def texts(self) -> list[str]:
        """All answers, exactly."""
        return self.page.locator(".text").evaluate_all("all => all.map(one => one.textContent)")


@pytest.fixture
def visit(browser: Any, served: Served) -> Iterator[Visit]:
    """A page with a light theme; it must not complain."""
    visit = Visit(browser, served.address, color_scheme="light")
    yield visit.ready()
    visit.page.context.close()
    assert visit.complaints == []


def test_streams_what_the_api_answers_and_tints_what_was_accepted(
    visit: Visit, served: Served
) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    asked = {"messages": messages, "max_tokens": 64, "temperature": 0.3, "seed": 3}
    answer = served.chat(**asked).json()
    page = visit.ready(64).page
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Seed").fill("3")
    page.get_by_text("7,7,7", exact=True).click()
    visit.ask(QUESTION)
    assert visit.texts() == [answer["choices"][0]["message"]["content"]]
    accepted = page.locator(".text mark[title^='drafter: ']").all_text_contents()
    assert "".join(accepted).strip()
    page.get_by_text("plain", exact=True).click()
    visit.press("Again")
    assert page.locator(".run").nth(1).locator("mark").count() == 0
    expect(page.locator(".verdict")).to_contain_text("The text is the same")


def test_compares_plain_decoding_with_drafts(visit: Visit) -> None:
    visit.ready(64).ask(QUESTION, "Compare")
    plain, drafted = visit.page.locator(".run").all()
    expect(plain).to_contain_text("1.00 tokens per step")
    expect(drafted.get_by_role("heading")).to_have_text("auto")
    first, second = visit.texts()
    assert first == second
    verdict = visit.page.locator(".verdict")
    expect(verdict).to_contain_text(f"all {len(first)} characters")
    expect(verdict).to_contain_text("times the speed")


def test_stop_keeps_what_was_written(visit: Visit) -> None:
    page = visit.ready(1500).page
    slow = {"offline": False, "latency": 0, "downloadThroughput": 5_000, "uploadThroughput": -1}
    network = page.context.new_cdp_session(page)
    network.send("Network.emulateNetworkConditions", slow)  # the model may be done in no time
    page.evaluate("document.getElementById('temperature').value = 2")  # writes on and on
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.get_by_text("plain", exact=True).click()
    page.get_by_role("button", name="Send").click()
    figures, rate = page.locator(".figures").first, re.compile(r"about \d.* tokens/s")
    expect(figures).to_have_text(rate)  # from the second piece of text on
    visit.press("Stop")
    expect(page.locator(".note")).to_have_text("Stopped.")
    assert visit.texts()[0]
    expect(figures).to_have_text(rate)
    network.detach()
    visit.ready().ask("Close the file.")
    assert page.locator("article").count() == 2


@pytest.mark.deep
def test_needs_no_mouse(visit: Visit) -> None:
    keys = visit.page.keyboard
    keys.type("Open a file.")  # the message has the focus
    keys.press("Shift+Enter")
    keys.type("And close it.")
    keys.press("Enter")
    expect(visit.page.locator(".question")).to_have_text("Open a file.\nAnd close it.")
    expect(visit.page.locator(".figures b").first).to_be_visible()
    expect(visit.page.locator("#send")).to_be_visible()
    seen = []
    for _ in range(4):  # from the message backwards
        keys.press("Shift+Tab")
        seen.append(visit.page.evaluate("document.activeElement.textContent"))
        assert visit.page.evaluate("document.activeElement.matches(':focus-visible')")
    assert seen == ["Compare", "Again", "", "Colours"]  # the radio buttons have no text
    assert visit.page.locator("#drafting input:checked").get_attribute("value") == '"auto"'


@pytest.mark.deep
@pytest.mark.parametrize("size", [(1280, 800), (380, 740)])
def test_panels_cover_the_page_and_move_nothing(browser: Any, served: Served, size: Any) -> None:
    window = {"viewport": dict(zip(("width", "height"), size, strict=True))}
    visit = Visit(browser, served.address, **window).ready()
    heading, composer = visit.page.locator("h2"), visit.page.locator("#composer")
    visit.page.evaluate("scrollTo(0, 0)")
    places = heading.bounding_box(), composer.bounding_box()
    for name in ("Settings", "Colours"):
        visit.page.get_by_text(name, exact=True).click()
        (panel,) = visit.page.locator("details[open]").all()
        expect(panel.get_by_text(name, exact=True)).to_be_visible()
        visit.page.evaluate("scrollTo(0, 0)")
        box = panel.locator(".panel").bounding_box()
        assert box["y"] + box["height"] <= places[1]["y"]
        assert (heading.bounding_box(), composer.bounding_box()) == places
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator("details[open]")).to_have_count(0)
    visit.page.context.close()


def test_what_models_and_people_write_stays_text(visit: Visit) -> None:
    bad = "<img src=x onerror=\"document.title='bad'\"><script>document.title='bad'</script>"
    pieces = [{"text": bad, "source": None}, {"text": bad, "source": "<b>own</b>"}]
    chunk = {"choices": [{"delta": {"content": 2 * bad}, "pieces": pieces}]}
    events = f": a comment\n\ndata: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    visit.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=events))
    visit.ask(bad)
    assert visit.texts() == [2 * bad]
    expect(visit.page.locator(".question")).to_have_text(bad)
    assert visit.page.locator("#log :is(img, script, b:not(.figures b))").count() == 0
    assert visit.page.title() == "trtla"


@pytest.mark.deep
def test_asks_for_the_key(browser: Any) -> None:
    with serving(keys=(b"secret",)) as served:
        visit = Visit(browser, served.address)
        state = visit.page.locator("#model")
        expect(state).to_contain_text("The server asks for an API key")
        expect(visit.page.get_by_label("API key")).to_be_focused()
        visit.page.keyboard.type("secret")
        visit.page.keyboard.press("Tab")
        visit.ready().ask(QUESTION)
        assert visit.texts()[0]
        assert visit.page.evaluate("[localStorage.length, ...Object.values(sessionStorage)]") == [
            0,
            "secret",
        ]
        visit.page.context.close()


def test_says_in_a_sentence_what_went_wrong(browser: Any, served: Served) -> None:
    visit = Visit(browser, served.address).ready()
    note, path = visit.page.locator(".note"), "**/v1/chat/completions"
    busy = {"status": 429, "headers": {"Retry-After": "7"}, "body": "{}"}
    visit.page.route(path, lambda route: route.fulfill(**busy))
    visit.ask(QUESTION)
    expect(note).to_have_text("The server is busy: press Again in 7 s.")
    visit.page.unroute(path)
    visit.press("Again")
    expect(note).to_be_empty()
    assert visit.page.locator(".run").count() == 1
    visit.page.route(path, lambda route: route.abort())
    visit.ask("And now?")
    expect(note.last).to_have_text("The connection to the server was lost.")
    visit.page.unroute(path)
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
    visit.ready()
    expect(visit.page.get_by_text("This model has no chat template")).to_be_visible()
    visit.ask(CODE)
    asked = {"prompt": CODE, "max_tokens": 24, "temperature": 0}
    answer = served.complete(**asked).json()
    assert visit.texts() == [answer["choices"][0]["text"]]
    visit.page.context.close()


@pytest.mark.deep
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fits_a_phone_in_both_themes(browser: Any, served: Served, theme: str) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "color_scheme": theme}
    visit = Visit(browser, served.address, **phone).ready().ask(40 * "long" + " word", "Compare")
    for name in ("Settings", "Colours"):
        visit.page.get_by_text(name, exact=True).click()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    ink = visit.page.evaluate("getComputedStyle(document.body).color")
    assert (sum(map(int, re.findall(r"\d+", ink))) > 384) == (theme == "dark")
    assert visit.complaints == []
    visit.page.context.close()


def streamed(visit: Visit, text: str, size: int = 3) -> None:
    """Let the server answer with a text, in pieces of some letters, every second one drafted."""
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    chunks = [
        {"choices": [{"pieces": [{"text": part, "source": (None, "context")[number % 2]}]}]}
        for number, part in enumerate(parts)
    ]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    visit.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=events))


ANSWER = (
    "Use `len(x)` and ``a ` b``, not `this:\n\n```python\ndef f(x):\n    return `x`  # <b>\n```\n"
    "Then:\n~~~~\n```\nstays\n~~~\n~~~~\nEnd of *it*.\n```\nopen"
)


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("size", [3, 1, 7, 1000])
def test_code_stands_in_monospace_and_the_text_is_whole(visit: Visit, size: int) -> None:
    streamed(visit, ANSWER, size)
    visit.ask(ANSWER)
    assert visit.texts() == [ANSWER]
    for place in (".text", ".question"):
        inline, blocks = (
            visit.page.locator(f"{place} code{kind}") for kind in (":not(.block)", ".block")
        )
        assert [one.inner_text() for one in inline.all()] == ["len(x)", "a ` b"]
        shown = [one.inner_text().strip("\n") for one in blocks.all()]
        assert shown == ["python\ndef f(x):\n    return `x`  # <b>", "```\nstays\n~~~", "open"]
        families = blocks.evaluate_all("all => all.map(one => getComputedStyle(one).fontFamily)")
        assert all("monospace" in family for family in families)
        assert "code" not in visit.page.locator(place).inner_text()
    assert visit.page.locator("#log :is(img, script, b:not(.figures b))").count() == 0


@pytest.mark.deep
def test_a_long_line_of_backticks_holds_up_nothing(visit: Visit) -> None:
    text = "` `` ``` x" * 3000
    streamed(visit, text, 100)
    visit.ask("?")
    assert visit.texts() == [text]


@pytest.mark.deep
def test_a_key_that_is_none_is_told_and_the_right_one_connects_once(browser: Any) -> None:
    with serving(keys=(b"secret",)) as served:
        visit = Visit(browser, served.address)
        state, key = visit.page.locator("#model"), visit.page.get_by_label("API key")
        expect(key).to_be_focused()
        for wrong in ("\u043a\u043b\u044e\u0447", "k\u00e9y"):
            key.fill(wrong)
            key.press("Tab")
            expect(state).to_contain_text("This is no API key")
        for _ in range(2):
            key.fill("wrong")
            key.press("Tab")
            expect(state).to_contain_text("The server asks for an API key")
        key.fill("secret")
        visit.page.evaluate("for (let i = 0; i < 3; i++) document.getElementById('key').onchange()")
        visit.ready()
        visit.page.wait_for_load_state("networkidle")
        offered = visit.page.locator("#drafting input")
        values = offered.evaluate_all("all => all.map(one => one.value)")
        assert len(values) == len(set(values)) > 2
        visit.page.context.close()
