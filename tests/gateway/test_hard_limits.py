"""Hard limits over HTTP: real gateways, a provider with a bill, and many requests at once."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from benchmarks.gateway.process import Gateway
from tests.kits import postgres
from tests.kits.fake_openai import FakeOpenAI, Reply, in_a_thread, reply
from tests.kits.gateway import chat, client

INPUT, OUTPUT = 1.0, 20.0
"""USD per million tokens."""
PROMPT, ANSWER = 200, 490
"""Tokens of every call; 0.01 USD."""
CALL_S = 0.1


class Billing(FakeOpenAI):
    """Answers with as many tokens as it may, at most `ANSWER`, and writes a bill."""

    def __init__(self) -> None:
        super().__init__()
        self.bill = 0.0
        self.limits: list[int | None] = []

    def _reply_to(self, path: str, body: dict[str, Any]) -> Reply:
        if not path.endswith("/chat/completions"):
            return super()._reply_to(path, body)
        self.limits.append(body.get("max_tokens"))
        tokens = min(body.get("max_tokens") or ANSWER, ANSWER)
        self.bill += (PROMPT * INPUT + tokens * OUTPUT) / 1e6
        message = {"role": "assistant", "content": "word " * 10}
        whole = {
            "id": "x",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": PROMPT, "completion_tokens": tokens, "total_tokens": PROMPT + tokens},
        }
        return Reply(CALL_S, *reply(200, whole).pieces, keep=True)


class Place(NamedTuple):
    """Gateways that share a limit."""

    urls: list[str]
    provider: Billing

    def at_once(self, number: int, **body: Any) -> list[httpx.Response]:
        """Answers to so many requests, spread over the gateways."""

        async def ask() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=number)
            async with httpx.AsyncClient(timeout=120.0, limits=limits) as http:
                urls = itertools.cycle(self.urls)
                return await asyncio.gather(
                    *(http.post(f"{next(urls)}/v1/chat/completions", json=chat(f"q{n}", **body)) for n in range(number))
                )

        return asyncio.run(ask())


@contextmanager
def place(kind: str, usd: float, **more: Any) -> Iterator[Place]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        provider = Billing()
        stack.enter_context(in_a_thread(provider))
        settings: dict[str, Any] = {
            "providers": {"p": {"kind": "openai_compatible", "base_url": provider.base_url, "concurrency": 200}},
            "models": [{"name": "m", "provider": "p", "prices": {"input": INPUT, "output": OUTPUT}, **more}],
            "encoder": "hashing",
            "scorer": {"encoder": "hashing"},
            "budget": {"usd_per_period": usd, "period_s": 864_000.0},
            "server": {"deadline_s": 60.0},
        }
        number, workers = (3, 1) if kind == "3 gateways" else (1, int(kind[0]))
        database = ""
        if number > 1:
            if postgres.binaries() is None:
                pytest.skip(postgres.MISSING)
            server = stack.enter_context(postgres.serving())
            database = server.url(server.database())
        urls = []
        for n in range(number):
            data = {"data": database, "folder": str(folder / str(n))} if database else {"data": str(folder / "data")}
            file = folder / f"{n}.yaml"
            file.write_text(yaml.safe_dump({**settings, **data}))
            urls.append(stack.enter_context(Gateway(file, workers)).url)
        yield Place(urls, provider)


KINDS = ("1 worker", "4 workers", "3 gateways")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_billed_is_within_the_limit(kind: str) -> None:
    """A hundred requests at once, each of which may cost .32, against a dollar: it is used, and not exceeded."""
    with place(kind, 1.0) as here:
        answers = here.at_once(100, max_tokens=16_000)
        statuses = {answer.status_code for answer in answers}
        assert here.provider.bill <= 1.0 + 1e-9
        assert here.provider.bill >= 0.9
        assert statuses <= {200, 402}
        lowered = [answer for answer in answers if "x-fitrouter-max-tokens" in answer.headers]
        said = sorted(int(answer.headers["x-fitrouter-max-tokens"]) for answer in lowered)
        assert said == sorted(limit for limit in here.provider.limits if limit != 16_000)
        assert all(answer.json()["fitrouter"]["max_tokens"] < 16_000 for answer in lowered)
        assert min(said) >= 256
        with client(here.urls[0]) as http:
            while (last := http.post("/v1/chat/completions", json=chat("more"))).status_code == 200:
                pass
        error = last.json()["error"]
        assert (last.status_code, error["code"]) == (402, "budget_exhausted")
        assert "USD at most" in error["message"]
        assert "USD are left" in error["message"]
        assert here.provider.bill <= 1.0 + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_honest_requests_are_all_answered(kind: str) -> None:
    """A hundred at once, .01 each, against ten dollars, although a tenth of them may cost all of it.

    Those that come while all of it is reserved may be limited, and say so.
    """
    with place(kind, 10.0, max_output_tokens=50_000) as here:
        answers = here.at_once(100)
        assert {answer.status_code for answer in answers} == {200}
        whole = sum("x-fitrouter-max-tokens" not in answer.headers for answer in answers)
        assert whole >= 10
        assert 0.01 * whole - 1e-9 <= here.provider.bill <= 1.0 + 1e-9  # the others may have been cut short
