"""Training of a low-rank basis of embeddings from people's pairs (`fitrouter train basis`).

    P(a ≻ b | u) = σ((w + D δ_u)ᵀ (z_a − z_b)),  z the whitened leading principal components of the embeddings

w, D and all δ_u are fitted jointly with quadratic penalties, D starting from the leading directions in which people's
gradients differ (LoRe, Bose et al. 2025; PReF, Shenfeld et al. 2025; weights here are free, since weights in a simplex
cannot express dislikes). The basis is w, and the orthogonal directions of D δ_u, each with outputs of variance 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import read_pairs
from fitrouter_evaluators.scoring import Answer
from fitrouter_evaluators.scoring.models import Item
from fitrouter_evaluators.scoring.models.checkpoint import checkpoint, identify
from fitrouter_evaluators.scoring.models.embedding import Basis, load_embedder, write_basis

PENALTIES = (1.0, 4.0, 16.0, 64.0)
"""Candidate penalties of w, D and δ, in the precision of whitened coordinates; chosen by cross-validation."""
COMPONENTS, FEWEST, FOLDS = 128, 20, 3
"""Most principal components, fewest pairs, and folds of the cross-validation."""
_HELD_OUT = 0.2
_RELEVANT = 0.03
"""Share of |w| below which a direction of people's differences is left out."""


class Votes(NamedTuple):
    """Pairs as differences of whitened embeddings: float64[n, p], labels float64[n] and numbers of users int64[n]."""

    z: torch.Tensor
    y: torch.Tensor
    user: torch.Tensor

    def part(self, mask: NDArray[np.bool_]) -> Votes:
        """Select the rows of a mask."""
        rows = torch.from_numpy(np.flatnonzero(mask))
        return Votes(self.z[rows], self.y[rows], self.user[rows])


class BasisFit(NamedTuple):
    """Fitted shared direction w float64[p], and each person's deviation from it, float64[users, p]."""

    w: torch.Tensor
    deviations: torch.Tensor

    def logits(self, votes: Votes) -> tuple[torch.Tensor, torch.Tensor]:
        """Log odds of votes by the shared direction only, and by each person's own direction."""
        shared = votes.z @ self.w
        return shared, shared + (votes.z * self.deviations[votes.user]).sum(1)

    def metrics(self, votes: Votes) -> dict[str, float]:
        """Accuracy without ties, and negative log-likelihood."""
        out: dict[str, float] = {}
        clear = votes.y != 0.5
        for name, logits in zip(("shared", "personal"), self.logits(votes), strict=True):
            right = ((logits[clear] > 0) == (votes.y[clear] > 0.5)).double().mean()
            loss = _losses(votes, logits).mean()
            out |= {f"{name}_accuracy": round(float(right), 4), f"{name}_nll": round(float(loss), 4)}
        return out


def fit(votes: Votes, users: int, rank: int, penalty: float) -> BasisFit:
    """Fit w, D and δ by L-BFGS; deterministic."""
    p = votes.z.shape[1]
    w = torch.zeros(p, dtype=torch.float64, requires_grad=True)
    _minimise([w], lambda: _losses(votes, votes.z @ w).sum() + 0.5 * penalty * (w @ w))
    if rank < 2 or users < 2:
        return BasisFit(w.detach(), torch.zeros((users, p), dtype=torch.float64))
    residual = votes.y - torch.sigmoid(votes.z @ w.detach())
    gradients = torch.zeros((users, p), dtype=torch.float64).index_add_(0, votes.user, residual[:, None] * votes.z)
    left, sizes, right = torch.linalg.svd(gradients, full_matrices=False)
    k = min(rank - 1, len(sizes))
    start = (sizes[:k] / (penalty + sizes[0])).sqrt()
    D = (right[:k].T * start).contiguous().requires_grad_()
    delta = (left[:, :k] * start).contiguous().requires_grad_()

    def loss() -> torch.Tensor:
        logits = votes.z @ w + ((votes.z @ D) * delta[votes.user]).sum(1)
        squares: torch.Tensor = (w @ w) + (D * D).sum() + (delta * delta).sum()
        return _losses(votes, logits).sum() + 0.5 * penalty * squares

    _minimise([w, D, delta], loss)
    return BasisFit(w.detach(), (delta @ D.T).detach())


def choose(votes: Votes, users: int, rank: int) -> tuple[int, float]:
    """Cross-validated rank and penalty: rank 1, unless personal directions gain more than two standard errors."""
    fold, best = np.random.default_rng(1).integers(FOLDS, size=len(votes.y)), {}
    parts = [(votes.part(fold != i), votes.part(fold == i)) for i in range(FOLDS)]
    for r in sorted({1, rank}):
        losses = {
            a: torch.cat([_losses(test, fit(train, users, r, a).logits(test)[1]) for train, test in parts])
            for a in PENALTIES
        }
        best[r] = min(losses.items(), key=lambda item: float(item[1].mean()))
    gain = best[1][1] - best[rank][1]
    chosen = rank if float(gain.mean()) > 2.0 * float(gain.std()) / len(gain) ** 0.5 else 1
    return chosen, best[chosen][0]


def _losses(votes: Votes, logits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, votes.y, reduction="none")


def _minimise(parameters: list[torch.Tensor], loss: Any) -> None:
    optimiser = torch.optim.LBFGS(parameters, max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-6)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value: torch.Tensor = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]


def directions(found: BasisFit, rank: int) -> torch.Tensor:
    """Directions of the basis, float64[k ≤ rank, p] of length 1: w, then leading directions of relevant deviations."""
    _, sizes, right = torch.linalg.svd(found.deviations / len(found.deviations) ** 0.5, full_matrices=False)
    scale = float(found.w.norm()) or 1.0
    kept = right[: rank - 1][sizes[: rank - 1] > _RELEVANT * scale]
    return torch.cat([found.w[None] / scale, kept])


def train_basis(
    data: Path, model: str, out: Path, *, rank: int = 8, max_tokens: int = 4096, device: str = "auto"
) -> dict[str, Any]:
    """Train a basis on pairs and write it; returns its data sheet.

    Args:
        data: pairs in the open format (JSONL or Parquet).
        model: folder or hub id of the model whose embeddings it maps.
        out: of the safetensors file.
        rank: rows of the basis at most: the shared one, and those in which people differ.
        max_tokens: tokens of prompt and answer.
        device: auto, cpu or cuda.

    Raises:
        ConfigError: there are too few pairs, or the model cannot be loaded.
    """
    pairs = [pair for pair in read_pairs(data).rows if pair.dimension == "overall"]
    if len(pairs) < FEWEST:
        raise ConfigError(f"{str(data)!r} has {len(pairs)} pairs of the dimension 'overall'; a basis needs {FEWEST}")
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    folder, failures = checkpoint(model), list[Exception]()
    embedder = load_embedder(folder, max_tokens=max_tokens, batch_tokens=16_384, device=device, report=failures.append)
    keys = {(pair.prompt, side.text): None for pair in pairs for side in (pair.a, pair.b)}
    number = {key: i for i, key in enumerate(keys)}
    vectors = embedder.score([Item(answer=Answer(text=text, prompt=prompt)) for prompt, text in keys])
    sides = np.array([[number[pair.prompt, side.text] for side in (pair.a, pair.b)] for pair in pairs])
    known = np.isfinite(vectors.sum(axis=1))[sides].all(axis=1)
    usable = [pair for pair, both in zip(pairs, known, strict=True) if both]
    if len(usable) < FEWEST:
        raise ConfigError(f"only {len(usable)} of {len(pairs)} pairs could be embedded: {failures[:1]}")
    mean, whiten = _whitening(vectors[np.isfinite(vectors).all(axis=1)])
    z = (vectors - mean) @ whiten.T
    numbers = {name: i for i, name in enumerate(sorted({pair.user for pair in usable}))}
    users, (a, b) = len(numbers), sides[known].T
    votes = Votes(
        torch.from_numpy(z[a] - z[b]),
        torch.tensor([pair.label for pair in usable], dtype=torch.float64),
        torch.tensor([numbers[pair.user] for pair in usable]),
    )
    test = np.random.default_rng(0).random(len(usable)) < _HELD_OUT  # the same rows in every run
    rank, penalty = choose(votes.part(~test), users, rank)
    held_out = fit(votes.part(~test), users, rank, penalty).metrics(votes.part(test))
    rows = directions(fit(votes, users, rank, penalty), rank).numpy()
    sheet = {
        "pairs": len(usable),
        "users": users,
        "model": model,
        "penalty": penalty,
        "components": len(whiten),
        "held_out": held_out,
    }
    names = ("shared", *(f"taste_{i}" for i in range(1, len(rows))))
    write_basis(out, Basis(rows @ whiten, mean, identify(folder), names, sheet))
    return {**sheet, "dimensions": names, "out": str(out)}


def _whitening(vectors: Floats) -> tuple[Floats, Floats]:
    """Mean of the vectors, float64[d], and the map to their whitened principal components, float64[p, d]."""
    mean = vectors.mean(axis=0)
    _, sizes, right = np.linalg.svd(vectors - mean, full_matrices=False)
    p = min(COMPONENTS, max(2, len(vectors) // 4), int((sizes > 1e-6 * sizes[0]).sum()))
    return mean, right[:p] * (np.sqrt(len(vectors)) / sizes[:p])[:, None]
