"""Censored ratings: labels at the ends of a scale are lower or upper bounds (Tobin 1958).

Ratings lie in [0, 1]. A label at an end means that the latent opinion is at or beyond it; the prediction from a latent
N(a, v) is its mean after clipping to the scale.
"""

from __future__ import annotations

import numpy as np

from fitrouter.types import Floats

_END = 0.005


def heaped(y: Floats) -> bool:
    """Whether at least a tenth of the labels, but fewer than nine tenths, lie at the ends of the scale."""
    ends = (y <= _END) | (y >= 1.0 - _END)
    return bool(0.1 <= ends.mean() < 0.9)


def latent(y: Floats, a: Floats, sd: float) -> Floats:
    """Expected opinion given each label, with opinion ~ N(a, sd²), float64[n]; labels between the ends are kept."""
    low, high = y <= _END, y >= 1.0 - _END
    out = y.copy()
    out[low] = a[low] - sd * _hazard(-a[low] / sd)
    out[high] = a[high] + sd * _hazard((a[high] - 1.0) / sd)
    return out


def clipped_mean(a: Floats, v: Floats) -> Floats:
    """Expected value of t clipped to [0, 1], where t ~ N(a, v), float64[n]."""
    from scipy.special import ndtr

    sd = np.sqrt(np.maximum(v, 1e-12))
    low, high = -a / sd, (1.0 - a) / sd
    inner = a * (ndtr(high) - ndtr(low)) - sd * (_density(high) - _density(low))
    out: Floats = inner + ndtr(-high)
    return out


def _hazard(t: Floats) -> Floats:
    """Normal density divided by the cumulative distribution, φ(t) / Φ(t)."""
    from scipy.special import log_ndtr

    out: Floats = np.exp(-0.5 * t**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(t))
    return out


def _density(t: Floats) -> Floats:
    out: Floats = np.exp(-0.5 * t**2) / np.sqrt(2.0 * np.pi)
    return out
