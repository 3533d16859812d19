"""HALIE: users chat with models and write metaphors with them (Lee et al. 2022, arXiv:2212.09746; Apache-2.0)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fitrouter_evaluators.datasets._formats import Kind, Rating
from fitrouter_evaluators.datasets._sources import number, read_table, source

DIMENSIONS = ("preference", "interestingness", "boringness", "fluency", "sensibility", "specificity", "humanness")
"""Yes-no questions about every turn. More boringness is worse; preference is overall."""


def convert_dialogue(folder: str | os.PathLike[str]) -> list[Rating]:
    """Convert the thumbs of each dialogue turn to ratings, in the file's order, `DIMENSIONS` within a turn.

    The prompt is the scenario and what the user wrote this turn, an empty line between; the response is the turn's
    answer. `extra` has session, turn (from 1), scenario and its data set, and elapsed (seconds that the turn took).

    Args:
        folder: the folder of the set, or its folder `dialogue`.
    """
    folder = _part(folder, "dialogue")
    turns = {(row["session_id"], row["turn_id"]): row for row in read_table(source(folder, "event_blocks.csv"))}
    ratings = []
    for row in read_table(source(folder, "survey_responses.csv")):
        turn = turns.get((row["session_id"], row["turn_id"]))
        if turn is None:  # the questions after the last turn: `convert_quality`
            continue
        extra = {
            "session": row["session_id"],
            "turn": int(row["turn_id"]),
            "scenario": turn["prompt"],
            "prompt_dataset": turn["prompt_dataset"],
            "elapsed": 60.0 * float(turn["elapsed_time"]),
        }
        for dimension in DIMENSIONS:
            verdict = number(row[dimension])
            if verdict is not None:
                ratings.append(_thumb(turn, dimension, verdict, extra))
    return ratings


def convert_quality(folder: str | os.PathLike[str]) -> list[Rating]:
    """Convert the 1–5 quality rating of each whole dialogue, in the file's order.

    The prompt is the scenario and the response everything that the model said, turns apart by empty lines.

    Args:
        folder: the folder of the set, or its folder `dialogue`.
    """
    folder = _part(folder, "dialogue")
    said: dict[str, list[str]] = {}
    for turn in read_table(source(folder, "event_blocks.csv")):
        said.setdefault(turn["session_id"], []).append(turn["model_completion"])
    ratings = []
    for row in read_table(source(folder, "survey_responses.csv")):
        quality, session = number(row["quality"]), row["session_id"]
        if quality is None:
            continue
        ratings.append(
            Rating(
                user=row["worker_id"],
                prompt=row["prompt"],
                rating=quality,
                scale=(1.0, 5.0),
                response="\n\n".join(said[session]),
                model=row["model"],
                dimension="quality",
                extra={"session": session, "turns": len(said[session])},
            )
        )
    return ratings


def convert_metaphor(folder: str | os.PathLike[str]) -> list[Rating]:
    """Convert writers' acceptances and edits of suggested sentences to ratings, in the file's order.

    accept: the share of the suggestions that the writer took, 0–1, where the model was asked; the sentences that were
    not taken are not published, so the response may be missing. edit: how much of the suggestion survived, 1 − the edit
    distance in characters ÷ the length of the longer text, where a suggestion was taken. The prompt is the metaphor's
    seed. `extra` has session, order (of the sentence, from 0), queries (suggestions asked for), elapsed (seconds),
    final (the sentence that was kept) and what others thought of it (apt, specific, imageable, overall: 0–1), where
    known; of edits also distance (characters).

    Args:
        folder: the folder of the set, or its folder `metaphor`.
    """
    ratings = []
    for row in read_table(source(_part(folder, "metaphor"), "event_blocks.csv")):
        suggestion, final = row["model_completion"], row["final_sentence"]
        extra: dict[str, Any] = {
            "session": row["session_id"],
            "order": int(row["order_id"]),
            "queries": int(row["num_queries"]),
            "elapsed": 60.0 * float(row["elapsed_time"]),
            "final": final,
        }
        judged = {name: number(row[name]) for name in ("apt", "specific", "imageable", "overall")}
        extra |= {name: value for name, value in judged.items() if value is not None}
        accepted = number(row["acceptance"])
        if accepted is not None:
            ratings.append(_behaviour(row, "accept", accepted / 100.0, extra))
        if suggestion:
            distance = int(row["edit_model_final_char"])
            kept = 1.0 - distance / max(len(suggestion), len(final))
            ratings.append(_behaviour(row, "edit", kept, {**extra, "distance": distance}))
    return ratings


def _part(folder: str | os.PathLike[str], name: str) -> Path:
    inner = Path(folder) / name
    return inner if inner.is_dir() else Path(folder)


def _thumb(turn: Mapping[str, str], dimension: str, verdict: float, extra: dict[str, Any]) -> Rating:
    return Rating(
        user=turn["worker_id"],
        prompt=f"{turn['prompt']}\n\n{turn['user_input']}",
        rating=verdict,
        scale=(0.0, 1.0),
        response=turn["model_completion"],
        model=turn["model"],
        dimension=dimension,
        kind="thumb",
        extra=extra,
    )


def _behaviour(row: Mapping[str, str], kind: Kind, rating: float, extra: dict[str, Any]) -> Rating:
    return Rating(
        user=row["worker_id"],
        prompt=row["prompt"],
        rating=rating,
        scale=(0.0, 1.0),
        response=row["model_completion"] or None,
        model=row["model"],
        kind=kind,
        extra=extra,
    )
