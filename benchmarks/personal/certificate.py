"""Fit certificates: do their intervals cover, and does any edit pass? Prints JSON.

    python -m benchmarks.personal.certificate               # half a minute on one core

A person gives thumbs to answers of four models whose fits vary with the request. A policy learns from the thumbs (the
probability of a model rises with its mean rating so far, with a floor of .05), and its predictions, those means, are
logged: the data are adaptive. The estimand is a model's mean fit over the requests. Reported for 20 to 500 thumbs:
coverage and mean width of the 80 % intervals and of the confidence sequences, over people and models.

Then a certificate of one person, and random edits of its two files: a byte changed, removed, added, or swapped with
the next one. Last, every figure, changed and signed anew by the holder of the key.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.errors import FitrouterError
from fitrouter.stores.signing import signed, signing_key
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.personal.certificate import Method, Rows, issued, layout, verify
from fitrouter_evaluators.personal.certificate.figures import figures
from fitrouter_evaluators.personal.certificate.rows import Compared, Decided, Draw

MODELS, FLOOR = ("a", "b", "c", "d"), 0.05


def person(seed: int, n: int) -> tuple[Rows, Floats]:
    """Simulate a person with n thumbs; return their rows, and each model's mean fit over their requests."""
    rng = np.random.default_rng((seed, n))
    level, slope = rng.uniform(0.25, 0.75, 4), rng.uniform(-0.2, 0.2, 4)
    total, count = np.full(4, 1.0), np.full(4, 2.0)
    decisions, fits = [], []
    for i in range(n):
        fit = level + slope * np.sin(i / 7.0)
        mean = total / count
        probs = np.exp(6.0 * (mean - mean.max()))
        probs = (1.0 - 4.0 * FLOOR) * probs / probs.sum() + FLOOR
        k = int(rng.choice(4, p=probs / probs.sum()))
        y = float(rng.random() < fit[k])
        decisions.append(
            Decided(
                seq=i, session=i, models=MODELS, probs=tuple(probs.tolist()), predicted=tuple(mean.tolist()),
                chosen=MODELS[k], y=y,
            )
        )  # fmt: skip
        total[k], count[k] = total[k] + y, count[k] + 1.0
        fits.append(fit)
    draws = rng.normal(level, 0.1, (100, 4)).round(6)
    compared = Compared(names=MODELS, population_first="a")
    rows = Rows(tuple(decisions), compared, tuple(Draw(ratings=tuple(row)) for row in draws.tolist()))
    return rows, np.mean(fits, axis=0)


def coverage(n: int, people: int, estimator: str) -> dict[str, float]:
    """Measure coverage and width of the intervals over people and models."""
    hit, width, sequence, broad = [], [], [], []
    for seed in range(people):
        rows, truth = person(seed, n)
        for row in figures(rows, Method(estimator=estimator)).estimates:
            fit = truth[MODELS.index(row.model)]
            sequence.append(row.sequence_low <= fit <= row.sequence_high)
            broad.append(row.sequence_high - row.sequence_low)
            if row.low is not None and row.high is not None:
                hit.append(row.low <= fit <= row.high)
                width.append(row.high - row.low)
    return {
        "stated": len(hit) / len(sequence),
        "covered": float(np.mean(hit)),
        "width": float(np.mean(width)),
        "sequence_covered": float(np.mean(sequence)),
        "sequence_width": float(np.mean(broad)),
    }


def edits(files: tuple[bytes, bytes], n: int) -> dict[str, int]:
    """Try random edits of one byte; count those that pass verification."""
    rng, passed, tried = np.random.default_rng(1), 0, 0
    for _ in range(n):
        which = int(rng.integers(2))
        file = files[which]
        at, byte = int(rng.integers(len(file) - 1)), bytes([int(rng.integers(256))])
        changed = (
            file[:at] + byte + file[at + 1 :],
            file[:at] + file[at + 1 :],
            file[:at] + byte + file[at:],
            file[:at] + file[at : at + 2][::-1] + file[at + 2 :],
        )[int(rng.integers(4))]
        if changed != file:
            tried += 1
            passed += _passes(*((changed, files[1]) if which == 0 else (files[0], changed)))
    return {"tried": tried, "passed": passed}


def _passes(certificate: bytes, rows: bytes) -> bool:
    try:
        verify(certificate, rows)
    except FitrouterError:
        return False
    return True


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all numbers in a document."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from numbers(each, (*path, name))


def forgeries(files: tuple[bytes, bytes], key: Any) -> dict[str, int]:
    """Let the signer change each figure by .001, or by 1 for counts; count the changes that pass verification."""
    paths = list(numbers(json.loads(files[0])["figures"]))
    passed = 0
    for path in paths:
        document = json.loads(files[0])
        place = document["figures"]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] += 1 if isinstance(place[path[-1]], int) else 0.001
        passed += _passes(layout(signed(document, key)), files[1])
    return {"tried": len(paths), "passed": passed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--edits", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = signing_key(Path(folder) / "key")
        files = issued(person(0, 60)[0], Identity(user="ada"), key, ts=1.5)
        found = {
            "coverage": {
                f"{name}, {n} thumbs": coverage(n, options.people, name)
                for n in (20, 60, 200, 500)
                for name in ("dr", "snips")
            },
            "edits": edits(files, options.edits),
            "forged figures": forgeries(files, key),
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
