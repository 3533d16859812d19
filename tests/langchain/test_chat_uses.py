"""ChatFitrouter with LangChain's caches, rate limiters, histories, counters and tracing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="install the extra `langchain`")

from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import HumanMessage, SystemMessage, trim_messages
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.graph.message import add_messages
from tests.kits.agents import Agent
from tests.kits.chat import HOW, WHOLE, asked, chat, events

from fitrouter.errors import ConfigError, NotAuthorized
from fitrouter.types import Decision, Feedback
from fitrouter_integrations.feedback import rate
from fitrouter_integrations.langchain import ChatFitrouter

WHERE = ("near", "far")

# --- caches ---


@pytest.mark.parametrize(("where", "how"), WHOLE)
def test_a_cached_answer_keeps_its_decision(tmp_path: Path, where: str, how: str) -> None:
    """The same words again are no new decision and cost nothing; what is said of them is said of the first ones."""
    with chat(tmp_path, where, Agent(), cache=InMemoryCache(), user="ann") as (model, router):
        first, second = asked(model, how, "hi"), asked(model, how, "hi")
        assert len(events(router, Decision)) == 1
        assert second.text == first.text
        assert second.response_metadata["decision_id"] == first.response_metadata["decision_id"]
        assert (second.response_metadata["cost_usd"], second.response_metadata["cached"]) == (0.0, True)
        assert "cached" not in first.response_metadata
        kept = add_messages([HumanMessage("hi"), first], [HumanMessage("hi"), second])
        assert len(kept) == 4
        rate(model, second, 4)
        (feedback,) = events(router, Feedback)
        assert feedback.decision_id == first.response_metadata["decision_id"]


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_the_cache_key_includes_the_identity(tmp_path: Path, how: str) -> None:
    """Another user, role or task misses the cache, whatever channel gives it; another session hits it."""
    with chat(tmp_path, "near", Agent(), cache=InMemoryCache()) as (model, router):
        asked(model, how, "hi", user="ann")
        asked(model, how, "hi", {"metadata": {"user_id": "ann", "thread_id": "t1"}})
        asked(model, how, "hi", {"configurable": {"user_id": "ann", "thread_id": "t2"}})
        assert len(events(router, Decision)) == 1
        bobs = asked(model, how, "hi", {"metadata": {"user_id": "bob"}})
        asked(model, how, "hi", user="ann", role="cook")
        asked(model.bind(user="ann", task="dinner"), how, "hi")
        asked(model.model_copy(update={"user": "eve"}), how, "hi")
        assert len(events(router, Decision)) == 5
        with pytest.raises(NotAuthorized):
            rate(model, bobs, 4, user="ann")


# --- tokens ---


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection can be made."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a socket was opened")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("alone")
def test_tokens_are_counted_without_a_tokenizer(tmp_path: Path) -> None:
    """The router's own estimate, tools included, and nothing is fetched; histories can be trimmed with it."""

    def look(value: int) -> str:
        """Look it up."""
        return str(value)

    with chat(tmp_path, "near", Agent()) as (model, _):
        assert model.get_num_tokens("four words of text") == 5
        history = [SystemMessage("short"), *[HumanMessage("word " * 100)] * 5]
        assert 600 < model.get_num_tokens_from_messages(history) < 800
        assert model.get_num_tokens_from_messages(history, [look]) > model.get_num_tokens_from_messages(history)
        kept = trim_messages(history, max_tokens=300, token_counter=model, include_system=True)
        assert [message.type for message in kept] == ["system", "human", "human"]
        with pytest.raises(ConfigError, match="custom_get_token_ids"):
            model.get_token_ids("text")


def test_a_tokenizer_that_is_given_is_used() -> None:
    """`custom_get_token_ids` counts, as with any model of LangChain."""
    model = ChatFitrouter(router="missing.yaml", custom_get_token_ids=lambda text: [1] * len(text))
    assert model.get_token_ids("abc") == [1, 1, 1]
    assert model.get_num_tokens("abc") == 3
    assert model.get_num_tokens_from_messages([HumanMessage("abc")]) == len("Human: abc")


# --- what LangChain adds ---


@pytest.mark.usefixtures("alone")
def test_nothing_is_traced_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without LangSmith's variables no connection is made."""
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "LANGSMITH_API_KEY", "LANGCHAIN_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with chat(tmp_path, "near", Agent()) as (model, _):
        chain = ChatPromptTemplate.from_messages([("system", "short"), ("user", "{question}")]) | model
        assert (chain | StrOutputParser()).invoke({"question": "why?"}).endswith("heard why?")
        assert "".join(piece.text for piece in model.stream("hi")).endswith("heard hi")


class Counting(BaseRateLimiter):
    """Counts who asks for leave."""

    def __init__(self) -> None:
        self.asked = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.asked += 1
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        return self.acquire(blocking=blocking)


@pytest.mark.parametrize("how", HOW)
def test_a_rate_limiter_is_asked_once_per_request(tmp_path: Path, how: str) -> None:
    """Whole or streamed."""
    limiter = Counting()
    with chat(tmp_path, "near", Agent(), rate_limiter=limiter) as (model, _):
        asked(model, how, "hi")
    assert limiter.asked == 1


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("setting", [{"streaming": True}, {"disable_streaming": True}, {"streaming": False}, {}])
def test_streaming_follows_the_setting(tmp_path: Path, setting: dict[str, Any], how: str) -> None:
    """`streaming` always asks in pieces, `disable_streaming` never; else it is as the caller wants it."""
    provider = Agent()
    with chat(tmp_path, "near", provider, **setting) as (model, _):
        assert asked(model, how, "hi").text.endswith("heard hi")
    wanted = {"streaming": setting.get("streaming"), "disable_streaming": False}.get(next(iter(setting), ""))
    assert provider.calls[-1].stream is ("stream" in how if wanted is None else wanted)


@pytest.mark.parametrize("how", HOW)
def test_usage_is_counted_for_each_model(tmp_path: Path, how: str) -> None:
    """LangChain's counter knows the tokens of the model that answered."""
    with chat(tmp_path, "far", Agent(), model="beta") as (model, _), get_usage_metadata_callback() as counted:
        answer = asked(model, how, "hi")
    assert counted.usage_metadata == {"beta": answer.usage_metadata}


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
@pytest.mark.filterwarnings("ignore:The class `InMemoryChatMessageHistory` was deprecated")
def test_a_history_by_session_is_a_session(tmp_path: Path) -> None:
    """`RunnableWithMessageHistory` keeps what was said, and its session id is the router's."""
    kept: dict[str, InMemoryChatMessageHistory] = {}
    provider = Agent()
    with chat(tmp_path, "near", provider) as (model, router):
        told = RunnableWithMessageHistory(model, lambda session_id: kept.setdefault(session_id, _history()))
        for session, text in (("s1", "first"), ("s2", "other"), ("s1", "second")):
            told.invoke([HumanMessage(text)], {"configurable": {"session_id": session}})
        assert [message["content"] for message in provider.calls[-1].messages if message["role"] == "user"] == [
            "first",
            "second",
        ]
        sessions = [each.identity.session for each in events(router, Decision)]
        assert sessions[0] == sessions[2] != sessions[1]


def _history() -> InMemoryChatMessageHistory:
    return InMemoryChatMessageHistory()


@pytest.mark.parametrize("where", WHERE)
def test_batches_do_not_mix(tmp_path: Path, where: str) -> None:
    """Each answer of a batch is that of its question and of its own decision, in the order of the questions."""
    with chat(tmp_path, where, Agent()) as (model, router):
        configs: Any = [{"metadata": {"user_id": f"user{i}"}} for i in range(30)]
        answers = model.batch([f"question {i}" for i in range(30)], configs)
        decisions = {each.id: each for each in events(router, Decision)}
        for i, answer in enumerate(answers):
            assert answer.text.endswith(f"heard question {i}")
            user = decisions[answer.response_metadata["decision_id"]].identity.user
            assert user == router._identities.subject("default", f"user{i}")
