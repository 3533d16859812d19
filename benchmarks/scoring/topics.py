"""People's words: topical preferences, fresh phrases about style, and silence about anything else. Prints JSON.

    python -m benchmarks.scoring.topics [--data ../shared/data] [--encoders static minilm] [--fit]

`topics` is the share of `declared_topics` whose answer that respects the statement has the highest `declared_fit` of
four (ties share), beside the longest answer; `silent` the share of answers without a fit. `false_moves` counts its
statements that move any style taste. `fresh` is the share of `style_phrases.jsonl` (100 phrases of our own and their
negations, written before the parser was changed, never trained on, never inspected) that move their dimension to the
right side, and to the `wrong` one. `own` repeats `topics` on 40 choices of our own, on which constants were chosen.
`others` counts `statements.jsonl`: statements in other languages, statements of values, and weak phrases.
`--fit` prints the weights of `statements._subject` instead, from predictions that leave out a fifth of the style
statements of three words or more and of the groups of other subjects; single words and pairs are always trained on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.config import ScorerConfig
from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import Choice, read_choices
from fitrouter_evaluators.scoring import STYLE
from fitrouter_evaluators.scoring.plugin import make_scorer
from fitrouter_evaluators.scoring.statements._polarity import units
from fitrouter_evaluators.scoring.statements.declared import fit, preferences, read_units
from fitrouter_evaluators.scoring.statements.topics import declared_fit

HERE = Path(__file__).parent
FOLDS = 5


def topics(encoder: Encoder, rows: list[Choice]) -> dict[str, float]:
    """Measure the accuracy of `declared_fit` on choices, that of the longest option, and the share without a fit."""
    right, longest, silent = [], [], []
    for row in rows:
        fits = np.array([declared_fit(encoder, row.prompt, option, row.declared) for option in row.options])
        silent.append(np.isnan(fits).mean())
        right.append(_share(np.nan_to_num(fits), row.best))
        longest.append(_share(np.array([float(len(option)) for option in row.options]), row.best))
    found = {"declared_fit": right, "longest": longest, "silent": silent}
    return {"n": len(rows), **{name: round(float(np.mean(values)), 4) for name, values in found.items()}}


def _share(scores: Floats, best: int) -> float:
    highest = scores >= scores.max() - 1e-9
    return float(highest[best] / highest.sum())


def fresh(understand: Any) -> dict[str, float]:
    """Measure how many fresh phrases, and their negations, move their dimension to the right and to the wrong side."""
    rows = [json.loads(line) for line in (HERE / "style_phrases.jsonl").read_text(encoding="utf-8").splitlines()]
    found: dict[str, float] = {}
    for name, turn in (("phrase", 1), ("negated", -1)):
        said = understand([row[name] for row in rows])
        sides = np.array([turn * row["sign"] * said[row[name]].get(row["dimension"], 0.0) for row in rows])
        found |= {name: float(np.mean(sides > 0.0)), f"{name} wrong": float(np.mean(sides < 0.0))}
    return found


def statements(understand: Any) -> dict[str, dict[str, int]]:
    """Count `statements.jsonl` by kind: on the right side, on a wrong one, other dimensions only, or not read."""
    rows = [json.loads(line) for line in (HERE / "statements.jsonl").read_text(encoding="utf-8").splitlines()]
    said = understand([row["text"] for row in rows])
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        moved, wanted = said[row["text"]], row["moves"]
        sides = [side * moved.get(name, 0.0) for name, side in wanted.items()]
        wrong = min(sides, default=0.0) < 0.0 or (moved and not wanted)
        word = "wrong" if wrong else "right" if any(sides) else "beside" if moved else "unread" if wanted else "silent"
        kind = f"{row['language']}, {row['kind']}" + (", aside" if row["aside"] else "")
        counts = found.setdefault(kind, {})
        counts[word] = counts.get(word, 0) + 1
    return found


def run(name: str, data: Path) -> dict[str, Any]:
    """Compute all figures of an encoder."""
    scorer = make_scorer(ScorerConfig(encoder=name, prior="none"))
    encoder = get_encoder(name)
    rows = read_choices(data / "declared_topics" / "choices.jsonl").rows
    said = scorer.understand(sorted({text for row in rows for text in row.declared}))
    style = {dimension.name for dimension in STYLE}
    return {
        "encoder": encoder.id,
        "topics": topics(encoder, rows),
        "own": topics(encoder, read_choices(HERE / "topic_choices.jsonl").rows),
        "statements": len(said),
        "false_moves": sum(bool(style & values.keys()) for values in said.values()),
        "fresh": fresh(scorer.understand),
        "others": statements(scorer.understand),
    }


def gate_weights(encoder: Encoder, ridge: float = 1.0) -> dict[str, Any]:
    """Fit `statements._subject`'s logistic regression on held-out predictions; returns weights and figures."""
    groups = [(k, group.values, text) for k, group in enumerate(preferences()) for text in group.statements]
    rng = np.random.default_rng(0)
    fold = np.array(
        [
            (rng.integers(FOLDS) if len(text.split()) > 2 else FOLDS) if values else k % FOLDS
            for k, values, text in groups
        ]
    )
    rows, style = [], []
    for left_out in range(FOLDS):
        mapping = fit(
            encoder, [(text, values) for (_, values, text), k in zip(groups, fold, strict=True) if k != left_out]
        )
        for (_, values, text), k in zip(groups, fold, strict=True):
            if k == left_out and (pieces := units(text)):
                rows.append(read_units(mapping, text, pieces, encoder)[1])
                style.append(float(bool(values)))
    X, y, w = np.array(rows), np.array(style), np.zeros(len(rows[0]))
    penalty = ridge * np.diag([0.0, *np.ones(len(w) - 1)]) * X.var(axis=0)
    for _ in range(30):
        p = 1.0 / (1.0 + np.exp(-X @ w))
        w += np.linalg.solve((X * (p * (1.0 - p))[:, None]).T @ X + penalty, X.T @ (y - p) - penalty @ w)
    passed = X @ w > 0.0
    return {
        "weights": w.round(3).tolist(),
        "style_passed": float(passed[y > 0.0].mean()),
        "others_passed": float(passed[y == 0.0].mean()),
    }


def main() -> None:
    """Print JSON."""
    parser = argparse.ArgumentParser(description="Topical preferences, fresh style phrases and false moves, as JSON.")
    parser.add_argument("--data", type=Path, default=HERE.parents[2] / "shared/data")
    parser.add_argument("--encoders", nargs="+", default=["static"])
    parser.add_argument("--fit", action="store_true", help="print the weights of the gate instead")
    given = parser.parse_args()
    found = [gate_weights(get_encoder(name)) if given.fit else run(name, given.data) for name in given.encoders]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
