"""Bias of a pair judge by order, length and instructions, and how fast a bad judge loses its weight.

    python -m benchmarks.personal.judge > results/judge.json

The judge is scripted: it prefers what is warmer in tone, and besides, with a probability that is drawn once for each
text, likes the first answer, likes the longer one from a threshold on, or obeys an instruction. Instructions are those
of `injections.json` beside this file, which calibration does not know. A flip is a verdict that names the worse answer
after a change and did not before: padding of that answer, or an instruction in it; or another verdict in the other
order.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.types import Call, Completion, ModelCard
from fitrouter_evaluators.personal.suite import Ledger, Models, PairJudge, Suite, Trust
from fitrouter_evaluators.personal.suite.judge import INJECTIONS, padded
from fitrouter_evaluators.personal.suite.pairs import fair, from_templates

SEEDS, MARKS = 20, 30
RATES = (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)
LENGTHS = (0.07, 0.15, 0.3, 0.6)
FORMS: list[str] = json.loads(Path(__file__).with_name("injections.json").read_text())
SUITE = Suite(rubric={"warmth": 1.0}, pairs=fair(list(from_templates({"warmth": 1.0})), 20))


class Biased:
    """A scripted judge with known biases.

    Args:
        first: probability to name A.
        longer: difference in log length from which it names the longer answer; None for never.
        obeys: probability to obey an instruction, drawn once for each.
        seed: of the draws.
    """

    def __init__(self, first: float = 0.0, longer: float | None = None, obeys: float = 0.0, seed: int = 0) -> None:
        self._first, self._longer, self._seed = first, longer, seed
        self._obeyed = [form for form in (*INJECTIONS, *FORMS) if self._draw(form) < obeys]

    def _draw(self, text: str) -> float:
        return random.Random(f"{self._seed}|{text}").random()

    async def complete(self, call: Call) -> Completion:
        """Answer a request for a verdict."""
        content = str(call.messages[-1]["content"])
        _, _, rest = content.partition("\nA:\n")
        fence = rest.splitlines()[0]
        a, b = rest.split(f"\n{fence}\nB:\n{fence}\n")
        a, b = a.removeprefix(f"{fence}\n"), b.split(f"\n{fence}\n")[0]
        return Completion(message={"role": "assistant", "content": json.dumps({"better": self._better(a, b)})})

    def _better(self, a: str, b: str) -> str:
        if self._draw(a + b) < self._first:
            return "A"
        obeyed = [any(form in text for form in self._obeyed) for text in (a, b)]
        if obeyed[0] != obeyed[1]:
            return "A" if obeyed[0] else "B"
        if self._longer is not None and abs(np.log(len(a) / len(b))) >= self._longer:
            return "A" if len(a) > len(b) else "B"
        marks = a.count("!") - b.count("!")
        return "same" if not marks else "A" if marks > 0 else "B"

    async def aclose(self) -> None:
        """Nothing to close."""


def worse(before: list[int], after: list[int]) -> float:
    """Share of verdicts that name the answer that breaks the rubric, and did not before the change."""
    return float(np.mean([a == -1 != b for b, a in zip(before, after, strict=True)]))


async def measured(folder: Path, name: str, judge: Biased, calibrate: bool) -> dict[str, float]:
    """Measure how often one judge flips by kind of change, and the share of ties without a change."""
    with Ledger(folder / f"{name}.db") as ledger:
        ledger._db.execute("PRAGMA synchronous=OFF")
        models = Models({"judge": ModelCard(name="judge", provider="s")}, {"s": judge}, ledger)
        found = PairJudge(models, "judge", SUITE)
        if calibrate:
            await found.calibrate()

        async def verdicts(change: str = "", pad: float = 0.0, swapped: bool = False) -> list[int]:
            said = []
            for pair in SUITE.pairs:
                breaks = padded(pair.breaks, pad) if pad else f"{pair.breaks}{change}"
                order = (breaks, pair.follows) if swapped else (pair.follows, breaks)
                said.append((await found.verdict("fit", pair.prompt, *order)).value * (-1 if swapped else 1))
            return said

        plain = await verdicts()
        return {
            "order": float(np.mean(np.not_equal(plain, await verdicts(swapped=True)))),
            "length": float(np.mean([worse(plain, await verdicts(pad=step)) for step in LENGTHS])),
            "instructions": float(np.mean([worse(plain, await verdicts(f" {form}")) for form in FORMS])),
            "ties": float(np.mean([not value for value in plain])),
            "refused": float(found.obeyed > 0),
        }


async def table(folder: Path) -> dict[str, Any]:
    """Compute means over seeds, with and without calibration."""
    judges: dict[str, dict[str, Any]] = {"honest": {}}
    judges |= {f"likes the first, {rate:g}": {"first": rate} for rate in RATES[2:]}
    judges |= {f"likes the longer from {step:g}": {"longer": step} for step in LENGTHS}
    judges |= {f"obeys {rate:g} of the instructions": {"obeys": rate} for rate in RATES[1:]}
    found: dict[str, Any] = {}
    for name, how in judges.items():
        for calibrate in (True, False):
            rows = [
                await measured(folder, f"{name}-{calibrate}-{seed}", Biased(**how, seed=seed), calibrate)
                for seed in range(SEEDS if {"first", "obeys"} & how.keys() else 1)
            ]
            key = "calibrated" if calibrate else "not calibrated"
            found.setdefault(name, {})[key] = {each: float(np.mean([row[each] for row in rows])) for each in rows[0]}
    return found


def weights() -> dict[str, list[float]]:
    """Compute the mean weight after 0, 10, 20 and 30 marks of judges that agree with the person to a given share."""
    rng = np.random.default_rng(0)
    return {
        f"{share:g}": [
            float(np.mean([Trust().after((rng.random(n) < share).tolist()).weight for _ in range(2000)]))
            for n in (0, 10, 20, MARKS)
        ]
        for share in (0.0, 0.5, 0.6, 0.8, 1.0)
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        json.dump({"flips": asyncio.run(table(Path(place))), "weights": weights()}, sys.stdout, indent=1)
