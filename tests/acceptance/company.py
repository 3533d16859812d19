"""A small company: two tenants, twelve people with tastes, five models, and the server that answers and bills for them.

Everything here is the test's own: it knows nothing of the product but the format of its configuration.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = [
    *(
        "ADDED",
        "ASSUMED",
        "CACHE_DISCOUNT",
        "CHECKED",
        "CUT_USD",
        "ERASED",
        "FAILS",
        "KEYS",
        "MODELS",
        "PEOPLE",
        "TENANTS",
        "UNSAID",
        "WRITES",
        "Call",
        "Counts",
        "Person",
        "Upstream",
    ),
    *("cost_usd", "settings", "text"),
]


class Person(NamedTuple):
    """Somebody, and the model whose answers they like."""

    tenant: str
    name: str
    role: str
    likes: str
    rates: str
    """How they say it: thumb, rating, or both in turn."""


PEOPLE = (
    Person("acme", "ann", "nurse", "brief", "thumb"),
    Person("acme", "ben", "nurse", "brief", "rating"),
    Person("acme", "cem", "nurse", "brief", "both"),
    Person("acme", "dora", "nurse", "lister", "thumb"),
    Person("acme", "eva", "nurse", "rambler", "rating"),
    Person("acme", "finn", "developer", "brief", "both"),
    Person("acme", "gus", "developer", "brief", "thumb"),
    Person("acme", "hana", "developer", "lister", "rating"),
    Person("acme", "ida", "developer", "brief", "both"),
    Person("acme", "joe", "developer", "garage", "thumb"),
    Person("birch", "ann", "writer", "rambler", "rating"),  # of the same name, and of the opposite taste
    Person("birch", "zoe", "writer", "lister", "thumb"),
)
ERASED = PEOPLE[-1]
KEYS = {
    "acme": "key-of-acme-0123456789abcdef",
    "birch": "key-of-birch-0123456789abcdef",
    "": "key-of-ops-0123456789abcdef",
}
"""Tenant → its key; that of the installation has none."""
TENANTS = ("acme", "birch")

MODELS: dict[str, tuple[float, float] | None] = {
    "brief": (0.5, 1.5),
    "lister": (1.0, 4.0),
    "rambler": (2.0, 8.0),
    "garage": None,
    "newcomer": (0.8, 2.4),
}
"""Model → USD per million tokens of prompt and answer; None where nobody has said it."""
CACHE_DISCOUNT = 0.75
"""What tokens of a prompt that a model still knows are cheaper by; every model's, but of the one that is added."""
WRITES = {"lister": 1.25, "rambler": 1.0}
"""Model → what tokens of a prompt cost that it keeps for later, in prices of its other tokens."""
UNSAID = "rambler"
"""Of those the one whose price of keeping nobody has said: it is taken for that of its other tokens."""
REASONS = "brief"
"""The model that thinks before it answers; a third of its answer's tokens are hidden."""
CHECKED, FAILS = "lister", "Check it."
"""The model whose answers a program checks, and the words of prompts whose answers fail."""
ADDED = "newcomer"
LIMIT_USD = 5.0
"""Budget of birch in the morning; in the evening it is cut to what is left of `CUT_USD`."""
CUT_USD = 0.004
"""What is left to spend after the cut."""
ASSUMED = "rambler"
"""The most expensive model: documents say that an answer without a price counts as much as its answer."""


def text(model: str, topic: str, n: int) -> str:
    """What a model writes about a topic, each in its own manner."""
    match model:
        case "brief":
            return f"{topic.capitalize()}: yes, at {n}."
        case "lister":
            return f"# {topic}\n\n" + "\n".join(f"- point {k} of {topic}" for k in range(5 + n % 3))
        case "rambler":
            return f"There is rather a lot more that one could say here about {topic}, all in all. " * (6 + n % 4)
        case "garage":
            return f"```python\ndef {topic}():\n    return {n}\n```"
        case _:
            return f"I am not sure, perhaps {topic} might possibly be {n}, but it seems hard to say."


class Counts(NamedTuple):
    """Tokens of a call."""

    prompt: int = 0
    answer: int = 0
    cached: int = 0
    """Of the prompt's: those that the model still knew."""
    written: int = 0
    """Of the prompt's: those that it keeps for later."""
    reasoning: int = 0
    """Of the answer's: those that nobody sees."""


def cost_usd(model: str, counts: Counts) -> float | None:
    """What a call costs at the list price; None where there is none."""
    if (prices := MODELS[model]) is None:
        return None
    discount = 0.0 if model == ADDED else CACHE_DISCOUNT
    prompt = counts.prompt - discount * counts.cached + (WRITES.get(model, 1.0) - 1.0) * counts.written
    return (prices[0] * prompt + prices[1] * counts.answer) / 1e6


class Call(NamedTuple):
    """A call that the upstream got, and what it billed for it."""

    n: int
    """Number of the request that its prompt names."""
    model: str
    status: int
    counts: Counts = Counts()
    text: str = ""

    @property
    def guesses(self) -> bool:
        """Whether tokens were billed at a price that nobody has said: it is taken for that of the prompt's others."""
        unsaid = self.counts.written if self.model == UNSAID else self.counts.cached if self.model == ADDED else 0
        return unsaid > 0


class Upstream:
    """A server of OpenAI's chat completions on loopback: answers by model, bills what it answers, fails on demand."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.failing: set[str] = set()
        """Models that are down."""
        self.stumbling: set[int] = set()
        """Numbers of requests of which the next call is one too many."""
        self.halting: set[int] = set()
        """Numbers of requests whose streams go on until whoever called leaves."""
        upstream, self._lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                upstream._answer(self, body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @contextmanager
    def serving(self) -> Iterator[Upstream]:
        """Serve in a thread while the context lasts."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _answer(self, http: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        model, asked = body["model"], json.dumps(body["messages"])
        n, topic = re.findall(r"\(no\. (\d+)\) about (\w+)", asked)[-1]
        if int(n) in self.stumbling:
            self.stumbling.discard(int(n))
            self._count(Call(int(n), model, 429))
            self._send(http, 429, {"error": {"message": "slow down", "type": "rate_limit_error"}})
            return
        if model in self.failing:
            self._count(Call(int(n), model, 500))
            self._send(http, 500, {"error": {"message": f"{model} is down", "type": "server_error"}})
            return
        said = text(model, topic, int(n))
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if body.get("tools") and body["messages"][-1]["role"] == "user":
            arguments = json.dumps({"topic": topic})
            call = {"id": f"call_{n}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
            message, said = {"role": "assistant", "content": None, "tool_calls": [call]}, arguments
        prompt_tokens, answer_tokens = len(asked) // 5, len(said) // 4 + 1
        counts = Counts(
            prompt_tokens,
            answer_tokens,
            cached=prompt_tokens // 2 if len(body["messages"]) > 1 else 0,
            written=prompt_tokens // 4 if model in WRITES else 0,
            reasoning=answer_tokens // 3 if model == REASONS else 0,
        )
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": answer_tokens,
            "total_tokens": prompt_tokens + answer_tokens,
            "prompt_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": counts.written},
            "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
        }
        self._count(Call(int(n), model, 200, counts, said))
        reason = "tool_calls" if "tool_calls" in message else "stop"
        about = {"id": f"up-{n}", "created": 1, "model": model}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._send(http, 200, {**about, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        if "tool_calls" in message:
            deltas = [{"role": "assistant", "tool_calls": [{"index": 0, **message["tool_calls"][0]}]}]
        else:
            deltas = [{"role": "assistant", "content": said[:9]}, {"content": said[9:]}]
        events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
        events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}, {"choices": [], "usage": usage}]
        if int(n) in self.halting:  # what is billed so far stands in each event, as some servers have it
            events = [{**events[0], "usage": usage}]
        lines = [json.dumps({**about, "object": "chat.completion.chunk", **event}) for event in events]
        if int(n) in self.halting:
            self._send(http, 200, f"data: {lines[0]}\n\n".encode(), "text/event-stream", more=True)
            http.connection.settimeout(60.0)
            assert http.connection.recv(1) == b"", "nobody left"
            return
        content = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
        self._send(http, 200, content.encode(), "text/event-stream")

    def _count(self, call: Call) -> None:
        with self._lock:
            self.calls.append(call)

    @staticmethod
    def _send(
        http: BaseHTTPRequestHandler, status: int, body: Any, kind: str = "application/json", *, more: bool = False
    ) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        http.send_response(status)
        http.send_header("content-type", kind)
        if more:
            http.send_header("connection", "close")
        else:
            http.send_header("content-length", str(len(content)))
        http.end_headers()
        http.wfile.write(content)


def settings(data: str, upstream: str, **changes: Any) -> dict[str, Any]:
    """The configuration of the company's gateway, without the model that is added at noon."""
    prices = {
        name: None
        if price is None
        else {"input": price[0], "output": price[1]}
        | ({"cache_write": WRITES[name] * price[0]} if name in WRITES.keys() - {UNSAID} else {})
        for name, price in MODELS.items()
        if name != ADDED
    }
    return {
        "data": data,
        "content": "encrypted",
        "providers": {"house": {"kind": "openai_compatible", "base_url": upstream}},
        "models": [
            {"name": name, "provider": "house", "cache_discount": CACHE_DISCOUNT}
            | ({} if price is None else {"prices": price})
            | ({"check": ["sh", "-c", f"! grep -q '{FAILS}'"]} if name == CHECKED else {})
            for name, price in prices.items()
        ],
        "feedback": {"ask": 0.05},
        "encoder": "hashing",
        "scorer": {"encoder": "hashing", "prior": "none"},
        "budget": {"tenants": {"birch": {"usd_per_period": LIMIT_USD, "period_s": 864_000.0}}},
        "server": {
            "port": 0,
            "keys": [
                {"name": "ops", "key_env": "DAY_KEY_OPS", "admin": True, "trusted": True, "metrics": True},
                *(
                    {"name": name, "tenant": name, "key_env": f"DAY_KEY_{name.upper()}", "trusted": True}
                    for name in KEYS
                    if name
                ),
            ],
        },
        **changes,
    }
