"""The browser extension in a real browser: what a click sends and shows, and what hostile pages and servers get."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.kits.extension import CHROMIUM, ID, ORIGIN, SOURCE, Chromium, chromium
from tests.kits.gateway import PATIENCE_S, client, folded, serving, wait_for
from tests.kits.quiz import install

from fitrouter.config import load_config
from fitrouter.router import Router
from fitrouter.stores.keys import FILE, StoredKey, change_keys, digest_of, new_key
from fitrouter.types import ProfileChange

KEY = "sk-secret-of-the-person"
LONG = """A sourdough starter is a mixture of flour and water in which wild yeasts and bacteria live together. Most
people keep theirs on the kitchen counter and feed it every day; others keep it in the fridge, where a week
without food does it no harm. Whether you choose rye, wheat or spelt matters less than patience, since each
flour brings its own inhabitants along.

On the first morning, stir a few spoons of flour into the same weight of lukewarm water, cover the jar
loosely, and leave it somewhere warm until evening. Throw half of it away before every meal, however
wasteful that may seem, because otherwise the acid wins over the yeast. Bubbles appear on the third day,
disappear on the fourth, which worries every beginner, and come back to stay soon afterwards. When the dough
doubles within six hours, and a spoonful floats in a glass of water, it is ready to raise a loaf. Keep a
little back each time you bake: with regular feeding, the same jar can outlive the person who began it, and
there are bakeries whose starters are older than the streets in which they stand."""
SCORED = {"mean": 0.72, "sd": 0.1, "low": 0.6, "high": 0.8, "population": 0.5}
REASON = "writes <b>shorter</b> than most answers, which you like"
ANSWER = {"dimensions": {"overall": SCORED}, "reasons": [{"words": REASON}], "faults": []}


class Asked(NamedTuple):
    """A request that a server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Server(ThreadingHTTPServer):
    """A server that answers everything alike, and remembers what it was asked."""

    def __init__(self, status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.status, self.body, self.headers, self.asked = status, body, headers or {}, list[Asked]()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.loads(sent) if sent else None
        self.server.asked.append(Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        self.send_response(self.server.status)
        for name, value in ({"content-length": str(len(self.server.body))} | self.server.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_PUT = do_POST  # noqa: N815 - the names of the base class

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Any:
    """Start a server that ends with the test."""

    def start(*given: Any, **more: Any) -> Server:
        server = Server(*given, **more)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        request.addfinalizer(server.server_close)
        request.addfinalizer(server.shutdown)
        return server

    return start


def page_of(answer: str, more: str = "") -> dict[str, Any]:
    """A page with an answer, for a server."""
    body = f"<!doctype html><meta charset=utf-8><p id=answer>{answer}</p>{more}".encode()
    return {"body": body, "headers": {"content-type": "text/html"}}


def gateway_like(answer: Any = ANSWER) -> dict[str, Any]:
    """What a gateway says to a score and to a mark."""
    found = {"object": "fitrouter.profile", "user": "ada", "items": [{"answers": [answer]}]}
    return {"body": json.dumps(found).encode(), "headers": {"content-type": "application/json"}}


# --- what it is made of ---


def scripts() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCE.glob("*.js"))}


def test_its_permissions_are_these() -> None:
    """No page but the one that is clicked on, no origin before it is asked for, and no door for pages of the web."""
    manifest = json.loads((SOURCE / "manifest.json").read_text())
    assert set(manifest) == {
        *("manifest_version", "name", "version", "description", "minimum_chrome_version", "key", "icons", "action"),
        *("background", "options_ui", "permissions", "optional_host_permissions", "content_security_policy"),
    }
    assert manifest["permissions"] == ["activeTab", "contextMenus", "scripting", "storage"]
    assert manifest["optional_host_permissions"] == ["https://*/*", "http://127.0.0.1/*", "http://localhost/*"]
    policy = manifest["content_security_policy"]["extension_pages"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert not [each for each in policy if "unsafe" in each or ("script-src" in each and each != "script-src 'self'")]


def test_it_runs_no_code_but_its_own() -> None:
    """No text becomes HTML or code, nothing is loaded from elsewhere, and no message of a page is listened to."""
    makes = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|\bFunction\(|import\(|setTimeout"
    )
    listens = r"postMessage|onMessageExternal|onConnect|addEventListener|BroadcastChannel|onUserScript"
    for name, source in scripts().items():
        assert not re.search(f"{makes}|{listens}", source), name
        assert all(path.startswith("./") for path in re.findall(r'from "([^"]*)"', source)), name

    class Loaded(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            assert not [name for name in given if name.startswith("on") or name == "style"]
            for name in {"src", "href"} & set(given):
                assert (SOURCE / str(given[name])).exists()
            assert tag != "script" or "src" in given

    for page in SOURCE.glob("*.html"):
        Loaded().feed(page.read_text(encoding="utf-8"))


def test_only_the_worker_knows_the_key() -> None:
    """No other script reads what is stored, or sends a request."""
    for name, source in scripts().items():
        assert bool(re.search(r"chrome\.storage|\bfetch\(", source)) is (name == "worker.js"), name


# --- in a browser ---

if CHROMIUM is None:
    pytest.skip("needs the program chromium (apt-get install chromium)", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="needs the packages playwright and axe-playwright-python")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with (
        sync_api.sync_playwright() as player,
        chromium(player, tmp_path_factory.mktemp("extension"), color_scheme="light") as opened,
    ):
        opened.context.set_default_timeout(1000 * PATIENCE_S)
        yield opened


def person(tmp_path: Path, **given: Any) -> tuple[Router, Any, str]:
    """A gateway's router and settings, with one key."""
    settings = load_config(install(tmp_path))
    key_id, key = new_key()
    if given:
        stored = StoredKey(id=key_id, name="ada", digest=digest_of(key), created=0.0, **given)
        change_keys(settings.data / FILE, lambda _: [stored])
    return Router.from_config(settings), settings, key if given else ""


def taught(http: Any, user: str) -> None:
    """Let a person rate short answers as good, and long ones and lists as bad."""
    for topic in range(12):
        for model, value in {"brief": "up", "long": "down", "listing": "down"}.items():
            body = {"model": model, "user": user, "messages": [{"role": "user", "content": f"What about {topic}?"}]}
            decision = http.post("/v1/chat/completions", json=body).headers["x-fitrouter-decision"]
            vote = {"decision_id": decision, "user": user, "kind": "thumb", "value": value}
            assert http.post("/v1/feedback", json=vote).status_code == 200


@pytest.mark.parametrize(
    ("given", "user"),
    [
        ({}, "ada"),
        ({"user": "ada", "scopes": ("chat", "feedback")}, ""),
        ({"scopes": ("chat", "feedback", "read", "trusted")}, "ada"),
    ],
    ids=["no keys", "a key of one's own", "a key that speaks for users"],
)
def test_a_click_scores_what_is_marked(
    browser: Chromium, started: Any, tmp_path: Path, given: dict[str, Any], user: str
) -> None:
    """With its reason; a thumb is an example in the profile, durable in the log, and can be taken back."""
    router, settings, key = person(tmp_path, **given)
    site = started(**page_of(LONG, "<p>Something else.</p>"))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with serving(router, settings) as url, client(url, headers=headers) as http:
        taught(http, "ada")
        items = [{"answers": [" ".join(LONG.split())]}]

        def known() -> Any:
            [found] = http.post("/v1/score", json={"user": "ada", "items": items}).json()["items"][0]["answers"]
            return found["reasons"] and found

        wait_for(lambda: known() and not router.status().lag.scorer_answers)
        folded(router)
        found = known()
        assert browser.set(url, key, user, "#test") == "It works: the gateway scores for ada."
        browser.show(site.url)
        with browser.click() as popup:
            assert popup.score() == f"{round(100 * found['dimensions']['overall']['mean'])}%"
            assert popup.text("#whose") == "expected rating by ada"
            assert popup.text("#reasons").splitlines() == [each["words"] for each in found["reasons"]]
            assert " ".join(popup.text("#text").split())[:400] == " ".join(LONG.split())[:400]
            popup.press("#bad")
            assert "a bad example in the profile of ada" in popup.said("#told")
            changes = [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, ProfileChange)]
            assert len(changes) == 1
            popup.press("#bad")
            wait_for(lambda: "Taken back" in popup.said("#told"))
            assert popup.evaluate("document.querySelectorAll('[aria-pressed=true]').length") == 0
            changes = [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, ProfileChange)]
            assert len(changes) == 2
    assert all(each.method == "GET" for each in site.asked), "the page's own server was asked for the page only"


def test_a_click_sends_the_marked_text_and_nothing_else(browser: Chromium, started: Any) -> None:
    """To the gateway alone: no address, no title, no cookie, no rest of the page; and nothing of it is stored."""
    site = started(**page_of("Marked.", "<p>Private.</p><script>document.cookie = 'a=b'</script>"))
    gateway = started(**gateway_like())
    assert browser.set(gateway.url, KEY, "ada") == "Saved."
    assert gateway.asked == [], "without a click nothing is sent"
    browser.show(f"{site.url}/secret-path?q=1")
    with browser.click() as popup:
        assert popup.score() == "72%"
        popup.press("#good")
        wait_for(lambda: "good example" in popup.text("#told"))
    scored, marked = gateway.asked
    assert (scored.method, scored.path) == ("POST", "/v1/score")
    assert scored.body == {"user": "ada", "items": [{"answers": ["Marked."]}]}
    assert (marked.method, marked.path) == ("PUT", "/v1/profile")
    assert marked.body == {"user": "ada", "examples": [{"good": True, "text": "Marked."}]}
    for asked in gateway.asked:
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        assert asked.headers["origin"] == ORIGIN
        assert not {"cookie", "referer"} & set(asked.headers)
        assert "secret-path" not in json.dumps(asked)
    page = browser.options()
    kept = page.evaluate("Promise.all(['local', 'session', 'sync'].map((name) => chrome.storage[name].get()))")
    assert kept == [{"url": gateway.url, "key": KEY, "user": "ada"}, {}, {}]
    reached = page.evaluate("chrome.permissions.getAll()")
    assert reached["origins"] == [f"{gateway.url}/*"]
    assert page.input_value("#key") == ""
    page.close()


def test_the_menu_of_a_marked_text_has_an_entry(browser: Chromium) -> None:
    """For marked texts; that its click opens the popup is not tried, as headless browsers show no menus."""
    page = browser.options()
    worker = next(each for each in browser.context.service_workers if ORIGIN in each.url)
    again = "chrome.contextMenus.update('score', {contexts: ['selection']}).then(() => 'there', (e) => e.message)"
    assert worker.evaluate(again) == "there"
    page.close()


HOSTILE = """
<script>
const ID = "the-id", told = [];
const say = (what) => (value) => { told.push([what, String(value?.error ?? value)]); };
String.prototype.slice = String.prototype.toWellFormed = () => "forged";
Selection.prototype.toString = () => "forged";
window.getSelection = () => "forged";
try { chrome.runtime.sendMessage(ID, { kind: "score", text: "x" }).then(say("message"), say("no message")); }
catch (error) { say("no message")(error); }
try { chrome.runtime.connect(ID); say("port")(1); } catch (error) { say("no port")(error); }
fetch(`chrome-extension://${ID}/popup.html`).then(say("read"), say("not read"));
import(`chrome-extension://${ID}/worker.js`).then(say("module"), say("no module"));
const frame = document.createElement("iframe");
frame.src = `chrome-extension://${ID}/options.html`;
frame.onload = () => {
  try { say("frame")(frame.contentDocument.body.innerText); } catch (error) { say("no frame")(error); }
};
document.body.append(frame);
for (const kind of ["score", "mark", "settings"]) postMessage({ kind, text: "x", target: ID }, "*");
dispatchEvent(new MessageEvent("message", { data: { kind: "score" }, origin: `chrome-extension://${ID}` }));
window.told = told;
</script>
""".replace("the-id", ID)


def test_a_hostile_page_gets_nothing(browser: Chromium, started: Any) -> None:
    """It cannot call the extension, read its files, or forge what was marked; without a click nothing is sent."""
    gateway, site = started(**gateway_like()), started(**page_of("Really marked.", HOSTILE))
    browser.set(gateway.url, KEY, "ada")
    page = browser.show(site.url)
    page.wait_for_function("told.length >= 5")
    assert {what for what, _ in page.evaluate("told")} == {
        *("no message", "no port", "not read", "no module", "no frame")
    }
    assert gateway.asked == []
    with browser.click() as popup:
        assert popup.score() == "72%"
        assert popup.text("#text") == "Really marked."
    assert [each.body["items"] for each in gateway.asked] == [[{"answers": ["Really marked."]}]]
    texts = "Object.values(window).filter((each) => typeof each === 'string').join()"
    assert KEY not in page.evaluate(f"{texts} + document.documentElement.outerHTML")
    assert not page.evaluate("Object.keys(window).some((name) => name.includes('fitrouter'))")


def test_a_script_in_a_page_reads_no_key_and_commands_nothing(browser: Chromium, started: Any) -> None:
    """Not even one that runs in the extension's own world of a page, as where the renderer was taken over."""
    gateway, site = started(**gateway_like()), started(**page_of("Hello."))
    browser.set(gateway.url, KEY, "ada")
    browser.show(site.url)
    tries = """async () => {
        const [tab] = await chrome.tabs.query({ active: true, currentWindow: true });
        const [{ result }] = await chrome.scripting.executeScript({ target: { tabId: tab.id }, func: async () => {
            const late = () => new Promise((done) => setTimeout(done, 3000, ["silence"]));
            const got = (found) => ["got", JSON.stringify(found ?? null)];
            const refused = ({ message }) => ["refused", message];
            const tried = (work) => Promise.race([work().then(got, refused), late()]);
            const send = (kind) => tried(() => chrome.runtime.sendMessage({ kind, text: "x", good: true }));
            const stored = await tried(() => chrome.storage.local.get());
            return [stored, ...await Promise.all(["settings", "score", "mark", "test"].map(send))];
        } });
        return result;
    }"""
    with browser.click() as popup:
        popup.score()
        before = len(gateway.asked)
        stored, *messages = popup.evaluate(f"({tries})()")
    assert stored[0] == "refused", stored
    assert {each[0] for each in messages} <= {"silence", "refused"} or messages == [["got", "null"]] * 4, messages
    assert len(gateway.asked) == before


def test_markup_stays_text(browser: Chromium, started: Any) -> None:
    """Neither what is marked nor what the gateway says becomes elements of the popup."""
    evil = "&lt;img src=x onerror=alert(1)&gt;&lt;b&gt;bold&lt;/b&gt; and <b>really bold</b>"
    gateway, site = started(**gateway_like()), started(**page_of(evil))
    browser.set(gateway.url, KEY, "ada")
    browser.show(site.url)
    with browser.click() as popup:
        popup.score()
        assert popup.text("#text") == "<img src=x onerror=alert(1)><b>bold</b> and really bold"
        assert popup.text("#reasons") == REASON
        assert popup.evaluate("document.querySelectorAll('#text *, #reasons li *').length") == 0


def test_a_huge_text_is_cut_and_says_so(browser: Chromium, started: Any) -> None:
    """At what the gateway takes, within no character; an example is shorter still."""
    gateway, site = started(**gateway_like()), started(**page_of("x" * 49_999 + "\U0001f600" * 40_000))
    browser.set(gateway.url, KEY, "ada")
    browser.show(site.url)
    with browser.click() as popup:
        popup.score()
        assert popup.text("#cut") == "Only the first 50,000 of 129,999 characters were scored."
        popup.press("#good")
        wait_for(lambda: "Its first 8,000 characters count." in popup.text("#told"))
    [text] = gateway.asked[0].body["items"][0]["answers"]
    assert text == "x" * 49_999 + "�"
    assert gateway.asked[1].body["examples"] == [{"good": True, "text": "x" * 8_000}]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a web page": (page_of("Welcome"), "is not a gateway's answer"),
    "a list": ({"body": b"[1]"}, "is not a gateway's answer"),
    "nothing": ({"body": b"null"}, "is not a gateway's answer"),
    "another shape": ({"body": b'{"items": [{"answers": [{"dimensions": 3}]}]}'}, "is not a gateway's answer"),
    "no numbers": (gateway_like({**ANSWER, "dimensions": {"overall": {"mean": "<b>"}}}), "is not a gateway's answer"),
    "an error of another kind": ({"status": 500, "body": b'{"error": 7}'}, "is not a gateway's answer"),
    "without an end": ({"body": b'{"items": "' + b"x" * 3_000_000 + b'"}'}, "is not a gateway's answer"),
    "a refusal": ({"status": 429, "body": b'{"error": {"code": "busy", "message": "wait"}}'}, "The gateway says: wait"),
    "an unknown key": (
        {"status": 401, "body": b'{"error": {"code": "invalid_api_key", "message": "no"}}'},
        "does not know this key",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_gateway_is_told(browser: Chromium, started: Any, fault: str) -> None:
    """In the settings, by "Test", as in the popup: a sentence that says what to do, and no score."""
    answers, words = FAULTS[fault]
    gateway = started(**answers)
    assert words in browser.set(gateway.url, KEY, "ada", "#test")
    site = started(**page_of("Hello."))
    browser.show(site.url)
    with browser.click() as popup:
        wait_for(lambda: words in popup.said())
        assert popup.evaluate("document.querySelector('#result').hidden")


def test_a_gateway_that_is_gone_is_told(browser: Chromium, started: Any) -> None:
    """Nothing answers there; and nothing to mark, no settings and pages of the browser are told as well."""
    gone = Server()
    gone.server_close()
    assert "Nothing answers at" in browser.set(gone.url, KEY, "ada", "#test")
    site = started(**page_of("", "<p>unmarked</p>"))
    browser.show(site.url)
    with browser.click() as popup:
        assert popup.said() == "Mark an answer on the page, then click here again."
    browser.page.goto("chrome://version")
    with browser.click() as popup:
        assert popup.said() == "The browser does not let extensions read this page."
    page = browser.options()
    page.click("#forget")
    page.wait_for_selector("#said:has-text('forgotten')")
    assert page.evaluate("chrome.storage.local.get()") == {}
    assert page.evaluate("chrome.permissions.getAll()")["origins"] == []
    page.close()
    browser.show(started(**page_of("Hello.")).url)
    with browser.click() as popup:
        assert popup.said() == "No gateway is set yet. Give its address in the settings."


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_the_key_does_not_follow_a_redirect(browser: Chromium, started: Any, status: int) -> None:
    """A gateway's address that leads elsewhere is told, and elsewhere gets no request at all."""
    elsewhere = started(**gateway_like())
    gateway = started(status, headers={"location": f"{elsewhere.url}/v1/score"})
    assert "leads to another address" in browser.set(gateway.url, KEY, "ada", "#test")
    assert [each.headers["authorization"] for each in gateway.asked] == [f"Bearer {KEY}"]
    assert elsewhere.asked == []


def test_the_key_is_not_sent_to_the_next_gateway(browser: Chromium, started: Any) -> None:
    """Another address needs a key of its own; the same one keeps the key whose field stays empty."""
    first, second = started(**gateway_like()), started(**gateway_like())
    browser.set(first.url, KEY, "ada")
    browser.set(f"{first.url}/v1/", "", "ada", "#test")
    assert first.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    assert first.asked[-1].path == "/v1/score"
    assert "was forgotten" in browser.set(second.url, "", "ada")
    browser.set(second.url, "", "ada", "#test")
    assert "authorization" not in second.asked[-1].headers


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://gateway.example.com:8484", "begins with https://"),
        ("http://127.0.0.1.example.com", "begins with https://"),
        ("http://10.0.0.1:8484", "begins with https://"),
        ("ftp://127.0.0.1", "Give the gateway's address"),
        ("javascript:alert(1)", "Give the gateway's address"),
        ("http://ada:secret@127.0.0.1:8484", "Give the gateway's address"),
        ("https://gateway.example.com/?key=1", "Give the gateway's address"),
    ],
)
def test_an_address_where_the_key_is_not_safe_is_refused(browser: Chromium, address: str, words: str) -> None:
    """Before the browser is asked for anything, and nothing is stored."""
    page = browser.options()
    before = page.evaluate("chrome.storage.local.get()")
    page.fill("#url", address)
    page.fill("#key", KEY)
    page.click("button.primary")
    page.wait_for_selector(f"#said:has-text({json.dumps(words)})")
    assert page.input_value("#url") == address
    assert page.evaluate("chrome.storage.local.get()") == before
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_pages_are_accessible(browser: Chromium, started: Any, scheme: str) -> None:
    """Axe finds no fault in the settings, nor in the popup with a score, whose thumbs work from the keyboard."""
    from axe_playwright_python.base import AXE_SCRIPT

    run = "axe.run().then((found) => found.violations.map((each) => each.id + ' ' + each.nodes[0].html))"
    gateway, site = started(**gateway_like()), started(**page_of("Hello."))
    browser.set(gateway.url, KEY, "ada")
    page = browser.options()
    page.emulate_media(color_scheme=scheme)
    page.evaluate(AXE_SCRIPT)
    assert page.evaluate(run) == []
    page.close()
    browser.show(site.url)
    with browser.click() as popup:
        popup.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        popup.score()
        popup.evaluate(f"{AXE_SCRIPT}; 0")
        assert popup.evaluate(run) == []
        popup.evaluate("document.querySelector('#good').focus()")
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        popup.send("Input.dispatchKeyEvent", type="keyDown", **key)
        popup.send("Input.dispatchKeyEvent", type="keyUp", **key)
        wait_for(lambda: popup.evaluate("document.querySelector('#good').getAttribute('aria-pressed')") == "true")
