"""Identity of litellm's provider: each channel and each entry point reaches the decision log, near and far.

The rule itself, in all its combinations, is tested in `tests/client/test_identity_rule.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import litellm
import pytest
from tests.kits.identity import (
    ANN,
    BOB,
    INVALID,
    UNSET,
    VALID,
    Deployment,
    deployed,
    documented_channels,
    fields,
    ids,
    mixtures,
)

from fitrouter.types import Identity
from fitrouter_integrations.litellm import register

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own
AUTO = "fitrouter/auto"
HELLO = [{"role": "user", "content": "hello"}]
Call = dict[str, Any]

# --- channels, the most explicit first -------------------------------------------------------------------------------


def _metadata(call: Call, who: Any) -> None:
    call.setdefault("metadata", {}).update(who)


def _proxied(call: Call, who: Any) -> None:
    """As litellm's proxy does: in `metadata`, and for the Responses API in `litellm_metadata`."""
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
"""Channel → the fields it can carry, and how. Fields that a call leaves out come from `register(identity=…)`."""


# --- entry points: each makes one call -------------------------------------------------------------------------------


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
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A router in this process, and a gateway."""
    with deployed(tmp_path_factory.mktemp("desk"), request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm, "custom_provider_map", [])
    monkeypatch.setattr(litellm, "suppress_debug_info", True)


def call(desk: Deployment, entry: str, own: Identity | None = None, **channels: Any) -> None:
    """Call a provider, registered for an identity, at an entry point with values in some channels."""
    register(desk.target, identity=own)
    arguments: Call = {}
    for name, who in channels.items():
        CHANNELS[name][1](arguments, who)
    try:
        ENTRIES[entry](arguments)
    except Exception as error:
        error.add_note(f"{entry} with {channels}")
        raise


# --- each channel at each entry point --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desk", "entry"), [*itertools.product(["near"], ENTRIES), *itertools.product(["far"], FAR)], indirect=["desk"]
)
def test_each_entry_point_reads_every_channel(desk: Deployment, entry: str) -> None:
    """Fields given in different channels of one call are all in the decision log; `register` fills in the others."""
    call(desk, entry, ANN)
    desk.check(ANN, cell=(entry, "register"))
    for mixture in mixtures({channel: names for channel, (names, _) in CHANNELS.items()}, list(ENTRIES).index(entry)):
        call(desk, entry, BOB, **{channel: fields(ANN, name) for channel, name in mixture.items()})
        names = [name for channel, name in mixture.items() if (channel, entry) not in DROPPED]
        desk.check(Identity(**fields(BOB) | (fields(ANN, *names) if names else {})), cell=(entry, mixture))


def test_each_channel_carries_its_fields(desk: Deployment) -> None:
    """All that a channel can carry is in the decision log; `register` fills in the rest."""
    for channel, (names, _) in CHANNELS.items():
        call(desk, "completion", BOB, **{channel: fields(ANN, *names)})
        desk.check(Identity(**fields(BOB) | fields(ANN, *names)), cell=channel)


def test_aliases(desk: Deployment) -> None:
    """The usual names of a user and a session are accepted in arguments and in metadata."""
    for arguments in (ids(ANN), {"metadata": ids(ANN)}, {"extra_body": fields(ANN)}):
        register(desk.target)
        litellm.completion(AUTO, HELLO, **arguments)
        desk.check(ANN, cell=arguments)


@pytest.mark.parametrize("desk", ["near"], indirect=True)
def test_documented_order_of_channels(desk: Deployment) -> None:
    """The channel further up in the table counts, field by field; those below fill in what it leaves out."""
    entries = itertools.cycle(("completion", "Router, streamed and awaited"))
    for first, second in itertools.combinations(CHANNELS, 2):
        more, less = CHANNELS[first][0], CHANNELS[second][0]
        call(desk, next(entries), **{second: fields(BOB, *less), first: fields(ANN, *more)})
        found = {**fields(BOB, *less), **fields(ANN, *more)}
        desk.check(Identity(**found), *found, cell=(first, second))


# --- valid and invalid names -----------------------------------------------------------------------------------------


def test_invalid_names_are_refused(desk: Deployment) -> None:
    """The error is litellm's `BadRequestError` and no model is called, in every channel and in `register`."""
    entries = itertools.cycle(("completion", "stream"))
    for (channel, (names, _)), value in itertools.product(CHANNELS.items(), INVALID.values()):
        with pytest.raises(litellm.BadRequestError, match=r": (\w+ was given; give text|has )"):
            call(desk, next(entries), **{channel: {names[0]: value}})
    with pytest.raises(litellm.BadRequestError, match="user: list was given"):
        call(desk, "completion", Identity(user=["ann"]))  # type: ignore[arg-type]
    desk.check_none()


def test_valid_names_are_accepted(desk: Deployment) -> None:
    """Text of any script, and whole numbers as text; None and empty text leave the field to the next channel."""
    for channel, (names, _) in CHANNELS.items():
        for value, text in VALID.values():
            call(desk, "acompletion", **{channel: {names[0]: value}})
            desk.check(Identity(**{names[0]: text}), names[0], cell=(channel, value))
        for unset in UNSET.values():
            call(desk, "astream", BOB, **{channel: {names[0]: unset}})
            desk.check(BOB, cell=(channel, unset))


def test_tenant(desk: Deployment) -> None:
    """A router in this process accepts a tenant; a gateway and litellm's proxy refuse one that a client names."""
    for arguments in ({"metadata": {"tenant": "acme"}}, {"tenant": "acme"}):
        register(desk.target, identity=ANN)
        if desk.far:
            with pytest.raises(litellm.AuthenticationError, match="from the key"):
                litellm.completion(AUTO, HELLO, **arguments)
            desk.check_none()
        else:
            litellm.completion(AUTO, HELLO, **arguments)
            desk.check(Identity(tenant="acme", **fields(ANN)), cell=arguments)
    with pytest.raises(litellm.BadRequestError, match="cannot choose it"):
        litellm.completion(AUTO, HELLO, metadata={"user_api_key_hash": "h", "tenant": "b"})
    desk.check_none()


def test_documented_channels() -> None:
    """The table of the documentation lists these channels, in this order."""
    assert list(documented_channels("litellm.md")) == [*CHANNELS, "register"]
