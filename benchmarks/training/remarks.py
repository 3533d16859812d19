"""Remarks in passing: precision on prompts, and the weight of praise and rejection.

    python -m benchmarks.training.remarks DATA

Two public sets have a user's next message beside an outcome of the answer before it: HALIE dialogues (thumbs on every
turn) and RealHumanEval (whether anything was copied). Praise or a rejection is read as the link of `accept` to the
power ρ; the answer's rating has the spread of ratings between people and items, and a mean that gives each set's share
of good outcomes. The posterior of ρ follows from the outcomes under Beta(1, 3), as for the other kinds of behaviour
(`benchmarks.training._signal_fit`). Neither set has remarks on a dimension ("shorter").
"""

from __future__ import annotations

import ast
import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from benchmarks.training.likelihoods import load_signals

from fitrouter.types import Floats
from fitrouter_evaluators.datasets.halie import convert_dialogue
from fitrouter_evaluators.scoring.statements.remarks import read_remark

SPREAD = 0.21
"""Standard deviation of the predictable part of a rating on [0, 1]: `_signal_fit` on PluriHarms and LLM-Rubric."""
Outcome = tuple[float, bool]
"""Praise (1) or rejection (0), and whether the answer before it had a good outcome."""


def dialogues(data: Path) -> tuple[list[Outcome], float]:
    """Read remarks in HALIE dialogues with the thumb on the turn before, and the share of thumbs up."""
    thumbs = {(r.extra["session"], r.extra["turn"]): r.rating for r in convert_dialogue(data / "halie")
              if r.dimension == "preference"}  # fmt: skip
    found = []
    with (data / "halie/dialogue/event_blocks.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            before = thumbs.get((row["session_id"], int(row["turn_id"]) - 1))
            remark = read_remark(row["user_input"])
            if before is not None and remark is not None and remark.y is not None:
                found.append((remark.y, before > 0.5))
    return found, float(np.mean([rating > 0.5 for rating in thumbs.values()]))


def chats(data: Path) -> tuple[list[Outcome], float]:
    """Read remarks in RealHumanEval with copies from the answer before, and the share of answers copied from."""
    found, copied, last = [], [], dict[str, bool]()
    with (data / "realhumaneval/chat_data.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            said = [m["content"] for m in ast.literal_eval(row["request"]) if m["role"] == "user"]
            before = last.get(row["programmer_id"])
            if before is not None and len(said) > 1:
                copied.append(before)
                remark = read_remark(said[-1])
                if remark is not None and remark.y is not None:
                    found.append((remark.y, before))
            last[row["programmer_id"]] = bool(ast.literal_eval(row["copy_events"]))
    return found, float(np.mean(copied))


def weight(sets: list[tuple[list[Outcome], float, str]]) -> tuple[float, float]:
    """Return posterior mean and standard deviation of ρ."""
    signals, rho = load_signals(), np.linspace(0.005, 0.995, 100)
    accept, log_posterior = signals["accept"], 2.0 * np.log1p(-rho)  # Beta(1, 3)
    for outcomes, share, kind in sets:
        outcome = signals[kind]
        assert outcome.temperature is not None
        assert accept.temperature is not None
        u = np.linspace(-1.5, 3.0, 901)
        mean = outcome.level + outcome.temperature * math.log(share / (1.0 - share))
        prior = np.exp(-0.5 * ((u - mean) / SPREAD) ** 2)
        good = _sigmoid((u - outcome.level) / outcome.temperature)
        praised = _sigmoid((u - accept.level) / accept.temperature)
        for y, was_good in outcomes:
            told = prior * (praised if y else 1.0 - praised) ** rho[:, None]
            p = (told * good).sum(axis=1) / told.sum(axis=1)
            log_posterior += np.log(p if was_good else 1.0 - p)
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    centre = float(posterior @ rho)
    return centre, math.sqrt(float(posterior @ (rho - centre) ** 2))


def _sigmoid(a: Floats) -> Floats:
    out: Floats = 1.0 / (1.0 + np.exp(-a))
    return out


def prompts(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield questions that are no remarks, by set."""
    import duckdb

    for name, path in (("alpaca_eval", "alpaca_eval/responses"), ("human_feedback", "human_feedback/comparisons")):
        table = duckdb.read_parquet(str(data / f"{path}.parquet"))
        yield name, [str(prompt) for (prompt,) in table.project("prompt").distinct().fetchall()]
    for name, path in (
        ("mt_bench", "mt_bench_human/question"),
        ("declared_topics", "declared_topics/choices"),
        ("paretobandit", "paretobandit/val_k4"),
    ):
        rows = [json.loads(line) for line in (data / f"{path}.jsonl").read_text(encoding="utf-8").splitlines()]
        found = [(*row.get("turns", ()), *row.get("declared", ()), row.get("prompt")) for row in rows]
        yield name, [text for texts in found for text in texts if text]


def main(argv: list[str] | None = None) -> int:
    """Print the prompts that are read as remarks, and the weight of remarks."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m benchmarks.training.remarks DATA\n")
        return 2
    data = Path(arguments[0])
    for name, texts in prompts(data):
        sys.stdout.write(f"{name}: {sum(map(bool, map(read_remark, texts)))} of {len(texts)} prompts read as remarks\n")
    (halie, liked), (human, copied) = dialogues(data), chats(data)
    for name, found, share in (("HALIE", halie, liked), ("RealHumanEval", human, copied)):
        for y, word in ((1.0, "praise"), (0.0, "rejection")):
            good = [was for said, was in found if said == y]
            sys.stdout.write(
                f"{name}: {word} after {sum(good)} good of {len(good)} answers; of all, {share:.2f} are good\n"
            )
    rho, sd = weight([(halie, liked, "thumb"), (human, copied, "copy")])
    sys.stdout.write(f"weight of praise and rejection: {rho:.3f} (sd {sd:.3f}; prior mean .25)\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
