"""One's own evaluation set: forms, checks of right answers, and what is not read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.kits.tables import table_driven
from typer.testing import CliRunner

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.providers import Recorded
from fitrouter.router import Router
from fitrouter.types import Identity
from fitrouter_evaluators.personal.base import unlike
from fitrouter_evaluators.personal.suite import ANCHORS, Ledger, Models, Runner, Suite, decoded, imported, results
from fitrouter_integrations.commands.personal.suite import app


def lines(*rows: Any) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


ROWS = [
    ({"prompt": "Hi?", "reference": "x" * 61}, (None, ("x" * 61,), "")),
    ({"prompt": "2+2?", "answer": 4}, ("contains", ("4",), "")),
    ({"question": "How many?", "answer": "6 * 12 = 72\n#### 72"}, ("contains", ("72",), "")),
    ({"question": "Who?", "answers": {"text": ["Ada", "Lovelace"], "answer_start": [1]}}, ("contains", None, "")),
    ({"input": "Which letter?", "target": "B"}, ("exact", ("B",), "")),
    ({"prompt": "As JSON?", "expected": {"a": 1}}, ("json", ('{"a":1}',), "")),
    (
        {"input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Red?"}], "ideal": ["yes"]},
        ("contains", ("yes",), "Be brief."),
    ),
]


@table_driven("given, wanted", ROWS)
def test_columns_say_what_a_row_is(given: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    """Of five forms; an answer that can be checked is, another one is kept as a reference."""
    (prompt,) = imported(lines({**given, "domain": "law", "id": "r"}), "jsonl").prompts
    check, reference, system = wanted
    assert (prompt.check, prompt.system, prompt.domain, prompt.id) == (check, system, "law", "r")
    assert reference in {None, prompt.reference}
    assert imported(b"[" + lines(given) + b"]", "json").prompts[0].check == check


def test_promptfoo_is_read() -> None:
    """Its YAML, with each prompt's variables filled in, and its CSV; assertions by models are named as not checked."""
    found = imported(
        b"""
prompts: ['Translate to {{to}}: {{text}}']
tests:
  - vars: {to: French, text: cheese}
    assert: [{type: icontains, value: fromage}, {type: llm-rubric, value: is polite}]
  - vars: {to: German}
  - {vars: {to: Dutch, text: tea}, assert: [{type: contains, value: a}, {type: contains, value: b}]}
""",
        "yaml",
    )
    assert [each.text for each in found.prompts] == ["Translate to French: cheese", "Translate to Dutch: tea"]
    assert [(each.check, each.reference) for each in found.prompts] == [
        ("contains", ("fromage",)),
        ("all", ("a", "b")),
    ]
    assert found.left_out == (
        "test 1: its assertion 'llm-rubric' is not checked",
        "test 2: its template has more than {{variables}} of the test",
    )
    made = imported(b"prompt,__expected\nA?,equals: yes\nB?,contains: no\nC?,maybe\n", "csv").prompts
    assert [(each.check, each.reference) for each in made] == [
        ("exact", ("yes",)),
        ("contains", ("no",)),
        ("exact", ("maybe",)),
    ]


def test_what_is_not_read_is_named_with_its_line() -> None:
    """Each row for itself: broken, empty, twice, with choices, of several turns; the others are read."""
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    payload = lines({"prompt": "A?"}, {"prompt": "A?"}, {"text": "A?"}, {"prompt": "B?", "choices": ["x"]}) + b"\n"
    payload += lines({"input": turns}, [], {"prompt": "C?", "id": "i1"}, {"prompt": "D?", "id": "x" * 101}) + b"\n{"
    found = imported(payload, "jsonl")
    assert [each.text for each in found.prompts] == ["A?"]
    wanted = ["same prompt as line 1", "no text", "choices", "more than a system", "not an object", "taken", "too long"]
    assert len(found.left_out) == 8
    for number, (said, part) in enumerate(zip(found.left_out, [*wanted, "no JSON"], strict=True), 2):
        assert said.startswith(f"line {number}: ")
        assert part in said
    ragged = imported(b"prompt,id\nA?,1\nB?,2,3\n", "csv")
    assert ragged.left_out == ("line 3: it has more or fewer fields than the head",)


@table_driven(
    "payload, kind, said",
    [
        (b"", "jsonl", "no prompt could be read; the file has no rows"),
        (b"\xff\xfe", "csv", "not UTF-8"),
        (b"x", "exe", "give one of jsonl, json"),
        (b"{}", "json", "neither a list of rows nor promptfoo's 'tests'"),
        (b"[" * 100_000, "json", "no valid JSON"),
        (b"[" * 3_000, "yaml", "no valid YAML"),
        (b"- !!python/object/apply:os.system ['true']", "yaml", "no valid YAML"),
        (b"a: &a [1]\nb: " + b"&b [" + b"*a," * 9 + b"]\nc: 1", "yaml", "neither a list"),
        (b'prompt\n"open', "csv", "no valid CSV"),
        (b"x" * 20_000_001, "jsonl", "20,000,000 are read, so split it"),
        (b"\n".join(b'{"prompt": "%d"}' % n for n in range(2001)), "jsonl", "more than 2,000 rows"),
    ],
)
def test_a_hostile_file_is_refused(payload: bytes, kind: str, said: str) -> None:
    """With what is wrong, at once."""
    with pytest.raises(InvalidRequest) as refused:
        imported(payload, kind)
    assert said in str(refused.value)


@table_driven(
    "answer, check, reference, wanted",
    [
        ("Paris.", "exact", ["paris"], ()),
        ("It is Paris.", "exact", ["Paris"], ("wrong",)),
        ("It is Paris.", "contains", ["paris", "lyon"], ()),
        ("Parisian", "contains", ["Paris"], ("wrong",)),
        ("a and c", "all", ["a", "b"], ("wrong",)),
        ("72.5", "contains", ["72"], ("wrong",)),
        ("It is 1,204.", "contains", ["1204"], ()),
        ('```json\n{"b": 2, "a": 1}\n```', "json", ['{"a": 1, "b": 2}'], ()),
        ('{"a": 2}', "json", ['{"a": 1}'], ("wrong",)),
        ("{", "json", [], ("schema",)),
        ("{}", "json", [], ()),
        (" ", "contains", ["x"], ("empty",)),
        ("anything", None, ["x"], ()),
    ],
)
def test_an_answer_is_compared_with_the_right_ones(
    answer: str, check: Any, reference: list[str], wanted: tuple[str, ...]
) -> None:
    """As its kind of check says."""
    assert unlike(answer, check, reference) == wanted


def suite_run(folder: Path, answers: Path, rows: list[Any], names: list[str]) -> list[results.ModelResult]:
    """Run an imported set on recorded answers for somebody who likes short ones."""
    config = parse_config(
        {
            "data": str(folder / "data"),
            "providers": {"r": {"kind": "recorded", "path": str(answers)}},
            "models": [{"name": name, "provider": "r"} for name in names],
            "encoder": "hashing",
            "scorer": {"encoder": "hashing", "prior": "none"},
        }
    )
    suite = decoded(Suite(rubric={}, prompts=imported(lines(*rows), "jsonl").prompts).encoded())

    async def ran() -> list[results.ModelResult]:
        ann = Identity(user="ann")
        async with Router.from_config(config) as router:
            await router.declare(ann, {"length": -1.0})
            await router.settled()
            with Ledger(folder / "calls.db") as ledger:
                models = Models({card.name: card for card in config.cards()}, {}, ledger, recorded=Recorded(answers))
                return await Runner(router, models, encoder="hashing").run(suite, ann, names)

    return results.decoded(results.encoded(asyncio.run(ran())))


def test_an_imported_set_is_run_and_filtered_by_domain(tmp_path: Path) -> None:
    """Right answers win over liked ones, in all and in each domain, which is ranked by its own prompts alone."""
    rows = [{"prompt": f"Capital {n}?", "answer": "Paris", "domain": ("law", "art")[n % 2]} for n in range(8)]
    said = {"law": {"short": "Paris.", "long": "Rome. " * 9}, "art": {"short": "Rome.", "long": "It is Paris. " * 3}}
    answers = tmp_path / "answers.jsonl"
    answers.write_bytes(
        lines(
            *(
                {"prompt": row["prompt"], "model": model, "response": text}
                for row in rows
                for model, text in said[row["domain"]].items()
            )
        )
    )
    found = suite_run(tmp_path, answers, rows, ["short", "long"])
    assert {each.model: (each.right, each.checked) for each in found} == {"short": (4, 8), "long": (4, 8)}
    for domain, first in (("law", "short"), ("art", "long")):
        of = results.about(found, domain)
        assert (of[0].model, of[0].wins, of[0].right, of[0].answers) == (first, 1.0, 4, 4)
    with pytest.raises(InvalidRequest, match=r"none .* is about 'tax'; they are about law \(4\), art \(4\)"):
        results.about(found, "tax")


def test_no_taste_buys_a_fault(tmp_path: Path) -> None:
    """A model that says nothing is last for whoever likes short answers, and a domain has its own faults alone."""
    rows = [{"prompt": f"{domain} {n}?", "domain": domain} for domain in ("law", "art") for n in range(4)]
    long = "There are several rules to know about it, and each of them has exceptions that a lawyer explains."
    said = {
        "silent": ["A rule." if row is rows[0] else "" for row in rows],
        "long": ["" if row is rows[4] else long for row in rows],
    }
    answers = tmp_path / "answers.jsonl"
    texts = [(row["prompt"], model, text) for model, each in said.items() for row, text in zip(rows, each, strict=True)]
    answers.write_bytes(lines(*(dict(zip(("prompt", "model", "response"), each, strict=True)) for each in texts)))
    ran = suite_run(tmp_path, answers, rows, sorted(said))
    assert [each.model for each in ran] == ["long", "silent"]
    assert ran[0].wins > 0.8
    law = {each.model: each for each in results.about(ran, "law")}
    assert (law["long"].rank, law["long"].base, law["long"].failed) == (1, 1.0, 0)
    assert (law["silent"].faults, law["silent"].failed) == ({"empty": 3}, 3)


def test_one_command_imports_a_set(tmp_path: Path) -> None:
    """It writes a suite that can be read, says what it read, and never overwrites a file."""
    file, out = tmp_path / "own.csv", tmp_path / "suite.jsonl"
    file.write_text("question,answer\nCapital of France?,Paris\nWhy?,\nWhy?,\n")
    ran = CliRunner().invoke(app, ["import", str(file), "-o", str(out), "--anchors"])
    assert ran.exit_code == 0, ran.output
    assert "2 prompts written to" in ran.output
    assert "1 with answers to check, 1 contains" in ran.output
    assert "line 4: the same prompt as line 3" in ran.output
    prompts = decoded(out.read_bytes()).prompts
    assert [each.source for each in prompts] == ["anchor"] * len(ANCHORS) + ["given"] * 2
    assert isinstance(CliRunner().invoke(app, ["import", str(file), "-o", str(out)]).exception, ConfigError)
