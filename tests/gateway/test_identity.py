"""Identity over HTTP: each channel and each client reaches the decision log; precedence and invalid values.

The rule itself, in all its combinations, is tested in `tests/client/test_identity_rule.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.kits.agents import agent_router
from tests.kits.gateway import chat, client, config, serving
from tests.kits.identity import (
    ANN,
    BOB,
    INVALID,
    NAMED,
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

Call = dict[str, Any]
KEYS = {"KEY_A": "aaaa-secret-of-tenant-a", "KEY_B": "bbbb-secret-of-tenant-b"}
AUTO: dict[str, Any] = {"model": "fitrouter/auto", "messages": [{"role": "user", "content": "hi"}]}

# --- channels, the most explicit first; a call is a body and headers ---

CHANNELS: dict[str, tuple[tuple[str, ...], Callable[[Call, Any], object]]] = {
    "headers": (
        ("user", "role", "task", "session"),
        lambda call, who: call["headers"].update({f"X-Fitrouter-{name.title()}": who[name] for name in who}),
    ),
    "metadata": (("user", "role", "task", "session"), lambda call, who: call["body"].update(metadata=who)),
    "user": (("user",), lambda call, who: call["body"].update(user=who["user"])),
}


def call_of(**channels: Any) -> Call:
    """A call with values in some channels."""
    call: Call = {"body": {}, "headers": {}}
    for name, who in channels.items():
        CHANNELS[name][1](call, who)
    return call


# --- clients: each makes one call ---


def posted(url: str, call: Call, stream: bool = False) -> httpx.Response:
    with client(url) as http:
        headers = {name: str(value).encode() for name, value in call["headers"].items()}
        return http.post("/v1/chat/completions", json=chat(**call["body"], stream=stream), headers=headers)


def _sdk(url: str, call: Call, stream: bool) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as sdk:
        made = sdk.chat.completions.create(**AUTO, **call["body"], extra_headers=call["headers"], stream=stream)
        return list(made) if stream else made


async def _asdk(url: str, call: Call, stream: bool) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as sdk:
        made = await sdk.chat.completions.create(**AUTO, **call["body"], extra_headers=call["headers"], stream=stream)
        return [chunk async for chunk in made] if stream else made


ENTRIES: dict[str, Callable[[str, Call], Any]] = {
    "HTTP": posted,
    "HTTP, streamed": lambda url, call: posted(url, call, stream=True),
    "openai": lambda url, call: _sdk(url, call, False),
    "openai, streamed": lambda url, call: _sdk(url, call, True),
    "openai, awaited": lambda url, call: asyncio.run(_asdk(url, call, False)),
    "openai, streamed and awaited": lambda url, call: asyncio.run(_asdk(url, call, True)),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A gateway."""
    with deployed(tmp_path_factory.mktemp("desk"), "far") as made:
        yield made


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_client_reaches_every_channel(desk: Deployment, entry: str) -> None:
    """Fields given in different channels of one call are all in the decision log; each channel occurs in a call."""
    for mixture in mixtures({channel: names for channel, (names, _) in CHANNELS.items()}, list(ENTRIES).index(entry)):
        ENTRIES[entry](desk.target, call_of(**{channel: fields(ANN, name) for channel, name in mixture.items()}))
        names = mixture.values()
        desk.check(Identity(**fields(ANN, *names)), *names, cell=(entry, mixture))


def test_each_channel_carries_its_fields(desk: Deployment) -> None:
    """All that a channel can carry is in the decision log."""
    for channel, (names, _) in CHANNELS.items():
        posted(desk.target, call_of(**{channel: fields(ANN, *names)}))
        desk.check(Identity(**fields(ANN, *names)), *names, cell=channel)


@pytest.mark.parametrize("entry", ["HTTP", "openai, streamed and awaited"])
def test_documented_order_of_channels(desk: Deployment, entry: str) -> None:
    """The channel further up in the table counts, field by field; those below fill in what it leaves out."""
    for first, second in itertools.combinations(CHANNELS, 2):
        more, less = CHANNELS[first][0], CHANNELS[second][0]
        for some in (more, more[:1], more[1:2]):
            upper = fields(ANN, *some)
            ENTRIES[entry](desk.target, call_of(**{first: upper, second: fields(BOB, *less)}))
            found = {**fields(BOB, *less), **upper}
            desk.check(Identity(**found), *found, cell=(first, second, some))


def test_aliases(desk: Deployment) -> None:
    """`user_id` and `session_id` in metadata are the user and the session."""
    posted(desk.target, call_of(metadata=ids(ANN)))
    desk.check(ANN)


@pytest.mark.parametrize("stream", [False, True])
def test_invalid_names_are_refused(desk: Deployment, stream: bool) -> None:
    """A 400 names the place, and no model is called; a header is text, and HTTP refuses control characters itself."""
    for channel, (description, value) in itertools.product(CHANNELS, INVALID.items()):
        if description == "half a character" or (channel == "headers" and description != "600 characters"):
            continue
        reply = posted(desk.target, call_of(**{channel: {"user": value}}), stream)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "invalid_request"), (channel, value)
        assert re.search(f"user: {NAMED[description]}", error["message"]), (channel, value)
    desk.check_none()


@pytest.mark.parametrize("stream", [False, True])
def test_valid_names_are_accepted(desk: Deployment, stream: bool) -> None:
    """Text of any script, and whole numbers as text; None and empty text leave the field to the next channel."""
    for channel in CHANNELS:
        for value, text in VALID.values():
            posted(desk.target, call_of(**{channel: {"user": value}}), stream)
            desk.check(Identity(user=text), "user", cell=(channel, value))
    for channel, unset in itertools.product(("headers", "metadata"), UNSET.values()):
        values = {} if (channel, unset) == ("headers", None) else {"user": unset}
        posted(desk.target, call_of(**{channel: values, "user": {"user": "bob"}}), stream)
        desk.check(BOB, "user", cell=(channel, unset))


def test_half_a_character_is_refused(desk: Deployment) -> None:
    """JSON can escape half a character, which is not valid text."""
    with client(desk.target) as http:
        body = b'{"messages": [{"role": "user", "content": "hi"}], "user": "ann\\ud800"}'
        reply = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert "surrogate" in reply.json()["error"]["message"]
    desk.check_none()


def test_sdk_errors(desk: Deployment) -> None:
    """The client's own error has the gateway's message."""
    with pytest.raises(openai.BadRequestError, match=r"metadata\.role: dict was given; give text or a whole number"):
        ENTRIES["openai"](desk.target, call_of(metadata={"role": {"name": "nurse"}}))
    desk.check_none()


def test_the_tenant_is_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tenant is the key's whatever a call contains, and users of one name in two tenants are two people."""
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    keys = [{"name": name, "tenant": name[-1].lower(), "key_env": name} for name in KEYS]
    router = agent_router(tmp_path)
    with serving(router, config(keys=keys)) as url:
        desk = Deployment(router, url, True, [0])
        for key, tenant in zip(KEYS.values(), ("a", "b"), strict=True):
            with client(url, headers={"authorization": f"Bearer {key}", "x-fitrouter-tenant": "b"}) as http:
                assert http.post("/v1/chat/completions", json=chat(metadata={"tenant": "b", **ids(ANN)})).is_success
            desk.check(Identity(tenant=tenant, **fields(ANN)))
        assert router._identities.subject("a", "ann") != router._identities.subject("b", "ann")


def test_documented_channels() -> None:
    """The table of the documentation lists these channels, in this order, with the fields that they can carry."""
    table = documented_channels("recipes.md")
    assert {name: tuple(cells[0].split(", ")) for name, cells in table.items()} == {
        name: carried for name, (carried, _) in CHANNELS.items()
    }
    assert list(table) == list(CHANNELS)
