"""Batches by a budget of tokens, halved where the device runs out of memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.scoring.models.reward_model import ModelError, reason_of


class TokenBatches:
    """Runs a model over sequences sorted by length, in batches of at most `budget` tokens with padding.

    A batch that exhausts the memory is split, and the budget halved for good; one that fails otherwise is split too, so
    that a bad sequence costs no other one. A sequence that fails alone is NaN, and reported.
    """

    def __init__(self, budget: int, width: int, report: Callable[[Exception], None]) -> None:
        self.budget, self.width, self._report = budget, width, report

    def run(self, lengths: Sequence[int], forward: Callable[[list[int]], Floats]) -> Floats:
        """Run `forward` over batches of sequences and return one row each, float64[n, width]; NaN where it fails.

        `forward` gets the indices of a batch's sequences and returns a row for each.
        """
        out = np.full((len(lengths), self.width), np.nan)
        waiting: list[list[int]] = []
        for i in sorted(range(len(lengths)), key=lengths.__getitem__):  # the longest batch, taken first, shows the need
            if not waiting or lengths[i] * (len(waiting[-1]) + 1) > self.budget:
                waiting.append([])
            waiting[-1].append(i)
        failed, last = 0, ""
        while waiting:
            batch = waiting.pop()
            error = _tried(forward, batch, out)
            if error is not None and out_of_memory(error):
                self.budget = max(1, min(self.budget, max(lengths[i] for i in batch) * len(batch)) // 2)
                if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
                    torch.cuda.empty_cache()
            if error is not None and len(batch) > 1:
                half = len(batch) // 2
                waiting += [batch[half:], batch[:half]]
            elif error is not None:
                failed, last = failed + 1, reason_of(error)
                if out_of_memory(error):
                    last += (
                        "; one answer alone needs more memory than is free: lower 'max_tokens', or use a smaller model"
                    )
        if failed:
            self._report(ModelError(f"{failed} of {len(lengths)} answers could not be scored: {last}"))
        return out


def _tried(forward: Callable[[list[int]], Floats], batch: list[int], out: Floats) -> Exception | None:
    """Run `forward` on a batch and store its rows; an error is returned without frames, which keep tensors alive."""
    try:
        out[batch] = forward(batch)
    except Exception as error:  # noqa: BLE001 - split and reported by the caller
        return error.with_traceback(None)
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is that of a device, or of the machine, without memory left."""
    named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    text = str(error).lower()
    return named or (isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text))
