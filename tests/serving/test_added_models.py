"""Models that are added and removed while the router runs: over the fold, several processes, restarts and erasures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.fake_openai import FakeOpenAI
from tests.kits.gateway import Echo

from fitrouter.config import Config, ModelAddition, parse_addition, parse_config
from fitrouter.errors import ConfigError, InvalidRequest, UnknownModel
from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.router import Router
from fitrouter.serving.model_registry import ModelRegistry
from fitrouter.state import added_models
from fitrouter.state.added_models import AddedModels
from fitrouter.types import Call, Chunk, FeedbackKind, Identity, ModelChange, PolicyChange, Request

NEW = {
    "name": "new",
    "provider": "s",
    "prices": {"input": 3, "output": 4},
    "variants": [{"name": "terse", "prefix": "Short."}],
}
ASK = Request(messages=({"role": "user", "content": "hello"},))


def settings(folder: Path, **more: Any) -> Config:
    return parse_config(
        {
            "data": str(folder / "data"),
            "providers": {"s": {"kind": "simulated"}},
            "models": [
                {"name": name, "provider": "s", "prices": {"input": 1, "output": 2}} for name in ("alpha", "beta")
            ],
            "scorer": {"encoder": "none"},
            "encoder": "hashing",
            **more,
        }
    )


def routed(config: Config, **more: Any) -> Router:
    """A router whose provider answers with the model's name."""
    providers = {name: Echo() for name in config.providers}
    return Router.from_config(config, **{"providers": providers, **more})


def ask(model: str) -> Request:
    return msgspec.structs.replace(ASK, model=model)


async def seen(router: Router, *names: str) -> None:
    """Wait until a router's models are these."""
    async with asyncio.timeout(60.0):
        while True:
            router._follower.wake()
            router.registry.current()
            if set(router.models) == set(names):
                return
            await asyncio.sleep(0.01)


async def at_one_position(*routers: Router) -> list[tuple[int, str | None]]:
    """Positions and digests of routers, once all have folded the same events: the scorer writes in between."""
    async with asyncio.timeout(30):
        while True:
            for router in routers:
                await router.settled()
            digests = [await router.state_digest() for router in routers]
            if len({position for position, _ in digests}) == 1 and all(digest for _, digest in digests):
                return digests


ALL = ("alpha", "beta", "new", "new#terse")


async def test_an_added_model_is_routed_to_and_removed(tmp_path: Path) -> None:
    """It is eligible from the next decision on, with its variants and price; removed, it is unknown at once."""
    async with routed(settings(tmp_path)) as router:
        before = (await router.complete(ASK)).decision
        added = await router.registry.add(NEW)
        decision = (await router.complete(ASK)).decision
        answer = await router.complete(ask("new"))
        await router.registry.remove("new")
        after = (await router.complete(ASK)).decision
        with pytest.raises(InvalidRequest, match="unknown model 'new'"):
            await router.complete(ask("new"))
        events = [row.event for row in router._journal.tail(0)]
    assert (added.name, added.fault) == ("new", "")
    assert before.eligible == after.eligible == ("alpha", "beta")
    assert decision.eligible == ALL
    assert (answer.served_by, answer.cost_usd is not None) == ("new", True)
    assert before.registry == after.registry != decision.registry
    changes = [event for event in events if isinstance(event, PolicyChange)]
    assert [(change.action, change.name) for change in changes] == [("add_model", "new"), ("remove_model", "new")]
    registries = [event for event in events if isinstance(event, ModelChange)]
    assert [len(event.cards) for event in registries] == [2, 4, 2]


async def test_a_newcomer_is_explored_as_one_of_the_file(tmp_path: Path) -> None:
    """After the others have had many calls, it gets a new model's share of exploration."""
    policy = {"newcomer_pulls": 2, "newcomer_floor": 0.6}
    async with routed(settings(tmp_path, policy=policy)) as router:
        for _ in range(24):
            await router.complete(ASK)
        await router.settled()
        await router.registry.add({"name": "new", "provider": "s", "prices": {"input": 1, "output": 2}})
        decision = (await router.complete(ASK)).decision
    assert "new" in decision.new
    assert decision.probs[decision.eligible.index("new")] >= 0.5


async def test_two_workers_and_a_restart_fold_to_the_same_models(tmp_path: Path) -> None:
    """Another process over the journal has the model without being told, in the same state; so has a later start."""
    config = settings(tmp_path)
    async with routed(config) as one, routed(config, services=False) as two:
        await one.registry.add(NEW)
        await seen(two, *ALL)
        assert (await two.complete(ask("new#terse"))).served_by == "new#terse"
        assert len({digest for _, digest in await at_one_position(one, two)}) == 1
        assert one._decider.rules.registry == two._decider.rules.registry
    async with routed(config) as router:
        assert set(router.models) == set(ALL)
        await router.registry.remove("new")
    with Router.offline(config) as offline:
        assert set(offline.models) == {"alpha", "beta"}
    async with routed(config) as router:
        assert set(router.models) == {"alpha", "beta"}


async def test_a_refit_after_an_erasure_keeps_them(tmp_path: Path) -> None:
    """Additions belong to nobody: erasing the person who used the model, in either tenant, leaves it in use."""
    async with routed(settings(tmp_path)) as router:
        ids = {}
        for tenant in ("a", "b"):
            identity = Identity(tenant=tenant, user="ann")
            ids[tenant] = (await router.complete(msgspec.structs.replace(ASK, identity=identity))).decision.id
        await router.registry.add(NEW)
        for tenant in ("a", "b"):
            await router.feedback(ids[tenant], FeedbackKind.THUMB, 1.0, identity=Identity(tenant=tenant, user="ann"))
        for tenant in ("b", "a"):
            await router.erase(tenant, "ann")
            async with asyncio.timeout(60.0):
                while (
                    router._learner.stale
                    or router._learner.parts_ahead
                    or any(p.stale for p in router._learner.parts())
                ):
                    router._follower.wake()
                    await asyncio.sleep(0.01)
            router.registry.current()
            assert set(router.models) == set(ALL), tenant
            assert [each.name for each in router.registry.added] == ["new"]


async def test_a_model_with_a_server_of_its_own_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server gets the call with the key that the variable holds; the journal has only its name."""
    monkeypatch.setenv("NEW_KEY", "sk-of-the-new-one")
    local = {"additions": {"private_addresses": True}}
    async with FakeOpenAI() as server, routed(settings(tmp_path, server=local)) as router:
        provider = {
            "kind": "openai_compatible",
            "base_url": server.base_url,
            "api_key_env": "NEW_KEY",
            "concurrency": 2,
        }
        await router.registry.add({"name": "new", "provider": provider, "target": "org/new"})
        answer = await router.complete(ask("new"))
        stored = msgspec.json.encode([row.event for row in router._journal.tail(0)])
        await router.registry.remove("new")
        assert router.registry._closing, "it is closed once no call can be under way"
    assert answer.served_by == "new"
    assert server.seen[0][1]["authorization"] == "Bearer sk-of-the-new-one"
    assert server.seen[0][0]["model"] == "org/new"
    assert b"NEW_KEY" in stored
    assert b"sk-of-the-new-one" not in stored


async def test_calls_under_way_end_normally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of a model that is removed meanwhile ends, is logged with its cost, and can be rated."""
    gate = asyncio.Event()

    class Slow(Echo):
        async def complete(self, call: Call) -> Any:
            found: Any = await super().complete(call)

            async def waiting() -> Any:
                first = True
                async for chunk in found:
                    yield chunk
                    if first:
                        await gate.wait()
                    first = False

            return waiting() if call.stream else found

    config = settings(tmp_path)
    async with routed(config, providers={"s": Slow()}) as router:
        await router.registry.add(NEW)
        stream = await router.stream(ask("new"))
        await router.registry.remove("new")
        gate.set()
        chunks: list[Chunk] = [chunk async for chunk in stream]
        await router.settled()
        rated = await router.feedback(stream.decision.id, FeedbackKind.THUMB, 1.0)
    assert chunks[-1].usage is not None
    assert stream.cost_usd
    assert rated


async def test_what_cannot_be_added_or_removed_is_refused(tmp_path: Path) -> None:
    """Each mistake is named, and nothing is logged."""
    config = settings(tmp_path, aliases={"best": "alpha"})
    own = {"kind": "openai_compatible", "base_url": "https://models.example/v1"}
    async with routed(config) as router:
        for bad, message in (
            ({"name": "new"}, "provider"),
            ({"name": "alpha", "provider": "s"}, "taken"),
            ({"name": "best", "provider": "s"}, "taken"),
            ({"name": "fitrouter/x", "provider": "s"}, "reserved"),
            ({"name": "new", "provider": "nobody"}, "unknown provider"),
            ({"name": "new", "provider": "s", "api_key": "sk-1"}, "unknown setting"),
            ({"name": "new", "provider": "s", "prices": {"inptu": 1}}, "did you mean 'input'"),
            ({"name": "new", "provider": "s", "prices": {"input": float("inf")}}, "finite"),
            ({"name": "new\n", "provider": "s"}, "printable"),
            ({"name": "org/..", "provider": "s"}, "path"),
            ({"name": "new", "provider": "s", "target": "x" * 201}, "200"),
            ({"name": "new", "provider": {**own, "base_url": "file:///etc/passwd"}}, "http or https"),
            ({"name": "new", "provider": {**own, "base_url": "http://user:pass@models.example/v1"}}, "password"),
            ({"name": "new", "provider": {**own, "base_url": "http://[::1/v1"}}, "no URL"),
            ({"name": "new", "provider": {**own, "kind": "recorded"}}, "openai_compatible"),
            ({"name": "new", "provider": {**own, "api_key": "sk-1"}}, "unknown setting"),
            ({"name": "new", "provider": {**own, "api_key_env": "NOT_SET_ANYWHERE"}}, "NOT_SET_ANYWHERE"),
            ({"name": "new", "provider": "s", "variants": [{"name": "v", "prefix": "x" * 20_000}]}, "shorten"),
            ({"name": "new", "provider": "s", "variants": [{"name": "v", "params": {"tools": []}}]}, "only a caller"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                await router.registry.add(bad)
        with pytest.raises(InvalidRequest, match="configuration file"):
            await router.registry.remove("alpha")
        with pytest.raises(UnknownModel, match="'nobody'"):
            await router.registry.remove("nobody")
        assert not [row for row in router._journal.tail(0) if isinstance(row.event, PolicyChange)]


async def test_the_last_model_and_one_that_takes_all_traffic_stay(tmp_path: Path) -> None:
    """Removing the only model that is not paused, or the forced one, is refused until that has ended."""
    async with routed(settings(tmp_path)) as router:
        await router.registry.add(NEW)
        await router.policy.set({"force": "new"})
        with pytest.raises(InvalidRequest, match="'force'"):
            await router.registry.remove("new")
        await router.policy.set({"force": "", "paused": "alpha,beta"})
        with pytest.raises(InvalidRequest, match="last model"):
            await router.registry.remove("new")
        await router.policy.set({"paused": "alpha"})
        await router.registry.remove("new")
        assert (await router.complete(ASK)).decision.eligible == ("beta",)


async def test_their_number_is_bounded_and_a_name_is_added_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit a further one is refused; of two processes that add a name at once, the first in the log wins."""
    for module in (added_models, __import__("fitrouter.serving.model_registry", fromlist=["LIMIT"])):
        monkeypatch.setattr(module, "LIMIT", 2)
    config = settings(tmp_path)
    async with routed(config) as one, routed(config, services=False) as two:
        found = await asyncio.gather(
            *(
                router.registry.add({"name": "n", "provider": "s", "target": t})
                for router, t in ((one, "1"), (two, "2"))
            ),
            return_exceptions=True,
        )
        assert sorted(isinstance(each, InvalidRequest) for each in found) == [False, True]
        won = "2" if isinstance(found[0], InvalidRequest) else "1"
        for router in (one, two):
            await seen(router, "alpha", "beta", "n")
            assert router.models["n"].target == won
        with pytest.raises(InvalidRequest, match="added already"):
            await one.registry.add({"name": "n", "provider": "s"})
        await one.registry.add({"name": "m", "provider": "s"})
        with pytest.raises(InvalidRequest, match="2 models"):
            await one.registry.add({"name": "l", "provider": "s"})


async def test_one_that_a_later_file_makes_impossible_is_told_and_can_be_removed(tmp_path: Path) -> None:
    """A name that the file has by now, or a provider that is gone: the start says so, and routes among the others."""
    async with routed(settings(tmp_path)) as router:
        await router.registry.add(NEW)
    notices: list[Notice] = []

    def hook(notice: Notice) -> None:
        notices.append(notice)

    models = [{"name": name, "provider": "t"} for name in ("alpha", "beta")]
    later = settings(tmp_path, providers={"t": {"kind": "simulated"}}, models=models)
    async with routed(later, hooks=Hooks(hook)) as router:
        assert set(router.models) == {"alpha", "beta"}
        [addition] = router.registry.additions()
        assert "unknown provider 's'" in addition.fault
        assert "models" in {notice.part for notice in notices if isinstance(notice, Trouble)}
        await router.registry.remove("new")
        assert router.registry.additions() == []


def test_the_fold_takes_what_it_can_use_and_its_state_survives() -> None:
    """Empty names, additions beyond the limit or too long, and unknown actions change nothing; nor do damaged bytes."""

    def change(action: str, name: str, **given: Any) -> PolicyChange:
        return PolicyChange(id=f"{action} {name}", ts=1.0, action=action, name=name, settings=given)

    state = AddedModels()
    for event in (
        change("add_model", ""),
        change("add_model", "a", model={"name": "a"}),
        change("add_model", "a", model={"name": "other"}),
        change("add_model", "long", text="x" * added_models.LONGEST),
        change("remove_model", "b"),
        change("later_action", "c"),
        *(change("add_model", f"n{i}") for i in range(added_models.LIMIT + 5)),
    ):
        state.observe(event)
    assert [each.name for each in state.models] == ["a", *(f"n{i}" for i in range(added_models.LIMIT - 1))]
    assert state.models[0].settings == {"model": {"name": "a"}}
    again = AddedModels()
    assert again.load(state.dump())
    assert again.models == state.models
    assert not again.load(b"\xc1")
    assert not again.load(msgspec.msgpack.encode([*map(msgspec.to_builtins, state.models), *["x"] * 3]))
    first, *others = map(msgspec.to_builtins, state.models)
    assert not again.load(msgspec.msgpack.encode([first, first]))
    assert not again.load(msgspec.msgpack.encode([first, *others, ["one more", *first[1:]]]))
    assert again.models == state.models


def test_an_addition_is_read_again_as_it_was() -> None:
    """The record in the journal holds what was given, and no more; it is the same model after a decoding."""
    addition = parse_addition({**NEW, "provider": {"kind": "openai_compatible", "base_url": "https://x.example/v1"}})
    assert addition.model.provider == "added/new"
    assert ModelAddition.model_validate(msgspec.json.decode(msgspec.json.encode(addition.record))) == addition
    with pytest.raises(ConfigError):
        parse_addition({"name": ["new"], "provider": {}})
    with pytest.raises(ConfigError, match=r"^the model takes more than 16000 characters"):  # not its 20,000 mistakes
        parse_addition({**NEW, "capabilities": ["x"] * 20_000})


async def test_without_a_configuration_none_can_be_added(tmp_path: Path) -> None:
    """A router that was made of parts says so."""
    async with routed(settings(tmp_path)) as router:
        registry: ModelRegistry = router.registry
        registry.extend = None
        with pytest.raises(InvalidRequest, match="without a configuration"):
            await registry.add(NEW)
