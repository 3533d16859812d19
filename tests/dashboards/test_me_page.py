"""A person's own page in a real browser: the quiz by keys, the report, the profile, and text that stays text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kits.gateway import PATIENCE_S, client, serving, wait_for
from tests.kits.quiz import install

from fitrouter.config import load_config
from fitrouter.router import Router
from fitrouter.stores.keys import FILE, StoredKey, change_keys, digest_of, new_key

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the packages playwright and axe-playwright-python")
sync_api.expect.set_options(timeout=1000 * PATIENCE_S)
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium (apt-get install chromium)")
ADA = "<img src=x onerror=alert(1)> ada"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = load_config(install(tmp_path_factory.mktemp("me")))
    with serving(Router.from_config(config), config) as address:
        yield address


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_person_goes_through_the_page(url: str, scheme: str, width: int) -> None:
    """Link, quiz by keys alone, report, profile, erasure: no fault by axe, no error, no request to others."""
    from axe_playwright_python.sync_playwright import Axe

    with client(url) as http:
        link = http.post("/v1/links", json={"user": ADA}).json()["url"]
    faults: list[str] = []
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(1000 * PATIENCE_S)
        page.on("console", lambda told: faults.append(told.text) if told.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: None if asked.url.startswith(url) else faults.append(asked.url))

        def look(selector: str) -> None:
            page.wait_for_selector(selector)
            faults.extend(f"{selector}: {each['id']}" for each in Axe().run(page).response["violations"])
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, selector

        page.goto(link)
        look("#open")
        assert "#" not in page.url
        page.click("#open")
        look("#start")
        page.check('input[name=structure][value="-1"]')
        page.click("#start")
        look(".answers")
        with client(url) as http:
            declared = http.get("/v1/profile", headers={"x-fitrouter-user": ADA}).json()["declared"]
        assert {key: value for key, value in declared.items() if value} == {"structure": -1.0}
        for _ in range(20):
            short, other = (each.inner_text() for each in page.query_selector_all(".answer .text"))
            number = page.inner_text(".head .about")
            page.keyboard.press("1" if len(short) < len(other) else "2")
            page.wait_for_function("was => document.querySelector('.head .about')?.innerText !== was", arg=number)
            if page.query_selector(".rank"):
                break
        look(".rank")
        assert re.search("The quiz ended(:| early)", page.inner_text("main")), "and why"
        with client(url) as http:
            wait_for(lambda: http.get("/v1/report", headers={"x-fitrouter-user": ADA}).json()["board"]["labels"] > 0)
        page.goto(f"{url}/me#/report")
        look("form.share")
        page.check("input[value=ranking]")
        page.click("form.share button.primary")
        shared = page.inner_text("#made a")
        other = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        other.on("console", lambda told: faults.append(told.text) if told.type in {"error", "warning"} else None)
        other.goto(shared)
        other.wait_for_selector(".rank")
        faults.extend(f"shared: {each['id']}" for each in Axe().run(other).response["violations"])
        assert other.inner_text("h1") == "Which models fit one person"
        other.reload()
        other.wait_for_selector(".rank")
        page.goto(f"{url}/me#/profile")
        page.goto(f"{url}/me#/report")
        page.click("form.share ~ .list button")
        page.wait_for_selector("form.share ~ .list button", state="detached")
        page.wait_for_selector("form.share")
        other.reload()
        other.wait_for_selector("text=nothing is shared under this link, or no longer")
        faults[:] = [fault for fault in faults if "401" not in fault]  # what the browser says of the answer to that
        other.close()
        page.goto(f"{url}/me#/profile")
        page.fill(
            "#statements", "short answers\n<b>no</b> bullet points\nI avoid horror films\nI prefer answers in HTML"
        )
        page.click("button.primary")
        look("#heard h3")
        heard = page.locator("#heard div").all_inner_texts()
        assert len(heard) == 3, "understood; kept as a topic, which moves no property of answers; not understood"
        assert "horror" in heard[1]
        assert "none of their properties is measured" in heard[1]
        assert "HTML (nothing measures the form or language of answers)" in heard[2]
        page.click("#erase")
        page.fill("#confirm", ADA)
        look("#confirm")
        page.click("form button.danger")
        page.wait_for_selector("text=Everything about you was erased.")
        browser.close()
    assert faults == []


def test_who_is_not_let_in_reads_why(tmp_path: Path) -> None:
    """The form says what is wrong with a key and a used link, keeps what was typed, and a key of one's own opens it."""
    config = load_config(install(tmp_path))
    key_id, key = new_key()
    stored = StoredKey(id=key_id, name="ann", digest=digest_of(key), created=0.0, user="ann", scopes=("feedback",))
    change_keys(config.data / FILE, lambda _: [stored])
    with serving(Router.from_config(config), config) as url, sync_api.sync_playwright() as player:
        page = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        page.goto(f"{url}/me#{'x' * 43}")
        page.click("#open")
        page.wait_for_selector(".toast.bad.shown")
        page.fill("#key", "a wrong key")
        page.click("form button.primary")
        page.wait_for_selector("[role=alert]:has-text('key')")
        assert page.input_value("#key") == "a wrong key"
        page.fill("#key", key)
        page.click("form button.primary")
        page.wait_for_selector("#start")
