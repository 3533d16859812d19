"""Laws of /v1/embeddings: passed through to a configured model, paid for by the caller's tenant, and nothing learnt."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from tests.kits.fake_openai import FakeOpenAI, reply
from tests.kits.gateway import Echo, chat, client, config, folded, make_router, serving, wait_for
from tests.kits.tables import table_driven

from fitrouter.config import parse_config
from fitrouter.context.features import context_names
from fitrouter.errors import ConfigError, ProviderRejected, ProviderUnavailable
from fitrouter.providers import OpenAICompatible, Secret
from fitrouter.router import Router
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.stores.journal import MemoryJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import Decision, EmbeddingCall, Embeddings, Execution, ModelCard, Prices, Usage

DATA = b'[{"object": "embedding", "index": 0, "embedding": [0.125, -1e-3]}]'
CARD = ModelCard(name="small", provider="echo", target="text-embedding-3-small", prices=Prices(input=10.0))


class Embedding(Echo):
    """Embeds whatever is asked, or fails."""

    def __init__(self, error: Exception | None = None, tokens: int = 5) -> None:
        super().__init__()
        self.embedded: list[EmbeddingCall] = []
        self.error, self.tokens = error, tokens

    async def embed(self, call: EmbeddingCall) -> Embeddings:
        self.embedded.append(call)
        if self.error is not None:
            raise self.error
        return Embeddings(data=msgspec.Raw(DATA), usage=Usage(prompt_tokens=self.tokens))


def logged(router: Router, kind: type[Any]) -> list[Any]:
    return [row.event for row in router._journal.tail(0, 1000) if isinstance(row.event, kind)]


@contextmanager
def gateway(folder: Path, provider: Any, settings: Any = None, **more: Any) -> Iterator[tuple[Router, str]]:
    router = make_router(folder, {"echo": provider}, embeddings=[CARD], **more)
    with serving(router, settings) as url:
        yield router, url


def test_vectors_are_passed_through_and_their_cost_is_logged(tmp_path: Path) -> None:
    """The client reads what the provider sent; one pinned decision and one execution hold tokens and cost."""
    provider = Embedding()
    with gateway(tmp_path, provider) as (router, url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as sdk:
            raw = sdk.embeddings.with_raw_response.create(
                model="small", input=["Hello", "World"], dimensions=2, encoding_format="float", user="ann"
            )
            found = raw.parse()
            assert "small" in [model.id for model in sdk.models.list()]
        assert found.data[0].embedding == [0.125, -1e-3]
        assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == ("small", 5, 5)
        (call,) = provider.embedded
        assert call.target == "text-embedding-3-small"
        assert call.params == {"input": ["Hello", "World"], "dimensions": 2, "encoding_format": "float"}
        (decision,) = logged(router, Decision)
        (execution,) = wait_for(lambda: logged(router, Execution))
        assert raw.headers["x-fitrouter-decision"] == decision.id == execution.decision_id
        assert (decision.mode.value, decision.chosen, decision.identity.user) == ("pinned", "small", None)
        assert (execution.status, execution.prompt_tokens, execution.cost_usd) == ("ok", 5, 5 * 10.0 / 1e6)
        with client(url) as http:
            why = http.get(f"/v1/decisions/{decision.id}").json()
            assert (why["chosen"], why["execution"]["cost_usd"]) == ("small", execution.cost_usd)
            assert 'fitrouter_cost_usd_total{model="small"' in http.get("/metrics").text


def learnt(router: Router) -> dict[str, bytes]:
    """The learnt state, without what counts events and money."""
    return {key: data for key, data in router._learner.state() if key not in {"scalars", "part:budgets"}}


def test_nothing_is_learnt_and_chat_never_picks_such_a_model(tmp_path: Path) -> None:
    """The learner's models are bit for bit as before, and a chat that names the model is refused."""
    with gateway(tmp_path, Embedding()) as (router, url), client(url) as http:
        http.post("/v1/chat/completions", json=chat())
        wait_for(lambda: logged(router, Execution))
        folded(router)
        before = learnt(router)
        for _ in range(3):
            assert http.post("/v1/embeddings", json={"model": "small", "input": "Hello"}).status_code == 200
        wait_for(lambda: len(logged(router, Execution)) == 4)
        folded(router)
        assert learnt(router) == before
        assert "arm:alpha" in before
        assert "arm:small" not in before
        assert http.post("/v1/chat/completions", json=chat(model="small")).status_code == 404
        for decision in logged(router, Decision):
            assert decision.chosen == "small" or "small" not in (*decision.eligible, *dict(decision.excluded))


def test_the_warehouse_takes_them(tmp_path: Path) -> None:
    """They are rows like any other pinned decision."""
    journal = MemoryJournal()
    with gateway(tmp_path, Embedding(), journal=journal) as (router, url), client(url) as http:
        http.post("/v1/embeddings", json={"model": "small", "input": "Hello"})
        wait_for(lambda: logged(router, Execution))
    warehouse = Warehouse(tmp_path / "w.duckdb")
    WarehouseFeed(journal, warehouse).step()
    found = warehouse.query(
        "SELECT d.chosen, d.mode, e.cost_usd FROM decisions d JOIN executions e ON e.decision_id = d.decision_id"
    )
    assert found == [("small", "pinned", 5 * 10.0 / 1e6)]


def budgeted(usd: float) -> Learner:
    limit = BudgetParams(usd_per_period=usd)
    return Learner(len(context_names()), 1, expects_scores=False, projections=ProjectionParams(budget=limit))


def test_a_hard_budget_counts_and_stops_them(tmp_path: Path) -> None:
    """Each call reserves its cost first; what is spent counts against chat completions, too."""
    provider = Embedding(tokens=1000)
    learner = budgeted(0.06)
    with gateway(tmp_path, provider, learner=learner) as (_, url), client(url) as http:
        body = {"model": "small", "input": "x" * 4000}  # some 1,000 tokens, .01 USD; at most 4,256
        assert [http.post("/v1/embeddings", json=body).status_code for _ in range(3)] == [200, 200, 402]
        refused = http.post("/v1/embeddings", json=body)
        assert refused.json()["error"]["code"] == "budget_exhausted"
        assert int(refused.headers["retry-after"]) >= 1
        wait_for(lambda: learner.projections.budgets.spent("default", time.time()) == pytest.approx(0.02))
    assert len(provider.embedded) == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ProviderUnavailable("down", 503), 502),
        (ProviderUnavailable("none").billed(Usage(prompt_tokens=7)), 502),
        (ProviderRejected("bad", 400), 400),
        (RuntimeError("a bug"), 502),
        (TimeoutError(), 504),
    ],
)
def test_failures_are_answered_and_logged(tmp_path: Path, error: Exception, status: int) -> None:
    """In OpenAI's format; an execution without an answer ends the decision and frees its reservation."""
    with gateway(tmp_path, Embedding(error), learner=budgeted(1.0)) as (router, url), client(url) as http:
        reply = http.post("/v1/embeddings", json={"model": "small", "input": "Hello"})
        assert reply.status_code == status
        assert reply.json()["error"].keys() == {"message", "type", "code", "param"}
        (execution,) = wait_for(lambda: logged(router, Execution))
        assert (execution.status, execution.served_by) == ("rejected" if status == 400 else "failed", None)
        assert (execution.cost_usd > 0) is (status == 504 or getattr(error, "usage", None) is not None)  # it is billed
        assert all(slots.used == 0 for slots in router._caller.slots.values())


@pytest.mark.parametrize("tokens", [0, -5, 2**53, 10**9])
def test_impossible_counts_are_estimated(tmp_path: Path, tokens: int) -> None:
    """A provider's count that the text cannot have costs nobody more than the text."""
    with gateway(tmp_path, Embedding(tokens=tokens)) as (router, url), client(url) as http:
        found = http.post("/v1/embeddings", json={"model": "small", "input": "x" * 40}).json()
        assert found["usage"]["prompt_tokens"] == 10
        (execution,) = wait_for(lambda: logged(router, Execution))
        assert (execution.prompt_tokens, execution.estimated) == (10, True)


BAD: list[tuple[Mapping[str, Any], int, str]] = [
    ({"input": "x"}, 400, "model"),
    ({"model": "small"}, 400, "input"),
    ({"model": "small", "input": ""}, 400, "input"),
    ({"model": "small", "input": []}, 400, "input"),
    ({"model": "small", "input": [""]}, 400, "input"),
    ({"model": "small", "input": ["x", 1]}, 400, "input"),
    ({"model": "small", "input": [1, -1]}, 400, "input"),
    ({"model": "small", "input": [True]}, 400, "input"),
    ({"model": "small", "input": [[1], []]}, 400, "input"),
    ({"model": "small", "input": ["x"] * 2049}, 400, "input"),
    ({"model": "small", "input": {"api_base": "x"}}, 400, "api_base"),
    ({"model": "small", "input": "x", "api_base": "http://169.254.169.254/"}, 400, "api_base"),
    ({"model": "small", "input": "x", "extra_headers": {"a": "b"}}, 400, "extra_headers"),
    ({"model": "small", "input": "x", "dimensions": "many"}, 400, "dimensions"),
    ({"model": "alpha", "input": "x"}, 404, "alpha"),
    ({"model": "fitrouter/auto", "input": "x"}, 404, "small"),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with gateway(tmp_path_factory.mktemp("shared"), Embedding()) as (_, url), client(url) as session:
        yield session


@table_driven(("body", "status", "where"), BAD)
def test_malformed_requests_are_told_why(
    shared: httpx.Client, body: Mapping[str, Any], status: int, where: str
) -> None:
    """Nothing of them reaches a provider."""
    reply = shared.post("/v1/embeddings", json=body)
    assert reply.status_code == status, reply.text
    assert where in reply.json()["error"]["message"]


def test_the_tenant_of_the_key_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key nobody is served."""
    monkeypatch.setenv("KEY_A", "aaaa-secret-of-tenant-a")
    settings = config(keys=[{"name": "team-a", "tenant": "a", "key_env": "KEY_A"}])
    body = {"model": "small", "input": "Hello"}
    with gateway(tmp_path, Embedding(), settings) as (router, url), client(url) as http:
        assert http.post("/v1/embeddings", json=body).status_code == 401
        headers = {"authorization": "Bearer aaaa-secret-of-tenant-a"}
        assert http.post("/v1/embeddings", json=body, headers=headers).status_code == 200
        assert [decision.identity.tenant for decision in logged(router, Decision)] == ["a"]


def test_the_limit_of_a_key_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key's USD per day is reserved before the call, as in chat completions; another key of the tenant goes on."""
    monkeypatch.setenv("KEY_A", "aaaa-secret-of-tenant-a")
    monkeypatch.setenv("KEY_B", "bbbb-secret-of-tenant-a")
    entries = [
        {"name": "a", "tenant": "a", "key_env": "KEY_A", "usd_per_day": 0.05},
        {"name": "b", "tenant": "a", "key_env": "KEY_B"},
    ]
    body = {"model": "small", "input": "x" * 4000}  # some 1,000 tokens: .01 USD
    with gateway(tmp_path, Embedding(tokens=1000), config(keys=entries)) as (_, url), client(url) as http:
        for secret, expected in (("aaaa", 200), ("aaaa", 402), ("bbbb", 200), ("bbbb", 200)):
            headers = {"authorization": f"Bearer {secret}-secret-of-tenant-a"}
            assert http.post("/v1/embeddings", json=body, headers=headers).status_code == expected


# --- provider and configuration --------------------------------------------------------------------------------------


async def test_the_provider_relays_vectors_and_masks_its_key() -> None:
    """Posted to /embeddings with the key; an echoed key, errors and other answers are handled as in chat."""
    secret = Secret("sk-very-secret-key-of-ours")
    good = {"object": "list", "data": [{"embedding": "sk-very-secret-key-of-ours"}], "usage": {"prompt_tokens": 3}}
    script = [
        reply(200, good),
        reply(200, {"error": {"message": "down", "code": 503}}),
        reply(200, {"data": "x"}),
        reply(400, {"error": {"message": "bad"}}),
        reply(200, b"["),
    ]
    call = EmbeddingCall(target="m", params={"input": "Hello"})
    async with FakeOpenAI(script) as server:
        provider = OpenAICompatible(server.base_url, secret)
        found = await provider.embed(call)
        assert json.loads(bytes(found.data)) == [{"embedding": "••••"}]
        assert found.usage.prompt_tokens == 3
        assert server.seen[0][0] == {"input": "Hello", "model": "m"}
        with pytest.raises(ProviderUnavailable):
            await provider.embed(call)
        with pytest.raises(ProviderUnavailable, match="no embeddings"):
            await provider.embed(call)
        with pytest.raises(ProviderRejected):
            await provider.embed(call)
        with pytest.raises(ProviderUnavailable):
            await provider.embed(call)
        await provider.aclose()
        await asyncio.sleep(0)


MODELS: dict[str, Any] = {
    "providers": {
        "vllm": {"kind": "openai_compatible", "base_url": "http://127.0.0.1:8000/v1"},
        "s": {"kind": "simulated"},
    },
    "models": [{"name": "m", "provider": "s"}],
}


def test_a_configuration_names_them(tmp_path: Path) -> None:
    """With a price; providers that cannot embed, and names that are taken, are refused with the reason."""
    entry = {"name": "small", "provider": "vllm", "target": "bge", "price": 0.02}
    router = Router.from_config(parse_config({**MODELS, "data": str(tmp_path), "embeddings": [entry]}))
    card = router.embeddings["small"]
    assert (card.target, card.prices.input, list(router.models)) == ("bge", 0.02, ["m"])
    for wrong, why in (
        ({**entry, "provider": "s"}, "allowed are those of kind"),
        ({**entry, "provider": "nobody"}, "allowed are those of kind"),
        ({**entry, "name": "m"}, "is taken"),
        ({name: value for name, value in entry.items() if name != "price"}, "price"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_config({**MODELS, "embeddings": [wrong]})
