"""Likelihoods of the kinds of feedback as observations of one utility.

A taste predicts u = hᵀw in units of a label on [0, 1]. An event of kind κ observes it,

    gaussian   y = u + ε, ε ~ N(0, noise / ρ)
    logistic   P(y = 1) = σ((u − level) / temperature), its log likelihood times ρ; y may lie between 0 and 1
    pair       P(a over b) = σ((u_a − u_b) / temperature); a tie is y = ½

and the numbers are fitted on public data, `python -m benchmarks.training.likelihoods DATA OUT`:

- **noise**: what a hierarchical model of people and items leaves of ratings (EM, `hierarchy`).
- **temperature, level**: a hierarchical logistic model of the kind has log odds of a spread (between events and people,
  so far as it is predictable) and a mean. Utility is one quantity, so its spread is that of ratings and its mean the
  core's prior level: temperature = spread of ratings / spread of the log odds.
- **weight** ρ: events are weaker and more alike than the model believes. People who were left out are followed event
  by event, each predicted before it is learnt from, and ρ is what predicts best: the primary outcome where there is one
  (the session's rating from its verdicts), else the next event of the same kind. ρ is the mean of its posterior, under
  a uniform prior for verdicts and Beta(1, 3) for behaviour: of behaviour that the data say nothing about an event
  counts ¼, of one that misleads less.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import msgspec
from benchmarks.training._evidence import read_evidence
from benchmarks.training._signal import Signal
from benchmarks.training._signal_fit import fit_signals

_TABLE = Path(__file__).with_name("_signals.json")


@lru_cache(maxsize=1)
def load_signals() -> dict[str, Signal]:
    """Load the shipped table, kind → signal."""
    return msgspec.json.decode(_TABLE.read_bytes(), type=dict[str, Signal])


def render(signals: dict[str, Signal]) -> bytes:
    """Encode the table as JSON, numbers to four significant digits."""
    return msgspec.json.format(msgspec.json.encode(_rounded(msgspec.to_builtins(signals))), indent=1) + b"\n"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value


def main(argv: list[str] | None = None) -> int:
    """Fit the table on the sets under DATA and write it to OUT."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m benchmarks.training.likelihoods DATA OUT\n")
        return 2
    Path(arguments[1]).write_bytes(render(fit_signals(read_evidence(Path(arguments[0])))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
