"""AUC of the value dimensions on held-out statements, and their correlations in PluriHarms. Prints JSON.

    python -m benchmarks.scoring.values [--encoders static,minilm,hashing] [--pluriharms FOLDER]

Areas under the ROC curve, statement by statement (not within pairs): `cross_validated` over the shipped pairs, and over
the sets in `tests/data/values`, on which nothing was fitted and whose single scores were not inspected. `first` was
written before any measurement. Caution then had .71 to .73, so its shipped statements grew; `second` (all values) was
written before they had grown in full, `third` (caution only) after everything else. `all` is the three together.

PluriHarms (100 people rated the harm of 150 prompts): `mean_rating`, Spearman's correlation of a prompt's score with
its mean rating; `reliability`, the split-half correlation of people's slopes on the score (odd prompts against even
ones, Spearman-Brown), a person's slope being that of the ratings less prompt mean and own mean; `factors`, Pearson's r
of declared factors with slopes. p by permuting people, `p_any` that of the largest |r| among all of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import Rating, pluriharms
from fitrouter_evaluators.scoring.values import SHRINKAGE, VALUES, Contrast, directions, encode_statements, fit

HELD_OUT = Path(__file__).parents[2] / "tests/data/values"
PERMUTATIONS = 10_000


def cross_validate(pairs: list[Floats], folds: int = 5, shrinkage: float = SHRINKAGE) -> list[Floats]:
    """Score each value's pairs by directions fitted without their fold, float64[pairs, 2] each.

    Both poles of a pair are in one fold, so that its topic is unknown to the directions. Pair i is in fold i mod
    `folds`.
    """
    scores = [np.zeros(value.shape[:2]) for value in pairs]
    for fold in range(folds):
        kept = fit([value[np.arange(len(value)) % folds != fold] for value in pairs], shrinkage)
        for k, value in enumerate(pairs):
            scores[k][fold::folds] = np.stack([kept(pole)[:, k] for pole in value[fold::folds].swapaxes(0, 1)], axis=1)
    return scores


def auc(high: Floats, low: Floats) -> float:
    """Return the probability that a statement of the high pole scores above one of the low pole."""
    gaps = high[:, None] - low[None, :]
    return float(((gaps > 0).mean() + (gaps >= 0).mean()) / 2.0)


def held_out(encoder: Encoder, part: str) -> dict[str, float]:
    """Measure AUC by value on held-out statements of one set, or of all ('*')."""
    found = {}
    for k, value in enumerate(VALUES):
        files = sorted(HELD_OUT.glob(f"{part}/{value.name}.json"))
        pairs = [pair for file in files for pair in msgspec.json.decode(file.read_bytes(), type=list[Contrast])]
        if pairs:
            poles = [[pair.high for pair in pairs], [pair.low for pair in pairs]]
            high, low = (directions(encoder)(encoder.encode(texts))[:, k] for texts in poles)
            found[value.name] = round(auc(high, low), 3)
    return found


def statements(encoder: Encoder) -> dict[str, Any]:
    """Measure AUC of shipped pairs by cross-validation, and of held-out ones."""
    scores = cross_validate(encode_statements(encoder))
    return {
        "cross_validated": {v.name: round(auc(*s.T), 3) for v, s in zip(VALUES, scores, strict=True)},
        **{part: held_out(encoder, part) for part in ("first", "second", "third")},
        "all": held_out(encoder, "*"),
    }


def _standard(values: Floats) -> Floats:
    """Scale columns to mean 0 and variance 1."""
    out: Floats = (values - values.mean(axis=0)) / values.std(axis=0)
    return out


def _ranks(values: Floats) -> Floats:
    return np.argsort(np.argsort(values, axis=0), axis=0).astype(np.float64)


def _correlations(a: Floats, b: Floats) -> Floats:
    """Correlate the columns of float64[n, p] with those of float64[n, q]; float64[p, q]."""
    out: Floats = _standard(a).T @ _standard(b) / len(a)
    return out


def _table(rows: list[Rating]) -> tuple[list[str], Floats, Floats]:
    """Return prompts, ratings float64[people, prompts], and declared factors float64[people, 3]; no cell is empty."""
    users, prompts = list(dict.fromkeys(r.user for r in rows)), list(dict.fromkeys(r.prompt for r in rows))
    table, factors = np.full((len(users), len(prompts)), np.nan), np.zeros((len(users), 3))
    for row in rows:
        user = users.index(row.user)
        table[user, prompts.index(row.prompt)] = row.rating
        factors[user] = list(row.declared.values())
    return prompts, table, factors


def _slopes(ratings: Floats, scores: Floats) -> Floats:
    """Return each person's rating points per standard deviation of each value's score, float64[people, values]."""
    own = ratings - np.nanmean(ratings, axis=0)
    own -= np.nanmean(own, axis=1, keepdims=True)
    out: Floats = np.nan_to_num(own) @ _standard(scores) / ratings.shape[1]
    return out


def people(encoder: Encoder, rows: list[Rating]) -> dict[str, Any]:
    """Measure what the value scores of prompts say of ratings and raters."""
    prompts, ratings, factors = _table(rows)
    scores = directions(encoder)(encoder.encode(prompts))
    names = [value.name for value in VALUES]
    rng = np.random.default_rng(0)
    mean: Floats = np.nanmean(ratings, axis=0)[:, None]
    with_mean = _correlations(_ranks(scores), _ranks(mean))[:, 0]
    by_chance = np.array(
        [np.abs(_correlations(_ranks(scores), _ranks(rng.permutation(mean)))[:, 0]) for _ in range(PERMUTATIONS)]
    )
    slopes = _slopes(ratings, scores)
    halves = [_slopes(ratings[:, part::2], scores[part::2]) for part in (0, 1)]
    half = np.diag(_correlations(*halves))
    found = _correlations(factors, slopes)
    null = np.array([np.abs(_correlations(rng.permutation(factors), slopes)) for _ in range(PERMUTATIONS)])
    p = (1 + (null >= np.abs(found)).sum(axis=0)) / (1 + PERMUTATIONS)
    p_any = (1 + (null.max(axis=(1, 2))[:, None, None] >= np.abs(found)).sum(axis=0)) / (1 + PERMUTATIONS)
    return {
        "mean_rating": {
            name: {"rho": round(float(r), 3), "p": round(float(chance), 4)}
            for name, r, chance in zip(
                names,
                with_mean,
                (1 + (by_chance >= np.abs(with_mean)).sum(axis=0)) / (1 + PERMUTATIONS),
                strict=True,
            )
        },
        "reliability": {name: round(float(2 * r / (1 + r)), 3) for name, r in zip(names, half, strict=True)},
        "slope_sd": {name: round(float(s), 2) for name, s in zip(names, slopes.std(axis=0), strict=True)},
        "factors": {
            f"factor_{f + 1}": {
                name: {"r": round(float(found[f, k]), 3), "p": round(p[f, k], 4), "p_any": round(p_any[f, k], 4)}
                for k, name in enumerate(names)
            }
            for f in range(3)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", default="static,minilm,hashing")
    parser.add_argument("--pluriharms", type=Path, help="folder of the set as published; left out without it")
    given = parser.parse_args()
    rows = pluriharms.convert(given.pluriharms) if given.pluriharms else []
    found: dict[str, Any] = {}
    for name in given.encoders.split(","):
        encoder = get_encoder(name)
        found[name] = {"statements": statements(encoder)} | ({"pluriharms": people(encoder, rows)} if rows else {})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
