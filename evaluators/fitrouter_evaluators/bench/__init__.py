"""Benchmarks on the open formats: the personal protocol, its rows and its result tables."""

from __future__ import annotations

from fitrouter_evaluators.bench._protocol import KS, Fold, Ledger, NoHarm, Paired, Person, Result, folds

__all__ = ["KS", "Fold", "Ledger", "NoHarm", "Paired", "Person", "Result", "folds"]
