"""Copies, dumps and pickles of the chat model reach the same router and contain no key."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("langchain_core", reason="install the extra `langchain`")

from langchain_core.load import dumpd, dumps, load, loads
from tests.kits.agents import agent_router
from tests.kits.gateway import serving

from fitrouter.errors import ConfigError
from fitrouter_integrations.client import connect
from fitrouter_integrations.langchain import ChatFitrouter

KEY = "sk-very-secret"
pytestmark = pytest.mark.filterwarnings("ignore:The function `loads?` is in beta")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway."""
    with serving(agent_router(Path(tmp_path_factory.mktemp("gateway")))) as found:
        yield found
        connect(found).close()


def test_a_dump_holds_no_key_and_loads_where_it_is_allowed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LangChain's dump names the key's variable, keeps the rest, and loads for who allows the class."""
    model = ChatFitrouter(router=url, api_key=KEY, user="ann", temperature=0.3, model_kwargs={"seed": 7})
    text = dumps(model)
    assert KEY not in text
    assert '"FITROUTER_API_KEY"' in text
    with pytest.raises(ValueError, match="not allowed"):
        loads(text, valid_namespaces=["fitrouter_integrations"], allowed_objects="core")
    made = loads(
        text,
        valid_namespaces=["fitrouter_integrations"],
        allowed_objects=[ChatFitrouter],
        secrets_map={"FITROUTER_API_KEY": KEY},
    )
    assert made.asdict() == model.asdict()
    assert (made.router, made.user, made.model_kwargs) == (url, "ann", {"seed": 7})
    assert made.api_key is not None
    assert made.api_key.get_secret_value() == KEY


def test_a_router_object_is_not_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dump is loaded with the router from the environment."""
    router = agent_router(tmp_path)
    with connect(router):
        dumped = dumpd(ChatFitrouter(router=router))
    assert "router" not in dumped["kwargs"]
    monkeypatch.setenv("FITROUTER", "http://127.0.0.1:9")
    made = load(dumped, valid_namespaces=["fitrouter_integrations"], allowed_objects=[ChatFitrouter])
    assert made.router == "http://127.0.0.1:9"


@pytest.mark.parametrize("far", [False, True])
def test_copies_share_the_router(tmp_path: Path, url: str, far: bool) -> None:
    """Shallow, deep and updated copies answer over the same client; a copy with another router has that one's."""
    target = url if far else agent_router(tmp_path)
    with connect(target) as client:
        model = ChatFitrouter(router=target, model_kwargs={"seed": 7})
        assert model.invoke("hi").content
        copies = (copy.copy(model), copy.deepcopy(model), model.model_copy(update={"user": "bob"}))
        for made in (*copies, model.model_copy(deep=True)):
            assert made.client is client
            assert made.invoke("hi").response_metadata["decision_id"]
        assert copy.deepcopy(model).model_kwargs is not model.model_kwargs
        assert model.model_copy(update={"router": "http://127.0.0.1:9"}).client is not client


def test_a_pickle_contains_no_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle leaves the key and the connection out; both are restored where it is loaded."""
    model = ChatFitrouter(router=url, api_key=KEY, user="ann")
    assert model.invoke("hi").content
    payload = pickle.dumps(model)
    assert KEY.encode() not in payload
    assert model.api_key is not None
    monkeypatch.setenv("FITROUTER_API_KEY", "from-here")
    made = pickle.loads(payload)
    assert made.api_key.get_secret_value() == "from-here"
    assert made.invoke("hi").response_metadata["decision_id"]
    assert made.asdict() == model.asdict()


def test_a_spawned_worker_loads_a_pickle(url: str) -> None:
    """A process of its own can use what another one pickled."""
    code = (
        "import pickle, sys\n"
        "model = pickle.loads(sys.stdin.buffer.read())\n"
        "print(model.invoke('hi').response_metadata['decision_id'])"
    )
    payload = pickle.dumps(ChatFitrouter(router=url))
    environment = {name: value for name, value in os.environ.items() if name != "FITROUTER_API_KEY"}
    ran = subprocess.run(
        [sys.executable, "-c", code], input=payload, capture_output=True, check=False, env=environment, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_pickling_a_router_object_is_an_error(tmp_path: Path) -> None:
    """The message says what to use instead."""
    router = agent_router(tmp_path)
    with connect(router), pytest.raises(ConfigError, match="path of its configuration"):
        pickle.dumps(ChatFitrouter(router=router))
