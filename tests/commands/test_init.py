"""`fitrouter init` for a URL and for known providers: what it writes, and what it says when it cannot."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kits.fake_openai import HANG, FakeOpenAI, Reply, in_a_thread, reply
from typer.testing import CliRunner, Result

from fitrouter.config import Config, PricesConfig, load_config
from fitrouter.errors import ConfigError
from fitrouter.routing.variants import expand
from fitrouter.types import ModelCard
from fitrouter_integrations import cli
from fitrouter_integrations.commands.setup import _prices, listing
from fitrouter_integrations.commands.setup.init import KEYS, _efforts
from fitrouter_integrations.commands.setup.listing import Listed, NoList, ask, chosen

MODELS = ("llama-3.1-8b", "qwen3-8b", "gpt-4.1-mini")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["init", *arguments])


def error(*arguments: str) -> str:
    """The message of a command that fails, and leaves no file."""
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    assert not Path("fitrouter.yaml").exists()
    return str(result.exception)


def written() -> Config:
    return load_config("fitrouter.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and no keys or URLs in the environment."""
    monkeypatch.chdir(tmp_path)
    others = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "AZURE_OPENAI_ENDPOINT", "AZURE_API_BASE", "HTTP_PROXY")
    for name in (*KEYS, *others):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@contextmanager
def server(models: Any = MODELS, key: str = "") -> Iterator[FakeOpenAI]:
    with in_a_thread(FakeOpenAI(models=models, key=key)) as started:
        yield started


def test_models_at_a_url_become_a_configuration_that_routes() -> None:
    """Every listed model, the first as default, share 1, and a line that says how to lower it; the check agrees."""
    with server() as models:
        result = run("--base-url", models.base_url)
    assert result.exit_code == 0, result.output
    config = written()
    assert [model.name for model in config.models] == list(MODELS)
    assert (config.share, config.default_model) == (1.0, MODELS[0])
    (provider,) = config.providers.values()
    assert (provider.kind, provider.base_url, provider.api_key_env) == ("openai_compatible", models.base_url, None)
    assert "share is 1: every model may answer; change it with `fitrouter config share 0.05`" in result.output
    assert CliRunner().invoke(cli.app, ["config", "check"]).exit_code == 0


def test_prices_of_known_models_come_from_litellms_table() -> None:
    """The file says of which version; others stay unknown, and costs are not weighed before they are set."""
    with server() as models:
        result = run("--base-url", models.base_url)
        prices = {model.name: model.prices for model in written().models}
        found = prices["gpt-4.1-mini"]
        assert (found.input, found.output, found.cache_read, found.cache_write) == (0.4, 1.6, 0.1, None)
        assert not prices["qwen3-8b"].known
        assert written().objective.cost_weight == 0.0
        assert "prices are unknown for llama-3.1-8b, qwen3-8b" in result.output
        assert f"the table of litellm {_prices.table().litellm}" in Path("fitrouter.yaml").read_text()


PRICING = {
    "prompt": "0.0000005",
    "completion": "0.000002",
    "input_cache_read": "0.00000005",
    "input_cache_write": "0",  # not priced apart
    "internal_reasoning": "0",
    "audio": "0.000001",
    "request": "0.002",
    "image": "0.01",
}
"""Of a model, as OpenRouter lists it."""


def test_what_the_list_says_of_a_model_is_kept() -> None:
    """Context windows of vLLM and prices of OpenRouter; a price of -1 varies, and is unknown."""
    entries = [
        {"id": "a", "max_model_len": 8192},
        {"id": "b", "context_length": 4096, "pricing": PRICING},
        {"id": "c", "pricing": {"prompt": "-1", "completion": "-1"}},
        {"id": "b"},
        {"id": 7},
        "junk",
    ]
    with server(reply(200, entries)) as models:  # a bare list, as Together sends it
        assert run("--base-url", models.base_url).exit_code == 0
    a, b, c = written().models
    assert (a.context_window, b.context_window, c.context_window) == (8192, 4096, 128_000)
    assert b.prices == PricesConfig(input=0.5, output=2.0, cache_read=0.05, audio_input=1.0, request=0.002)
    assert not c.prices.known


def test_a_url_without_v1_is_found() -> None:
    """The file has the URL under which the list is."""
    with server() as models:
        assert run("--base-url", models.base_url.removesuffix("/v1") + "/").exit_code == 0
        assert written().providers["local"].base_url == models.base_url


def test_models_that_answer_no_chats_are_left_out() -> None:
    """By litellm's table, and by their names; also the routed names of another fitrouter. Who names one, gets it."""
    unfit = ("text-embedding-3-small", "bge-m3", "whisper-1", "fitrouter/auto")
    with server((*MODELS, *unfit)) as models:
        result = run("--base-url", models.base_url)
        assert tuple(model.name for model in written().models) == MODELS
        assert "left out, since they answer no chats: text-embedding-3-small, bge-m3" in result.output
        run("--base-url", models.base_url, "--model", "bge-m3", "-c", "named.yaml")
    assert [model.name for model in load_config("named.yaml").models] == ["bge-m3"]


def test_a_key_is_named_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets its value, the file its name."""
    monkeypatch.setenv("MY_KEY", "sk-canary-123456")
    with server(key="sk-canary-123456") as models:
        assert run("--base-url", models.base_url, "--key-env", "MY_KEY").exit_code == 0
    assert written().providers["local"].api_key_env == "MY_KEY"
    assert "sk-canary" not in Path("fitrouter.yaml").read_text()


def test_openais_variables_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPENAI_BASE_URL with OPENAI_API_KEY; other keys' providers come along, and an explicit URL gets no key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-123456")
    monkeypatch.setenv("MISTRAL_API_KEY", "sk-other-123456")
    with server(key="sk-canary-123456") as models:
        monkeypatch.setenv("OPENAI_BASE_URL", models.base_url)
        assert "wants a key (401)" in error("--base-url", models.base_url)
        assert run().exit_code == 0
    config = written()
    assert {name: provider.api_key_env for name, provider in config.providers.items()} == {
        "local": "OPENAI_API_KEY",
        "mistral": "MISTRAL_API_KEY",
    }
    assert config.default_model == MODELS[0]


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        (
            reply(200, b"<html>hello</html>", "text/html"),
            ["is not JSON with a list of models", "up to and including /v1"],
        ),
        (reply(200, {"models": []}), ["is not JSON with a list of models"]),
        (reply(200, {"data": []}), ["lists no models", "--model"]),
        (reply(200, {"data": [{"id": "text-embedding-3-small"}]}), ["lists no model that answers chats"]),
        (reply(500, {"error": "boom sk-abcdefghijklmnop"}), ["answered 500", "boom ••••"]),
        (reply(302, b"", Location="http://127.0.0.1:1/elsewhere"), ["redirects to", "elsewhere"]),
        (reply(200, b"[" * 100_000), ["is not JSON"]),
        (reply(200, b" " * (listing.LIMIT_BYTES + 1)), ["more than 16 MB"]),
        (Reply(b"nonsense\r\n\r\n"), ["does not answer as HTTP servers do"]),
    ],
    ids=["html", "no-list", "empty", "no-chats", "500", "redirect", "nested", "huge", "no-http"],
)
def test_each_fault_of_a_server_is_one_message(listing: Reply, words: list[str]) -> None:
    """It names the URL and the next step; nothing is written, and no secret is quoted."""
    with server(listing) as models:
        said = error("--base-url", models.base_url)
    assert models.base_url in said
    for word in words:
        assert word in said
    assert "sk-abcdefgh" not in said


def test_a_list_of_thousands_is_not_taken_as_a_whole() -> None:
    """The message counts them and names the option; named ones are taken, and a misspelt one gets the near ones."""
    with server([f"model-{i}" for i in range(3000)]) as models:
        said = error("--base-url", models.base_url)
        assert "lists 3,000 models (model-0, model-1" in said
        assert "--model NAME" in said
        said = error("--base-url", models.base_url, "--model", "modle-17")
        assert "does not list 'modle-17'" in said
        assert "'model-17'" in said
        result = run("--base-url", models.base_url, "--model", "model-17", "--model", "model-4")
    assert result.exit_code == 0
    assert [model.name for model in written().models] == ["model-17", "model-4"]


def test_a_slow_or_absent_server_is_given_up() -> None:
    """A server that hangs is given up after a time, and one that is not there at once."""
    with server(Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", HANG)) as models:
        with pytest.raises(ConfigError, match=r"did not list its models within 0\.5 s"):
            listing.ask(models.base_url, None, None, limit_s=0.5)
        gone = models.base_url
    assert f"nothing answers at {gone}" in error("--base-url", gone)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://host/v1", "http:///v1", "http://u:p@host/v1", "http://h/v1?a=b"]
)
def test_a_wrong_url_is_refused_before_anything_is_sent(url: str) -> None:
    """The message shows a right one, and no password."""
    said = error("--base-url", url)
    assert "--base-url" in said
    assert "u:p" not in said


def test_refused_and_missing_keys_say_where_the_key_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is refused, and a variable that is not set."""
    monkeypatch.setenv("MY_KEY", "wrong-123456")
    with server(key="right") as models:
        assert "refused the key in MY_KEY (401)" in error("--base-url", models.base_url, "--key-env", "MY_KEY")
        assert "NO_SUCH is not set" in error("--base-url", models.base_url, "--key-env", "NO_SUCH")
        assert "name that with --key-env NAME" in error("--base-url", models.base_url)


def test_a_file_that_exists_is_refused_before_anybody_is_asked() -> None:
    """Nothing listens at the URL, and the message is about the file."""
    Path("fitrouter.yaml").write_text("precious")
    result = run("--base-url", "http://127.0.0.1:1/v1")
    assert "exists already" in str(result.exception)
    assert Path("fitrouter.yaml").read_text() == "precious"


def test_known_providers_are_written_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, without a key in the environment: the message says which to set."""
    result = run("--provider", "deepseek")
    assert result.exit_code == 0
    (provider,) = written().providers.values()
    assert (provider.base_url, provider.api_key_env) == ("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY")
    assert "set the environment variable DEEPSEEK_API_KEY" in result.output
    assert all(model.prices.known for model in written().models)


def test_models_that_reason_get_levels_of_effort() -> None:
    """A model that is known to reason is written with `effort`, which its card accepts; others are not."""
    for provider, name, known in (
        ("openai", "gpt-5-mini", True),
        ("openai", "gpt-4o", False),
        ("anthropic", "claude-sonnet-4-5", True),
        ("gemini", "gemini-2.5-flash", True),
        ("mistral", "mistral-large-latest", False),
    ):
        found = _efforts(provider, name, {})
        assert bool(found) is known, name
        assert (
            len(expand([ModelCard(name=name, provider=provider, effort=tuple(found.get("effort", ())))]))
            == 1 + 2 * known
        )


def test_own_hardware_is_free_and_found_at_its_port() -> None:
    """Ollama's and vLLM's preset is a URL of this machine, which --base-url replaces; prices are 0."""
    assert "nothing answers at http://127.0.0.1:11434/v1" in error("--provider", "ollama")
    with server() as models:
        assert run("--provider", "vllm", "--base-url", models.base_url).exit_code == 0
    config = written()
    assert set(config.providers) == {"vllm"}
    assert all(model.prices.known and model.prices.output == 0 for model in config.models)
    assert config.objective.cost_weight == 0.0


def test_azure_needs_its_url_and_the_names_of_deployments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its list has models and not deployments, so nothing is asked; a deployment named as its model has its price."""
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k" * 12)
    assert "AZURE_OPENAI_ENDPOINT" in error("--provider", "azure")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    assert "--model NAME" in error("--provider", "azure")
    assert run("--provider", "azure", "--model", "gpt-4.1-mini", "--model", "support").exit_code == 0
    (provider,) = written().providers.values()
    assert (provider.kind, provider.base_url) == ("openai_compatible", "https://mine.openai.azure.com/openai/v1")
    assert written().unpriced() == ("support",)


def test_bedrock_goes_through_litellm() -> None:
    """AWS's own credentials, litellm's names; a model that is named gets its prefix and its price."""
    assert run("--provider", "bedrock", "--model", "us.amazon.nova-2-lite-v1:0").exit_code == 0
    (model,) = written().models
    assert model.target == "bedrock/us.amazon.nova-2-lite-v1:0"
    assert model.prices.known
    (provider,) = written().providers.values()
    assert (provider.kind, provider.api_key_env) == ("litellm", None)


def test_a_key_of_a_provider_that_must_be_asked_is_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not stop the others from being written."""
    monkeypatch.setenv("OPENROUTER_API_KEY", "k" * 12)
    monkeypatch.setenv("GROQ_API_KEY", "k" * 12)
    result = run()
    assert set(written().providers) == {"groq"}
    assert "fitrouter init --provider openrouter" in result.output


def test_options_that_say_too_little_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown provider lists the known ones; models of no provider in particular ask for it."""
    assert "known are openai, anthropic" in error("--provider", "opneai")
    assert "Give --provider or --base-url" in error("--model", "x")
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)
    assert run("--model", "gpt-5-mini").exit_code == 0
    assert [model.name for model in written().models] == ["gpt-5-mini"]


def test_the_share_is_an_option() -> None:
    """`--share` writes the setting, 0 included, and says who answers the rest; simulated models have it, too."""
    with server() as models:
        at = ("--base-url", models.base_url, "-c", "some.yaml")
        assert f"share is 0.25: {MODELS[0]} answers the rest" in run(*at, "--share", "0.25").output
        run("--base-url", models.base_url, "--share", "0")
    assert written().share == 0.0
    assert run("-c", "simulated.yaml").exit_code == 0
    assert load_config("simulated.yaml").share == 1.0
    assert run("--share", "0.5", "--path", "old-name.yaml").exit_code == 0
    assert load_config("old-name.yaml").share == 0.5


def test_names_of_any_kind_survive_the_file() -> None:
    """Names that YAML would read as something else, and two providers with one name for different models."""
    names = ["no", "1.5", "a: b", "#x", "[y]", "ünï", "x" * 200, "{z}"]
    with server(names) as models:
        assert run("--base-url", models.base_url).exit_code == 0
    assert [model.name for model in written().models] == names
    assert json.loads(json.dumps(written().default_model)) == "no"


LISTS: dict[str, tuple[Any, str]] = {
    "100,000 entries": ({"data": [{"id": f"m{i}"} for i in range(100_000)]}, "more than the 20,000 that are read"),
    "long names": ({"data": [{"id": f"{i}-" + "x" * 190} for i in range(9_000)]}, "does not list 'my-model'"),
    "names that are too long": ({"data": [{"id": "x" * 100_000}] * 50}, "lists no models"),
    "many small values": (b'{"data": [' + b"{}," * 1_000_000 + b"{}]}", "more than the 20,000"),
    "levels": (b"[" * 500_000 + b"]" * 500_000, "is not JSON with a list of models"),
    "levels in an entry": (b'{"data": [{"id": "m", "pricing": ' + b"[" * 900 + b"]" * 900 + b"}]}", "does not list"),
    "wrong types": ({"data": [{"id": {}}, {"id": 7}, [], None, "m"]}, "lists no models"),
    "a mapping": ({"data": {"id": "m"}}, "is not JSON with a list of models"),
    "17 MB": (b" " * 17_000_000, "more than 16 MB"),
    "control characters": ({"data": [{"id": "a\x1b[31m"}]}, "lists no models"),
}


@pytest.mark.parametrize(("body", "said"), LISTS.values(), ids=LISTS)
def test_large_and_odd_lists_are_bounded(body: Any, said: str) -> None:
    """Whatever a server lists, the answer comes within seconds, is short, and says what is wrong."""
    with in_a_thread(FakeOpenAI(models=reply(200, body))) as server:
        began = time.monotonic()
        with pytest.raises((ConfigError, NoList), match=said) as found:
            chosen(ask(server.base_url, None, None, 60.0), ["my-model"], {})
    assert len(str(found.value)) < 3_000
    assert time.monotonic() - began < 30.0  # on a busy machine; comparing with each long name took minutes


ODD_ENTRIES: dict[str, dict[str, Any]] = {
    "a window that is none": {"context_length": True},
    "a huge window": {"context_length": 2**70},
    "a negative window": {"context_length": -1},
    "a window in words": {"context_length": "8k"},
    "infinite prices": {"pricing": {"prompt": "inf", "completion": "1e999"}},
    "prices that overflow": {"pricing": {"prompt": "1e304", "completion": 1e304}},
    "no numbers": {"pricing": {"prompt": "nan", "completion": ["x"]}},
    "prices that vary": {"pricing": {"prompt": "-1", "completion": "-1"}},
    "many digits": {"pricing": {"prompt": "9" * 5000, "completion": "9" * 5000}},
}


@pytest.mark.parametrize("entry", ODD_ENTRIES.values(), ids=ODD_ENTRIES)
def test_odd_entries_say_nothing(entry: dict[str, Any]) -> None:
    """A window or a price that is none is not known, and the model is there."""
    with in_a_thread(FakeOpenAI(models=reply(200, {"data": [{"id": "m", **entry}]}))) as server:
        assert ask(server.base_url, None, None).models == (Listed("m"),)
