"""Words that a reader sees stand in one file of each page: the others are parsed, literal by literal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

EQUAL = {"===", "!==", "case"}
ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "dashboards/fitrouter_dashboards/console/static": "words.js",
    "dashboards/fitrouter_dashboards/me/static": "text.js",
    "integrations/browser": "words.js",
}
"""Folder of a page → its file of words."""
TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[\w$]+|===|!==|=>|.""",
    re.DOTALL,
)
REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*")
QUASI = re.compile(r"(?:\\.|\$(?!\{)|[^`$\\])*", re.DOTALL)
SENTENCE = re.compile(r"[A-Z][a-z]|[A-Za-z]{2,}[^\w\s]* | [^\w\s]?[A-Za-z]{2,}")
"""Two words, or one that begins with a capital letter: words, wherever they stand, but for `CODE`."""
READ = re.compile(
    r"(title|label|name|alt|placeholder|aria-label|data-label)$|h\((?!0)|(card|note|empty|say|fact|row|said)\("
)
"""What shows its texts: each word in it is read, in small letters too."""
CODE = re.compile(r"class$|(querySelector(All)?|closest|matches)\(0")
"""What holds names of classes, and selectors."""
SAME_IN_ALL_LANGUAGES = {
    **dict.fromkeys(("fitrouter keys", "fitrouter looked", "fitrouter person"), "names in the browser's storage"),
    **dict.fromkeys(("toast shown", " bad"), "classes of the element that says something for a moment"),
    **dict.fromkeys(("overall", "budget", "same", "bad", "skip", "undo", "stop"), "what the gateway calls it"),
    **dict.fromkeys(("Python",), "names of programs"),
}
"""Text → why it is no word."""
REQUEST = re.compile(r"content-type: |Bearer|^from openai|api_key=|completions\.|answer\.model|/outcome|curl $")
"""Requests that are copied."""


PLURAL = re.compile(
    r"\$\{[^{}]+\} (requests|ratings|people|runs|votes|events|days|answers|decisions|points|rated answers|steps"
    r"|comments|more ratings)\b"
)
"""A number and more than one thing, in a template."""
CHOSEN = re.compile(r"(> 1|=== \"?1\"?) \?[^?]*$")
"""What stands before it where its singular was thought of."""


class Literal(NamedTuple):
    """A text of a program."""

    text: str
    line: int
    place: str
    """What it is a value of: property, or function with the number of the argument."""


def spoken(one: Literal) -> bool:
    """Whether somebody reads it."""
    if CODE.match(one.place) or REQUEST.search(one.text) or one.text in SAME_IN_ALL_LANGUAGES:
        return False
    return bool(SENTENCE.search(one.text) or (READ.match(one.place) and re.search("[a-z]{2,}", one.text)))


@dataclass
class Bracket:
    """An open bracket, template or expression of a template."""

    kind: str
    function: str = ""
    argument: int = 0
    key: str = ""
    """Property whose value comes."""


def literals(source: str) -> Iterator[Literal]:
    """Read the texts of a program, those between the expressions of templates included."""
    at, before, open_ = 0, "", [Bracket("")]
    while at < len(source):
        top, line = open_[-1], source.count("\n", 0, at) + 1
        places = (each.key or (each.function and f"{each.function}({each.argument}") for each in reversed(open_))
        place = next((each for each in places if each), "")
        if top.kind == "`":
            text = _match(QUASI, source, at)
            yield Literal(text, line, place)
            at += len(text)
            if source[at] == "`":
                open_.pop()
            else:
                open_.append(Bracket("{"))
            at, before = at + (1 if source[at] == "`" else 2), "`" if source[at] == "`" else "{"
            continue
        if source[at] == "/" and source[at + 1] not in "/*" and not re.fullmatch(r"(?!return)[\w$]+|[)\]`\"]", before):
            at, before = at + len(_match(REGEX, source, at)), "`"
            continue
        token = _match(TOKEN, source, at)
        at += len(token)
        if re.match(r"\s|//|/\*", token):
            continue
        if token[0] in "\"'" or re.match(r"[\w$]", token):
            if top.kind == "{" and before in {"{", ","} and re.compile(r"\s*:").match(source, at):
                top.key = token.strip("\"'")
            elif token[0] in "\"'" and before not in EQUAL and not re.compile(r"\s*(===|!==|in\b)").match(source, at):
                yield Literal(token[1:-1], line, place)
        elif token in {"`", "[", "{", "("}:
            called = token == "(" and re.fullmatch(r"(?!(if|return|of|in)$)[\w$]+", before)
            open_.append(Bracket(token, before if called else ""))
        elif token in {")", "]", "}"}:
            open_.pop()
        elif token in {",", ";"}:
            top.argument, top.key = top.argument + 1, ""
        before = '"' if token[0] in "\"'" else token


def _match(pattern: re.Pattern[str], source: str, at: int) -> str:
    found = pattern.match(source, at)
    assert found is not None, source[at : at + 40]
    return found[0]


@pytest.mark.parametrize("page", PAGES)
def test_words_stand_in_one_file(page: str) -> None:
    """To translate a page is to replace that file: no other script has a text that is read."""
    files = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / page).glob("*.js")}
    assert sum(1 for one in literals(files.pop(PAGES[page])) if SENTENCE.search(one.text)) > 40, (
        "the parser finds no words"
    )
    found = [(file, one) for file, source in sorted(files.items()) for one in literals(source) if spoken(one)]
    assert found == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("h('p', null, `${n} of them /* no */`, x ? \"none\" : '')", [" of them /* no */", "none"]),
        ("card(\"Cost\", { class: \"figure wide\", title: a ? b : `paid` })", ["Cost", "paid"]),
        ("const why = a === \"not it\" ? /it's \"/.test(b) : `at ${`least ${one}`}`; // not this", ["at ", "least "]),
    ],
)  # fmt: skip
def test_words_are_found(source: str, words: list[str]) -> None:
    """In templates within templates, beside regular expressions and comments, and in what shows a single small word."""
    assert [one.text for one in literals(source) if spoken(one)] == words


@pytest.mark.parametrize("page", PAGES)
def test_one_of_a_thing_is_told_in_the_singular(page: str) -> None:
    """A number that may be 1 is never followed by a plural: nobody is told of 1 votes."""
    text = (ROOT / page / PAGES[page]).read_text("utf-8")
    found = [
        match for match in PLURAL.finditer(text) if not CHOSEN.search(text[max(0, match.start() - 90) : match.start()])
    ]
    assert [match[0] for match in found if match[0] != "${model} answers"] == []
