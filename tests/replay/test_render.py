"""Laws of how a replay's report looks: nothing is left out, nothing in a log is obeyed, nothing is fetched."""

from __future__ import annotations

import html as stdlib_html
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.kits.replay_reports import HOSTILE, brief, empty, hostile, realistic

from fitrouter_evaluators.replay.render._formatting import NumberFormat, duration, number, percent, printable, utc_time
from fitrouter_evaluators.replay.render._plots import figures
from fitrouter_evaluators.replay.render._svg import ticks
from fitrouter_evaluators.replay.render.render_html import html
from fitrouter_evaluators.replay.render.render_text import text
from fitrouter_evaluators.replay.report import Report

TAGS = {"html", "head", "meta", "title", "style", "body", "main", "section", "footer", "div", "figure"}
TAGS |= {"h1", "h2", "h3", "p", "ul", "li", "dl", "dt", "dd", "details", "summary"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td", "svg", "line", "polyline", "polygon", "rect", "circle", "text"}
ATTRIBUTES = {"lang", "charset", "name", "content", "class", "id", "role", "aria-label", "tabindex", "scope", "colspan"}
ATTRIBUTES |= {"viewbox", "width", "height", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "points"}
ATTRIBUTES |= {"text-anchor", "overflow"}
NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?(?:e[+−]?\d+)?")
TIMES = {"since", "until", "made"}
SHARES = {"unsupported", "worse_off", "worse_off_low", "worse_off_high", "logged", "against", "candidate"}
PATHS = {"at", "means", "lows", "highs", "edges", "counts"}
RENDERED = (text, html)


class Page(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.style = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.style += data
        else:
            self.words.append(data)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Everything in a report that is not made of other things."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, (*path, name))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from leaves(each, (*path, i))
    else:
        yield path, value


def changed(report: Report, path: tuple[Any, ...]) -> Report:
    """The report with one leaf changed."""
    tree = msgspec.to_builtins(report)
    here = tree
    for step in path[:-1]:
        here = here[step]
    old, name = here[path[-1]], path[-1]
    if isinstance(old, bool):
        here[name] = not old
    elif isinstance(old, str):
        here[name] = f"{old}Z"
    elif isinstance(old, int):
        here[name] = old + 1
    else:
        here[name] = old + 3600.0 if name in TIMES else old * 1.37 + 0.0137
    return msgspec.convert(tree, Report)


def kinds_of_leaves() -> list[tuple[Any, ...]]:
    """The first and the last leaf of each kind: of all users and of a slice, for example."""
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path, _ in leaves(msgspec.to_builtins(brief())):
        found.setdefault(tuple("#" if isinstance(step, int) else step for step in path), []).append(path)
    return [path for paths in found.values() for path in dict.fromkeys((paths[0], paths[-1]))]


def test_every_field_is_rendered() -> None:
    """Changing any field of a report changes the HTML, and the text too unless the field is a plotted point."""
    page, table = html(brief()), text(brief())
    for path in kinds_of_leaves():
        after = changed(brief(), path)
        assert html(after) != page, path
        assert PATHS & set(path) or text(after) != table, path


@pytest.mark.parametrize("render", RENDERED)
def test_every_number_is_there(render: Any) -> None:
    """Each number outside plots is shown to three figures or four decimals, shares as percentages."""
    shown = render(realistic())
    if render is html:
        shown = " ".join(Page(re.sub(r"<svg.*?</svg>", "", shown, flags=re.DOTALL)).words)
    tokens = [float(token.replace(",", "").replace("−", "-")) for token in NUMBER.findall(shown)]
    for path, value in leaves(msgspec.to_builtins(realistic())):
        name = next(step for step in reversed(path) if isinstance(step, str))
        if not isinstance(value, int | float) or isinstance(value, bool) or name in PATHS:
            continue
        if name in TIMES:
            assert utc_time(value) in shown, path
        elif name.endswith("_s"):
            assert duration(value) in shown, path
        elif name == "alpha":
            assert f"{100 - 100 * value:.4g}%" in shown, path
        elif name in SHARES:
            assert any(abs(token - 100 * value) <= 0.0501 for token in tokens), path
        else:
            assert any(abs(token - value) <= max(5.01e-5, 0.005 * abs(value)) for token in tokens), path


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_names(name: str) -> None:
    """Names from the log are escaped: no tags, attributes, template or terminal markup, or control characters."""
    page = html(hostile(name))
    found = Page(page)
    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert printable(name) in "".join(found.words)
    shown = text(hostile(name), 300)
    assert f"role={printable(name)}" in shown
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert all(c.isprintable() or c == "\n" for c in stdlib_html.unescape(page))


@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.text(max_size=60), width=st.integers(60, 140))
def test_text_fits(name: str, width: int) -> None:
    """Lines keep the requested width for names of any length, and the page has only allowed elements."""
    report = hostile(name)
    assert all(cell_len(line) <= width for line in text(report, width).splitlines())
    found = Page(html(report))
    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES


def test_nothing_is_fetched() -> None:
    """The page has no script and no external reference in elements or style sheet."""
    found = Page(html(realistic()))
    assert not found.attributes & {"src", "href", "srcset", "style", "data", "action"}
    assert not {"script", "link", "img", "iframe", "object", "use", "image"} & found.tags
    assert "color" in found.style
    assert not re.search(r"url\(|@import|http", found.style)


def test_the_same_bytes() -> None:
    """The same report renders to the same bytes in every process."""
    code = (
        "import sys; from tests.kits.replay_reports import realistic; "
        "from fitrouter_evaluators.replay.render.render_html import html; "
        "from fitrouter_evaluators.replay.render.render_text import text; r = realistic(); "
        "sys.stdout.buffer.write((html(r) + text(r)).encode())"
    )
    again = msgspec.convert(msgspec.to_builtins(realistic()), Report)
    here = (html(again) + text(again)).encode()
    root = Path(__file__).parents[2]
    folders = ("", "router", "evaluators", "integrations", "dashboards")
    path = os.pathsep.join(str(root / folder) for folder in folders)
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        there = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
        assert there.stdout == here


@pytest.mark.parametrize("render", RENDERED)
def test_what_does_not_exist_is_a_dash(render: Any) -> None:
    """NaN and infinities are shown as –, and a report without anything is still a report."""
    shown = render(empty())
    assert "–" in shown
    assert not re.search(r"\b(nan|inf|None)\b", shown)
    assert "could not be estimated" in shown


def test_pictures_are_well_formed() -> None:
    """Each plot is well-formed XML with a text alternative and finite coordinates."""
    drawn = [figure for of in figures(realistic()).values() for figure in of]
    assert len(drawn) >= 9
    for figure in drawn:
        for picture in (figure.wide, figure.narrow):
            root = ET.fromstring(picture)
            assert root.attrib["role"] == "img"
            assert len(root.attrib["aria-label"]) > 10
            assert "nan" not in picture
            assert "inf" not in re.sub(r">[^<]*<", "><", picture)


def cheap() -> Report:
    """The realistic report at a hundredth of a cent a decision: many decimals."""
    plainly = [
        msgspec.structs.replace(
            e, value=e.value / 1e4, se=e.se / 1e4, low=e.low / 1e4, high=e.high / 1e4, labels="observed"
        )
        for e in realistic().estimates
    ]
    return msgspec.structs.replace(realistic(), metric="cost", bands=[], satisfaction=[], estimates=plainly)


@pytest.mark.parametrize("report", [realistic(), cheap()], ids=["fit", "cost"])
def test_words_stay_in_the_picture(report: Report) -> None:
    """No text of a plot is clipped, even in a wide font: a clipped minus sign would change a number."""
    for of in figures(report).values():
        for figure in of:
            root = ET.fromstring(figure.wide)
            for words in root.iter("text"):
                size = (6.7 if words.attrib["class"] == "tick" else 7.0) * len(words.text or "")
                before = {"start": 0.0, "middle": 0.5, "end": 1.0}[words.attrib["text-anchor"]]
                left = float(words.attrib["x"]) - before * size
                assert left >= -2, words.text
                assert left + size <= float(root.attrib["width"]) + 2, words.text


def test_the_verdict_comes_first() -> None:
    """The first sentence of a report states direction, size and certainty."""
    first = text(realistic()).split("\n\n")[0]
    assert first.startswith("Promote: fit is higher under the candidate, which is better: +0.0")
    assert "at any time (exact 95% sequence), +0.0312 ± 0.0063 at one look" in first.replace("\n", " ")
    dearer = msgspec.structs.replace(realistic(), metric="cost", gate=None)
    assert "higher under the candidate, which is worse: +" in text(dearer).split("\n\n")[0].replace("\n", " ")
    loss = [msgspec.structs.replace(b, low=-0.09, high=-0.02) for b in realistic().bands]
    worse = msgspec.structs.replace(realistic(), bands=loss)
    assert "lower under the candidate, which is worse: −0.0900 … −0.0200" in text(worse).split("\n\n")[0].replace(
        "\n", " "
    )
    unsure = msgspec.structs.replace(realistic(), bands=[], estimates=[e for e in realistic().estimates if e.low < 0])
    assert "do not differ significantly" in text(unsure).split("\n\n")[0].replace("\n", " ")


def test_naive_rows_are_warnings() -> None:
    """A biased estimate is marked with its reason and not used by the verdict."""
    rows = [line for line in text(realistic()).splitlines() if "naive" in line and "0" in line]
    assert rows
    assert all("⚠" in row for row in rows)
    assert "volunteers answer more often when they are angry" in text(realistic()).replace("\n  ", " ")
    biased = [msgspec.structs.replace(e, biased="so") for e in realistic().estimates]
    only = msgspec.structs.replace(realistic(), bands=[], estimates=biased)
    assert "could not be estimated" in text(only).split("\n\n")[0]


ANY = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_number_breaks_it(data: st.DataObject) -> None:
    """Reports of any numbers render at the requested width with well-formed plots."""
    tree = msgspec.to_builtins(realistic())
    floats = [path for path, value in leaves(tree) if isinstance(value, float)]
    for path in data.draw(st.lists(st.sampled_from(floats), min_size=1, max_size=40)):
        here = tree
        for step in path[:-1]:
            here = here[step]
        here[path[-1]] = data.draw(ANY)
    report = msgspec.convert(tree, Report)
    assert all(cell_len(line) <= 80 for line in text(report).splitlines())
    assert Page(html(report)).tags <= TAGS
    for of in figures(report).values():
        for figure in of:
            ET.fromstring(figure.wide)
            assert not re.search(r'="[^"]*\b(nan|inf)\b[^"]*"', re.sub(r'aria-label="[^"]*"', "", figure.narrow))


@given(low=st.floats(-1e6, 1e6), size=st.floats(1e-6, 1e6), most=st.integers(2, 9))
def test_ticks_are_round(low: float, size: float, most: int) -> None:
    """Ticks lie on the axis, are at most one more than requested, and are labelled with their value."""
    size = max(size, 1e-7 * abs(low))  # what floats can tell apart
    found = ticks(low, low + size, most)
    assert len(found) <= most + 1
    for value, written in found:
        assert low - 1e-6 * size <= value <= low + size + 1e-6 * size
        assert math.isclose(float(written.replace(",", "").replace("−", "-")), value, abs_tol=1e-9 + 1e-6 * size)


@given(x=st.floats(-1e9, 1e9))
def test_numbers_keep_three_figures(x: float) -> None:
    """Numbers without a unit have at least three figures; shares are exact to 0.05 percentage points."""
    read = float(number(x).replace(",", "").replace("−", "-"))
    assert abs(read - x) <= 0.005 * abs(x)
    share = abs(x) / 1e9
    shown = percent(share).removesuffix("%")
    assert shown == "<0.01" or abs(float(shown) - 100 * share) <= 0.0501


def test_decimals_follow_the_standard_errors() -> None:
    """Differences show two figures of their standard error, also for costs of a hundredth of a cent."""
    assert NumberFormat.of(realistic()).digits == 4
    assert NumberFormat.of(cheap()).digits == 8
    assert "0.00000312" in text(cheap())
