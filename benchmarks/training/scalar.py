"""Train the constants of the global scalar from public votes, and write them as JSON.

    python -m benchmarks.training.scalar DATA OUT

DATA holds `mt_bench_human`. The shipped file was made this way; running it again gives the same numbers.

q is fitted to votes, a tie being one of ½; every training attack loses to the answer that it was made from, and
constant replies and answers to other prompts lose to honest ones, with a few per cent of the votes' weight (`WEIGHTS`).
d is a logistic regression of attacked against honest answers. The temperature is Platt's, by scikit-learn, on scores of
answers to questions that training had not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.bench._pair_model import logistic, rounded, scales, view_of
from fitrouter_evaluators.datasets import mt_bench
from fitrouter_evaluators.scoring._answer import Answer
from fitrouter_evaluators.scoring.scalar import Constants, View, design
from fitrouter_evaluators.training.attacks import TRAIN, attacks, constants

QUALITY = {"sound": 30.0, "style": 500.0, "asked": 300.0, "relevance": 30.0, "vector": 1500.0}
"""Ridge of q's blocks."""
DRESSED = {"sound": 1.0, "style": 3.0, "asked": 3.0, "relevance": 1.0, "coherence": 1.0, "vector": 100.0}
"""Ridge of d's blocks."""
WEIGHTS = {
    "filler": 0.02,
    "boilerplate": 0.03,
    "headings": 0.012,
    "flattery": 0.005,
    "echo": 0.008,
    "keywords": 0.012,
    "injection": 0.004,
    "off topic": 0.003,
    "constant": 0.003,
}
"""Total weight of a kind of attack in q, as a share of the votes; other kinds train d only."""
THRESHOLD, PENALTY, MOST = -1.0, 0.2, 4.0
_FOLDS = 5
Ints = NDArray[np.int64]


class Votes(NamedTuple):
    """Votes on pairs of answers, P(row a ≻ row b) = y; question and judge are numbers."""

    a: Ints
    b: Ints
    y: Floats
    question: Ints
    judge: Ints


class Lost(NamedTuple):
    """Pairs that an attacked answer loses: rows of the winner and of the loser, and the kind of the attack."""

    winner: Ints
    loser: Ints
    kind: NDArray[np.str_]


class Problem(NamedTuple):
    """All answers, honest ones first, with their features, votes and attacks."""

    items: list[Answer]
    honest: int
    question: Ints
    """Of each answer."""
    votes: Votes
    lost: Lost
    constants: Constants
    """Centres and scales; no weights yet."""
    blocks: dict[str, Floats]


def read_votes(folder: Path) -> tuple[list[Answer], Votes]:
    """Read MT-bench's answers, each once, and the human votes on them."""
    pairs = mt_bench.convert(folder)
    rows: dict[tuple[str, str], int] = {}
    judges = {name: i for i, name in enumerate(sorted({pair.user for pair in pairs}))}
    for pair in pairs:
        for text in (pair.a.text, pair.b.text):
            rows.setdefault((pair.prompt, text), len(rows))
    votes = Votes(
        np.array([rows[pair.prompt, pair.a.text] for pair in pairs]),
        np.array([rows[pair.prompt, pair.b.text] for pair in pairs]),
        np.array([pair.label for pair in pairs]),
        np.array([int(pair.extra["question_id"]) for pair in pairs]),
        np.array([judges[pair.user] for pair in pairs]),
    )
    return [Answer(prompt=prompt, text=text) for prompt, text in rows], votes


def attacked(items: Sequence[Answer], question: Ints, seed: int = 2026) -> tuple[list[Answer], Lost]:
    """Generate attacked answers, to be appended to the honest ones, and the answers that they lose to."""
    rng = np.random.default_rng(seed)
    ways, replies, stubs = attacks(), constants(), TRAIN.stubs
    new: list[Answer] = []
    winner: list[int] = []
    kinds: list[str] = []

    def lose(to: int, kind: str, text: str) -> None:
        new.append(Answer(prompt=items[to].prompt, text=text))
        winner.append(to)
        kinds.append(kind)

    for i, (item, asked_in) in enumerate(zip(items, question, strict=True)):
        for j in rng.permutation(len(ways))[:7]:
            lose(i, ways[j].kind, ways[j].of(item.text, item.prompt))
        stub, way = stubs[int(rng.integers(len(stubs)))], ways[int(rng.integers(len(ways)))]
        lose(i, "stub", stub)
        lose(i, way.kind, way.of(stub, item.prompt))
        lose(i, "constant", replies[int(rng.integers(len(replies)))])
        other = int(rng.integers(len(items)))
        if question[other] != asked_in:
            lose(i, "off topic", items[other].text)
    return new, Lost(np.array(winner), np.arange(len(new)) + len(items), np.array(kinds))


def problem(folder: Path, encoder: Encoder) -> Problem:
    """Read all data and compute the features."""
    items, votes = read_votes(folder)
    question = np.zeros(len(items), dtype=np.int64)
    question[votes.a] = question[votes.b] = votes.question
    more, lost = attacked(items, question)
    view = view_of([*items, *more], encoder)
    honest = len(items)
    some = View(view.asks[:honest], *(part[:honest] for part in (view.sound, view.style, view.near, view.vectors)))
    start = scales(some, encoder.id)
    everything = np.concatenate([question, question[lost.winner]])
    return Problem([*items, *more], honest, everything, votes, lost, start, design(start, view))


def fit(p: Problem, kept: NDArray[np.bool_] | None = None, judges: NDArray[np.bool_] | None = None) -> Constants:
    """Fit the constants on the answers `kept` (bool of each answer) and the votes of `judges` (bool of each vote)."""
    kept = np.ones(len(p.items), dtype=bool) if kept is None else kept
    votes = kept[p.votes.a] if judges is None else kept[p.votes.a] & judges
    quality = _fit_quality(p, votes, kept[p.lost.winner])
    dressed = _fit_dressed(p, kept)
    out = msgspec.structs.replace(
        p.constants,
        quality=rounded(quality),
        dressed=rounded(dressed),
        threshold=THRESHOLD,
        penalty=PENALTY,
        most=MOST,
    )
    X = np.hstack(list(p.blocks.values()))[: p.honest][kept[: p.honest]]
    q = X @ quality
    guarded = q - PENALTY * np.clip(X @ dressed[:-1] + dressed[-1] - THRESHOLD, 0.0, MOST)
    return msgspec.structs.replace(
        out, middle=round(float(np.median(guarded)), 5), spread=round(float(guarded.std()), 5)
    )


def _fit_quality(p: Problem, votes: NDArray[np.bool_], lost: NDArray[np.bool_]) -> Floats:
    v, kinds = p.votes, p.lost.kind[lost]
    each = np.array([WEIGHTS.get(kind, 0.0) / (kinds == kind).sum() for kind in np.unique(kinds)])
    extra = each[np.unique(kinds, return_inverse=True)[1]] * votes.sum()
    winner = np.concatenate([v.a[votes], p.lost.winner[lost]])
    loser = np.concatenate([v.b[votes], p.lost.loser[lost]])
    y = np.concatenate([v.y[votes], np.ones(len(extra))])
    weight = np.concatenate([np.ones(int(votes.sum())), extra])
    X, ridge = _stack(p.blocks, QUALITY)
    return _spread_out(p.blocks, QUALITY, logistic(X[winner] - X[loser], y, weight, ridge))


def _fit_dressed(p: Problem, kept: NDArray[np.bool_]) -> Floats:
    X, ridge = _stack(p.blocks, DRESSED)
    y = (np.arange(len(X)) >= p.honest).astype(np.float64)[kept]
    weight = np.where(y > 0, (1.0 - y).sum() / max(y.sum(), 1.0), 1.0)
    found = logistic(np.column_stack([X, np.ones(len(X))])[kept], y, weight, np.append(ridge, 1e-3))
    return np.append(_spread_out(p.blocks, DRESSED, found[:-1]), found[-1])


def _stack(blocks: dict[str, Floats], ridge: dict[str, float]) -> tuple[Floats, Floats]:
    """Join the blocks that have a ridge side by side; also return the ridge of each column."""
    used = [name for name in blocks if name in ridge]
    return np.hstack([blocks[name] for name in used]), np.concatenate(
        [np.full(blocks[name].shape[1], ridge[name]) for name in used]
    )


def _spread_out(blocks: dict[str, Floats], ridge: dict[str, float], w: Floats) -> Floats:
    """Expand weights to all blocks: 0 for those that were not used."""
    out, at = [], 0
    for name, block in blocks.items():
        n = block.shape[1] if name in ridge else 0
        out.append(w[at : at + n] if n else np.zeros(block.shape[1]))
        at += n
    return np.concatenate(out)


def unseen(p: Problem, seed: int = 2026) -> Floats:
    """Compute g of each answer by constants that saw neither its question nor attacks on it, float64[answers]."""
    names = np.unique(p.question)
    fold = dict(
        zip(np.random.default_rng(seed).permutation(names).tolist(), np.arange(len(names)) % _FOLDS, strict=True)
    )
    of = np.array([fold[q] for q in p.question.tolist()])
    X = np.hstack(list(p.blocks.values()))
    g = np.zeros(len(X))
    for k in range(_FOLDS):
        g[of == k] = fit(p, of != k).combine(X[of == k])
    return g


def temperature(p: Problem, g: Floats) -> float:
    """Fit τ of σ(τ Δg) on the votes that are no ties (Platt 1999, without intercept)."""
    from sklearn.linear_model import LogisticRegression

    votes = p.votes
    clear = votes.y != 0.5
    delta = (g[votes.a] - g[votes.b])[clear, None]
    model = LogisticRegression(fit_intercept=False, C=np.inf).fit(delta, votes.y[clear] > 0.5)
    return round(float(model.coef_[0, 0]), 4)


def main(data: str, out: str) -> None:
    """Fit the constants and write them."""
    p = problem(Path(data) / "mt_bench_human", get_encoder("static"))
    found = msgspec.structs.replace(fit(p), temperature=temperature(p, unseen(p)))
    Path(out).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
