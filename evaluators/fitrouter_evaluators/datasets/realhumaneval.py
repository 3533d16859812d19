"""RealHumanEval, chat condition: programmers use chat models (Mozannar et al. 2024, arXiv:2404.02806; CC0)."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from typing import Any

from fitrouter_evaluators.datasets._formats import Kind, Rating
from fitrouter_evaluators.datasets._sources import read_table, source

DWELL_SCALE = (0.0, 3600.0)
"""Seconds; sessions took about 35 minutes."""


def convert(folder: str | os.PathLike[str]) -> list[Rating]:
    """Convert each answer to ratings `copy` (whether any of it was copied) and `dwell` (seconds to the next message).

    copy: 1 where the programmer copied from the answer, by its button or by hand. dwell: seconds to the same
    programmer's next message; the last answer of a session has none. Dwell grows with what there is to read: `extra`
    has words (of the answer) to regress it on. The prompt is the last message of the user; the two empty requests have
    their task's name in its place. `extra` also has task, order (of the answer in the session, from 0), turn (user
    messages in the request), at (seconds since the session began), copied (characters, copies only) and, of dwell,
    same_task (whether the next message was about the same task).
    """
    rows = read_table(source(folder, "chat_data.csv"))
    following = _following(rows)
    order: dict[str, int] = {}
    ratings = []
    for row, after in zip(rows, following, strict=True):
        user = row["programmer_id"]
        order[user] = order.get(user, -1) + 1
        request, copies = ast.literal_eval(row["request"]), ast.literal_eval(row["copy_events"])
        asked = [message["content"] for message in request if message["role"] == "user"]
        extra = {
            "task": row["task_name"],
            "order": order[user],
            "turn": len(asked),
            "at": float(row["timestamp"]),
            "words": len(row["response"].split()),
        }
        prompt = asked[-1] if asked and asked[-1].strip() else row["task_name"]
        copied = sum(len(copy["copied"]) for copy in copies)
        ratings.append(_rating(row, prompt, "copy", float(bool(copies)), {**extra, "copied": copied}))
        if after is not None:
            same = after["task_name"] == row["task_name"]
            seconds = float(after["timestamp"]) - float(row["timestamp"])
            ratings.append(_rating(row, prompt, "dwell", seconds, {**extra, "same_task": same}))
    return ratings


def _following(rows: list[dict[str, str]]) -> list[dict[str, str] | None]:
    """Find each row's next row of the same programmer (None at the end); rows are in order of time per programmer."""
    latest: dict[str, dict[str, str]] = {}
    found: list[dict[str, str] | None] = []
    for row in reversed(rows):
        found.append(latest.get(row["programmer_id"]))
        latest[row["programmer_id"]] = row
    return found[::-1]


def _rating(row: Mapping[str, str], prompt: str, kind: Kind, value: float, extra: dict[str, Any]) -> Rating:
    return Rating(
        user=row["programmer_id"],
        prompt=prompt,
        rating=value,
        scale=DWELL_SCALE if kind == "dwell" else (0.0, 1.0),
        response=row["response"],
        model=row["model"],
        kind=kind,
        extra=extra,
    )
