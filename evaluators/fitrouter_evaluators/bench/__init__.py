"""Benchmarks of personalisation and routing on the open formats (`fitrouter bench`)."""

from __future__ import annotations

from fitrouter_evaluators.bench._protocol import KS, Fold, Ledger, NoHarm, Paired, Result, UnseenUser, folds
from fitrouter_evaluators.bench.choices import run_choices

__all__ = ["KS", "Fold", "Ledger", "NoHarm", "Paired", "Result", "UnseenUser", "folds", "run_choices"]
