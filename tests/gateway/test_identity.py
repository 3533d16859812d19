"""Who asks, over HTTP: each channel × each client, which channel counts, and what is refused with words."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.kits.agents import agent_router
from tests.kits.gateway import chat, client, config, serving
from tests.kits.identity import ANN, BOB, NOTHING, REFUSED, TAKEN, Desk, fields, ids, standing, told

from fitrouter.types import Identity

Call = dict[str, Any]
KEYS = {"KEY_A": "aaaa-secret-of-tenant-a", "KEY_B": "bbbb-secret-of-tenant-b"}
AUTO: dict[str, Any] = {"model": "fitrouter/auto", "messages": [{"role": "user", "content": "hi"}]}

# --- how it is said: the more explicit first; a call is a body and headers ---

CHANNELS: dict[str, tuple[tuple[str, ...], Callable[[Call, Any], object]]] = {
    "headers": (
        ("user", "role", "task", "session"),
        lambda call, who: call["headers"].update({f"X-Fitrouter-{name.title()}": who[name] for name in who}),
    ),
    "metadata": (("user", "role", "task", "session"), lambda call, who: call["body"].update(metadata=who)),
    "user": (("user",), lambda call, who: call["body"].update(user=who["user"])),
}


def call_of(**channels: Any) -> Call:
    """A call in which each channel says something."""
    call: Call = {"body": {}, "headers": {}}
    for name, who in channels.items():
        CHANNELS[name][1](call, who)
    return call


# --- where: each asks once ---


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
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A gateway."""
    with standing(tmp_path_factory.mktemp("desk"), "far") as made:
        yield made


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("channel", CHANNELS)
def test_each_channel_of_each_client(desk: Desk, channel: str, entry: str) -> None:
    """What a channel says is in the decision log."""
    said = fields(ANN, *CHANNELS[channel][0])
    ENTRIES[entry](desk.target, call_of(**{channel: said}))
    desk.check(Identity(**said), *said)


@pytest.mark.parametrize("entry", ["HTTP", "openai, streamed and awaited"])
@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(CHANNELS, 2)))
def test_the_more_explicit_channel_counts(desk: Desk, first: str, second: str, entry: str) -> None:
    """Of two channels the one further up counts, field by field; the other fills in what it leaves out."""
    more, less = CHANNELS[first][0], CHANNELS[second][0]
    for some in (more, more[:1], more[1:2]):
        said = fields(ANN, *some)
        ENTRIES[entry](desk.target, call_of(**{first: said, second: fields(BOB, *less)}))
        found = {**fields(BOB, *less), **said}
        desk.check(Identity(**found), *found)


def test_the_names_that_applications_use(desk: Desk) -> None:
    """`user_id` and `session_id` in metadata are the user and the session."""
    posted(desk.target, call_of(metadata=ids(ANN)))
    desk.check(ANN)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("channel", CHANNELS)
def test_what_is_a_name(desk: Desk, channel: str, stream: bool) -> None:
    """Text and whole numbers are; anything else is a 400 that names the place. What says nothing leaves it to the next.

    A header is always text, and HTTP itself lets no control character through.
    """
    refused = [value for value in REFUSED.values() if value != "ann\ud800"]
    for value in ["x" * 600] if channel == "headers" else refused:
        reply = posted(desk.target, call_of(**{channel: {"user": value}}), stream)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "invalid_request")
        assert "user: " in error["message"]
        assert "give text" in error["message"] or "has 600 characters" in error["message"]
    desk.nobody()
    for value, read in TAKEN.values():
        posted(desk.target, call_of(**{channel: {"user": value}}), stream)
        desk.check(Identity(user=read), "user")
    if channel != "user":
        for nothing in NOTHING.values():
            said = {} if (channel, nothing) == ("headers", None) else {"user": nothing}
            posted(desk.target, call_of(**{channel: said, "user": {"user": "bob"}}), stream)
            desk.check(BOB, "user")


def test_half_a_character_is_refused(desk: Desk) -> None:
    """JSON may escape half a character; that is no text."""
    with client(desk.target) as http:
        body = b'{"messages": [{"role": "user", "content": "hi"}], "user": "ann\\ud800"}'
        reply = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert "surrogate" in reply.json()["error"]["message"]
    desk.nobody()


def test_a_sdk_says_what_is_wrong(desk: Desk) -> None:
    """The words of the gateway are those of the client's own error."""
    with pytest.raises(openai.BadRequestError, match=r"metadata\.role: dict was given; give text or a whole number"):
        ENTRIES["openai"](desk.target, call_of(metadata={"role": {"name": "nurse"}}))
    desk.nobody()


def test_the_tenant_is_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a call says: nobody speaks for another tenant, and users of one name in two tenants are two people."""
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    keys = [{"name": name, "tenant": name[-1].lower(), "key_env": name} for name in KEYS]
    router = agent_router(tmp_path)
    with serving(router, config(keys=keys)) as url:
        desk = Desk(router, url, True, [0])
        for key, tenant in zip(KEYS.values(), ("a", "b"), strict=True):
            with client(url, headers={"authorization": f"Bearer {key}", "x-fitrouter-tenant": "b"}) as http:
                assert http.post("/v1/chat/completions", json=chat(metadata={"tenant": "b", **ids(ANN)})).is_success
            desk.check(Identity(tenant=tenant, **fields(ANN)))
        assert router._identities.subject("a", "ann") != router._identities.subject("b", "ann")


def test_the_documentation_says_the_same() -> None:
    """Its table has these channels, in this order, with what they can say."""
    assert {name: tuple(cells[0].split(", ")) for name, cells in told("recipes.md").items()} == {
        name: says for name, (says, _) in CHANNELS.items()
    }
    assert list(told("recipes.md")) == list(CHANNELS)
