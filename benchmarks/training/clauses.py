"""Train the classifier of clauses of `fitrouter personal diagnose`, and write the file that ships.

    python -m benchmarks.training.clauses evaluators/fitrouter_evaluators/personal/diagnose/clauses.npy
    python -m benchmarks.training.clauses --folds 4             # recall and precision on messages left out

It learns from `benchmarks/personal/histories`: `messages.jsonl`, messages in English, German and Spanish whose writers
marked what lasts in them (`statements`) and what only looks so (`traps`), and the histories of `dev.jsonl` and
`kept.jsonl`. A clause states something if it overlaps a marked quote. Logistic regressions with a ridge penalty on
hashed features, one for each output; their weights are rounded to int8. Made again on the same machine, the file is
byte-equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.personal.histories import DEVELOPED, FOLDER, KEPT

from fitrouter.types import Floats
from fitrouter_evaluators.personal.diagnose.clauses import BUCKETS, KINDS, SCALE, Clause, buckets, scanned

LANGUAGES = {"en": "English", "de": "German", "es": "Spanish"}
_PENALTY = 0.05
"""Inverse strength of the ridge penalty; by recall and precision on messages left out."""
_AS = {
    "hobby": "craft",
    "skills": "habit",
    "equipment": "habit",
    "languages": "language",
    "age": "habit",
    "origin": "home",
    "habits": "habit",
    "hardship": "orientation",
    "goals": "habit",
    "interests": "craft",
}
"""Kind of the writers → kind here, where it is another."""


class Marked(NamedTuple):
    """A clause of the training messages."""

    rows: list[int]
    statement: dict[str, Any] | None
    message: int


def messages() -> list[dict[str, Any]]:
    """All messages to learn from, with `text`, `language` and `statements`."""
    found = [json.loads(line) for line in (FOLDER / "messages.jsonl").read_text(encoding="utf-8").splitlines()]
    for file in (DEVELOPED, KEPT):
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            for n, text in enumerate(row["messages"]):
                quotes = [each for each in row["attributes"] if each["message"] == n]
                name = f"{file.stem} {row['id']}"
                found.append({"text": text, "language": row["language"], "statements": quotes, "file": name})
    return found


def marked(rows: list[dict[str, Any]]) -> Iterator[Marked]:
    """The clauses of messages, each with the statement that it overlaps most."""
    for n, row in enumerate(rows):
        clauses, _ = scanned(row["text"], LANGUAGES[row["language"]])
        for clause, seen in zip(clauses, buckets(clauses), strict=True):
            shared = [(_overlap(clause, row["text"], each["quote"]), each) for each in row["statements"]]
            most, statement = max(shared, key=lambda each: each[0], default=(0, None))
            yield Marked(seen, statement if most > 2 else None, n)


def _overlap(clause: Clause, text: str, quote: str) -> int:
    start = text.find(quote)
    return min(clause.start + len(clause.text), start + len(quote)) - max(clause.start, start)


def fit(clauses: list[Marked]) -> Floats:
    """Weights of the features and, in the last row, the intercepts: float64[buckets + 1, outputs]."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    ends = np.cumsum([0, *(len(each.rows) for each in clauses)])
    x = csr_matrix((np.ones(ends[-1]), np.concatenate([each.rows for each in clauses]), ends), (len(clauses), BUCKETS))
    statements = [each.statement for each in clauses]
    stated = np.array([each is not None for each in statements])
    kinds = np.array([_AS.get(kind, kind) for each in statements for kind in [(each or {}).get("kind", "")]])
    sensitive = np.array([bool((each or {}).get("sensitive")) for each in statements])
    targets = [(stated, stated | ~stated), (sensitive, stated), *((kinds == kind, kinds != "") for kind in KINDS)]
    table = np.empty((BUCKETS + 1, len(targets)))
    for column, (target, use) in zip(table.T, targets, strict=True):
        model = LogisticRegression(C=_PENALTY, solver="liblinear", random_state=0, tol=1e-6).fit(x[use], target[use])
        column[:-1], column[-1] = model.coef_[0], model.intercept_[0]
    return table


def rounded(table: Floats) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Weights as they ship."""
    return np.clip(np.rint(table / SCALE), -127, 127).astype(np.int8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--folds", type=int, default=0)
    options = parser.parse_args()
    rows = messages()
    clauses = list(marked(rows))
    if options.out:
        np.save(options.out, rounded(fit(clauses)), allow_pickle=False)
        digest = hashlib.sha256(options.out.read_bytes()).hexdigest()
        print(json.dumps({"messages": len(rows), "clauses": len(clauses), "sha256": digest}))
    files = sorted({row["file"] for row in rows})
    found: list[tuple[bool, float]] = []
    for fold in range(options.folds):
        held = [files.index(rows[each.message]["file"]) % options.folds == fold for each in clauses]
        table = SCALE * rounded(fit([each for each, out in zip(clauses, held, strict=True) if not out]))
        for each, out in zip(clauses, held, strict=True):
            if out:
                found.append((each.statement is not None, float(table[[*each.rows, -1], 0].sum())))
    for cut in (-1.0, -0.5, 0.0, 0.5, 1.0) if found else ():
        right = sum(stated and value >= cut for stated, value in found)
        chosen = sum(value >= cut for _, value in found)
        print(json.dumps({"cut": cut, "recall": right / sum(s for s, _ in found), "precision": right / max(chosen, 1)}))


if __name__ == "__main__":
    main()
