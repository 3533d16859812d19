"""Imports one's own evaluation set as the prompts of a suite: JSON, JSON lines, CSV, or promptfoo's YAML.

The columns that are there say what a row is: `prompt`, OpenAI evals' `input` and `ideal`, Inspect's `input` and
`target`, `question` and `answer` of data sets, or promptfoo's `vars` and `assert`. A row that cannot be read is named
with its line and the reason, and left out.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import yaml

from fitrouter.config import load_yaml
from fitrouter.errors import InvalidRequest
from fitrouter_evaluators.personal.base import Check
from fitrouter_evaluators.personal.suite.suite import LONGEST, Prompt

MOST_ROWS, MOST_BYTES = 2000, 20_000_000
KINDS = ("jsonl", "json", "csv", "yaml", "yml")
_TEXTS = ("prompt", "question", "input")
_REFERENCES = ("reference", "ideal", "target", "answer", "answers", "expected", "expected_output")
_ASSERTED: dict[str, Check | None] = {
    **dict.fromkeys(("equals",), "exact"),
    **dict.fromkeys(("contains", "icontains", "contains-any", "icontains-any"), "contains"),
    **dict.fromkeys(("contains-all", "icontains-all"), "all"),
    **dict.fromkeys(("is-json", "contains-json"), "json"),
}
_SHORT = 60
"""Characters of a reference up to which an answer can be expected to contain it."""
_FINAL = re.compile(r"####\s*(.+)\s*\Z")
_VARIABLE = re.compile(r"{{\s*(\w+)\s*}}")
_Row = dict[str, Any]


class Imported(NamedTuple):
    """The prompts of a file, and what could not be read."""

    prompts: tuple[Prompt, ...]
    left_out: tuple[str, ...]
    """Lines that are not among them, each with the reason; and what was not read of one that is."""


class _Unread(Exception):
    """Why a row cannot be read."""


def imported(payload: bytes, kind: str) -> Imported:
    """Read an evaluation set.

    Args:
        payload: of the file.
        kind: the ending of its name, one of `KINDS`.

    Raises:
        InvalidRequest: it cannot be read at all, is too large, or has no prompt that can be read.
    """
    if kind not in KINDS:
        raise InvalidRequest(f"a file that ends in .{kind[:20]} is not read; give one of {', '.join(KINDS)}")
    if len(payload) > MOST_BYTES:
        raise InvalidRequest(f"the file has {len(payload):,} bytes; {MOST_BYTES:,} are read, so split it")
    found, left, texts, ids = list[Prompt](), list[str](), dict[tuple[str, str], str](), set[str]()
    for place, row in itertools.islice(_rows(payload, kind), MOST_ROWS + 1):
        if len(found) + len(left) >= MOST_ROWS:
            raise InvalidRequest(f"the file has more than {MOST_ROWS:,} rows; split it, or take a sample")
        try:
            if isinstance(row, _Unread):
                raise row
            prompt, notes = _prompt(row, f"i{len(found) + 1}")
        except _Unread as why:
            left.append(f"{place}: {why}")
            continue
        if first := texts.get(key := (prompt.system, prompt.text)):
            left.append(f"{place}: the same prompt as {first}")
            continue
        if prompt.id in ids:
            left.append(f"{place}: the id {prompt.id!r} is taken")
            continue
        texts[key] = place
        ids.add(prompt.id)
        found.append(prompt)
        left += [f"{place}: {note}" for note in notes]
    if not found:
        raise InvalidRequest("no prompt could be read; " + ("; ".join(left[:5]) or "the file has no rows"))
    return Imported(tuple(found), tuple(left))


def _rows(payload: bytes, kind: str) -> Iterator[tuple[str, _Row | _Unread]]:
    """The rows of a file with their places."""
    try:
        text = payload.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the file is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    try:
        if kind == "jsonl":
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    try:
                        yield f"line {number}", _object(msgspec.json.decode(line))
                    except (msgspec.DecodeError, RecursionError) as error:
                        yield f"line {number}", _Unread(f"no JSON: {error}")
        elif kind == "csv":
            reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
            for record in reader:
                wide = record.pop(None, None) or None in record.values()
                fits = _Unread("it has more or fewer fields than the head") if wide else dict(record)
                yield f"line {reader.line_num}", fits
        else:
            data = msgspec.json.decode(text) if kind == "json" else load_yaml(text)
            if isinstance(data, dict) and isinstance(data.get("tests"), list):
                yield from _promptfoo(data)
            elif isinstance(data, list):
                yield from ((f"entry {number}", _object(each)) for number, each in enumerate(data, 1))
            else:
                raise InvalidRequest("the file has neither a list of rows nor promptfoo's 'tests'")
    except (msgspec.DecodeError, yaml.YAMLError, csv.Error, RecursionError) as error:
        raise InvalidRequest(f"the file is no valid {kind.upper()}: {str(error)[:300]}") from None


def _object(value: Any) -> _Row | _Unread:
    return value if isinstance(value, dict) else _Unread("it is not an object")


def _promptfoo(data: _Row) -> Iterator[tuple[str, _Row | _Unread]]:
    """The tests of a promptfoo configuration, each with each of its prompts."""
    templates = [each for each in _list(data.get("prompts")) if isinstance(each, str)] or [""]
    if "defaultTest" in data:
        yield "defaultTest", _Unread("it is not read; write its parts into the tests")
    for (number, test), template in itertools.product(enumerate(data["tests"], 1), templates):
        row = _object(test)
        if isinstance(row, dict) and template:
            row = {**row, "template": template}
        yield f"test {number}", row


def _prompt(row: Mapping[str, Any], name: str) -> tuple[Prompt, list[str]]:
    """Return a row's prompt, and what of the row was not read."""
    if row.get("choices"):
        raise _Unread("multiple choice is not read; write the choices into the prompt")
    given = row.get("vars", row)
    if not isinstance(given, dict):
        raise _Unread("vars: it is not an object")
    asked = row.get("template") or next((given[each] for each in _TEXTS if given.get(each)), None)
    if asked is None and given is not row and len(given) == 1:
        asked = next(iter(given.values()))
    if isinstance(asked, str) and asked.startswith("file://"):
        raise _Unread(f"{asked[:60]!r} is another file; write the prompt itself")
    system, text = _messages(asked) if isinstance(asked, list) else (row.get("system") or "", asked)
    if row.get("template"):
        text = _VARIABLE.sub(lambda match: _said(given.get(match[1], match[0])), str(text))
        if "{{" in text or "{%" in text:
            raise _Unread("its template has more than {{variables}} of the test")
    if not isinstance(text, str) or not isinstance(system, str) or not text.strip():
        raise _Unread(f"it has no text; give one of the columns {', '.join(_TEXTS)}")
    check, reference, notes = _asserted(row) if "assert" in row else _reference(row)
    fields = {"id": str(row.get("id") or name), "domain": row.get("domain") or None}
    if len(text) > LONGEST or len(fields["id"] or "") > 100:
        raise _Unread(f"its text or id is too long; {LONGEST:,} and 100 characters are read")
    made = {**fields, "text": text, "source": "given", "system": system, "reference": reference, "check": check}
    try:
        return msgspec.convert({"row": "prompt", **made}, Prompt), notes
    except msgspec.ValidationError as error:
        raise _Unread(str(error)) from None


def _messages(turns: list[Any]) -> tuple[str, Any]:
    """System message and text of a conversation with one turn."""
    found = [(each.get("role"), each.get("content")) for each in turns if isinstance(each, dict)]
    match found:
        case [("system" | "developer", str(system)), ("user", str(text))]:
            return system, text
        case [("user", str(text))]:
            return "", text
    raise _Unread("it has more than a system message and one of the user; give the last question alone")


def _reference(row: Mapping[str, Any]) -> tuple[Check | None, list[str], list[str]]:
    """How an answer is checked, the right answers, and what was not read."""
    if said := [row[each] for each in row if str(each).startswith("__expected") and row[each]]:  # promptfoo's CSV
        kinds = [str(each).partition(":") for each in said]
        return _asserted(
            {
                "assert": [
                    {"type": kind.strip(), "value": value.strip()} if colon else {"type": "equals", "value": kind}
                    for kind, colon, value in kinds
                ]
            }
        )
    value = next((row[each] for each in _REFERENCES if row.get(each) not in (None, "", [])), None)
    if isinstance(value, dict) and "text" in value:  # SQuAD's
        value = value["text"]
    if isinstance(value, dict | list) and not all(isinstance(each, str | int | float) for each in _list(value)):
        return "json", [msgspec.json.encode(value).decode()], []
    texts = [final[1] if (final := _FINAL.search(text)) else text for text in map(_said, _list(value)) if text.strip()]
    if not texts:
        return None, [], []
    if len(texts) == 1 and texts[0].lstrip()[:1] in {"{", "["}:
        try:
            msgspec.json.decode(texts[0])
        except (msgspec.DecodeError, RecursionError):
            return None, texts, []
        return "json", texts, []
    if all(len(each) == 1 and each.isalpha() for each in texts):  # a letter is in nearly every answer
        return "exact", texts, []
    return ("contains" if all(len(each) <= _SHORT for each in texts) else None), texts, []


def _asserted(row: Mapping[str, Any]) -> tuple[Check | None, list[str], list[str]]:
    """The first of promptfoo's assertions that can be checked without a model, and what was not read."""
    check: Check | None = None
    reference, notes = list[str](), list[str]()
    for each in _list(row["assert"]):
        kind = str(each.get("type")) if isinstance(each, dict) else str(each)
        value = [_said(one) for one in _list(each.get("value"))] if isinstance(each, dict) else []
        if check is None and kind in _ASSERTED and (value or _ASSERTED[kind] == "json"):
            check, reference = _ASSERTED[kind], value if _ASSERTED[kind] != "json" else []
        elif check == "contains" and kind in {"contains", "icontains"} and value:
            check, reference = "all", [*reference, *value]
        else:
            notes.append(f"its assertion {kind[:40]!r} is not checked")
    return check, reference, notes


def _list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _said(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
