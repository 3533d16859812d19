"""Spreading answers over scorers, and their number, without Ray."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fitrouter.config import ScorerConfig
from fitrouter.types import Floats
from fitrouter_evaluators.scoring import Answer
from fitrouter_evaluators.scoring.models import Item, ScriptedModel, reward_models
from fitrouter_evaluators.scoring.models.reward_model import Description
from fitrouter_evaluators.scoring.plugin import make_scorer
from fitrouter_integrations.deploy._autoscaling import METRIC, ByLag
from fitrouter_integrations.deploy._remote import CHUNK, RemoteScoring, Task

ANSWERS = [Item(answer=Answer(prompt="Why?", text=f"Because of {i}. It is short.")) for i in range(2 * CHUNK + 3)]


class Lost(Exception):
    """A scorer is gone."""


class Reply:
    """A request under way."""

    def __init__(self, result: Callable[[], Floats]) -> None:
        self._result = result

    def result(self, timeout_s: float | None = None) -> Floats:
        return self._result()


def sender(compute: Callable[[Task], Floats], log: list[Task]) -> Callable[[Task], Reply]:
    """Sends to a function."""

    def send(task: Task) -> Reply:
        log.append(task)
        return Reply(lambda: compute(task))

    return send


def test_remote_features_are_the_local_ones() -> None:
    """Features through scorers equal those computed in the process, bit for bit, in the order of the answers."""
    here, log = make_scorer(ScorerConfig()), list[Task]()
    remote = RemoteScoring(sender(lambda task: here.outputs(task.model, task.items), log), (Lost,))
    away = make_scorer(ScorerConfig(), remote=remote)
    texts = [(item.answer.prompt, item.answer.text) for item in ANSWERS]
    assert np.array_equal(away.read(texts, ()), here.read(texts, ()), equal_nan=True)
    assert away.schema == here.schema
    assert [len(task.items) for task in log] == [CHUNK, CHUNK, 3]


def test_remote_reward_models_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to a reward model carries its name, and its outputs come back unchanged."""
    described = Description(("score",), "weights")
    monkeypatch.setitem(reward_models._DESCRIBE, "sequence_classification", lambda _config: described)
    model = {"name": "warm", "kind": "sequence_classification", "model": "./none", "dimensions": ["score"]}
    config = ScorerConfig.model_validate({"models": [model]})
    here = make_scorer(config, loaded={"warm": ScriptedModel(lambda item: float(len(item.answer.text)))})
    remote = RemoteScoring(sender(lambda task: here.outputs(task.model, task.items), []), (Lost,))
    assert remote("warm", ANSWERS).tolist() == [[len(item.answer.text)] for item in ANSWERS]


def test_a_lost_scorer_is_replaced() -> None:
    """Requests to a scorer that is lost are sent again, only these, and every answer has one row."""
    failures, log = [Lost(), Lost()], list[Task]()

    def compute(task: Task) -> Floats:
        if failures and task.items[0] is ANSWERS[CHUNK]:
            raise failures.pop()
        return np.ones((len(task.items), 1))

    remote = RemoteScoring(sender(compute, log), (Lost,), pause_s=0.0)
    assert remote("", ANSWERS).shape == (len(ANSWERS), 1)
    assert len(log) == 3 + 2


def test_a_bad_answer_is_no_loss() -> None:
    """What an encoder raises is raised at once, for the scorer to find the answer that it is about."""

    def compute(task: Task) -> Floats:
        raise ValueError("broken")

    log = list[Task]()
    with pytest.raises(ValueError, match="broken"):
        RemoteScoring(sender(compute, log), (Lost,))("", ANSWERS)
    assert len(log) == 3


def test_patience_ends() -> None:
    """Without any scorer the step fails with the loss, so that answers stay in the spool."""

    def compute(task: Task) -> Floats:
        raise Lost

    with pytest.raises(Lost):
        RemoteScoring(sender(compute, []), (Lost,), patience_s=0.0, pause_s=0.0)("", ANSWERS)


def test_requests_tell_the_lag() -> None:
    """Every request carries the lag that the services last saw."""
    log = list[Task]()
    remote = RemoteScoring(sender(lambda task: np.ones((len(task.items), 1)), log), (Lost,))
    remote.lag_s = 7.0
    remote("", ANSWERS)
    assert {task.lag_s for task in log} == {7.0}


class Seen:
    """What Ray's autoscaler shows."""

    def __init__(self, replicas: int, lags: Sequence[float] | None) -> None:
        self.target_num_replicas = replicas
        self.aggregated_metrics: Mapping[str, Mapping[Any, float]] | None = (
            None if lags is None else {METRIC: dict(enumerate(lags))}
        )


@pytest.mark.parametrize(
    ("replicas", "lags", "wanted"),
    [
        (2, [5.0, 5.0], 2),  # on target
        (2, [0.0, 7.5], 3),  # the largest lag counts
        (2, [1000.0], 4),  # at most twofold
        (4, [0.0], 2),  # at most halved
        (1, [0.0], 1),  # never none
        (3, None, 3),  # no report
        (3, [], 3),
        (3, [math.nan, math.inf], 3),
    ],
)
def test_replicas_follow_the_lag(replicas: int, lags: Sequence[float] | None, wanted: int) -> None:
    """The number of scorers is in proportion to the lag over its target, within a factor of two."""
    assert ByLag(target_s=5.0)(Seen(replicas, lags)) == (wanted, {})
