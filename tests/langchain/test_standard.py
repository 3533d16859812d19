"""LangChain's standard suites for chat models, with no test overridden: in process, and through a gateway.

The pool takes images, audio and files. What the suites would fetch for them comes from this file; no socket leaves.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("langchain_tests", reason="install the extra `langchain` and the test group")

from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from tests.kits.agents import NAMES, Agent
from tests.kits.gateway import make_router, serving

from fitrouter.router import Router
from fitrouter.types import ModelCard
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


PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
FETCHED = {"png": PICTURE, "pdf": b"%PDF-1.4 a page", "wav": b"RIFF a sound"}
"""How an address ends → what is there: the suites would fetch examples from the net."""


def pool(folder: Path) -> Router:
    """A router over models that take everything."""
    able = ("audio", "files", "images", "json", "streaming", "tools")
    cards = [ModelCard(name=name, provider="agent", target=name, capabilities=able) for name in NAMES]
    return make_router(folder, {"agent": Agent()}, models=cards)


class _Integration(ChatModelIntegrationTests):
    target: Any

    @pytest.fixture(autouse=True)
    @staticmethod
    def _nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
        def get(url: str, **_: Any) -> httpx.Response:
            return httpx.Response(200, content=FETCHED[url.rpartition(".")[2]])

        monkeypatch.setattr(httpx, "get", get)
        monkeypatch.setenv("LANGCHAIN_TESTS_USER_AGENT", "nobody is asked")

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

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def supports_image_urls(self) -> bool:
        return True

    @property
    def supports_image_tool_message(self) -> bool:
        return True

    @property
    def supports_pdf_inputs(self) -> bool:
        return True

    @property
    def supports_pdf_tool_message(self) -> bool:
        return True

    @property
    def supports_audio_inputs(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def enable_vcr_tests(self) -> bool:
        return True


@pytest.mark.filterwarnings(
    "ignore:Benchmark fixture was not used"
)  # without HTTP nothing is replayed: it streams once
class TestInProcess(_Integration):
    """The integration suite over a router in this process."""

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def _router(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        router = pool(Path(tmp_path_factory.mktemp("router")))
        request.cls.target = router
        with connect(router):
            yield


class TestThroughAGateway(_Integration):
    """The integration suite through a gateway on loopback; `test_stream_time` streams what one said once.

    Recorded anew with `pytest --record-mode=rewrite -k stream_time`, of which the first two exchanges are kept.
    """

    @pytest.fixture(scope="class")
    @staticmethod
    def vcr_config() -> dict[str, Any]:
        """A gateway's port is another one each time."""
        kept = {"match_on": ["method", "path", "body"], "allow_playback_repeats": True}
        return {**kept, "filter_headers": ["authorization", "user-agent"]}

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def _gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with serving(pool(Path(tmp_path_factory.mktemp("gateway")))) as url:
            request.cls.target = url
            client: Client
            with connect(url) as client:
                assert client.models()
                yield


del _Integration
