"""The base installation: what it weighs, what works in it, and what it says of extras that are missing."""

from __future__ import annotations

from pathlib import Path

from tests.kits.fake_openai import FakeOpenAI, in_a_thread

from .conftest import Create, Journey

MB = 1_000_000
IN_PROCESS = """
import sys
from fitrouter import Request, Router, SyncRouter, load_config

with SyncRouter(Router.from_config(load_config("fitrouter.yaml"))) as router:
    answer = router.complete(Request(messages=({"role": "user", "content": "How do vaccines work?"},)))
    print(answer.served_by, answer.decision.propensity)
assert not {"litellm", "duckdb", "torch", "starlette"} & set(sys.modules)
"""


def test_the_base_installation_is_light_and_routes(environment: Create, tmp_path: Path) -> None:
    """At most 200 MB without litellm and DuckDB; `init` and a router in process work, and `serve` names its extra."""
    base = environment()
    files = [path for each in base.distributions.values() for path in each.files or () if path.suffix != ".pyc"]
    size = sum(Path(str(path.locate())).stat().st_size for path in files if Path(str(path.locate())).is_file())
    assert 50 * MB < size < 200 * MB
    assert {"litellm", "duckdb", "torch", "starlette"}.isdisjoint(base.distributions)
    with in_a_thread(FakeOpenAI(models=("a", "b", "c"))) as models, Journey(base, tmp_path) as journey:
        journey.run(f"fitrouter init --base-url {models.base_url}")
        assert journey.python(IN_PROCESS).stdout.split()[0] in {"a", "b", "c"}
        for command in ("fitrouter serve", "fitrouter config check", "fitrouter demo"):
            ran = journey.run(command, code=None)
            assert "pip install 'fitrouter[gateway]'" in ran.stdout + ran.stderr, ran
            assert "Traceback" not in ran.stderr
        replayed = journey.run("fitrouter replay --log fitrouter-data --candidate uniform", code=None)
        assert "pip install 'fitrouter[replay]'" in replayed.stderr, replayed
        (tmp_path / "fitrouter.yaml").unlink()
        said = journey.run("fitrouter init --provider anthropic").stdout
        assert "pip install 'fitrouter[litellm]'" in said
