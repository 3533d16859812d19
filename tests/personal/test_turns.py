"""Tasks over several turns: a simulated user follows up, conversations are paid once, rated whole, and shown apart."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.suite import STYLES, TEXTS, install, says
from tests.personal.test_suite import known, suite

from fitrouter.errors import BudgetExhausted, InvalidRequest, ProviderUnavailable
from fitrouter.providers import Recorded
from fitrouter.router import Router
from fitrouter.types import Call, Completion, ModelCard, Prices, Usage
from fitrouter_evaluators.personal.suite import Generator, Ledger, Models, Runner, Task, decoded, estimated, results
from fitrouter_evaluators.personal.suite import conversations as talks
from fitrouter_evaluators.personal.suite.suite import POOL
from fitrouter_integrations.commands.personal.suite import suite_table

TASK = Task(id="t1", text=TEXTS[0], goal="to know", style="terse", turns=3)
UPS = talks.STYLES["terse"].follow_ups


class Talker:
    """A provider whose models answer in their style, and whose user asks for the number of the turn."""

    def __init__(self, say: Any = None) -> None:
        self.calls: list[tuple[str, list[dict[str, Any]]]] = []
        self.say = say

    async def complete(self, call: Call) -> Completion:
        self.calls.append((call.target, [dict(each) for each in call.messages]))
        found = None if self.say is None else self.say(call)
        if found is None:
            text = str(call.messages[-1]["content"])
            found = f"And number {text.count('Assistant:')}?" if call.target == "user" else says(call.target, len(text))
        return Completion(
            message={"role": "assistant", "content": found}, usage=Usage(prompt_tokens=9, completion_tokens=9)
        )

    async def aclose(self) -> None:
        """Nothing to close."""


def models(folder: Path, talker: Talker, limit: float = 1.0, price: float = 1.0) -> Models:
    prices = Prices(input=price, output=price)
    cards = {name: ModelCard(name=name, provider="s", target=name, prices=prices) for name in (*STYLES, "user")}
    return Models(cards, {"s": talker}, Ledger(folder / "calls.db"), limit_usd=limit)  # type: ignore[dict-item]


def held(asked: Models, user: str | None = None, task: Task = TASK, name: str = "plain") -> talks.Held | None:
    return asyncio.run(talks.hold(asked, name, task, user, lambda *_: None))


def test_a_model_holds_the_conversation(tmp_path: Path) -> None:
    """It gets all that was said before at each turn; follow-ups come in order; each answer has its context."""
    talker = Talker()
    found = held(models(tmp_path, talker))
    assert found is not None
    assert found.said == (TASK.text, *UPS[:2])
    assert [[each["role"] for each in said] for _, said in talker.calls] == [
        ["user", "assistant"] * turn + ["user"] for turn in range(3)
    ]
    assert talker.calls[2][1][3] == {"role": "assistant", "content": found.answers[1]}
    (first, _), _, (last, answer) = found.pairs()
    assert first == TASK.text
    assert last.startswith(f"User: {TASK.text}\n\nAssistant: ")
    assert last.endswith(f"User: {UPS[1]}")
    assert answer == found.answers[2]


def test_a_model_plays_the_user(tmp_path: Path) -> None:
    """It is told goal and style, and reads the conversation as material; what it writes is bounded."""
    talker = Talker()
    found = held(models(tmp_path, talker), "user")
    assert found is not None
    assert found.said[1:] == ("And number 1?", "And number 2?")
    (asked, *_), *_ = [said for model, said in talker.calls if model == "user"]
    assert TASK.goal in asked["content"]
    assert talks.STYLES["terse"].instruction in asked["content"]
    assert "never an instruction" in asked["content"]

    def bad(call: Call) -> str | None:
        return None if call.target != "user" else "" if "Assistant" not in str(call) else "x" * 10_000

    (tmp_path / "b").mkdir()
    found = held(models(tmp_path / "b", Talker(bad)), "user")
    assert found is not None
    assert max(map(len, found.said[1:])) == 600


def test_a_user_that_is_down_is_scripted_and_counted(tmp_path: Path) -> None:
    """A failed message of the user is a follow-up of its style; a failed answer ends a conversation, and is empty."""

    def down(call: Call) -> str | None:
        if call.target == "user" or (call.target == "list" and len(call.messages) > 1):
            raise ProviderUnavailable("it is down")
        return None

    failed: Counter[str] = Counter()
    asked = models(tmp_path, Talker(down))

    async def both() -> list[talks.Held | None]:
        return [
            await talks.hold(asked, name, TASK, "user", lambda model, _: failed.update([model])) for name in STYLES[2:]
        ]

    ended, whole = asyncio.run(both())
    assert whole is not None
    assert whole.said == (TASK.text, *UPS[:2])
    assert ended is not None
    assert ended.answers[1:] == ("",)
    assert ended.faults() == ("empty",)
    assert failed == {"user": 3, "list": 1}


def test_a_fault_at_any_turn_is_one(tmp_path: Path) -> None:
    """A secret in the middle of a conversation is a fault of it, however good its last answer is."""
    good = "It is done in three steps, as follows."
    found = talks.Held(("How?", "More.", "Thanks?"), (good, "Use AKIAABCDEFGHIJKLMNOP for it.", good))
    assert found.faults() == ("secret",)
    assert talks.Held(found.said, (good,) * 3).faults() == ()


@pytest.mark.parametrize("user", [None, "user"])
def test_conversations_are_paid_once_and_bounded_before(user: str | None, tmp_path: Path) -> None:
    """What is kept is not paid again nor counted in the estimate; the estimate is never below what is paid."""
    talker, whole = Talker(), msgspec.structs.replace(suite(), prompts=(), tasks=(TASK,))
    asked = models(tmp_path, talker)
    calls, usd = estimated(whole, asked, ["plain"], user=user)
    assert calls == (3 if user is None else 5)
    held(asked, user)
    assert len(talker.calls) == calls
    assert 0.0 < asked.ledger.usd <= usd
    assert estimated(whole, asked, ["plain"], user=user) == (0, 0.0)
    held(asked, user)
    assert len(talker.calls) == calls
    longer = msgspec.structs.replace(TASK, turns=4)
    left, dear = estimated(msgspec.structs.replace(whole, tasks=(longer,)), asked, ["plain"], user=user)
    assert left == (1 if user is None else 2)
    assert 0.0 < dear < usd


def test_the_limit_of_money_ends_a_conversation(tmp_path: Path) -> None:
    """A turn that may go over the limit is not asked; what was answered is kept."""
    talker = Talker()
    asked = models(tmp_path, talker, limit=0.0011)
    with pytest.raises(BudgetExhausted, match="--limit"):
        held(asked)
    assert 1 <= len(talker.calls) < 3


def test_a_lost_call_leaves_the_task_out(tmp_path: Path) -> None:
    """A call that was in progress at a crash is not made again, and its conversation is no result."""
    asked = models(tmp_path, talker := Talker())
    from fitrouter_evaluators.personal.suite.ledger import key_of

    asked.ledger.lost.add(key_of("plain", ([{"role": "user", "content": TASK.text}], 1000)))
    assert held(asked) is None
    assert talker.calls == []


def test_tasks_are_rows_of_the_file() -> None:
    """They are read as they were written and belong to the suite's id; bad turns, styles and equal ids are refused."""
    whole = msgspec.structs.replace(suite(), tasks=(TASK,))
    assert decoded(whole.encoded()) == whole
    assert whole.id != suite().id
    for change, said in (
        ({"turns": 9}, "turns"), ({"turns": 1}, "turns"), ({"style": "rude"}, "style"), ({}, "have the id 't1'"),
    ):  # fmt: skip
        row = msgspec.json.encode(msgspec.to_builtins(TASK) | change)
        with pytest.raises(InvalidRequest, match=said):
            decoded(whole.encoded() + row + b"\n")


def test_a_run_shows_them_apart(tmp_path: Path) -> None:
    """Generated tasks are of all styles and of other prompts; each model holds them; a fault counts in its base."""
    config, talker = install(tmp_path), Talker()

    def leaks(call: Call) -> str | None:
        return "sk-" + "a" * 30 if call.target == "list" and len(call.messages) == 3 else None

    async def run() -> None:
        async with Router.from_config(config) as router:
            who = await known(router, "short and warm")
            made = await Generator(router).suite(who)
            assert {each.style for each in made.tasks} == set(talks.STYLES)
            texts = {text for each in POOL.prompts.values() for text in each}
            assert {each.text for each in made.tasks} <= texts - {each.text for each in made.prompts}
            assert not (await Generator(router).suite(who, turned=0)).tasks
            made = msgspec.structs.replace(made, prompts=tuple(p for p in made.prompts if p.source == "anchor"))
            talker.say = leaks
            asked = models(tmp_path, talker, limit=9.0)
            found = await Runner(router, asked).run(made, who, STYLES, user="user")
            by = {each.model: each for each in results.decoded(results.encoded(found))}
            turns = {name: each.turns for name, each in by.items()}
            assert all(each is not None and (each.tasks, each.answers) == (4, 12) for each in turns.values())
            assert sum(each.wins for each in turns.values()) == pytest.approx(len(STYLES) / 2)
            assert all(each.low < each.high for each in turns.values())
            assert max(turns, key=lambda name: turns[name].wins) == "warm"
            assert turns["list"].sound == 0.0
            assert turns["list"].faults == {"secret": 4}
            assert by["list"].base == pytest.approx(1 - 4 / (len(made.prompts) + 4))
            assert by["list"].rank == len(STYLES)
            assert by["warm"].answers == len(made.prompts)
            assert {each.user for each in turns.values()} == {"user"}
            lines = suite_table(found)
            assert any("over several turns" in line for line in lines)
            assert max(map(len, lines)) <= 80
            recorded = Models(asked.cards, {}, asked.ledger, recorded=Recorded(tmp_path / "answers.jsonl"))
            assert {each.turns for each in await Runner(router, recorded).run(made, who, STYLES)} == {None}

    asyncio.run(run())
