"""Fused GPU kernel of the reward heads: mean and variance of hᵀw in one pass over the Gaussians.

Written in Triton, which comes with torch for CUDA. Where it cannot run, `HeadStore` uses torch operations in several
passes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:  # only installed on machines with a GPU, and untyped
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
except ImportError:
    triton = tl = None
if TYPE_CHECKING:
    constexpr = int
else:
    constexpr = tl and tl.constexpr


# Triton reads the annotations: a pointer may have none, and a number known when it compiles must say so.
def _score(  # type: ignore[no-untyped-def]
    means, covs, slots, x, out_mean, out_variance, D: constexpr, PADDED: constexpr, C: constexpr
):
    """Kernel with one program per row: C answers along one Gaussian, which stays in registers."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    i = tl.arange(0, PADDED)
    inside = i < D
    mean = tl.load(means + slot * D + i, mask=inside, other=0.0)
    cov = tl.load(covs + slot * D * D + i[:, None] * D + i[None, :], mask=inside[:, None] & inside[None, :], other=0.0)
    for c in range(C):
        h = tl.load(x + (row * C + c) * D + i, mask=inside, other=0.0)
        tl.store(out_mean + row * C + c, tl.sum(mean * h, axis=0))
        tl.store(out_variance + row * C + c, tl.sum(tl.sum(cov * h[None, :], axis=1) * h, axis=0))


_kernel: Any = triton and triton.jit(_score)


def fused_score(means: Any, covs: Any, slots: Any, x: Any, out_mean: Any, out_variance: Any) -> None:
    """Compute means and variances of hᵀw, float32[n, C] each, into `out_mean` and `out_variance`.

    Inputs are float32[slots, D], float32[slots, D, D], int64[n] and float32[n, C, D].

    All are contiguous and on one device.

    Raises:
        RuntimeError: Triton is not installed.
    """
    if _kernel is None:
        raise RuntimeError("the fused kernel needs Triton, which comes with torch for CUDA")
    n, C, D = x.shape
    if n:  # one warp was at least as fast as more, for one answer and for several (docs/results/scorer.md)
        sizes = {"D": D, "PADDED": triton.next_power_of_2(D), "C": C}
        _kernel[(n,)](means, covs, slots, x, out_mean, out_variance, **sizes, num_warps=1)
