"""The predictable plug-in empirical Bernstein sequence: closed form, for a mean that does not change.

Waudby-Smith and Ramdas (2024, theorem 2) for observations of [0, 1]; Waudby-Smith, Wu, Ramdas, Karampatziakis and
Mineiro (arXiv 2210.10768) for importance weighted ones, which have a bound below only. The bets λ_i change with the
past, so that the sequence is for the mean weighted by them: the mean itself where that is constant.
"""

from __future__ import annotations

import math

import numpy as np

from fitrouter.types import Floats

LARGEST = 0.5
"""Of λ_i, in shares of the largest that cannot ruin."""


def lower(x: Floats, bound: float, cap: float, alpha: float) -> Floats:
    """Lower limits of a constant mean, after every observation.

    Args:
        x: float64[n] ≥ −bound.
        bound: positive.
        cap: the predictable centre is cut here.
        alpha: of this one side.

    Returns:
        float64[n].
    """
    t = np.arange(1.0, len(x) + 1.0)
    scale = bound + cap
    z = (x + bound) / scale
    prior, most = (0.5 * cap + bound) / scale, 1.0
    sums = np.cumsum(z)
    centre = np.minimum((prior + sums - z) / t, most)
    squares = np.square(z - np.minimum((prior + sums) / (t + 1.0), most))
    variance = (0.25 / scale + np.cumsum(squares) - squares) / t
    need = -math.log(alpha)
    bet = np.minimum(np.sqrt(2.0 * need / (variance * t * np.log1p(t))), LARGEST)
    paid = np.square(z - centre) * (-np.log1p(-bet) - bet)
    limit = (np.cumsum(bet * z) - need - np.cumsum(paid)) / np.cumsum(bet)
    return np.asarray(np.maximum(scale * limit - bound, -bound), dtype=np.float64)
