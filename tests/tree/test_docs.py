"""The documentation: its code runs, its links and commands exist, its generated parts are current."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from tests.kits.agents import agent_router
from tests.kits.gateway import config as gateway_config
from tests.kits.gateway import make_router, serving
from tests.kits.pages import BLOCK, ROOT, blocks
from typer.main import get_command

from fitrouter_integrations.cli import app
from fitrouter_integrations.commands.experiments import bench
from fitrouter_integrations.commands.running import policy
from fitrouter_integrations.gateway import create_app

PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FAQ = ROOT / "docs" / "faq.md"
QUOTING = [page for page in PAGES if page.parent.name != "results" and page.name != "CHANGELOG.md"]
"""Pages that quote results."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def outside_of_code(page: Path) -> str:
    """A page without its fenced blocks and its code spans."""
    return re.sub(r"`[^`\n]+`", "", BLOCK.sub("", page.read_text(encoding="utf-8")))


FORKED = """
import importlib, json, os, sys

imports, blocks = json.loads(sys.stdin.read())
for name in imports:
    importlib.import_module(name)
for where, block in blocks.items():
    os.mkdir(where)
    if (child := os.fork()) == 0:
        os.chdir(where)
        exec(compile(block, where, "exec"), {"__name__": "__main__"})
        break  # and ends as any interpreter does
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{where} failed")
"""
"""Imports modules once, then runs every block in a process and an empty folder of its own."""
ROUTER = ["fitrouter.router", "fitrouter.assemble", "fitrouter_evaluators.scoring", "duckdb", "cryptography"]
"""What most blocks would import: each would do so again."""


@pytest.mark.parametrize(
    ("pages", "imports"),
    [
        ("litellm", ["litellm", "fitrouter_integrations.litellm", *ROUTER]),
        ("langchain", ["langchain.agents", "fitrouter_integrations.langchain", *ROUTER]),
        ("crewai", []),  # its import starts a thread, which a fork would lose
        ("", [*ROUTER, "fitrouter_evaluators.personal", "fitrouter_evaluators.replay.log.sources"]),
    ],
    ids=["litellm", "langchain", "crewai", "others"],
)
def test_documented_code_runs(pages: str, imports: list[str], tmp_path: Path) -> None:
    """Every Python block of README and docs runs unchanged in an empty folder."""
    adapters = ("litellm", "langchain", "crewai")
    found = {
        f"{page.stem}-{i}": block.text
        for page in PAGES
        for i, block in enumerate(blocks(page, "python"))
        if (pages in page.stem if pages else not any(name in page.stem for name in adapters))
    }
    assert found
    result = subprocess.run(
        [sys.executable, "-c", FORKED],
        input=json.dumps([imports, found]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(found)


def test_the_readme_client_runs(tmp_path: Path) -> None:
    """The README's client code runs against a gateway; only its address is replaced. Its vote is in the log."""
    pytest.importorskip("openai")
    (block,) = blocks(ROOT / "README.md", "py")
    with serving(agent_router(tmp_path)) as url:
        code = block.text.replace("http://127.0.0.1:8484", url)
        assert code.count(url) == 1
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        votes = httpx.get(f"{url}/v1/feedback").json()["data"]
    assert result.returncode == 0, result.stderr
    assert "How are dividends taxed?" in result.stdout
    assert [(vote["kind"], vote["value"], vote["scale"], vote["user"]) for vote in votes] == [
        ("rating", 4, [1, 5], "ann")
    ]


def test_documented_commands_exist() -> None:
    """Every `fitrouter …`, `make …` and `python -m …` in code names a command, target or module that exists."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    roots = [ROOT, *(ROOT / folder for folder in ("router", "evaluators", "integrations", "dashboards"))]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
        indented = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
        code = "\n".join([*(body for _, body in BLOCK.findall(text)), *spans, *indented])
        for target in re.findall(r"(?:^|[;&|(] *)make ([a-z-]+)", code, re.MULTILINE):
            assert target in targets, f"{name_of(page)}: make {target}"
        for words in re.findall(r"(?:^|[;&|(`] *)fitrouter ((?:[a-z0-9|-]+ ?)*)", code, re.MULTILINE):
            check_verb(words.split(), name_of(page))
        for module in re.findall(
            r"python -m (benchmarks[\w.]+|fitrouter[\w.]+)", code.replace("benchmarks.ROOM.NAME", "")
        ):
            path = f"{module.replace('.', '/')}.py"
            found = any((root / each).is_file() for root in roots for each in (path, f"{path[:-3]}/__main__.py"))
            assert found, f"{name_of(page)}: python -m {module}"


def check_verb(words: list[str], where: str) -> None:
    """A verb, and its subcommand where it has some; `a|b` stands for each of them."""
    groups = {"policy": policy.app, "bench": bench.app}  # their subcommands are known to modules of their own
    command: object = get_command(app)
    for i, word in enumerate(words):
        known = getattr(command, "commands", None)
        if known is None or word.startswith("-"):
            return
        for each in word.split("|"):
            assert each in known, f"{where}: `fitrouter {' '.join(words)}`: {each!r} is none of {sorted(known)}"
        command = get_command(groups[word]) if i == 0 and word in groups else known[word.split("|")[0]]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def test_internal_links_resolve() -> None:
    """Every relative link leads to a file of the repository, and its fragment to a heading there."""
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", outside_of_code(page)):
            if link.startswith(("http://", "https://")):
                continue
            path, _, fragment = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_relative_to(ROOT), f"{name_of(page)}: {link}"
            assert target.exists(), f"{name_of(page)}: {link}"
            assert not fragment or fragment in anchors(target), f"{name_of(page)}: {link}"


def test_documented_paths_exist() -> None:
    """Every path of the repository that a page names in code exists."""
    tops = "router|evaluators|integrations|dashboards|tests|benchmarks|examples"
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for path in re.findall(rf"`((?:{tops})/[\w./-]+)`", page.read_text(encoding="utf-8")):
            if "ROOM" in path:
                continue
            assert (ROOT / path).exists(), f"{name_of(page)}: {path}"


def test_generated_parts_are_current() -> None:
    """Pictures and generated pages are those that `make docs` makes."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build.py"), "--check"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_quoted_figures_stand_on_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that README and docs quote is on its page of results, those of the demo as demo.json has them."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(build := importlib.util.module_from_spec(spec))
    for name, (page, figure) in build.quoted().items():
        text = (ROOT / "docs" / "results" / page).read_text(encoding="utf-8")
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", text), f"{name}: {figure} is not in {page}"
        quoting = [page for page in QUOTING if f"<!--q {name}-->" in page.read_text(encoding="utf-8")]
        assert quoting, f"nobody quotes {name}"


def unquoted(text: str) -> Iterator[str]:
    """The figures of passages that claim a measurement, without those that docs/build.py writes."""
    text = BLOCK.sub("", re.sub(r"<!-- (\w+) -->.*?<!-- end -->", "", text, flags=re.DOTALL))
    for passage in re.split(r"\n\s*\n|\n(?=[-|*] )", text):
        if re.search(r"results/\w+\.md|\b[Mm]easured\b", passage):
            plain = re.sub(r"<!--q [\w.]+-->.*?<!--/q-->|`[^`]*`|\]\([^)]*\)", "", passage, flags=re.DOTALL)
            yield from re.findall(r"(?<![\w.])\d*\.\d+|\d[\d,]* ?(?:%|[mµ]s\b|[kMG]B\b)", plain)


def test_measured_figures_are_quoted() -> None:
    """Outside of docs/results, a passage that claims a measurement has no figure that is not generated from there."""
    row = "| users are all alike | <!--q null.ours-->.794<!--/q-->, blind {} | [demo](docs/results/demo.md) |"
    assert list(unquoted(row.format(".797"))) == [".797"], "the check finds what it looks for"
    assert not list(unquoted(row.format("<!--q null.blind-->.797<!--/q-->")))
    found = {name_of(page): list(unquoted(page.read_text(encoding="utf-8"))) for page in QUOTING}
    assert {name: figures for name, figures in found.items() if figures} == {}


def test_the_faq_says_what_was_measured_of_few_votes() -> None:
    """How many labels a person needs is told by the figures of people with a few votes, not by a guess."""
    (passage,) = re.findall(
        r"\*\*How many labels does it need\?\*\* (.*?)\n\n", FAQ.read_text(encoding="utf-8"), re.DOTALL
    )
    assert {"strangers.three", "strangers.eleven"} <= set(re.findall(r"<!--q ([\w.]+)-->", passage))
    assert not re.search(r"tens of labels|dozens of labels", passage)


def test_results_pages_name_their_command() -> None:
    """A page of results begins with the command that repeats it, and is listed in the index."""
    index = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs" / "results").glob("*.md")):
        if page.name in {"README.md", "reward_table.md"}:  # the table is a part of reward.md, written by its command
            continue
        text = page.read_text(encoding="utf-8")
        assert re.search(r"python |make \w+|fitrouter \w+", text[:1500]), page
        assert f"({page.name})" in index, page


def test_results_pages_name_what_serves_them(tmp_path: Path) -> None:
    """A page says first whether it measures what is served or a component, and names an existing route or command."""
    routes = create_app(make_router(tmp_path), gateway_config()).routes
    known = {f"{method} {each.path}" for each in routes for method in getattr(each, "methods", ())}  # type: ignore[attr-defined]
    for page in sorted((ROOT / "docs" / "results").glob("*.md")):
        if page.name in {"README.md", "reward_table.md"}:
            continue
        said = re.match(
            r"# .*\n\nMeasures (?:what is served|a component): ((?:.+\n)+)\n", page.read_text(encoding="utf-8")
        )
        assert said, f"{page.name}: after the title: 'Measures what is served: …' or 'Measures a component: …'"
        named = re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`|`fitrouter ([^`]*)`", said[1].replace("\n", " "))
        assert named, f"{page.name}: no route and no command"
        for route, command in named:
            assert not route or route in known, f"{page.name}: {route} is none of {sorted(known)}"
            check_verb(command.split(), page.name)


def test_every_setting_is_described() -> None:
    """No row of the configuration reference lacks its description."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^`]+`) \|.*\| *([^|]*?) *\|$", text.replace("\\|", "/"), re.MULTILINE)
    assert len(rows) > 50
    assert [name for name, description in rows if not description] == []


@pytest.mark.parametrize(
    "data", sorted((ROOT / "docs" / "results" / "figures").glob("*.json")), ids=lambda path: path.stem
)
def test_figures_have_the_numbers_of_their_pages(data: Path) -> None:
    """Each page shows its figure and has every number of it; the SVG is what `make figures` draws."""
    found = json.loads(data.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results" / found["page"]).read_text(encoding="utf-8")
    assert f"figures/{data.stem}.svg" in page
    written = {abs(float(text)) for text in re.findall(r"\d*\.?\d+(?:e-?\d+)?", page.replace(",", ""))}

    def numbers(value: Any) -> Iterator[float]:
        if isinstance(value, dict | list):
            for one in value.values() if isinstance(value, dict) else value:
                yield from numbers(one)
        elif not isinstance(value, str):
            yield abs(float(value))

    assert not set(numbers(found)) - written
    figures = pytest.importorskip("docs.figures", reason="matplotlib is not installed")
    assert figures.svg(data.stem) == data.with_suffix(".svg").read_text(encoding="utf-8")
