"""Recorded models of four styles, and scripted judges."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kits.fake_openai import FakeOpenAI

from fitrouter.config import Config, parse_config
from fitrouter.types import Call, Completion, ModelCard, Usage
from fitrouter_evaluators.personal.suite import ANCHORS, Ledger, Models, PairJudge, Suite
from fitrouter_evaluators.personal.suite.suite import MATERIAL, POOL

STYLES = ("sceptic", "warm", "list", "plain")
TEXTS = [*ANCHORS, *(text for part in (MATERIAL.probes, POOL.prompts) for texts in part.values() for text in texts)]
_AB = re.compile(r"A:\n(=\w+=)\n(.*)\n\1\nB:\n\1\n(.*)\n\1\n\n(.*)", re.DOTALL)
Verdict = Callable[[str, str, str], str]
"""Answers A and B and the question → A, B or same."""


def says(model: str, number: int) -> str:
    """What a model answers to a prompt."""
    match model:
        case "sceptic":
            return (
                f"According to a 2019 review of {20 + number} studies, the answer may depend on the case. A survey of "
                f"2021 ({60 + number}%) suggests that it might hold, but the evidence is limited [2]. Perhaps more "
                "research is needed before one can be sure."
            )
        case "warm":
            return f"You can do this! Take your time, and feel free to ask about part {number}. Enjoy it!"
        case "list":
            return "# Points\n\n" + "\n".join(f"- point {n} of matter {number}" for n in range(5 + number % 3))
    turns = ("first it is weighed", "then it is measured", "after that it is cut", "next it is joined", "so it is done")
    return " ".join(f"In step {n} of matter {number} {turn} by those in charge." for n, turn in enumerate(turns))


def install(folder: Path, **more: Any) -> Config:
    """A configuration of the recorded models."""
    rows = [
        {"prompt": text, "model": model, "response": says(model, number)}
        for number, text in enumerate(TEXTS)
        for model in STYLES
    ]
    file = folder / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "data": str(folder / "data"),
        "providers": {"r": {"kind": "recorded", "path": str(file)}},
        "models": [{"name": model, "provider": "r", "prices": {"input": 0, "output": 0}} for model in STYLES],
        "encoder": "hashing",
        "scorer": {"encoder": "hashing", "prior": "none"},
    }
    return parse_config(settings | more)


def decided(verdict: Verdict, content: str) -> str:
    """The reply of a judge to a question of `PairJudge`."""
    found = _AB.search(content)
    assert found is not None, content
    return json.dumps({"better": verdict(found[2], found[3], found[4])})


class Scripted:
    """A provider that judges by a rule, and counts."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict, self.calls = verdict, 0

    async def complete(self, call: Call) -> Completion:
        self.calls += 1
        reply = decided(self.verdict, str(call.messages[-1]["content"]))
        return Completion(message={"role": "assistant", "content": reply}, usage=Usage(prompt_tokens=9))

    async def aclose(self) -> None:
        """Nothing to close."""


def judge(folder: Path, suite: Suite, verdict: Verdict) -> PairJudge:
    """A judge over a ledger in a folder; the ledger closes with the process."""
    cards = {"judge": ModelCard(name="judge", provider="s")}
    models = Models(cards, {"s": Scripted(verdict)}, Ledger(folder / "judge.db"), limit_usd=1.0)  # type: ignore[dict-item]
    return PairJudge(models, "judge", suite)


class Server(FakeOpenAI):
    """A server whose model `judge` prefers what is warmer, and plays a user; its other models answer in their style."""

    def _message(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        content = str(body["messages"][-1]["content"])
        if content.startswith("You play a person"):
            text = f"And what about part {content.count('Assistant:')}?"
        elif body["model"] == "judge":
            text = decided(warmer, content)
        else:
            text = says(str(body["model"]), TEXTS.index(content) if content in TEXTS else 0)
        return {"role": "assistant", "content": text}, "stop"


def warmer(a: str, b: str, _: str) -> str:
    """Prefer the answer that was written as the warmer one of a pair, or has more exclamation marks."""
    first, second = warmth(a), warmth(b)
    return "same" if first == second else "A" if first > second else "B"


def warmth(text: str) -> int:
    """1 or 0 for an answer of the pool's pairs on warmth, and what is appended to it; else its exclamation marks."""
    of = (pair for pair in POOL.pairs if pair.dimension == "warmth" and (pair.more in text or pair.less in text))
    pair = next(of, None)
    return text.count("!") if pair is None else int(pair.more in text)
