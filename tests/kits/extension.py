"""The browser extension in headless Chromium: its settings, a click on its button, and its popup, over DevTools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kits.gateway import wait_for

CHROMIUM = shutil.which("chromium")
SOURCE = Path(__file__).resolve().parents[2] / "integrations" / "browser"
ID = "jdaccebcjfjpdnccleeijhhegepbigkj"
ORIGIN = f"chrome-extension://{ID}"


class Popup:
    """The popup that a click has opened; Playwright does not show it as a page."""

    def __init__(self, cdp: Any, target: str) -> None:
        self._cdp, self._answers, self._asked = cdp, dict[int, Any](), 0
        cdp.on("Target.receivedMessageFromTarget", self._received)
        self._session = cdp.send("Target.attachToTarget", {"targetId": target, "flatten": False})["sessionId"]

    def _received(self, event: dict[str, Any]) -> None:
        message = json.loads(event["message"])
        if event["sessionId"] == self._session and "id" in message:
            self._answers[message["id"]] = message

    def send(self, method: str, **params: Any) -> Any:
        """Send a command of DevTools to the popup, and return its result."""
        self._asked += 1
        asked = {"id": self._asked, "method": method, "params": params}
        self._cdp.send("Target.sendMessageToTarget", {"sessionId": self._session, "message": json.dumps(asked)})
        # Each command lets the messages in that have come.
        wait_for(lambda: self._cdp.send("Target.getTargets") and asked["id"] in self._answers)
        found = self._answers[self._asked]
        assert "result" in found, found
        return found["result"]

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the popup."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """What an element says."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def said(self, selector: str = "#said") -> str:
        """What an element says when it is no longer about to say something."""
        return str(wait_for(lambda: (said := self.text(selector)) and not said.endswith("…") and said))

    def score(self) -> str:
        """The rating that is shown."""
        shown = "document.querySelector('#result').hidden ? '' : document.querySelector('#rating').innerText"
        wait_for(lambda: self.evaluate(shown) or (self.text("#said") and not self.text("#said").endswith("…")))
        assert not self.text("#said"), self.text("#said")
        return str(self.evaluate(shown))

    def press(self, selector: str) -> None:
        """Press a button."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


class Chromium:
    """A browser that has the extension.

    A person grants the extension the permission to reach a gateway in a dialog, which no headless browser shows. Here
    an earlier version of it needed that permission, and so the browser has granted it to the present one.
    """

    def __init__(self, context: Any, folder: Path) -> None:
        self.context, self.cdp = context, context.browser.new_browser_cdp_session()
        self.page, self._earlier = context.pages[0], folder / "earlier"
        shutil.copytree(SOURCE, self._earlier)
        self._load(SOURCE)

    def _load(self, path: Path) -> None:
        assert self.cdp.send("Extensions.loadUnpacked", {"path": str(path)})["id"] == ID

    def grant(self, url: str) -> None:
        """Grant the permission to reach an address."""
        manifest = json.loads((SOURCE / "manifest.json").read_text()) | {"host_permissions": [f"{url}/*"]}
        (self._earlier / "manifest.json").write_text(json.dumps(manifest))
        self._load(self._earlier)
        self._load(SOURCE)

    def options(self) -> Any:
        """The page of settings, in a tab of its own."""
        page = self.context.new_page()
        page.goto(f"{ORIGIN}/options.html")
        # Playwright's own wait evaluates a text in the page, which its policy of content forbids.
        wait_for(lambda: page.evaluate("document.querySelector('#about-key').textContent"))
        return page

    def set(self, url: str, key: str = "", user: str = "", button: str = "") -> str:
        """Save settings, then press another button if one is named; returns what the page says at last."""
        self.grant("/".join(url.split("/")[:3]))
        page = self.options()
        for name, value in {"url": url, "key": key, "user": user}.items():
            page.fill(f"#{name}", value)
        done = "() => ((said) => said && !said.endsWith('…') && said)(document.querySelector('#said').innerText)"
        found = ""
        for each in ("button.primary", *([button] if button else [])):
            page.evaluate("document.querySelector('#said').textContent = ''")
            page.click(each)
            found = str(wait_for(lambda: page.evaluate(done)))
        page.close()
        return found

    def show(self, url: str, mark: str = "#answer") -> Any:
        """Open a page, mark an element of it, and return the page."""
        self.page.goto(url)
        self.page.bring_to_front()
        self.page.evaluate("(at) => document.getSelection().selectAllChildren(document.querySelector(at))", mark)
        return self.page

    @contextmanager
    def click(self) -> Iterator[Popup]:
        """Click on the extension's button in the tab that is in front; yields the popup."""
        tabs = self.cdp.send("Target.getTargets", {"filter": [{"type": "tab"}]})["targetInfos"]
        [tab] = [each["targetId"] for each in tabs if each["url"] == self.page.url]
        self.cdp.send("Extensions.triggerAction", {"id": ID, "targetId": tab})
        popup = wait_for(self._popup)
        opened = Popup(self.cdp, popup)
        wait_for(lambda: opened.evaluate("document.readyState") == "complete")
        yield opened
        self.cdp.send("Target.closeTarget", {"targetId": popup})
        wait_for(lambda: not self._popup())

    def _popup(self) -> str | None:
        found = self.cdp.send("Target.getTargets")["targetInfos"]
        return next((each["targetId"] for each in found if each["url"] == f"{ORIGIN}/popup.html"), None)


@contextmanager
def chromium(player: Any, folder: Path, **more: Any) -> Iterator[Chromium]:
    """Chromium with the extension and a fresh profile."""
    context = player.chromium.launch_persistent_context(
        folder / "profile",
        executable_path=CHROMIUM,
        args=["--no-sandbox", "--enable-unsafe-extension-debugging"],
        ignore_default_args=["--disable-extensions"],
        **more,
    )
    try:
        yield Chromium(context, folder)
    finally:
        context.close()
