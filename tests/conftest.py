"""What every test runs under: no hub, no network price map, quiet telemetry, no clock."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.detection import is_hypothesis_test
from tests.kits.s3 import S3

from fitrouter import router
from fitrouter.routing import breakers
from fitrouter.serving import external, model_registry, policy_control, recorder

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OTEL_SDK_DISABLED="true",
    TOKENIZERS_PARALLELISM="false",
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_DISABLE_TRACKING="true",
    CREWAI_DISABLE_VERSION_CHECK="true",
    CREWAI_TRACING_ENABLED="false",
    CREWAI_TESTING="true",
    # An HTTP client reads all authorities, which takes 60 ms each time; tests speak to loopback, without TLS.
    SSL_CERT_DIR="/nonexistent",
)
os.environ.pop("SSL_CERT_FILE", None)
LONG = (
    "tests/journeys/",
    "tests/tree/",
    "tests/gateway/test_crash",
    "tests/posterior/test_fit_laws",
    "tests/dashboards/",
)
THOROUGH = 1000
"""Examples of a property test that has time; `make test` tries 20, or the number that a test names."""
# Machines are shared and busy: how long an example takes says nothing of the law.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fitrouter", UNTIMED, max_examples=20)
settings.register_profile("thorough", UNTIMED, max_examples=THOROUGH)  # `make bench-properties`
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fitrouter"))


@pytest.fixture(autouse=True, scope="module")
def _quick_garbage_collection() -> None:
    """What earlier modules imported stays: looking through it again and again would stop servers for half a second."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _breakers_stay_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of other laws let their models fail as often as they like; only those of breakers see them open."""
    trip = breakers.TRIP if request.module.__name__.endswith("test_breakers") else math.inf
    with mock.patch.object(breakers, "TRIP", trip):
        yield


@pytest.fixture(autouse=True, scope="session")
def _stores_have_time() -> Iterator[None]:
    """A machine that is busy for seconds is no store that hangs; the tests of those have stores that never answer."""
    with ExitStack() as patched:
        for module in (external, model_registry, policy_control, recorder):
            patched.enter_context(mock.patch.object(module, "STORE_WAIT_S", 60.0))
        yield


@pytest.fixture
def commits_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for a busy machine's slow commits, so that every one of them is logged, without a warning."""
    monkeypatch.setattr(recorder, "DURABLE_WAIT_S", 60.0)


@pytest.fixture(autouse=True, scope="module")
def _warehouses_stay_incomplete(request: pytest.FixtureRequest) -> Iterator[None]:
    """A router that closes does not wait for DuckDB, except in the tests of that law."""
    with mock.patch.object(router, "DRAIN_S", 5.0 if request.module.__name__.endswith("test_failures_told") else 0.0):
        yield


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """A server of S3's protocol; its clients want authorities, though they speak to loopback, too."""
    server = S3()
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("SSL_CERT_DIR", raising=False)
        yield server
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new place for a cold store: a folder, and a prefix of a bucket."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    if request.param == "folder":
        return str(tmp_path / "cold store of [ann]'s")
    server: S3 = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.place()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of few and long tests come first: as the last one, each would leave the other processes without work."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    if settings.get_current_profile_name() == "thorough":  # the numbers that tests name are for `make test`
        for item in items:
            test = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
            if is_hypothesis_test(test):
                own = test._hypothesis_internal_use_settings
                test._hypothesis_internal_use_settings = settings(own, max_examples=max(own.max_examples, THOROUGH))


def pytest_sessionfinish() -> None:
    """Everything may go again; bindings that count their objects at the end would call the rest a leak."""
    gc.unfreeze()
