"""Pictures for the documentation, light and dark, taken in Debian's chromium by Playwright.

    make screenshots
    make film

In docs/images/console each view of the console after a short demo, on a desk and on a phone, and a moving picture of a
walk through it; their figures differ from run to run, so they are not compared in CI. In docs/images/personal the
report that the program in personal.md writes, and the page of an audit of simulated answers (`python
docs/screenshots.py personal` for these alone; names of views for those alone).
"""

from __future__ import annotations

import asyncio
import importlib
import io
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from fitrouter_evaluators.personal.audit.page import audit_page
from fitrouter_evaluators.personal.audit.probes import Probe
from fitrouter_evaluators.personal.audit.swaps import AuditReply, Drill, audited

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "console"
PERSONAL = DOCS / "images" / "personal"
ROUNDS = 3000
SCHEMES, WIDTHS = ("light", "dark"), (1440, 390)
TALLEST = 1500
"""Pixels of a picture; what is below is cut off."""
COLOURS = 256
VIEWS = (
    *("now", "decisions", "decision", "people", "person", "runs", "run", "try"),
    *("money", "policy", "models", "learning"),
)


FILM = IMAGES / "console.webp"
FILMED = {"width": 1200, "height": 750}
STEPS, STEP_MS = 6, 70
"""Frames of a move, and how long each is shown."""
POINTER = """() => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(svg.namespaceURI, "path");
    for (const [key, value] of Object.entries({ position: "fixed", left: 0, top: 0, "z-index": 99, "pointer-events": "none" })) svg.style.setProperty(key, value);
    for (const [key, value] of Object.entries({ id: "pointer", width: 26, height: 26, viewBox: "0 0 26 26" })) svg.setAttribute(key, value);
    for (const [key, value] of Object.entries({ d: "M3 2v18l5-4 3 7 3-1-3-7h6z", fill: "#111827", stroke: "#fff", "stroke-width": 1.5 })) path.setAttribute(key, value);
    svg.append(path);
    document.body.append(svg);
}"""  # noqa: E501
"""Shows where the mouse is, which a headless browser does not."""

LISTED = "table.persons:not(:has(span:text-is('…')))"
"""The list of people with their expected ratings."""
ADDRESSES = {"decision": "decisions", "person": "people?user=person-2", "run": "runs"}
"""View → its address, where that is not its name."""


def main() -> None:
    """Take all pictures, or the moving one."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium is missing: apt-get install chromium")
    views = [view for view in VIEWS if view in sys.argv[1:]] or VIEWS
    filmed = "--film" in sys.argv[1:]
    audited_page = "" if filmed or views is not VIEWS else asyncio.run(audit())
    with importlib.import_module("playwright.sync_api").sync_playwright() as player:
        if audited_page:
            personal(player.chromium.launch(executable_path=program, args=["--no-sandbox"]), audited_page)
    if sys.argv[1:] == ["personal"]:
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    with demo() as url, importlib.import_module("playwright.sync_api").sync_playwright() as player:
        browser = player.chromium.launch(executable_path=program, args=["--no-sandbox"])
        run_agents(url)
        if filmed:
            film(browser.new_page(viewport=FILMED, color_scheme="light"), url)
        for scheme in () if filmed else SCHEMES:
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                for view in views:
                    open_view(page, url, view)
                    keep(page.screenshot(full_page=True), IMAGES / f"{view}-{scheme}-{width}.png")
                page.close()
    print(f"{sum(file.stat().st_size for file in IMAGES.iterdir()) / 1e6:.1f} MB in {IMAGES}")


@contextmanager
def demo() -> Iterator[str]:
    """A demo that has been played and goes on to serve: the address of its console."""
    played = subprocess.Popen(  # noqa: S603 - this program
        [
            sys.executable,
            "-c",
            "from fitrouter_integrations.cli import main; main()",
            *("demo", "--rounds", str(ROUNDS), "--seeds", "0"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert played.stdout is not None
        last = (re.fullmatch(r"Ctrl-C ends it\. The console: (\S+)\n", line) for line in played.stdout)
        url = next((match[1] for match in last if match), None)
        if url is None:
            sys.exit("the demo ended before it served the console")
        yield url
    finally:
        played.kill()
        played.wait()


def run_agents(url: str) -> None:
    """Runs of two or three steps beside the demo's requests, most with an outcome."""
    with httpx.Client(base_url=url.replace("console", "v1/"), timeout=30.0) as http:
        for i in range(12):
            who = {"user": f"person-{i % 4}"}
            for role in ("plan", "write", "review")[: 2 + i % 2]:
                names = {"role": role, "run_id": f"ticket-{i}"}
                asked = {"role": "user", "content": f"Ticket {i}: {role} the answer to this customer"}
                sent = {"model": "fitrouter/auto", "messages": [asked], "metadata": names, **who}
                http.post("chat/completions", json=sent).raise_for_status()
            if i % 4:
                http.post(f"runs/ticket-{i}/outcome", json={"value": i % 5 > 0, **who}).raise_for_status()


def film(page: Any, url: str) -> None:
    """A walk through Now, Decisions, a decision, People, a person and Try, with the mouse."""
    frames: list[tuple[bytes, int]] = []
    at = [FILMED["width"] / 2, FILMED["height"] / 2]

    def shoot(ms: int) -> None:
        page.evaluate("([x, y]) => { pointer.style.setProperty('transform', `translate(${x}px, ${y}px)`); }", at)
        frames.append((page.screenshot(), ms))

    def click(place: Any, until: str, ms: int) -> None:
        box, (x, y) = place.bounding_box(), at
        for step in range(1, STEPS + 1):
            share = 0.5 - 0.5 * math.cos(math.pi * step / STEPS)
            at[:] = [x + share * (box["x"] + box["width"] / 2 - x), y + share * (box["y"] + box["height"] / 2 - y)]
            shoot(STEP_MS)
        place.click()
        page.wait_for_selector(until)
        page.wait_for_timeout(400)
        shoot(ms)

    def scroll(to: int, ms: int) -> None:
        begin = page.evaluate("scrollY")
        for step in range(2, STEPS + 1, 2):
            page.evaluate("(y) => scrollTo(0, y)", begin + (to - begin) * step / STEPS)
            shoot(STEP_MS)
        shoot(ms)

    page.goto(url)
    page.wait_for_selector("ul.sentences li")
    page.evaluate(POINTER)
    page.wait_for_timeout(400)
    shoot(2500)
    scroll(330, 1800)
    page.evaluate("scrollTo(0, 0)")
    for name, until in (
        ("Decisions", "table.decisions"),
        ("People", LISTED),
        ("Try", "#try-person"),
    ):
        view = page.get_by_role("navigation").get_by_role("link", name=name, exact=True)
        click(view, until, 1800 if name != "Try" else 300)
        if name == "Decisions":
            click(
                page.locator("tr:has(.good, .bad) .at a").first,
                "section[aria-label='Probability of every model']",
                2500,
            )
            scroll(620, 2500)
            page.evaluate("scrollTo(0, 0)")
        elif name == "People":
            click(page.locator("table.persons th a").first, "ul.fits", 2800)
    click(page.locator("#try-person"), "#try-person:focus", 200)
    page.keyboard.type("person-2")
    page.evaluate("document.activeElement.blur()")
    page.wait_for_selector("section.blind")
    shoot(1500)
    scroll(240, 1500)
    click(page.locator("section.blind .acts button").first, "section.blind button[aria-pressed=true]", 3000)
    image = importlib.import_module("PIL.Image")
    pictures = [image.open(io.BytesIO(png)).convert("RGB") for png, _ in frames]
    shown = [ms for _, ms in frames]
    pictures[0].save(
        FILM,
        save_all=True,
        append_images=pictures[1:],
        duration=shown,
        loop=0,
        lossless=True,
        quality=90,
        method=4,
        minimize_size=True,
    )
    print(f"{len(frames)} frames of {sum(shown) / 1000:.0f} s, {FILM.stat().st_size / 1e6:.2f} MB in {FILM}")


def personal(browser: Any, audited_page: str) -> None:
    """The report of personal.md and an audit."""
    PERSONAL.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        programs = re.findall(r"```python\n(.*?)```", (DOCS / "personal.md").read_text(encoding="utf-8"), re.DOTALL)
        [program] = [each for each in programs if "ada.html" in each]
        subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)  # noqa: S603 - the page's own program
        report = (Path(folder) / "ada.html").read_text(encoding="utf-8")
    for name, html in (("report", report), ("audit", audited_page)):
        for scheme in SCHEMES:
            page = browser.new_page(viewport={"width": 860, "height": 900}, color_scheme=scheme)
            page.set_content(html)
            keep(page.screenshot(full_page=True), PERSONAL / f"{name}-{scheme}.png")
            page.close()


async def audit() -> str:
    """The page of an audit whose people get longer or shorter answers with the same verdicts."""
    drills = [Drill(step=step, seconds=0.02, passed=True) for step in ("stop", "override", "pin")]

    async def ask(person: int, probe: Probe) -> AuditReply:
        said = "Yes. " if probe.kind != "open" else "Perhaps one could list some points. " * (1 + person % 5)
        return AuditReply(said + ("\n- an example\n- another" if person % 3 == 0 and probe.kind == "open" else ""))

    found = await audited(ask, role="nurse", registry="3f2a9c", ts=1.7955e9, drills=drills)
    return audit_page(found, "8d41c07b")


def open_view(page: Any, url: str, view: str) -> None:
    """Show a view as somebody would see it who works with it."""
    page.goto(f"{url}#/{ADDRESSES.get(view, view)}")
    page.reload()
    page.wait_for_selector(".body:not([aria-busy])")
    if view == "now":
        page.wait_for_selector("ul.sentences li")
    if view == "people":
        page.wait_for_selector(LISTED)
    if view == "decision":
        page.locator("tr:has(.good, .bad):has(.tag) .at a, tr:has(.good, .bad) .at a").first.click()
        page.wait_for_selector("section[aria-label='Probability of every model']")
    if view in ("runs", "run"):
        page.wait_for_selector("table.persons")
    if view == "run":
        page.locator("table.persons tbody tr:has(.good)").first.click()
        page.wait_for_selector("table.decisions tbody tr")
    if view == "try":
        page.fill("#try-person", "person-2")
        page.fill("#try-prompt", "Any tips on changing jobs at forty?")
        for key, at in (("try-model", 1), ("try-beside", 3)):
            page.select_option(f"[data-key={key}]", index=at)
        page.click("[data-key=try-send]")
        page.wait_for_selector("section.blind")
    if view == "policy":
        page.fill("#set-cost_weight", "0.5")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-key=apply-cost_weight]")
        page.evaluate("document.activeElement.blur()")
    if view == "models":
        if not page.get_by_text("while running").count():
            page.fill("#add-name", "newcomer")
            page.fill("#add-target", page.locator("section.card h2").first.inner_text())
            page.fill("#add-input", "0.1")
            page.fill("#add-output", "0.4")
            page.click("[data-key=add-model]")
            page.get_by_text("while running").wait_for()
            page.wait_for_selector("#said.shown", state="hidden")
        page.select_option("#add-provider", label="A server of its own …")
        page.evaluate("document.activeElement.blur()")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(400)


def keep(png: bytes, file: Path) -> None:
    """Write a picture with its most frequent colours; the edges of letters get the nearest of them."""
    image = importlib.import_module("PIL.Image")
    picture = image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, TALLEST)))
    counted = sorted(picture.getcolors(picture.width * picture.height), reverse=True)[:COLOURS]
    palette = image.new("P", (1, 1))
    palette.putpalette([part for _, colour in counted for part in colour])
    picture.quantize(palette=palette, dither=image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main()
