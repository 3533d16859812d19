"""What makes the gateway cheap: parts loaded when asked, one system call for one turn, endpoints called directly."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from tests.kits.gateway import cards, chat, client, make_router, serving

from fitrouter.types import Variant
from fitrouter_integrations.gateway.asgi._corked import Corked


class Wire:
    """A transport that notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def write_eof(self) -> None:
        self.done.append("eof")

    def is_closing(self) -> bool:
        return "closed" in self.done


async def test_writes_of_one_turn_are_one() -> None:
    """In their order, before a close, and at once when they are many; all else is the transport's."""
    wire = Wire()
    corked = Corked(wire)  # type: ignore[arg-type]
    corked.write(b"head ")
    corked.write(b"body")
    assert wire.done == []
    await asyncio.sleep(0)
    assert wire.done == [b"head body"]
    corked.write(b"more")
    corked.write_eof()
    corked.write(bytes(70_000))
    assert wire.done[1:] == [b"more", "eof", bytes(70_000)]
    corked.write(b"last")
    corked.close()
    assert wire.done[4:] == [b"last", "closed"]
    assert corked.is_closing()
    await asyncio.sleep(0)
    assert len(wire.done) == 6


def test_each_name_that_can_be_requested_is_listed(tmp_path: Path) -> None:
    """Of models, and of their variants, with what is known of it; each that is listed is answered by its name."""
    plain, *_ = cards()
    arms = [plain, msgspec.structs.replace(plain, variant=Variant(name="terse", prefix="Be brief."))]
    with serving(make_router(tmp_path, models=arms)) as url, client(url) as http:
        listed = {each["id"]: each for each in http.get("/v1/models").json()["data"]}
        assert set(listed) == {"fitrouter/auto", plain.name, f"{plain.name}#terse"}
        for name in listed:
            assert http.post("/v1/chat/completions", json=chat(model=name)).status_code == 200
            assert http.get(f"/v1/models/{quote(name, safe='/')}").json()["id"] == name
        assert listed[f"{plain.name}#terse"]["fitrouter"]["input_usd"] == 1.0


def test_direct_paths_answer_as_the_framework_does(tmp_path: Path) -> None:
    """Wrong methods, other spellings of a path and paths with names are the framework's, in the same format."""
    with serving(make_router(tmp_path)) as url, client(url) as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        assert http.get("/v1/chat/completions").json()["error"]["code"] == "method_not_allowed"
        assert http.head("/v1/models").status_code == 405
        assert http.get("/v1/models/alpha").json()["id"] == "alpha"
        assert http.get("/v1//models").status_code == 404
        routes = http.get("/openapi.json").json()["paths"]
        assert {"/v1/chat/completions", "/v1/models", "/healthz"} <= routes.keys()


def test_parts_are_loaded_when_they_are_asked(tmp_path: Path) -> None:
    """A worker starts without the handlers of people, console, lists and whole-log reads, dialects, and the schema."""
    code = (
        "import json, sys\n"
        "from fitrouter.config import parse_config\n"
        "from fitrouter.router import Router\n"
        "from fitrouter_integrations.gateway import create_app, _worker\n"
        "models = [{'name': 'm', 'provider': 'p'}]\n"
        "given = {'data': sys.argv[1], 'providers': {'p': {'kind': 'simulated'}}, 'models': models}\n"
        "config = parse_config(given)\n"
        "create_app(Router.from_config(config, services=False), config)\n"
        "print(json.dumps(sorted(name for name in sys.modules if name.startswith('fitrouter'))))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300
    )
    loaded = set(json.loads(ran.stdout))
    later = ("_lists", "_models", "_personal", "_whole_log", "console._routes", "dialects._anthropic")
    assert not loaded & {f"fitrouter_integrations.gateway.{name}" for name in (*later, "dialects._responses")}
    assert "fitrouter_integrations.gateway.parsing._schema" not in loaded
    rooms = ("fitrouter_evaluators.personal", "fitrouter_evaluators.replay", "fitrouter_dashboards.console")
    assert not [name for name in loaded if name.startswith(rooms)]
