"""Cascades: an answer that fails its model's check counts as not given, and the next model has an exact probability."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.gateway import Echo, cards, make_router

from fitrouter.config import ModelAddition
from fitrouter.draw import renormalise
from fitrouter.providers.checks import SECONDS
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.types import FULL_SHARE, Execution, ModelCard, Request

REFUSES = "import json, sys; sys.exit(int('bad' in json.load(sys.stdin)['message']['content']))"


def checked(*command: str) -> list[ModelCard]:
    """Three models; the answers of alpha are checked."""
    return [msgspec.structs.replace(card, check=command if card.name == "alpha" else ()) for card in cards()]


def ask(text: str, **more: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), **more)


def ends(router: Router) -> list[Execution]:
    return [row.event for row in router._journal.tail(0, 100_000) if isinstance(row.event, Execution)]


@pytest.mark.parametrize("share", [0.0, 0.3])
async def test_what_is_served_after_a_check_has_its_probability(tmp_path: Path, share: float) -> None:
    """The next model is drawn from the logged pmf without the one that failed; with a share of 0 from the policy's."""
    rules = Rules(share=share, default_arm="alpha", floor=0.5, registry="r1")
    models = checked(sys.executable, "-c", REFUSES)
    async with make_router(tmp_path, {"echo": Echo()}, models=models, rules=rules) as router:
        answers = [await router.complete(ask(f"bad {i}")) for i in range(8)]
        good = await router.complete(ask("good", model="alpha"))
        named = await router.complete(ask("bad", model="alpha"))
        await router.settled()
        done = {end.decision_id: end for end in ends(router)}
        beta = router._learner.fit.arms.beta[router._learner.fit.arms.row("alpha")]
    assert good.served_by == named.served_by == "alpha", "the last model that is left is not checked"
    failed = [each for each in answers if each.decision.chosen == "alpha"]
    assert failed
    assert share or len(failed) == 8
    for answer in failed:
        first, second = done[answer.decision.id].attempts
        assert (first.model, first.error, first.cost_usd is not None) == ("alpha", "CheckFailed", True)
        assert (second.model, second.probability) == renormalise(answer.decision, ["alpha"], 1)
        pmf = np.array(answer.decision.probs if share else answer.decision.candidates[FULL_SHARE])
        rest = pmf[1:] / pmf[1:].sum()
        assert second.probability == pytest.approx(rest[answer.decision.eligible.index(second.model) - 1])
        assert done[answer.decision.id].status == "ok"
    assert beta[1] == 0.0, "a failed check is no failure of the model"


async def test_a_broken_check_costs_no_answer(tmp_path: Path) -> None:
    """A program that is missing, or ends with another status, lets the answer pass."""
    rules = Rules(share=0.0, default_arm="alpha", registry="r1")
    for command in (("/nowhere/check",), (sys.executable, "-c", "raise SystemExit(3)")):
        models = checked(*command)
        async with make_router(tmp_path, {"echo": Echo()}, models=models, rules=rules) as router:
            assert (await router.complete(ask("bad"))).served_by == "alpha"


async def test_a_check_ends_with_the_time_of_its_request(tmp_path: Path) -> None:
    """The answer passes when the request's own deadline comes while it is checked."""
    sleeps = checked(sys.executable, "-c", "import time; time.sleep(20)")
    rules = Rules(share=0.0, default_arm="alpha", registry="r1")
    async with make_router(tmp_path, {"echo": Echo()}, models=sleeps, rules=rules) as router:
        begun = time.monotonic()
        answer = await router.complete(ask("good", deadline_s=1.0))
        assert answer.served_by == "alpha"
        assert time.monotonic() - begun < SECONDS / 2.0


def test_programs_are_named_in_the_file_only() -> None:
    """A model that is added at run time can name no program."""
    with pytest.raises(ValueError, match="in the configuration file only"):
        ModelAddition.model_validate({"model": {"name": "m", "provider": "p", "check": ["sh"]}})
