"""Who asks, by litellm's provider: each channel × each of litellm's entry points, near and far."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import litellm
import pytest
from tests.kits.identity import ANN, BOB, NOTHING, REFUSED, TAKEN, Desk, fields, ids, standing, told

from fitrouter.types import Identity
from fitrouter_integrations.litellm import register

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own
AUTO = "fitrouter/auto"
HELLO = [{"role": "user", "content": "hello"}]
Call = dict[str, Any]

# --- how it is said: the more explicit first -------------------------------------------------------------------------


def _metadata(call: Call, who: Any) -> None:
    call.setdefault("metadata", {}).update(who)


def _proxied(call: Call, who: Any) -> None:
    """As the proxy of litellm does: in `metadata`, and for the Responses API in `litellm_metadata`."""
    _metadata(call, who)
    call.setdefault("litellm_metadata", {}).update(who)


CHANNELS: dict[str, tuple[tuple[str, ...], Callable[[Call, Any], object]]] = {
    "arguments": (("role", "task", "session"), lambda call, who: call.update(who)),
    "metadata": (("user", "role", "task", "session"), _metadata),
    "litellm_metadata": (
        ("user", "role", "task", "session"),
        lambda call, who: call.setdefault("litellm_metadata", {}).update(who),
    ),
    "user=": (("user",), lambda call, who: call.update(user=who["user"])),
    "the proxy's end user": (("user",), lambda call, who: _proxied(call, {"user_api_key_end_user_id": who["user"]})),
    "the proxy key's user": (("user",), lambda call, who: _proxied(call, {"user_api_key_user_id": who["user"]})),
    "litellm_session_id": (("session",), lambda call, who: call.update(litellm_session_id=who["session"])),
}
"""Channel → what it can say, and how. What a call does not say, `register(identity=…)` may."""


# --- where: each asks once -------------------------------------------------------------------------------------------


async def _drained(stream: Any) -> None:
    async for _ in await stream:
        pass


def _router() -> Any:
    return litellm.Router(model_list=[{"model_name": "any", "litellm_params": {"model": AUTO}}], num_retries=0)


ENTRIES: dict[str, Callable[[Call], Any]] = {
    "completion": lambda call: litellm.completion(AUTO, HELLO, **call),
    "acompletion": lambda call: asyncio.run(litellm.acompletion(AUTO, HELLO, **call)),
    "stream": lambda call: list(litellm.completion(AUTO, HELLO, stream=True, **call)),
    "astream": lambda call: asyncio.run(_drained(litellm.acompletion(AUTO, HELLO, stream=True, **call))),
    "Router": lambda call: _router().completion("any", HELLO, **call),
    "Router, awaited": lambda call: asyncio.run(_router().acompletion("any", HELLO, **call)),
    "Router, streamed": lambda call: list(_router().completion("any", HELLO, stream=True, **call)),
    "Router, streamed and awaited": lambda call: asyncio.run(
        _drained(_router().acompletion("any", HELLO, stream=True, **call))
    ),
    "text_completion": lambda call: litellm.text_completion(model=AUTO, prompt="hello", **call),
    "atext_completion": lambda call: asyncio.run(litellm.atext_completion(model=AUTO, prompt="hello", **call)),
    "responses": lambda call: litellm.responses(model=AUTO, input="hello", **call),
    "aresponses": lambda call: asyncio.run(litellm.aresponses(model=AUTO, input="hello", **call)),
}
FAR = ("completion", "astream")
DROPPED = {("metadata", "responses"), ("metadata", "aresponses")}
"""Litellm's Responses API keeps `metadata` from providers; `litellm_metadata` gets through."""


@pytest.fixture(scope="module", params=["near", "far"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A router in this process, and a gateway."""
    with standing(tmp_path_factory.mktemp("desk"), request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm, "custom_provider_map", [])
    monkeypatch.setattr(litellm, "suppress_debug_info", True)


def call_of(desk: Desk, own: Identity | None = None, **channels: Any) -> Call:
    """A call in which each channel says something, to a provider that was made for somebody."""
    register(desk.target, identity=own)
    call: Call = {}
    for name, who in channels.items():
        CHANNELS[name][1](call, who)
    return call


@pytest.mark.parametrize(
    ("desk", "entry"), [*itertools.product(["near"], ENTRIES), *itertools.product(["far"], FAR)], indirect=["desk"]
)
@pytest.mark.parametrize("channel", CHANNELS)
def test_each_channel_at_each_entry_point(desk: Desk, channel: str, entry: str) -> None:
    """What a channel says is in the decision log; what it leaves out is what the provider was made with."""
    says = () if (channel, entry) in DROPPED else CHANNELS[channel][0]
    ENTRIES[entry](call_of(desk, BOB, **{channel: fields(ANN, *CHANNELS[channel][0])}))
    desk.check(Identity(**{**fields(BOB), **{name: value for name, value in fields(ANN).items() if name in says}}))


def test_any_of_the_names(desk: Desk) -> None:
    """What applications call a user and a session is understood, in arguments and in metadata."""
    for call in (ids(ANN), {"metadata": ids(ANN)}, {"extra_body": fields(ANN)}):
        call_of(desk)
        litellm.completion(AUTO, HELLO, **call)
        desk.check(ANN)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("desk", ["near"], indirect=True)
def test_a_provider_made_for_somebody(desk: Desk, entry: str) -> None:
    """Who a provider was made for asks, where no call says it."""
    ENTRIES[entry](call_of(desk, ANN))
    desk.check(ANN)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(CHANNELS, 2)))
@pytest.mark.parametrize("desk", ["near"], indirect=True)
def test_the_more_explicit_channel_counts(desk: Desk, first: str, second: str) -> None:
    """Of two channels the one further up counts, field by field; the other fills in what it leaves out."""
    more, less = CHANNELS[first][0], CHANNELS[second][0]
    for entry in ("completion", "Router, streamed and awaited"):
        ENTRIES[entry](call_of(desk, **{second: fields(BOB, *less), first: fields(ANN, *more)}))
        found = {**fields(BOB, *less), **fields(ANN, *more)}
        desk.check(Identity(**found), *found)


# --- what is a name --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", CHANNELS)
def test_what_is_a_name(desk: Desk, channel: str) -> None:
    """Text and whole numbers are; anything else is litellm's `BadRequestError`, before anybody is asked.

    What says nothing leaves it to the next channel.
    """
    name = CHANNELS[channel][0][0]
    for value in REFUSED.values():
        for entry in ("completion", "stream"):
            with pytest.raises(litellm.BadRequestError, match=r": (\w+ was given; give text|has )"):
                ENTRIES[entry](call_of(desk, **{channel: {name: value}}))
    desk.nobody()
    for value, read in TAKEN.values():
        ENTRIES["acompletion"](call_of(desk, **{channel: {name: value}}))
        desk.check(Identity(**{name: read}), name)
    for nothing in NOTHING.values():
        ENTRIES["astream"](call_of(desk, BOB, **{channel: {name: nothing}}))
        desk.check(BOB)


def test_what_a_provider_is_made_with_is_checked(desk: Desk) -> None:
    """An identity that is no name is refused at the call."""
    with pytest.raises(litellm.BadRequestError, match="user: list was given"):
        ENTRIES["completion"](call_of(desk, Identity(user=["ann"])))  # type: ignore[arg-type]
    desk.nobody()


def test_tenants_near_and_far(desk: Desk) -> None:
    """A tenant may be named to a router in this process; not to a gateway, and not by clients of litellm's proxy."""
    for call in ({"metadata": {"tenant": "acme"}}, {"tenant": "acme"}):
        register(desk.target, identity=ANN)
        if desk.far:
            with pytest.raises(litellm.AuthenticationError, match="by the key"):
                litellm.completion(AUTO, HELLO, **call)
            desk.nobody()
        else:
            litellm.completion(AUTO, HELLO, **call)
            desk.check(Identity(tenant="acme", **fields(ANN)))
    with pytest.raises(litellm.BadRequestError, match="cannot choose it"):
        litellm.completion(AUTO, HELLO, metadata={"user_api_key_hash": "h", "tenant": "b"})
    desk.nobody()


def test_the_documentation_says_the_same() -> None:
    """Its table has these channels, in this order."""
    assert list(told("litellm.md")) == [*CHANNELS, "register"]
