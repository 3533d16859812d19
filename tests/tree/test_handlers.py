"""Every handler of errors that does not always raise, and what the user then sees.

`handlers.tsv` has a row for each: file, function, what is caught, kind, and what whoever asks then reads. Kinds:

- narrow: the class says exactly what happened, and that is no failure of a store, a provider or a library;
- translated: the error itself becomes the answer, a finding, another exception, or a state that is shown;
- reported: hooks, the log or a counter get it, and what the caller shows differs from "there is nothing";
- retried: it is tried again, or another way, and the last failure is raised or reported;
- unknown: a value that cannot be had is shown as not known;
- cleanup: something is being closed, dropped or put away.

Where another function reports, the words begin with its name, after its file if that is another one: `by F.g: …`.
"""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("handlers.tsv")
FOLDERS = ("router", "evaluators", "dashboards", "integrations")
KINDS = ("narrow", "translated", "reported", "retried", "unknown", "cleanup")
BROAD = frozenset({
    *("bare", "Exception", "BaseException", "FitrouterError", "StoreError", "OSError"),
    *("duckdb.Error", "sqlite3.Error", "sqlite3.DatabaseError", "sqlite3.OperationalError"),
    *("psycopg.Error", "psycopg.OperationalError", "return_exceptions"),
})  # fmt: skip
"""Classes that say only that something failed."""
REPORTS = frozenset({
    *("trouble", "report", "_report", "failed", "_failed", "_tell", "lose", "set_exception", "_detach", "_lost"),
    *("warning", "error", "exception", "_complain", "_fail"),
})  # fmt: skip
"""Functions that pass an error on to the hooks, the log, or whoever waits for the result."""
REMEDY = (
    "An error is never 'nothing'. Catch the narrowest class; outside of closing and cleaning up, report the error to "
    "the hooks and let what the caller shows differ from 'there is nothing' ('not readable now: …'). Then add or mend "
    f"the row in {TABLE.relative_to(ROOT)}: file, function, what is caught, {' or '.join(KINDS)}, what the user sees"
)


class Handler(NamedTuple):
    """A place where an error may end."""

    file: str
    function: str
    caught: str
    body: str
    """Its source as code, for the checks of its kind."""
    uses: bool
    """Whether the error itself is used."""
    calls: frozenset[str]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.function, self.caught


class Row(NamedTuple):
    """A line of the table."""

    file: str
    function: str
    caught: str
    kind: str
    seen: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.function, self.caught


# --- Python ---


def never_returning(trees: dict[str, ast.Module]) -> frozenset[str]:
    """Names of the functions that always raise."""
    found = (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(node.name for node in found if node.returns and ast.unparse(node.returns) == "NoReturn")


def raises(body: list[ast.stmt], never: frozenset[str]) -> bool:
    """Whether a block raises on every path."""
    for statement in body:
        match statement:
            case ast.Raise():
                return True
            case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in never:
                return True
            case ast.If(body=then, orelse=other) if other and raises(then, never) and raises(other, never):
                return True
            case ast.With(body=inner) | ast.AsyncWith(body=inner) if raises(inner, never):
                return True
        if any(isinstance(node, ast.Return | ast.Continue | ast.Break) for node in ast.walk(statement)):
            return False
    return False


def called(node: ast.AST) -> frozenset[str]:
    """Names of the functions that are called in a tree."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return frozenset(f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls)


def in_python(file: str, tree: ast.Module, never: frozenset[str]) -> Iterator[Handler]:
    """Handlers that do not always raise, `suppress`, and `return_exceptions`."""

    def walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[Handler]:
        where = ".".join(names) or "module"
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = (*names, name)
            case ast.ExceptHandler(type=caught, name=name, body=body) if not raises(body, never):
                whole = ast.Module(body, [])
                uses = any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(whole))
                kind = "bare" if caught is None else ast.unparse(caught).strip("()")
                yield Handler(file, where, kind, ast.unparse(whole), uses, called(whole))
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=given):
                kind = f"suppress {', '.join(map(ast.unparse, given))}"
                yield Handler(file, where, kind, "", False, frozenset())
            case ast.Call(keywords=words) if any(word.arg == "return_exceptions" for word in words):
                yield Handler(file, where, "return_exceptions", "", False, frozenset())
        for child in ast.iter_child_nodes(node):
            yield from walk(child, names)

    return walk(tree, ())


# --- JavaScript ---

_TOKEN = re.compile(
    r"(?P<gap>\s+|//[^\n]*|/\*.*?\*/)|(?P<text>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`)"
    r"|(?P<word>[A-Za-z_$][\w$]*)|(?P<number>\d[\w.]*)|(?P<sign>.)",
    re.DOTALL,
)
_CODE = re.compile(r"\$\{([^{}]*)\}")
"""Code in a template, without braces of its own."""
_REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/\w*")


def tokens(source: str) -> list[str]:
    """Tokens of a script without strings, comments and regular expressions."""
    found: list[str] = []
    at = 0
    while at < len(source):
        operand = bool(found) and (found[-1] in {")", "]", "}", '""'} or re.fullmatch(r"[\w$]+", found[-1]) is not None)
        match = None if operand or source[at] != "/" or source[at + 1] in "/*" else _REGEX.match(source, at)
        if match is not None:
            found.append('""')
        else:
            match = _TOKEN.match(source, at)
            assert match is not None
            if match.lastgroup != "gap":
                found.append('""' if match.lastgroup == "text" else match[0])
                if match[0][0] == "`":
                    found += [word for code in _CODE.findall(match[0]) for word in tokens(code)]
        at = match.end()
    return found


def _closing(words: list[str], start: int, pair: str) -> int:
    depth = 0
    for at in range(start, len(words)):
        depth += (words[at] == pair[0]) - (words[at] == pair[1])
        if depth == 0:
            return at
    raise AssertionError(f"{pair[0]} is not closed")


def in_script(file: str, source: str) -> Iterator[Handler]:
    """`catch` blocks that do not end by `throw`, and `.catch(…)`; the function is the outermost one."""
    words, depth, outer = tokens(source), 0, "module"
    for at, word in enumerate(words):
        depth += (word in "{([") - (word in "})]")
        if depth == 0 and word in {"function", "const", "let"}:
            outer = words[at + 1]
        if word != "catch":
            continue
        if words[at - 1] == ".":
            body = words[at + 1 : _closing(words, at + 1, "()") + 1]
            yield Handler(file, outer, ".catch", " ".join(body), False, frozenset(body))
        else:
            named = words[at + 2] if words[at + 1] == "(" else ""
            opening = words.index("{", at)
            body = words[opening : _closing(words, opening, "{}") + 1]
            if "throw" not in body:
                yield Handler(file, outer, "catch", " ".join(body), named in body, frozenset(body))


# --- the table ---


@cache
def handlers() -> list[Handler]:
    """All handlers of the product."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    never = never_returning(trees)
    found = [each for file, tree in trees.items() for each in in_python(file, tree, never)]
    for path in sorted(each for folder in FOLDERS for each in (ROOT / folder).rglob("*.js")):
        found += in_script(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    return found


def rows() -> list[Row]:
    """The table's rows."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert lines[0] == list(Row._fields), f"{TABLE.name}: the first line names the columns {Row._fields}"
    for number, line in enumerate(lines, 1):
        assert len(line) == len(Row._fields), f"{TABLE.name}:{number} has {len(line)} cells: {line}"
    return [Row(*line) for line in lines[1:]]


def wrong(row: Row, handler: Handler) -> str:
    """Why a row cannot be true of its handler; empty if it can."""
    caught = set(re.split(r", |suppress ", handler.caught))
    match row.kind:
        case "narrow" if found := caught & BROAD:
            return f"{', '.join(sorted(found))} says only that something failed"
        case "translated" if not handler.uses:
            return "the error is not used"
        case "reported" if other := re.match(r"by (?:(\S+\.py) )?([\w.]+): ", row.seen):
            there = functions_of(other[1] or row.file).get(other[2], frozenset())
            return "" if there & REPORTS else f"{other[2]} reports nothing"
        case "unknown" if "not known" not in row.seen:
            return "'not known' is what the user has to read"
        case "reported" if not handler.calls & REPORTS:
            return "nothing is reported; name who does as 'by Class.function: …'"
        case kind if kind not in KINDS:
            return f"{kind!r} is none of {', '.join(KINDS)}"
    return "" if len(row.seen) > 10 else "what does the user see?"


@cache
def functions_of(file: str) -> dict[str, frozenset[str]]:
    """Names of a file's functions, with what each calls."""
    found: dict[str, frozenset[str]] = {}
    if file.endswith(".py"):
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for member in members:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[prefix + member.name] = called(member)
    return found


def test_every_handler_has_its_row() -> None:
    """An error may end in a place only if the table says what the user then sees."""
    there, told = Counter(each.key for each in handlers()), Counter(row.key for row in rows())
    added = ["\t".join((*key, "KIND", "WHAT THE USER SEES")) for key in (there - told).elements()]
    gone = ["\t".join(key) for key in (told - there).elements()]
    assert not added, "handlers without a row:\n" + "\n".join(added) + f"\n{REMEDY}"
    assert not gone, f"rows without a handler; remove them from {TABLE.name}:\n" + "\n".join(gone)


def test_rows_are_true() -> None:
    """What a row says of its kind is what the code does."""
    left = list(rows())
    problems = []
    for handler in handlers():
        row = next((each for each in left if each.key == handler.key), None)
        if row is not None:
            left.remove(row)
            if problem := wrong(row, handler):
                problems.append(f"{' '.join(handler.key)} ({row.kind}): {problem}\n    {handler.body[:200]}")
    assert not problems, "\n".join([*problems, REMEDY])


def test_rows_are_in_order() -> None:
    """Rows stand in the order of their files, so that two people's changes rarely meet."""
    files = [row.file for row in rows()]
    assert files == sorted(files)


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("try: f()\nexcept OSError: pass", ["OSError"]),
        ("try: f()\nexcept: x = 1", ["bare"]),
        ("try: f()\nexcept (A, B) as e:\n if e: raise\n", ["A, B"]),
        ("try: f()\nexcept A:\n if x: return\n raise", ["A"]),
        ("try: f()\nexcept A:\n if x: raise\n else: never()", []),
        ("try: f()\nexcept* A: never()", []),
        ("with contextlib.suppress(A, B): f()", ["suppress A, B"]),
        ("gather(x, return_exceptions=True)", ["return_exceptions"]),
    ],
)
def test_the_list_of_python(source: str, caught: list[str]) -> None:
    """Handlers that raise on every path are left out, all others found."""
    assert [each.caught for each in in_python("f.py", ast.parse(source), frozenset({"never"}))] == caught


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("function f() { try { g(); } catch { } }", [("f", "catch", False)]),
        ("const f = () => { try { g(); } catch (e) { say(`no: ${e.message}`); } };", [("f", "catch", True)]),
        ("function f() { try { g(); } catch (e) { throw new Error('}'); } }", []),
        ("const f = 1; function g() { h().catch(() => {}); }", [("g", ".catch", False)]),
        ("const f = x.replace(/catch [/{] '/g, 'catch {') / 2; // catch { }\n/* catch {} */", []),
    ],
)
def test_the_list_of_scripts(source: str, found: list[tuple[str, str, bool]]) -> None:
    """Strings, comments and regular expressions hide no handler and are none."""
    assert [(each.function, each.caught, each.uses) for each in in_script("f.js", source)] == found
