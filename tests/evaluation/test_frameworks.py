"""The scorer of Inspect and the metric of DeepEval, in the real frameworks, beside `POST /v1/score`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kits.frameworks import ran
from tests.kits.gateway import client, config, serving
from tests.kits.quiz import install, text

from fitrouter.config import load_config
from fitrouter.router import Router

ANSWERS = [text("brief", 1), text("rambling", 2), ""]
INSPECT = """
import json
from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput
from inspect_ai.solver import solver
from fitrouter_integrations.evaluation.inspect_ai import personal_fit

url, answers = URL, ANSWERS


@solver
def recorded():  # a mock model would count tokens, with a table from the internet
    async def solve(state, generate):
        state.output = ModelOutput.from_content("recorded", answers[int(state.sample_id) - 1])
        return state

    return solve


samples = [Sample(input=f"What about {i}?", id=i + 1) for i in range(len(answers))]
task = Task(dataset=samples, solver=recorded(), scorer=personal_fit(url, user="ann"))
[log] = evaluate(task, model="mockllm/model", display="none", log_dir="logs")
assert log.status == "success", log.error
shown = [sample.scores["personal_fit"] for sample in sorted(log.samples, key=lambda sample: sample.id)]
rows = [{"mean": score.value, "words": score.explanation, **score.metadata} for score in shown]
print(json.dumps({"rows": rows, "mean": log.results.scores[0].metrics["mean"].value}))
"""
DEEPEVAL = """
import json
from deepeval import assert_test
from deepeval.test_case import LLMTestCase
from fitrouter_integrations.evaluation.deepeval import PersonalFit

url, answers, rows, failed = URL, ANSWERS, [], 0
for i, answer in enumerate(answers):
    metric = PersonalFit(url, user="ann", threshold=THRESHOLD)
    case = LLMTestCase(input=f"What about {i}?", actual_output=answer)
    rows.append({"mean": metric.measure(case), "words": metric.reason, **metric.score_breakdown})
    try:
        assert_test(case, [metric], run_async=bool(i % 2))
    except AssertionError:
        failed += 1
print("\\n" + json.dumps({"rows": rows, "failed": failed}))
"""


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("home")
    settings = load_config(install(folder)).model_copy(update={"server": config().server})
    with serving(Router.from_config(settings), settings) as url, client(url) as opened:
        declared = opened.put("/v1/profile", json={"user": "ann", "values": {"length": -1.0}})
        assert declared.status_code == 200, declared.text
        yield opened


def expected(http: httpx.Client) -> list[dict[str, Any]]:
    """What `/v1/score` says of the answers."""
    items = [{"prompt": f"What about {i}?", "answers": [answer]} for i, answer in enumerate(ANSWERS)]
    found = http.post("/v1/score", json={"user": "ann", "items": items}).json()["items"]
    return [{**item["answers"][0]["dimensions"]["overall"], "words": item["answers"][0]["words"]} for item in found]


def run(module: str, code: str, http: httpx.Client, folder: Path, **values: object) -> dict[str, Any]:
    """The last line that a program prints, with its names in capitals filled in."""
    for name, value in {"URL": str(http.base_url), "ANSWERS": ANSWERS, **values}.items():
        code = code.replace(name, repr(value))
    found: dict[str, Any] = json.loads(ran(module, code, folder).strip().splitlines()[-1])
    return found


def test_an_inspect_task_gives_the_numbers_of_the_gateway(http: httpx.Client, tmp_path: Path) -> None:
    """Value, interval, population and words of every sample, and the mean of the task."""
    found, wanted = run("inspect_ai", INSPECT, http, tmp_path), expected(http)
    assert found["rows"] == wanted
    assert found["mean"] == pytest.approx(sum(row["mean"] for row in wanted) / len(wanted))


def test_a_deepeval_test_gives_the_numbers_of_the_gateway(http: httpx.Client, tmp_path: Path) -> None:
    """Score, reason and breakdown of every case; a case fails below the threshold."""
    wanted = expected(http)
    threshold = sorted(row["mean"] for row in wanted)[1]
    found = run("deepeval", DEEPEVAL, http, tmp_path, THRESHOLD=threshold)
    assert found["rows"] == [
        {name: row[name] for name in ("mean", "words", "low", "high", "population")} for row in wanted
    ]
    assert found["failed"] == 1
