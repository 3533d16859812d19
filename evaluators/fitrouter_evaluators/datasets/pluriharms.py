"""PluriHarms: harm ratings of 150 prompts by 100 raters on 0–100 (MIT).

The prompts describe harmful requests without answers, so the prompt is rated; more is more harmful.
"""

from __future__ import annotations

import os

from fitrouter_evaluators.datasets._formats import Rating
from fitrouter_evaluators.datasets._sources import number, read_table, source

FACTOR_SCALE = 8.0
"""The published factor scores, within about ±8, are divided by this to give declared values of about −1 … 1."""

_FACTORS = ("Factor_1", "Factor_2", "Factor_3")


def convert(folder: str | os.PathLike[str]) -> list[Rating]:
    """Convert the ratings, ordered by rater and then by prompt; cells without a rating are left out.

    `user` is the participant, `item` the prompt's index. `declared` has factor_1 (power and authority against
    universalism), factor_2 (care and fairness) and factor_3 (tradition against stimulation), each / `FACTOR_SCALE`.
    `extra` has harm_level (the authors' graded level, 0–1), trial (position in which this rater saw the prompt, from 0;
    attention checks took positions too) and demographics.
    """
    prompts = read_table(source(folder, "prompts.csv"))
    people = demographics(folder)
    ratings = []
    for row in read_table(source(folder, "annotations.csv")):
        user = row["Participant_ID"]
        declared = {name.lower(): float(row[name]) / FACTOR_SCALE for name in _FACTORS}
        for prompt in prompts:
            item = prompt["Question_Index"]
            rating, trial = number(row[f"Rating_{item}"]), number(row[f"Trial_{item}"])
            if rating is None:
                continue
            extra = {"harm_level": float(prompt["Harm_Level"]), "demographics": people[user]}
            ratings.append(
                Rating(
                    user=user,
                    prompt=prompt["Question_Content"],
                    rating=rating,
                    scale=(0.0, 100.0),
                    item=item,
                    dimension="harm",
                    declared=declared,
                    extra=extra if trial is None else {**extra, "trial": int(trial)},
                )
            )
    return ratings


def demographics(folder: str | os.PathLike[str]) -> dict[str, dict[str, str]]:
    """Self-reported demographics by participant: age, gender, political affiliation and so on."""
    return {
        row["Participant_ID"]: {
            name: cell.strip()
            for name, cell in row.items()
            if not name.startswith(("Participant_", "Rating_", "Trial_", "Factor_"))
        }
        for row in read_table(source(folder, "annotations.csv"))
    }
