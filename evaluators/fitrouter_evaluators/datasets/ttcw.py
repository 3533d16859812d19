"""TTCW: experts rate stories by tests of creativity (Chakrabarty et al. 2023, arXiv:2309.14556; BSD-3).

Forty-eight stories: twelve plots, each written by a professional and by three models; fourteen yes-or-no tests.
"""

from __future__ import annotations

import os

from fitrouter_evaluators.datasets._formats import Rating
from fitrouter_evaluators.datasets._sources import read_json, source


def convert(folder: str | os.PathLike[str]) -> list[Rating]:
    """Convert the verdicts to thumbs (1 for yes), one per expert × story × test, in the file's order.

    `dimension` is the test's name, `item` the story's id, `model` who wrote it (Claude, GPT3.5, GPT4, NewYorker). The
    prompt is the plot and the response the story; the professionals' stories are published as links only, and have
    no response. `extra` has the test's number, the title, the expert's explanation, and the link where there is one.
    """
    stories = {story["story_id"]: story for story in read_json(source(folder, "ttcw_short_stories.json"))}
    ratings = []
    for row in read_json(source(folder, "ttcw_annotations.json")):
        story = stories[row["story_id"]]
        linked = story["content"].startswith("https://")
        extra = {"test": row["ttcw_idx"], "title": story["story_name"], "explanation": row["explanation"]}
        if linked:
            extra["url"] = story["content"]
        ratings.append(
            Rating(
                user=str(row["expert_idx"]),
                prompt=story["plot"],
                rating={"Yes": 1.0, "No": 0.0}[row["binary_verdict"]],
                scale=(0.0, 1.0),
                response=None if linked else story["content"],
                model=row["story_id"].partition("_")[2],
                item=row["story_id"],
                dimension=row["category"],
                kind="thumb",
                extra=extra,
            )
        )
    return ratings
