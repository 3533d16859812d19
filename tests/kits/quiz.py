"""An installation with recorded answers in three styles, and somebody who answers a quiz about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODELS = ("brief", "listing", "rambling")
CONFIG = """\
data: d
providers:
  r: {kind: recorded, path: answers.jsonl}
models:
  - {name: brief, provider: r}
  - {name: listing, provider: r}
  - {name: long, provider: r, target: rambling, prices: {output: 10}}
encoder: hashing
scorer: {encoder: hashing, prior: none}
server: {port: 0}
"""


def text(model: str, topic: int) -> str:
    """What a model says about a topic."""
    if model == "brief":
        return f"Topic {topic}: yes."
    if model == "listing":
        return f"Topic {topic}:\n\n" + "\n".join(f"- point {n} of topic {topic}" for n in range(4 + topic % 3))
    return " ".join(f"There is rather a lot more that one could say here on topic {topic}." for _ in range(12 + topic))


def install(folder: Path, topics: int = 20) -> Path:
    """Write recorded answers and a configuration; returns the configuration's file."""
    rows = [
        {"prompt": f"What about {t}?", "model": model, "response": text(model, t)}
        for t in range(topics)
        for model in MODELS
    ]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "fitrouter.yaml"
    file.write_text(CONFIG)
    return file


def shorter(question: Mapping[str, Any]) -> str:
    """The choice of somebody who wants short answers."""
    return "first" if len(question["first"]) < len(question["second"]) else "second"
