"""Cascades: an answer that fails its model's check counts as not given, and the next model has an exact probability."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.gateway import Echo, cards, make_router

from fitrouter.config import ModelAddition, parse_config
from fitrouter.draw import renormalise
from fitrouter.errors import ConfigError
from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.providers import checks
from fitrouter.providers.checks import SECONDS, Checks
from fitrouter.router import Router
from fitrouter.routing.decider import Rules
from fitrouter.serving.attempts import Assembler
from fitrouter.types import FULL_SHARE, Check, Completion, Execution, ModelCard, Request, Usage

ALPHA = Rules(share=0.0, default_arm="alpha", registry="r1")
JSON = {"role": "assistant", "content": '{"a": 1}'}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
REFUSES = "import json, sys; sys.exit(int('bad' in json.load(sys.stdin)['message']['content']))"


def checked(*command: str, **check: Any) -> list[ModelCard]:
    """Three models; the answers of alpha are checked."""
    made = Check(command=command, **check)
    return [msgspec.structs.replace(card, check=made if card.name == "alpha" else None) for card in cards()]


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


ELSEWHERE = {"$ref": "http://127.0.0.1:9/elsewhere"}


@pytest.mark.parametrize(
    "models",
    [
        checked("/nowhere/check"),
        checked(sys.executable, "-c", "raise SystemExit(3)"),
        checked(schema=ELSEWHERE),
        checked(of_request=True),
        checked(judge="gone"),
    ],
    ids=["missing", "status", "reference", "request", "judge"],
)
async def test_a_broken_check_costs_no_answer(tmp_path: Path, models: list[ModelCard]) -> None:
    """A check that cannot be run lets the answer pass, is logged, and counted."""
    seen, wanted = list[Notice](), {"response_format": {"type": "json_schema", "json_schema": {"schema": ELSEWHERE}}}
    async with make_router(tmp_path, {"echo": Echo(JSON)}, models=models, rules=ALPHA, hook=seen.append) as router:
        assert (await router.complete(ask("bad", params=wanted))).served_by == "alpha"
    assert [each.part for each in seen if isinstance(each, Trouble)] == ["check"]


FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
SLOW = {"type": "object", "properties": {"a": {"pattern": "^(x+x+)+y$"}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("check", "content", "params", "passes"),
    [
        ({"schema": SCHEMA}, '{"a": 1}', {}, True),
        ({"schema": SCHEMA}, '{"a": "one"}', {}, False),
        ({"schema": SCHEMA}, "one", {}, False),
        ({"schema": SCHEMA}, None, {}, True),  # it calls a tool
        ({"of_request": True}, '{"a": 1}', FORM, True),
        ({"of_request": True}, '{"a": "one"}', FORM, False),
        ({"of_request": True}, "one", {"response_format": {"type": "text"}}, True),
        ({"judge": "strict", "least": 0.5}, "0.5", {}, True),
        ({"judge": "strict", "least": 0.5}, "0.4", {}, False),
        ({"judge": "strict"}, "nan", {}, True),
    ],
)
async def test_schemas_and_judges_check(
    tmp_path: Path, check: dict[str, Any], content: str | None, params: dict[str, Any], passes: bool, stream: bool
) -> None:
    """An answer of another form, or that a judge is against, is replaced; of a stream too, before any of it is sent."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": content} | ({} if content else {"tool_calls": [call]})
    async with make_router(tmp_path, {"echo": Echo(said)}, models=checked(**check), rules=ALPHA) as router:
        router._caller.checks = Checks(lambda name, who, asked, answer: float(answer["content"]), router.hooks)
        request = ask("go", params=params, stream=stream)
        answer: Any = await (router.stream if stream else router.complete)(request)
        assert (answer.served_by == "alpha") is passes
        if stream:
            whole = Assembler()
            async for chunk in answer:
                whole.add(chunk)
            message, usage = whole.message(), whole.used()
            assert whole.finish_reason == ("stop" if content else "tool_calls")
        else:
            message, usage = answer.completion.message, answer.completion.usage
        assert (message["content"], usage.completion_tokens) == (content, 11)
        assert message.get("tool_calls") == said.get("tool_calls")
        await router.settled()
        (end,) = ends(router)
        assert [each.error for each in end.attempts] == ([None] if passes else ["CheckFailed", None])
        assert end.status == "ok"


@pytest.mark.parametrize("check", [{"of_request": True}, {"schema": SLOW}], ids=["request", "card"])
async def test_a_slow_schema_takes_no_time_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: dict[str, Any]
) -> None:
    """A schema of a request, or a pattern, that takes for ever to be read is left, and the answer passes."""
    monkeypatch.setattr(checks, "SECONDS", 1.0)
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"schema": SLOW}}}
    said = {"role": "assistant", "content": '{"a": "' + "x" * 32 + '"}'}
    async with make_router(tmp_path, {"echo": Echo(said)}, models=checked(**check), rules=ALPHA) as router:
        begun = time.monotonic()
        assert (await router.complete(ask("go", params=wanted))).served_by == "alpha"
        assert time.monotonic() - begun < 30.0


@pytest.mark.parametrize(
    ("check", "error"),
    [
        ({}, "a check is one of 'command', 'schema' and 'judge'"),
        ({"command": ["x"], "judge": "j"}, "a check is one of"),
        ({"schema": {"type": "text"}}, "it is no JSON schema: 'text' is not valid"),
        ({"schema": "mine"}, "request"),
        ({"command": ["x"], "least": 0.1}, "least: only a 'judge'"),
        ({"judge": "j"}, r"the check of 'm' names the judge 'j'; those of 'scorer.models' are \[\]"),
        ({"program": "x"}, "program"),
    ],
)
def test_checks_are_read(check: dict[str, Any], error: str) -> None:
    """What is no check is refused, with what is wrong; a list is a program."""
    model = {"name": "m", "provider": "s", "check": check}
    given = {"providers": {"s": {"kind": "simulated"}}, "models": [model]}
    with pytest.raises(ConfigError, match=error):
        parse_config(given)
    model["check"] = {"schema": SCHEMA}
    made = parse_config(given)
    assert parse_config(made.as_json()).cards() == made.cards(), (
        "other processes get it so, with prices that are not known"
    )
    for form in (["sh", "-c", "x"], {"command": ["sh", "-c", "x"]}):
        model["check"] = form
        assert parse_config(given).cards()[0].check == Check(command=("sh", "-c", "x"))


async def test_judges_leave_threads_to_others() -> None:
    """However many answers a slow judge is given at once, what reads the stores is not kept waiting."""
    held = threading.Event()
    by_judge = Checks(lambda *_: float(held.wait(30.0)), Hooks())
    answer = Completion(message=JSON, usage=Usage())
    asked = [by_judge.run(Check(judge="slow"), ask("go"), answer, 60.0) for _ in range(40)]
    judged = [asyncio.create_task(each) for each in asked]
    await asyncio.sleep(0.1)
    try:
        async with asyncio.timeout(5.0):
            await asyncio.to_thread(int)
    finally:
        held.set()
        await asyncio.gather(*judged)


async def test_few_programs_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many answers wait for a check, `AT_ONCE` programs run: a stranger's schema is one."""
    running, most = 0, 0

    async def fails(_command: Any, _given: Any) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return False

    monkeypatch.setattr(checks, "_fails", fails)
    answer, checked = Completion(message={"content": "yes"}), Checks(None, Hooks())
    request = Request(messages=({"role": "user", "content": "?"},))
    check = Check(command=("true",))
    await asyncio.gather(*(checked.run(check, request, answer, SECONDS) for _ in range(40)))
    assert most == checks.AT_ONCE


async def test_a_check_ends_with_the_time_of_its_request(tmp_path: Path) -> None:
    """The answer passes when the request's own deadline comes while it is checked; what its program began ends, too."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sleeps = checked("sh", "-c", f"sleep 20 3>{pipe}; exit 1")
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    rules = Rules(share=0.0, default_arm="alpha", registry="r1")
    async with make_router(tmp_path, {"echo": Echo()}, models=sleeps, rules=rules) as router:
        begun = time.monotonic()
        answer = await router.complete(ask("good", deadline_s=1.0))
        assert answer.served_by == "alpha"
        assert time.monotonic() - begun < SECONDS / 2.0
    os.set_blocking(held, True)
    assert os.read(held, 1) == b"", "nobody holds it open"
    os.close(held)
    assert time.monotonic() - begun < 15.0


def test_programs_are_named_in_the_file_only() -> None:
    """A model that is added at run time can name no program."""
    with pytest.raises(ValueError, match="in the configuration file only"):
        ModelAddition.model_validate({"model": {"name": "m", "provider": "p", "check": ["sh"]}})
