"""litellm's proxy server in front of the router, on loopback."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.kits.agents import NAMES, Agent, agent_router
from tests.kits.fake_openai import FakeOpenAI, reply
from tests.kits.gateway import serving, wait_for
from tests.kits.litellm import HELLO, TOOLS, Sum, arguments, events, text

from fitrouter.errors import ProviderUnavailable
from fitrouter.router import Router
from fitrouter.types import Decision, Execution

openai = pytest.importorskip("openai")
_MISSING = [
    name
    for name in ("apscheduler", "backoff", "fastapi_sso", "mcp_types", "orjson", "soundfile")
    if find_spec(name) is None
]
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(bool(_MISSING), reason=f"pip install 'litellm[proxy]': it lacks {', '.join(_MISSING)}"),
]
START_S = 600.0
MASTER = "sk-" + "0123456789abcdef" * 3
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request, api_key):
    if not api_key.startswith("sk-user-"):
        raise ValueError("who is it?")
    return UserAPIKeyAuth(api_key=api_key, user_id=api_key.removeprefix("sk-user-"))
"""
MORE = """
  - {model_name: beta, litellm_params: {model: fitrouter/beta}}
  - {model_name: missing, litellm_params: {model: fitrouter/nobody}}
  - {model_name: plain, litellm_params: {model: openai/plain, api_base: BASE, api_key: k, max_retries: 0}}
router_settings: {num_retries: 0}
general_settings: {custom_auth: own_auth.user_api_key_auth}
litellm_settings:
  callbacks: fitrouter_integrations.litellm.observer
"""


class Broken(Agent):
    """Fails where it is told to."""

    async def complete(self, call: Any) -> Any:
        if call.messages[-1]["content"] == "fail":
            raise ProviderUnavailable("down", 503)
        return await super().complete(call)


class Place(NamedTuple):
    """The proxy's address and the router behind its gateway."""

    url: str
    router: Router
    agent: Agent

    def client(self) -> Any:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="sk-user-kim", max_retries=0, timeout=300.0)

    def decision(self) -> Decision:
        return events(self.router, Decision)[-1]

    def subject(self, user: str) -> str:
        found: str = self.router._identities.subject("default", user)
        return found


def documented() -> str:
    """The proxy's configuration as docs/litellm.md gives it."""
    page = (Path(__file__).parents[2] / "docs" / "litellm.md").read_text()
    return next(found for found in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "custom_provider_map" in found)


@contextmanager
def proxied(folder: Path, config: str, target: str) -> Iterator[str]:
    """The real proxy in a process of its own; yields its URL and ends it by its id."""
    (folder / "config.yaml").write_text(config)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([*(each for each in sys.path if each), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "FITROUTER": target, "LITELLM_MASTER_KEY": MASTER}
    start = "import sys; from litellm import run_server; sys.exit(run_server())"
    command = [sys.executable, "-c", start, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "proxy.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: process.poll() is not None or answers(url), START_S)
        assert process.poll() is None, (folder / "proxy.log").read_text()[-2000:]
        yield url
    finally:
        process.terminate()
        try:
            process.wait(300.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(300.0)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/liveliness", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        time.sleep(0.1)
        return False


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One proxy for all tests here, as documented, with users of its keys, other models, and the observer."""
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "own_auth.py").write_text(AUTH)
    router = agent_router(folder, agent := Broken(), names=(*NAMES, "plain"))
    head, settings = documented().split("litellm_settings:")
    with away() as base, serving(router) as gateway:
        config = head.rstrip() + MORE.replace("BASE", base).rstrip() + settings
        with proxied(folder, config, gateway) as url:
            yield Place(url, router, agent)


@contextmanager
def away() -> Iterator[str]:
    """A provider that is none of ours: its first answer is whole, its second a failure."""
    loop, server = asyncio.new_event_loop(), FakeOpenAI([None, reply(500, {"error": {"message": "no"}})])
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    try:
        yield server.base_url
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_answers_whole_and_streamed(place: Place) -> None:
    """Both say what was decided, as the log has it; a stream's usage has the cost."""
    chat = place.client().chat.completions
    whole = chat.create(model="auto", messages=HELLO)
    made = place.decision()
    assert whole.choices[0].message.content == f"{made.chosen} heard hello"
    assert (whole.fitrouter["decision_id"], whole.fitrouter["propensity"]) == (made.id, made.propensity)
    chunks = list(chat.create(model="auto", messages=HELLO, stream=True, stream_options={"include_usage": True}))
    made = place.decision()
    assert text(chunks) == f"{made.chosen} heard hello"
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{made.id}"}
    assert chunks[0].fitrouter["decision_id"] == made.id
    assert [chunk.usage.cost for chunk in chunks if chunk.usage] == [pytest.approx(whole.fitrouter["cost_usd"])]
    assert chat.create(model="beta", messages=HELLO).choices[0].message.content == "beta heard hello"
    assert place.decision().mode.value == "pinned"


def test_tools_schemas_and_parameters(place: Place) -> None:
    """Tools whole and streamed, a typed answer, and sampling options reach the model; the proxy's own words do not."""
    chat = place.client().chat.completions
    whole = chat.create(model="auto", messages=HELLO, tools=TOOLS, tool_choice="required")
    call = whole.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 3, "b": 3}')
    after = [*HELLO, whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "6"}]
    assert chat.create(model="auto", messages=after, tools=TOOLS).choices[0].message.content.endswith("heard 6")
    assert arguments(list(chat.create(model="auto", messages=HELLO, tools=TOOLS, stream=True))) == {
        0: '{"a": 3, "b": 3}'
    }
    parsed = chat.parse(model="auto", messages=HELLO, response_format=Sum, temperature=0.3, max_tokens=9)
    assert parsed.choices[0].message.parsed == Sum(value=3, note="hello")
    assert set(place.agent.calls[-1].params) == {"temperature", "max_tokens", "response_format"}


WHO: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "the key": ({}, {"user": "kim"}),
    "user=": ({"user": "ann"}, {"user": "ann"}),
    "metadata": (
        {"metadata": {"user": "ann", "role": "nurse", "task": "triage", "session": "s"}},
        {"user": "ann", "role": "nurse", "task": "triage"},
    ),
    "body": ({"extra_body": {"role": "nurse", "task": "triage"}}, {"user": "kim", "role": "nurse", "task": "triage"}),
    "headers": ({"extra_headers": {"x-litellm-end-user-id": "ann"}}, {"user": "ann"}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("channel", WHO)
def test_identities_reach_the_log(place: Place, channel: str, stream: bool) -> None:
    """Each channel of a proxy client is in the decision."""
    given, wanted = WHO[channel]
    answer = place.client().chat.completions.create(model="auto", messages=HELLO, stream=stream, **given)
    if stream:
        assert text(list(answer)).endswith("heard hello")
    who = place.decision().identity
    assert who.user == place.subject(wanted["user"])
    assert (who.role, who.task) == (wanted.get("role"), wanted.get("task"))


def test_errors_have_their_status(place: Place) -> None:
    """A tenant, several answers, no such model, a model that fails: each has its own status."""
    chat = place.client().chat.completions
    before = len(events(place.router, Decision))
    for given, words in (
        ({"model": "auto", "metadata": {"tenant": "b"}}, "tenant"),
        ({"model": "auto", "metadata": {"role": ["nurse"]}}, "role"),
        ({"model": "auto", "n": 2}, "n: got 2"),
        ({"model": "missing"}, "nobody"),
        ({"model": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            chat.create(messages=HELLO, **given)
    assert len(events(place.router, Decision)) == before
    failing = [{"role": "user", "content": "fail"}]
    with pytest.raises(openai.InternalServerError, match="down") as raised:
        chat.create(model="auto", messages=failing)
    assert raised.value.status_code == 503
    with pytest.raises(openai.APIError, match="down"):
        list(chat.create(model="auto", messages=failing, stream=True))


async def test_many_at_once(place: Place) -> None:
    """Fifty at once, half of them streamed: each gets its own answer, and each is one decision of its user."""
    before = len(events(place.router, Decision))
    async with openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key="sk-user-kim", max_retries=0) as client:

        async def ask(i: int) -> str:
            call = {"model": "auto", "messages": [{"role": "user", "content": f"task {i}"}], "user": f"u{i}"}
            if i % 2:
                return text([chunk async for chunk in await client.chat.completions.create(stream=True, **call)])
            said: str = (await client.chat.completions.create(**call)).choices[0].message.content
            return said

        said = await asyncio.gather(*(ask(i) for i in range(50)))
    assert [each.split(" heard ")[1] for each in said] == [f"task {i}" for i in range(50)]
    made = events(place.router, Decision)[before:]
    assert {each.identity.user for each in made} == {place.subject(f"u{i}") for i in range(50)}
    assert len(made) == 50


def test_other_protocols_of_the_proxy(place: Place) -> None:
    """Its Responses and Messages APIs are routed as well."""
    assert place.client().responses.create(model="auto", input="hello", user="ann").output_text.endswith("heard hello")
    assert place.decision().identity.user == place.subject("ann")
    body = {"model": "auto", "max_tokens": 20, "messages": HELLO}
    headers = {"authorization": "Bearer sk-user-kim"}
    answer = httpx.post(f"{place.url}/v1/messages", headers=headers, json=body, timeout=300.0)
    assert answer.json()["content"][0]["text"].endswith("heard hello")


def test_the_observer_records_other_models(place: Place) -> None:
    """Calls of the proxy's other models are written down, failed ones too; those of `fitrouter/…` are not, again."""
    chat = place.client().chat.completions
    before = len(events(place.router, Execution))
    chat.create(model="plain", messages=HELLO, user="ann", metadata={"role": "nurse"})
    with pytest.raises(openai.InternalServerError):
        chat.create(model="plain", messages=HELLO)
    chat.create(model="auto", messages=HELLO)
    wait_for(lambda: len(events(place.router, Execution)) == before + 3)
    made = {each.id: each for each in events(place.router, Decision)}
    seen = [(made[ended.decision_id], ended) for ended in events(place.router, Execution)[before:]]
    observed = {ended.status: decision for decision, ended in seen if decision.mode.value == "pinned"}
    assert set(observed) == {"ok", "failed"}
    assert {each.chosen for each in observed.values()} == {"plain"}
    assert (observed["ok"].identity.user, observed["ok"].identity.role) == (place.subject("ann"), "nurse")


def test_a_configuration_instead_of_a_gateway(tmp_path: Path) -> None:
    """The documented file as it stands, the master key, and a router inside of the proxy."""
    (tmp_path / "fitrouter.yaml").write_text(
        "providers: {local: {kind: simulated, options: {terse: {length: 2}}}}\n"
        "models: [{name: terse, provider: local}]\nencoder: hashing\nscorer: {encoder: hashing}\n"
    )
    with (
        proxied(tmp_path, documented(), "fitrouter.yaml") as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key=MASTER, max_retries=0, timeout=300.0) as client,
    ):
        answer = client.chat.completions.create(model="auto", messages=HELLO)
        assert answer.fitrouter["model"] == "terse"
        assert answer.choices[0].message.content
