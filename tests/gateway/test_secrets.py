"""A provider's key that an upstream echoes reaches no client, no log, no metric and no stored event."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kits.echoes import ECHOES, FORMS, KEY
from tests.kits.fake_openai import FakeOpenAI
from tests.kits.gateway import Echo, chat, client, make_router, serving

from fitrouter import errors
from fitrouter.errors import FitrouterError, conceal, masked
from fitrouter.providers import Fault, Faulty, LiteLLM, OpenAICompatible, Secret
from fitrouter.providers.failures import excerpt
from fitrouter_integrations.gateway._logging import MaskingFormatter

OTHERS = (
    "sk-proj-abcdefghijkl0123456789",
    "sk-ant-api03-abcdefghijkl0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "ghp_abcdefghijklmnopqrstuvwxyz012345",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
)
"""Keys that the configuration does not know."""


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Secrets of this module do not mask messages of others."""
    before = list(errors._SECRETS)
    yield
    errors._SECRETS[:] = before


async def test_an_echoed_key_reaches_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever an upstream echoes the key in, whole or streamed, in whichever form."""
    caplog.set_level(logging.WARNING)
    said: dict[str, str] = {}
    script = [(name, stream, form) for name in ECHOES for stream in (False, True) for form in FORMS]
    answers = [ECHOES[name](form) for name, _, form in script]
    async with FakeOpenAI(answers) as server:
        router = make_router(tmp_path, {"echo": OpenAICompatible(server.base_url, Secret(KEY))})

        def ask() -> None:
            with serving(router) as url, client(url) as http:
                for name, stream, form in script:
                    body = chat("Hi", model="alpha", stream=stream)
                    answer = http.post("/v1/chat/completions", json=body)
                    said[f"{name}, {'streamed' if stream else 'whole'}, {form}"] = f"{answer.headers}{answer.text}"
                    if decision := answer.headers.get("x-fitrouter-decision"):
                        said[f"{name}, explained"] = http.get(f"/v1/decisions/{decision}").text
                said["metrics"] = http.get("/metrics").text

        await asyncio.to_thread(ask)
    said["log"] = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("fitrouter"))
    said["events"] = "\n".join(repr(row) for row in router._journal.tail(0, 100_000))
    assert len(said) > len(script)
    leaks = [where for where, text in said.items() for form in FORMS if form in text]
    assert not leaks


@pytest.mark.parametrize("stream", [False, True])
def test_exceptions_of_a_provider_are_masked(tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    """Also those of a provider of one's own, before the answer and within it, and bugs of the gateway itself."""
    Secret(KEY)
    faults = [RuntimeError(KEY), OSError(5, KEY), FitrouterError(f"key {KEY}"), KeyError(KEY)]
    script = [Fault(error=error, after=after) for error in faults for after in (0, 1)]
    provider = Faulty(Echo(), itertools.cycle(script))
    said: list[str] = []
    router = make_router(tmp_path, {"echo": provider})

    def broken(_request: object) -> object:
        raise RuntimeError(f"a bug with {KEY}")

    with serving(router) as url, client(url) as http:
        said += [
            http.post("/v1/chat/completions", json=chat(model="alpha", stream=stream)).text
            for _ in range(2 * len(script))
        ]
        router.complete = router.stream = broken  # type: ignore[method-assign, assignment]
        said.append(http.post("/v1/chat/completions", json=chat(stream=stream)).text)
    said += [record.getMessage() for record in caplog.records]
    assert any("a bug with" in text for text in said)
    assert not [text for text in said if KEY in text]


def test_keys_are_recognised() -> None:
    """What looks like a key is masked though the configuration does not know it; ordinary words are not."""
    for key in OTHERS:
        for text in (f"bad key {key}.", f'{{"key": "{key}"}}', f"({key})"):
            assert key not in str(FitrouterError(text))
    for text in ("Authorization: Bearer abcdefgh01234567", "api_key=abcdefgh01234567", '"secret": "abcdefgh01234567"'):
        assert "abcdefgh01234567" not in masked(text)
    for text in (
        "messages[0].role: got 'x'; allowed are system, user",
        "the task-oriented risk-averse disk-based model is down",
        "base_url contains a user or password; use 'api_key_env' for the key instead",
        "send 'Authorization: Bearer KEY' with a key of this gateway",
    ):
        assert masked(text) == text


def test_placeholders_are_no_secrets() -> None:
    """Keys of fewer than eight characters, such as EMPTY, are common words and stay in messages and answers."""
    assert Secret("EMPTY").scrub(b"an EMPTY box") == b"an EMPTY box"
    assert masked("an EMPTY box") == "an EMPTY box"


def test_an_excerpt_shows_no_part_of_a_key() -> None:
    """A key at the end of what is read is masked or left out, not cut."""
    conceal(KEY)
    for size in range(3560, 4110, 7):
        for content in (" " * size + KEY, (" " * size + KEY + "x" * 5000).encode()):
            assert "canary" not in excerpt(content)
    assert excerpt("x" * 5000) == "x" * 300 + "…"


def test_log_lines_are_masked() -> None:
    """Arguments and tracebacks included, whichever library logs."""
    Secret(KEY)
    error = RuntimeError(f"no access with {KEY}")
    record = logging.LogRecord("any", logging.ERROR, "", 0, "failed with %s", (KEY,), (RuntimeError, error, None))
    line = MaskingFormatter(logging.Formatter("%(message)s")).format(record)
    assert "no access with" in line
    assert KEY not in line


async def test_options_and_the_environment_hold_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that litellm takes from options or from the environment are masked like configured ones."""
    monkeypatch.setenv("SOME_API_KEY", "from-the-environment-1")
    LiteLLM(None, {"aws_secret_access_key": "from-the-options-1", "region": "a-plain-option"})
    text = str(FitrouterError("from-the-environment-1 from-the-options-1 a-plain-option"))
    assert text == "•••• •••• a-plain-option"
