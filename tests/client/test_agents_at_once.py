"""200 concurrent agents, by every adapter, in threads, tasks and processes, near and far: nothing is lost or mixed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.kits.crowd import ADAPTERS, NAMES, PERSONA, TURNS, Heard, agent, in_tasks, in_threads, written
from tests.kits.gateway import PATIENCE_S, cards, make_router, serving, wait_for

from fitrouter.context.features import session_key
from fitrouter.providers import Simulated
from fitrouter.router import Router
from fitrouter.stores.identities import Identities, SqliteIdentities
from fitrouter.stores.journal import Journal, SqliteJournal
from fitrouter.types import Decision, Execution, Identity, Request
from fitrouter_integrations.client import connect

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
AGENTS = 200
CONFIG = f"""
providers: {{s: {{kind: simulated, options: {{{", ".join(f"{name}: {PERSONA}" for name in NAMES)}}}}}}}
models: [{", ".join(f"{{name: {name}, provider: s, prices: {{input: 1, output: 2}}}}" for name in NAMES)}]
encoder: hashing
scorer: {{encoder: hashing, prior: none}}
"""


class Place(NamedTuple):
    """A target that agents call, with its journal and identities."""

    target: Any
    journal: Journal
    identities: Identities


class Places:
    """A router in this process, a gateway over another one, and a configuration that processes share."""

    def __init__(self, folder: Path, life: ExitStack) -> None:
        self.folder, self._life = folder, life
        near, far = self._router("near"), self._router("far")
        life.enter_context(connect(near))
        self.near = Place(near, near._journal, near._identities)
        self.far = Place(life.enter_context(serving(far)), far._journal, far._identities)
        life.callback(lambda: connect(self.far.target).close())
        self._shared: Place | None = None
        self._workers: dict[str, ProcessPoolExecutor] = {}

    def _router(self, name: str) -> Router:
        (self.folder / name).mkdir()
        simulated = Simulated.from_options(dict.fromkeys(NAMES, PERSONA))
        return make_router(self.folder / name, {"echo": simulated}, models=cards(NAMES))

    @property
    def workers(self) -> dict[str, ProcessPoolExecutor]:
        """A spawned process for each adapter, which imports no other framework."""
        if not self._workers:
            spawn = multiprocessing.get_context("spawn")
            self._workers = {name: ProcessPoolExecutor(1, mp_context=spawn) for name in ADAPTERS}
            for worker in self._workers.values():
                self._life.enter_context(worker)
        return self._workers

    @property
    def shared(self) -> Place:
        if self._shared is None:
            config = self.folder / "fitrouter.yaml"
            config.write_text(CONFIG + f"data: {self.folder / 'data'}\n")
            with connect(config) as client:  # makes its files
                client.models()
            journal = self._life.enter_context(closing(SqliteJournal(self.folder / "data" / "journal.db")))
            identities = self._life.enter_context(closing(SqliteIdentities(self.folder / "data" / "identities.db")))
            self._shared = Place(str(config), journal, identities)
        return self._shared


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with ExitStack() as life:
        yield Places(tmp_path_factory.mktemp("places"), life)


@pytest.fixture(autouse=True)
def litellm_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores litellm's registered providers after each test."""
    import litellm

    monkeypatch.setattr(litellm, "custom_provider_map", [])
    monkeypatch.setattr(litellm, "suppress_debug_info", True)


def events_of(place: Place, ids: set[str]) -> tuple[list[Decision], list[Execution]]:
    """All decisions and executions of the journal that are of these ids or of nobody, once all have ended."""

    def read() -> tuple[list[Decision], list[Execution]] | None:
        after, decisions, executions = 0, [], []
        while rows := place.journal.tail(after, 10_000):
            decisions += [row.event for row in rows if isinstance(row.event, Decision)]
            executions += [row.event for row in rows if isinstance(row.event, Execution)]
            after = rows[-1].seq
        return (decisions, executions) if ids <= {each.decision_id for each in executions} else None

    found: tuple[list[Decision], list[Execution]] = wait_for(read)
    return found


def check(place: Place, crowd: str, heard: Sequence[Heard]) -> None:
    """Each answer is one decision of its own agent and the text of that decision's model, and there are no others."""
    assert Counter(turn.prompt for turn in heard) == Counter(
        f"Tell {agent(crowd, i).user} about turn {turn}" for i in range(AGENTS) for turn in range(TURNS)
    )
    ids = {turn.said.decision_id for turn in heard}
    assert len(ids) == len(heard)
    decisions, executions = events_of(place, ids)
    decided = {decision.id: decision for decision in decisions}
    subjects: dict[str, Identity] = {}
    for turn in heard:
        subject = decided[turn.said.decision_id].identity.user or ""
        assert wait_for(lambda subject=subject: place.identities.reveal(subject)) == ("default", turn.who.user)
        assert subjects.setdefault(subject, turn.who) == turn.who
    assert len(subjects) == AGENTS
    mine = [decision for decision in decisions if decision.identity.user in subjects]
    assert Counter(decision.id for decision in mine) == Counter(ids), "lost, or decided twice"
    assert not [decision.id for decision in decisions if decision.identity.user is None], "somebody was nobody"
    ends = Counter(execution.decision_id for execution in executions)
    assert {ends[each] for each in ids} == {1}
    served = {execution.decision_id: execution for execution in executions}
    for turn in heard:
        decision, execution = decided[turn.said.decision_id], served[turn.said.decision_id]
        key, _ = session_key(Request(messages=(), identity=turn.who), place.identities.salt)
        for identity in (decision.identity, execution.identity):
            assert subjects[identity.user or ""] == turn.who
            assert (identity.role, identity.session) == (turn.who.role, key)
        assert (execution.status, execution.served_by) == ("ok", decision.chosen)
        assert turn.said.model == decision.chosen.split("@")[0]
        assert turn.said.text == written(turn.said.model, turn.prompt)


@pytest.mark.parametrize(("adapter", "near", "far"), [
    ("client", in_threads, in_tasks),
    ("langchain", in_tasks, in_threads),
    ("crewai", in_threads, in_tasks),
    ("litellm", in_tasks, in_threads),
])  # fmt: skip
def test_two_hundred_agents_in_one_process(places: Places, adapter: str, near: Any, far: Any) -> None:
    """Threads and tasks, each with a user, a role and a session of its own, over one router."""
    for where, how in (("near", near), ("far", far)):
        place = places.near if where == "near" else places.far
        crowd = f"{adapter} {where} {how.__name__}"
        heard = how(adapter, place.target, [agent(crowd, i) for i in range(AGENTS)])
        check(place, crowd, heard)


@pytest.mark.parametrize("where", ["near", "far"])
def test_two_hundred_agents_in_spawned_workers(places: Places, where: str) -> None:
    """A process for each adapter, all at once over one configuration or one gateway."""
    place, crowd = places.shared if where == "near" else places.far, f"{where} workers"
    agents = [agent(crowd, i) for i in range(AGENTS)]
    parts = {name: agents[n :: len(ADAPTERS)] for n, name in enumerate(ADAPTERS)}
    several = [places.workers[name].submit(in_threads, name, place.target, part) for name, part in parts.items()]
    check(place, crowd, [turn for each in several for turn in each.result(PATIENCE_S)])


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("where", ["near", "far"])
async def test_blocking_calls_inside_a_running_loop(places: Places, adapter: str, where: str) -> None:
    """Blocking calls work inside a running event loop, as in a notebook, and awaited ones with them."""
    place = places.near if where == "near" else places.far
    who = agent(f"{adapter} {where} loop", 0)
    ask, awaited = ADAPTERS[adapter](place.target)
    words: Any = [{"role": "user", "content": "hello"}]
    several = await asyncio.gather(*(awaited(words, who) for _ in range(3)))
    assert len({said.decision_id for said in [ask(words, who), *several]}) == 4


def _in_child(asks: dict[str, Any], out: Any) -> None:
    words: Any = [{"role": "user", "content": "hello"}]
    for adapter, (ask, _) in asks.items():
        try:
            out.put((adapter, ask(words, agent("forked", 0)).text))
        except Exception as error:  # noqa: BLE001
            out.put((adapter, str(error)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_every_adapter_raises_after_a_fork(tmp_path: Path) -> None:
    """In a forked child an inherited adapter raises an error with the remedy; the parent is not affected."""
    router = make_router(tmp_path)
    with connect(router):
        asks = {name: make(router) for name, make in ADAPTERS.items()}
        words: Any = [{"role": "user", "content": "hello"}]
        for ask, _ in asks.values():
            assert ask(words, agent("parent", 0)).text.endswith("heard hello")
        context = multiprocessing.get_context("fork")
        out = context.Queue()
        child = context.Process(target=_in_child, args=(asks, out))
        child.start()
        said = dict(out.get(timeout=PATIENCE_S) for _ in asks)
        child.join(PATIENCE_S)
        assert said.keys() == asks.keys()
        for adapter, words_said in said.items():
            assert "after a fork" in words_said, adapter
            assert "spawn" in words_said, adapter
        assert asks["client"][0](words, agent("parent", 0)).text.endswith("heard hello")
