"""LangChain's standard suites for chat models, with no test overridden: in process, and through a gateway.

Skips are for what this pool of models does not take (images, audio, PDF) and for recordings of HTTP (VCR).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_tests", reason="install the extra `langchain` and the test group")

from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from tests.agents_kit import agent_router
from tests.gateway_kit import serving

from fitrouter_integrations.client import Client, connect
from fitrouter_integrations.langchain import ChatFitrouter

URL = "http://127.0.0.1:9"
"""Nobody answers there: the unit suite asks no model."""


class TestUnit(ChatModelUnitTests):
    """The unit suite."""

    @property
    def chat_model_class(self) -> type[ChatFitrouter]:
        return ChatFitrouter

    @pytest.fixture(autouse=True)
    @staticmethod
    def _loadable(monkeypatch: pytest.MonkeyPatch) -> None:
        """What LangChain does for its partners: its suite loads only classes that its own package lists."""
        loading = importlib.import_module("langchain_core.load.load")
        path = tuple(ChatFitrouter.lc_id())
        monkeypatch.setitem(loading.ALL_SERIALIZABLE_MAPPINGS, path, path)
        monkeypatch.setattr(loading, "_default_class_paths_cache", {})

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"router": URL, "profile": {"tool_calling": True}}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        env = {"FITROUTER_API_KEY": "secret", "FITROUTER": URL}
        return env, {"profile": {"tool_calling": True}}, {"api_key": "secret", "router": URL}


class _Integration(ChatModelIntegrationTests):
    target: Any

    @property
    def chat_model_class(self) -> type[ChatFitrouter]:
        return ChatFitrouter

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"router": self.target}

    @property
    def model_override_value(self) -> str:
        return "beta"

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestInProcess(_Integration):
    """The integration suite over a router in this process."""

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def _router(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        router = agent_router(Path(tmp_path_factory.mktemp("router")))
        request.cls.target = router
        with connect(router):
            yield


class TestThroughAGateway(_Integration):
    """The integration suite through a gateway on loopback."""

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def _gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with serving(agent_router(Path(tmp_path_factory.mktemp("gateway")))) as url:
            request.cls.target = url
            client: Client
            with connect(url) as client:
                assert client.models()
                yield


del _Integration
