"""Laws of hard limits: whatever processes reserve, spend and lose, and however it interleaves, no limit is exceeded."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs
from tests.kits import virtual_time

from fitrouter.errors import StoreError
from fitrouter.serving.ledger import IDLE_S, KEPT_S, POLL_S, Account, Ledger
from fitrouter.stores.journal import Claim, Grant, MemoryJournal, SqliteJournal
from fitrouter.stores.journal._claims import granted

LIMIT = 1.0


def account(name: str = "a", limit: float = LIMIT, ends: float = math.inf, known: float = 0.0) -> Account:
    return Account(name, f"the limit of {name}", limit, ends, known)


class Failing(MemoryJournal):
    """A journal that other processes share, and that this one may lose, before or after a claim is written."""

    def __init__(self, shared: MemoryJournal) -> None:
        super().__init__()
        self.shared, self.fails = shared, ""

    def claim(self, claim: Claim) -> Grant:
        if self.fails == "before":
            raise StoreError("the store is lost")
        found = self.shared.claim(claim)
        if self.fails == "after":
            raise StoreError("the answer of the store is lost")
        return found


class Processes(RuleBasedStateMachine):
    """Three processes with two limits of one USD; a fourth and a fifth take over where one was killed."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = virtual_time.VirtualTimeLoop(1, threads=False)
        self.patched = mock.patch("time.monotonic", self.loop.time)
        self.patched.start()
        self.shared = MemoryJournal()
        self.running = [self.process() for _ in range(3)]
        self.open: dict[str, tuple[Ledger, float]] = {}
        """Request → its process, and what its call may cost."""
        self.billed, self.number = 0.0, 0

    def process(self) -> Ledger:
        return Ledger(Failing(self.shared), self.loop.time)

    def teardown(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(0.0)
        self.loop.close()
        self.patched.stop()

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(
        at=st.integers(0, 2),
        sizes=st.lists(st.tuples(st.floats(0.001, 0.7), st.floats(0.0, 1.0)), min_size=1, max_size=8),
        both=st.booleans(),
        patience=st.sampled_from([0.0, 1.0]),
    )
    def reserve(self, at: int, sizes: list[tuple[float, float]], both: bool, patience: float) -> None:
        """Some requests at once, each for at most `most`, or as little as a share of it."""

        async def one(name: str, most: float, least: float) -> None:
            accounts = [account(), account("b")] if both else [account()]
            until = time.monotonic() + patience
            found = await ledger.reserve(name, accounts, most=most, least=least, until=until)
            if found.refusal:
                assert "are left" in found.refusal or "store is lost" in found.refusal
            else:
                assert least * (1 - 1e-9) <= found.usd <= most
                self.open[name] = ledger, found.usd

        async def all_of_them() -> None:
            names = [f"r{self.number + n}" for n in range(len(sizes))]
            await asyncio.gather(
                *(one(name, most, share * most) for name, (most, share) in zip(names, sizes, strict=True))
            )

        ledger = self.running[at]
        self.loop.run_until_complete(all_of_them())
        self.number += len(sizes)

    @precondition(lambda self: self.open)
    @rule(n=st.integers(0, 100), share=st.sampled_from([0.0, 0.3, 1.0]))
    def settle(self, n: int, share: float) -> None:
        """A request ends; what it cost is billed."""
        name = sorted(self.open)[n % len(self.open)]
        ledger, usd = self.open.pop(name)
        self.loop.run_until_complete(self._settle(ledger, name, share * usd))
        self.billed += share * usd

    @staticmethod
    async def _settle(ledger: Ledger, name: str, usd: float) -> None:
        ledger.settle(name, [], usd)

    @rule(at=st.integers(0, 2))
    def kill(self, at: int) -> None:
        """A process is killed; its calls are billed in full all the same, and another one starts."""
        for name in [name for name, (ledger, _) in self.open.items() if ledger is self.running[at]]:
            self.billed += self.open.pop(name)[1]
        self.running[at] = self.process()

    @rule(at=st.integers(0, 2), fails=st.sampled_from(["", "before", "after"]))
    def lose(self, at: int, fails: str) -> None:
        """A process loses the store, or has it again."""
        self.running[at]._journal.fails = fails  # type: ignore[attr-defined]

    @rule(seconds=st.sampled_from([0.1, 0.6, IDLE_S + 0.1, 11.0, 61.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, and every process gives back what it does not use."""

        async def tick() -> None:
            await asyncio.sleep(seconds)
            for ledger in self.running:
                ledger.tick()

        self.loop.run_until_complete(tick())

    @invariant()
    def nothing_exceeds_its_limit(self) -> None:
        """Neither what was billed and still may be, nor the claims of all processes, dead ones included."""
        assert self.billed + sum(usd for _, usd in self.open.values()) <= LIMIT + 1e-6
        for rows in self.shared._claims.values():
            assert sum(usd for _, usd, *_ in rows.values()) <= LIMIT + 1e-6


Processes.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestProcesses = Processes.TestCase


async def in_turn(ledgers: list[Ledger], most: float, cost: float, number: int = 100, **more: Any) -> list[float]:
    """What those of so many requests at once cost that got their money, spread over processes."""
    paid: list[float] = []

    async def one(n: int) -> None:
        ledger = ledgers[n % len(ledgers)]
        named = {"most": most, "least": most, "until": time.monotonic() + 60.0} | more
        if not (await ledger.reserve(f"r{n}", [account()], **named)).refusal:
            await asyncio.sleep(0.01)
            ledger.settle(f"r{n}", [], cost)
            paid.append(cost)

    async def ticking() -> None:
        while True:
            await asyncio.sleep(0.1)
            for ledger in ledgers:
                ledger.tick()

    ticker = asyncio.create_task(ticking())
    await asyncio.gather(*(one(n) for n in range(number)))
    ticker.cancel()
    for ledger in ledgers:
        await ledger.aclose()
    return paid


@pytest.mark.parametrize("processes", [1, 4])
def test_what_is_returned_serves_those_who_wait(processes: int) -> None:
    """A hundred requests of a cent, each of which may cost forty, are all answered from a dollar and forty cents."""

    async def scenario() -> None:
        journal = MemoryJournal()
        ledgers = [Ledger(journal, time.time) for _ in range(processes)]
        paid = await in_turn(ledgers, 0.4 / 1.4, 0.0071)
        assert len(paid) == 100
        assert sum(usd for _, usd, *_ in journal._claims["a"].values()) == pytest.approx(0.71)

    virtual_time.run(scenario())


def test_exactly_the_limit_can_be_spent() -> None:
    """A hundred times a hundredth, without a rounding that refuses the last, and no more."""

    async def scenario() -> None:
        journal = MemoryJournal()
        assert len(await in_turn([Ledger(journal, time.time) for _ in range(3)], 0.01, 0.01, 130, until=0.0)) <= 100
        assert len(await in_turn([Ledger(MemoryJournal(), time.time)], 0.01, 0.01, 130)) == 100

    virtual_time.run(scenario())


@pytest.mark.parametrize("processes", [1, 4])
async def test_processes_share_a_limit_by_their_file(tmp_path: Path, processes: int) -> None:
    """A hundred requests at once that cost what they may cost at most: as many as the limit pays, over four files."""
    journals = [SqliteJournal(tmp_path / "journal.db") for _ in range(processes)]
    paid = await in_turn([Ledger(journal, time.time) for journal in journals], 0.03, 0.03)
    assert len(paid) == int(LIMIT / 0.03)
    for journal in journals:
        journal.close()


def test_a_lost_store_leaves_what_is_claimed() -> None:
    """A process spends that, then refuses, and says why; once the store is back it goes on."""

    async def scenario() -> None:
        shared = Failing(MemoryJournal())
        ledger = Ledger(shared, time.time)
        assert (await ledger.reserve("first", [account()], most=0.1, least=0.1)).usd == 0.1
        ledger.settle("first", [], 0.0)
        shared.fails = "before"
        assert (await ledger.reserve("second", [account()], most=0.1, least=0.1)).usd == 0.1
        refused = await ledger.reserve("third", [account()], most=0.1, least=0.1, until=time.monotonic() + 99.0)
        assert "its store is lost: StoreError: the store is lost" in refused.refusal
        shared.fails = ""
        await asyncio.sleep(POLL_S)
        assert (await ledger.reserve("third", [account()], most=0.1, least=0.1)).usd == 0.1

    virtual_time.run(scenario())


def test_a_killed_process_keeps_what_it_had() -> None:
    """Until the period ends; others wait for it only while it may be alive."""

    async def scenario() -> None:
        journal = MemoryJournal()
        killed, other = (Ledger(journal, time.monotonic) for _ in range(2))
        assert (await killed.reserve("a", [account()], most=0.9, least=0.9)).usd == 0.9
        began = time.monotonic()
        refused = await other.reserve("b", [account()], most=0.2, least=0.2, until=began + 300.0)
        assert refused.refusal
        assert 55.0 < time.monotonic() - began < 70.0
        assert (await other.reserve("b", [account("next")], most=0.2, least=0.2)).usd == 0.2

    virtual_time.run(scenario())


def test_a_changed_limit_counts_at_once() -> None:
    """A higher one gives more, and a lower one takes back what is not spent."""

    async def scenario() -> None:
        ledger = Ledger(MemoryJournal(), time.time)
        assert (await ledger.reserve("a", [account()], most=0.9, least=0.9)).usd == 0.9
        assert (await ledger.reserve("b", [account()], most=0.5, least=0.5)).refusal
        assert (await ledger.reserve("b", [account(limit=2.0)], most=0.5, least=0.5)).usd == 0.5
        ledger.settle("b", [], 0.0)
        assert (await ledger.reserve("c", [account()], most=0.2, least=0.2)).refusal
        ledger.settle("a", [], 0.1)
        assert (await ledger.reserve("c", [account()], most=0.2, least=0.2)).usd == 0.2
        ledger.settle("c", [], 0.8)
        assert ledger.uncovered(account(), 0.5)
        assert not ledger.uncovered(account(limit=2.0), 0.5)
        assert (await ledger.reserve("d", [account(limit=2.0)], most=0.5, least=0.5)).usd == 0.5

    virtual_time.run(scenario())


def test_what_was_spent_before_anybody_claimed_counts() -> None:
    """A limit that is set in the midst of a period knows the journal's costs, once."""

    async def scenario() -> None:
        journal = MemoryJournal()
        one, two = Ledger(journal, time.time), Ledger(journal, time.time)
        assert (await one.reserve("a", [account(known=0.7)], most=0.2, least=0.2)).usd == 0.2
        assert (await two.reserve("b", [account(known=0.7)], most=0.2, least=0.2)).refusal
        assert (await two.reserve("b", [account(known=0.7)], most=0.08, least=0.08)).usd == 0.08

    virtual_time.run(scenario())


def test_what_the_journal_knows_as_spent_is_not_told_as_reserved() -> None:
    """Though the process that spent it has not written so: what is left and what is reserved are within the rest."""

    async def scenario() -> None:
        journal = MemoryJournal()
        one, two = Ledger(journal, time.time), Ledger(journal, time.time)
        assert (await one.reserve("a", [account()], most=0.6, least=0.6)).usd == 0.6
        said = (await two.reserve("b", [account()], most=0.5, least=0.5)).refusal
        assert "0.3844 USD are left, besides 0.6156 USD" in said  # with 1/64 in advance
        said = two.uncovered(account(known=0.6), 0.5)
        assert "0.3844 USD are left, besides 0.01562 USD" in said

    virtual_time.run(scenario())


def test_a_claim_is_never_lowered_but_by_a_trim() -> None:
    """One whose answer is lost leaves at least what its process believes to have."""
    rows = [("h", 0.5, 0.1, 0.0), ("other", 0.4, 0.0, 0.0)]
    claim = Claim(account="a", holder="h", ts=0.0, ends=9.0, limit=1.0, spent=0.1, held=0.1, want=0.9, least=0.9)
    assert granted(claim, rows)[0] == Grant(0.5, 0.6, 0.4)
    assert granted(structs.replace(claim, trim=True), rows)[0].usd == 0.2


def test_what_may_have_been_given_back_is_not_spent() -> None:
    """Also where the answer of the store, which has it back, is lost."""

    async def scenario() -> None:
        journal = Failing(MemoryJournal())
        one, two = Ledger(journal, time.time), Ledger(journal.shared, time.time)
        assert (await one.reserve("a", [account()], most=0.5, least=0.5)).usd == 0.5
        one.settle("a", [], 0.0)
        await asyncio.sleep(2.0 * IDLE_S)
        journal.fails = "after"
        one.tick()
        await asyncio.sleep(0.1)
        assert (await two.reserve("b", [account()], most=1.0, least=1.0)).usd == 1.0
        assert (await one.reserve("c", [account()], most=0.1, least=0.1)).refusal

    virtual_time.run(scenario())


def test_where_little_is_left_money_returns_at_once() -> None:
    """To other processes, too, without waiting until it was idle."""

    async def scenario() -> None:
        journal = MemoryJournal()
        one, two = Ledger(journal, time.time), Ledger(journal, time.time)
        assert (await one.reserve("a", [account()], most=1.0, least=1.0)).usd == 1.0
        waiting = asyncio.create_task(two.reserve("b", [account()], most=0.9, least=0.9, until=time.monotonic() + 10.0))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        one.settle("a", [], 0.05)
        assert (await waiting).usd == 0.9

    virtual_time.run(scenario())


def test_answers_without_a_reservation_are_booked() -> None:
    """What others report counts, even above the limit; money of the next period is another account's."""

    async def scenario() -> None:
        journal = MemoryJournal()
        ledger, other = Ledger(journal, lambda: 5.0), Ledger(journal, lambda: 5.0)
        ledger.settle("seen elsewhere", [account(ends=10.0)], 1.5)
        ledger.tick()
        await asyncio.sleep(0.1)
        refused = await other.reserve("a", [account(ends=10.0)], most=0.1, least=0.1, until=time.monotonic() + 99.0)
        assert "0 USD are left" in refused.refusal
        await ledger.aclose()

    virtual_time.run(scenario())


def test_an_account_that_has_ended_is_forgotten() -> None:
    """So that memory does not grow with the periods; a request that outlives it is still booked there."""

    async def scenario() -> None:
        clock = [0.0]
        ledger = Ledger(MemoryJournal(), lambda: clock[0])
        await ledger.reserve("a", [account(ends=10.0)], most=0.1, least=0.1)
        clock[0] = 11.0 + KEPT_S
        for settled in (False, True):
            await asyncio.sleep(2.0)
            ledger.tick()
            await asyncio.sleep(2.0)
            ledger.tick()
            assert bool(ledger._purses) is not settled, "it is known while a request is in progress"
            ledger.settle("a", [], 0.1)
        assert not ledger._open

    virtual_time.run(scenario())
