"""Journey: an ops engineer with a litellm file, from shadow to all traffic and back (docs/litellm.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from tests.kits.fake_openai import FakeOpenAI, in_a_thread
from tests.kits.gateway import wait_for
from tests.kits.prometheus import Prometheus, prometheus

from .conftest import Create, Journey

LITELLM = """
model_list:
  - model_name: incumbent
    litellm_params: {{model: deepseek/deepseek-chat, api_base: "{url}", api_key: os.environ/DEEPSEEK_API_KEY}}
  - model_name: mini
    litellm_params: {{model: openai/gpt-4.1-mini, api_base: "{url}", api_key: sk-in-the-file-12345678}}
  - model_name: own
    litellm_params: {{model: hosted_vllm/qwen3-8b, api_base: "{url}"}}
router_settings: {{num_retries: 2}}
"""


def ask(journey: Journey) -> dict[str, Any]:
    body = {"model": "fitrouter/auto", "messages": [{"role": "user", "content": "How do vaccines work?"}]}
    reply = httpx.post(f"{journey.url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def decided(server: Prometheus, **wanted: float) -> None:
    """Wait until Prometheus has scraped so many decisions of these modes."""

    def found() -> dict[str, float]:
        rows = server.query("sum by (mode) (fitrouter_decisions_total)")
        return {row["metric"]["mode"]: float(row["value"][1]) for row in rows}

    wait_for(lambda: {mode: n for mode, n in found().items() if n} == wanted)


def test_a_litellm_file_goes_from_shadow_to_all_traffic_and_back(environment: Create, tmp_path: Path) -> None:
    """Imported with prices and without secrets; shadow, 5%, 100%, and restored, while Prometheus reads along."""
    with in_a_thread(FakeOpenAI()) as models:
        (tmp_path / "litellm.yaml").write_text(LITELLM.format(url=models.base_url))
        keys = {"DEEPSEEK_API_KEY": "sk-one-12345678", "MINI_API_KEY": "sk-two-12345678"}
        with Journey(environment("gateway", "litellm"), tmp_path, keys) as journey:
            done = journey.run(journey.block("litellm.md", "bash", under="Migrating from litellm's Router"))
            assert "3 models" in done.stdout
            assert "fitrouter.yaml is valid" in done.stdout
            written = (tmp_path / "fitrouter.yaml").read_text()
            assert "sk-in-the-file" not in written
            assert "the table of litellm " in written  # the version of the prices
            journey.serve()
            with prometheus(journey.url, tmp_path / "prometheus") as server:
                first = ask(journey)
                assert (first["model"], first["fitrouter"]["mode"]) == ("incumbent", "shadow")
                decided(server, shadow=1)

                assert "the running gateway has it" in journey.run("fitrouter config share 0.05").stdout
                assert "share: 0.05" in (tmp_path / "fitrouter.yaml").read_text()
                answers = [ask(journey) for _ in range(5)]
                assert all(each["fitrouter"]["propensity"] > 0.95 for each in answers if each["model"] == "incumbent")
                journey.run("fitrouter policy set --share 1")
                modes = [each["fitrouter"]["mode"] for each in (first, *answers, ask(journey))]
                assert modes[-1] == "online"
                decided(server, **{mode: float(modes.count(mode)) for mode in set(modes)})
                assert "the file says 0.05" in journey.run("fitrouter config check").stdout
                assert '"share":' not in journey.run("fitrouter policy restore").stdout
                assert "5.000% of the traffic" in journey.run("fitrouter config check").stdout
