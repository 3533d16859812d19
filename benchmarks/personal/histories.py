"""Diagnosis of histories in plain language: attributes, their relevance, sensitive matters. Prints JSON.

    python -m benchmarks.personal.histories                                            # those written last, seconds
    python -m benchmarks.personal.histories --file benchmarks/personal/histories/dev.jsonl

Histories in English, German and Spanish, in three styles of writing (plain, chatty, long), were written by people who
saw neither code nor phrases, with the sentences that state lasting attributes marked (`attributes`), and prompts to
which they are relevant and irrelevant (`probes`). The phrases were made on `dev.jsonl`, and the classifier was trained
on it, on `kept.jsonl` and on `messages.jsonl`; its settings were chosen on `fresh.jsonl`. `aside.jsonl`, by another
writer, was read once, when all was done.

A standing attribute that was found is right if the clause that it was read from overlaps a marked one of the same
message that stands at the end. Recall is the share of marked ones that are found so, precision the share of found ones
that are right; `sensitive` is the share of the matched whose sensitivity agrees, `retractions` the share of marked ones
that hold no more of which nothing stands. `relevant` and `irrelevant` are pairs of a matched attribute and a prompt.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fitrouter.context.encoders import get_encoder
from fitrouter.stores.figures import interval
from fitrouter_evaluators.personal.diagnose import Attribute, Diagnostician
from fitrouter_evaluators.personal.diagnose.attributes import Memory

FOLDER = Path(__file__).with_name("histories")
DEVELOPED, KEPT, FRESH, ASIDE = (FOLDER / f"{name}.jsonl" for name in ("dev", "kept", "fresh", "aside"))
FIGURES = ("recall", "precision", "sensitive", "retractions", "relevant", "irrelevant")


def overlaps(message: str, one: str, other: str) -> bool:
    """Whether two quotes of a message have a word in common, in place."""
    starts = message.find(one), message.find(other)
    if min(starts) < 0:
        return False
    return max(starts) + 2 < min(starts[0] + len(one), starts[1] + len(other))


def outcomes(row: dict[str, Any], tool: Diagnostician, verbose: bool = False) -> dict[str, list[bool]]:
    """Read one history; the single cases of each figure."""
    messages: list[str] = row["messages"]
    memory = Memory(tool.encoder)
    at: dict[int, tuple[int, Attribute]] = {}
    for n, message in enumerate(messages):
        said = tool.reader.read(message)
        memory.add(message, said)
        at |= {id(each): (n, each) for each in said.attributes}
    standing = [at[id(each)] for each in memory.standing]
    owners: list[list[Attribute]] = [
        [each for n, each in standing if n == gold["message"] and overlaps(messages[n], each.text, gold["quote"])]
        for gold in row["attributes"]
    ]
    current = [k for k, gold in enumerate(row["attributes"]) if gold["stands"]]
    right = {id(each) for k in current for each in owners[k]}
    found: dict[str, list[bool]] = {name: [] for name in FIGURES}
    found["recall"] = [bool(owners[k]) for k in current]
    found["precision"] = [id(each) in right for _, each in standing]
    found["retractions"] = [not owners[k] for k in range(len(owners)) if k not in current]
    for k in current:
        if owners[k]:
            sensitive = any(each.sensitive for each in owners[k])
            found["sensitive"].append(sensitive == row["attributes"][k]["sensitive"])
    for probe in row["probes"]:
        for name in ("relevant", "irrelevant"):
            for k in probe[name]:
                if k in current and owners[k]:
                    judged = any(tool.relevant(owners[k], probe["prompt"]))
                    found[name].append(judged == (name == "relevant"))
    if verbose:
        for k, gold in enumerate(row["attributes"]):
            if gold["stands"] != bool(owners[k]):
                print(row["id"], "MISSED" if gold["stands"] else "STILL STANDS", "|", gold["quote"], "|", gold["about"])
            elif gold["stands"] and any(each.sensitive for each in owners[k]) != gold["sensitive"]:
                print(row["id"], "SENSITIVE", gold["sensitive"], [each.kind for each in owners[k]], gold["quote"])
        for n, each in standing:
            if id(each) not in right:
                print(row["id"], "WRONG", n, each.kind, "|", each.text)
    return found


def summary(cases: Iterable[dict[str, list[bool]]]) -> dict[str, Any]:
    """Shares with 95% Wilson intervals."""
    rows = list(cases)
    figures: dict[str, Any] = {"histories": len(rows)}
    for name in FIGURES:
        values = [value for row in rows for value in row[name]]
        share = sum(values) / len(values) if values else None
        low, high = (None, None) if share is None else interval(share, 0.0, len(values))
        figures[name] = {"share": share, "low": low, "high": high, "of": len(values)}
    return figures


def figures(file: Path, encoder: str = "static", verbose: bool = False) -> dict[str, Any]:
    """Measure the histories of a file: all of them, and by language and style."""
    tool = Diagnostician(get_encoder(encoder))
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    cases = [(row, outcomes(row, tool, verbose)) for row in rows]
    found = {"file": file.name, "all": summary(case for _, case in cases)}
    for name in ("language", "style"):
        for value in sorted({row[name] for row in rows}):
            found[value] = summary(case for row, case in cases if row[name] == value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=ASIDE)
    parser.add_argument("--encoder", default="static")
    parser.add_argument("--verbose", action="store_true", help="print what is wrong")
    options = parser.parse_args()
    print(json.dumps(figures(options.file, options.encoder, options.verbose), indent=1))


if __name__ == "__main__":
    main()
