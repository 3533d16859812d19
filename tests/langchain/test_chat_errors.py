"""Errors of ChatFitrouter: each is the router's and LangChain's, whose retries and fallbacks understand it."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware
from langchain_core import exceptions as lc
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from tests.kits.agents import Agent, agent_router
from tests.kits.chat import HOW, WHOLE, asked, chat
from tests.kits.gateway import config, serving

from fitrouter import errors
from fitrouter.errors import ConfigError, ContextOverflow, ProviderError, ProviderRejected, ProviderUnavailable
from fitrouter_integrations.langchain import ChatFitrouter

WHERE = ("near", "far")


class Failing(Agent):
    """Fails with an error for its first `times` calls; without an error it never ends."""

    def __init__(self, error: ProviderError | None = None, times: int = 10**6) -> None:
        super().__init__()
        self.error, self.left = error, times

    async def complete(self, call: Any) -> Any:
        if self.error is None:
            await asyncio.sleep(60.0)
        if self.left:
            self.left -= 1
            raise self.error or AssertionError("nobody stopped it")
        return await super().complete(call)


PICTURE = [HumanMessage([{"type": "image", "url": "https://e.example/x.png"}])]
CASES: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], type[Exception]]] = {
    # provider, question, settings of the model, our error, LangChain's error
    "all are down": (ProviderUnavailable("down", 503), "hi", {}, errors.AllModelsFailed, lc.ModelAPIError),
    "too late": (None, "hi", {"timeout": 0.2}, errors.AllModelsFailed, lc.ModelTimeoutError),
    "refused": (ProviderRejected("bad", 400), "hi", {}, errors.ProviderRejected, lc.ModelInvalidRequestError),
    "refused, too long": (
        ContextOverflow("400: context_length_exceeded", 400),
        "hi",
        {},
        errors.ContextOverflow,
        lc.ContextOverflowError,
    ),
    "too long": (None, "word " * 200_000, {}, errors.NoEligibleModel, lc.ContextOverflowError),
    "nobody can": (None, PICTURE, {}, errors.NoEligibleModel, lc.ModelInvalidRequestError),
    "no such model": (None, "hi", {"model": "delta"}, errors.InvalidRequest, lc.ModelNotFoundError),
    "two answers": (None, "hi", {"model_kwargs": {"n": 2}}, errors.InvalidRequest, lc.ModelInvalidRequestError),
    "no question": (None, [], {}, errors.InvalidRequest, lc.ModelInvalidRequestError),
}
AGAIN = {"all are down", "too late"}
"""Cases that a retry may solve."""


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("case", CASES)
def test_each_error_is_ours_and_langchains(tmp_path: Path, case: str, where: str) -> None:
    """From every entry point: caught as either class, with our message, retryable or not, and it can be pickled."""
    failing, question, settings, ours, theirs = CASES[case]
    with chat(tmp_path, where, Failing(failing), able=("streaming", "tools"), **settings) as (model, _):
        for how in HOW:
            with pytest.raises(ours) as raised:
                asked(model, how, question)
            error: Any = raised.value
            assert isinstance(error, theirs), how
            assert type(error).__name__ == ours.__name__
            assert error.is_retryable is (case in AGAIN), how
            copied = pickle.loads(pickle.dumps(error))
            assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("how", HOW)
def test_an_unreachable_gateway(how: str) -> None:
    """A connection error that may be retried, with the URL."""
    model = ChatFitrouter(router="http://127.0.0.1:9")
    with pytest.raises(errors.Unreachable, match=r"127\.0\.0\.1:9") as raised:
        asked(model, how, "hi")
    assert isinstance(raised.value, lc.ModelConnectionError)


def test_a_wrong_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not retried, and no message shows the key."""
    monkeypatch.setenv("RIGHT_KEY", "the-right-one-of-32-characters-xx")
    settings = config(keys=[{"name": "agents", "key_env": "RIGHT_KEY"}])
    with serving(agent_router(tmp_path), settings) as url:
        model = ChatFitrouter(router=url, api_key="a-wrong-one")
        with model.client:
            for how in HOW:
                with pytest.raises(errors.NotAuthorized) as raised:
                    asked(model, how, "hi")
                assert isinstance(raised.value, lc.ModelAuthenticationError), how
                assert "wrong" not in str(raised.value)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"router": "missing.yaml"}, "fitrouter init"),
        ({"router": "."}, "there is no file"),
        ({"router": ""}, "URL of a gateway"),
        ({"router": None}, "URL of a gateway"),
        ({"router": 7}, "URL of a gateway"),
        ({"base_url": "http://127.0.0.1:9"}, "base_url.*router"),
        ({"top_p": 0.5}, "top_p.*model_kwargs"),
    ],
)
def test_invalid_settings(made: dict[str, Any], says: str) -> None:
    """The message has the value and the remedy; nothing is ignored silently."""
    with pytest.raises(ConfigError, match=f"(?s){says}") as raised:
        ChatFitrouter(**{"router": "missing.yaml", **made}).invoke("hi")
    assert not getattr(raised.value, "is_retryable", False)


# --- LangChain's own remedies ---


def agent_of(model: Any, *middleware: Any) -> Any:
    return create_agent(model, [], middleware=list(middleware))


@pytest.mark.parametrize(("where", "how"), WHOLE)
def test_retries_repeat_what_may_succeed(tmp_path: Path, where: str, how: str) -> None:
    """`ModelRetryMiddleware` and `with_retry` succeed after all models failed once."""
    patient = ModelRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False, on_failure="error")
    down = ProviderUnavailable("down", 503)
    with chat(tmp_path / "agent", where, Failing(down, 3)) as (model, _):
        state = asked(agent_of(model, patient), how, {"messages": [("user", "hi")]})
        assert state["messages"][-1].text.endswith("heard hi")
    with chat(tmp_path / "chain", where, Failing(down, 3)) as (model, _):
        chain = model.with_retry(retry_if_exception_type=(lc.ModelAPIError,), wait_exponential_jitter=False)
        assert asked(chain, how, "hi").text.endswith("heard hi")


def test_retries_do_not_repeat_invalid_requests(tmp_path: Path) -> None:
    """An invalid request is sent once."""
    patient = ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False, on_failure="error")
    provider = Failing(ProviderRejected("bad", 400))
    with chat(tmp_path, "near", provider) as (model, _):
        with pytest.raises(ProviderRejected):
            agent_of(model, patient).invoke({"messages": [("user", "hi")]})
        assert provider.left == 10**6 - 1


@pytest.mark.parametrize("how", HOW)
def test_fallbacks_take_over(tmp_path: Path, how: str) -> None:
    """Where the router cannot answer, another chat model does, of `with_fallbacks` and of an agent's middleware."""
    spare = FakeListChatModel(responses=["spare"])
    with chat(tmp_path, "near", Failing(ProviderUnavailable("down", 503))) as (model, _):
        assert asked(model.with_fallbacks([spare]), how, "hi").text == "spare"
        more = {"stream_mode": "values"} if "stream" in how else {}
        state = asked(agent_of(model, ModelFallbackMiddleware(spare)), how, {"messages": [("user", "hi")]}, **more)
        assert state["messages"][-1].text == "spare"


@pytest.mark.parametrize("where", WHERE)
def test_a_stream_that_breaks_off_raises(tmp_path: Path, where: str) -> None:
    """After the first chunk no other model is tried: the error is raised, as ours and LangChain's."""

    class Breaks(Agent):
        async def _pieces(self, message: Any, reason: str, usage: Any) -> Any:
            async for piece in super()._pieces(message, reason, usage):
                yield piece
                raise ProviderUnavailable("gone")

    with chat(tmp_path, where, Breaks()) as (model, _):
        pieces = model.stream("hi")
        assert next(pieces).response_metadata["decision_id"]
        with pytest.raises(ProviderError) as raised:
            list(pieces)
        assert isinstance(raised.value, lc.ModelAPIError)
