"""Laws of `fitrouter config import`: what it writes loads, holds no secret, and says what it left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from fitrouter.config import Config, load_config, parse_config
from fitrouter.errors import ConfigError
from fitrouter_integrations import cli
from fitrouter_integrations._import_litellm import convert

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own
SECRET = "sk-live-1234567890"
PROXY = f"""
model_list:
  - model_name: gpt-4o
    litellm_params: {{model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, rpm: 100, temperature: 0.2}}
  - model_name: gpt-4o
    litellm_params: {{model: azure/my-gpt, api_base: https://x.openai.azure.com, api_version: "2025-01-01",
                      api_key: {SECRET}}}
    model_info: {{base_model: azure/gpt-4o}}
  - model_name: local
    litellm_params: {{model: hosted_vllm/llama, api_base: http://10.0.0.5:8000/v1, api_key: none}}
    model_info: {{input_cost_per_token: 1e-7, output_cost_per_token: 0.0000002, max_input_tokens: 8192,
                  max_output_tokens: 1024, supports_function_calling: false, supports_vision: true}}
  - model_name: claude
    litellm_params: {{model: anthropic/claude-haiku-4-5, api_key: os.environ/ANTHROPIC_API_KEY}}
  - model_name: claude-too
    litellm_params: {{model: anthropic/claude-haiku-4-5, api_key: os.environ/ANTHROPIC_API_KEY,
                      aws_secret_access_key: {SECRET}}}
  - model_name: embed
    litellm_params: {{model: openai/text-embedding-3-small}}
  - model_name: "*"
    litellm_params: {{model: "openai/*"}}
  - model_name: keyed
    litellm_params: {{model: openai/own, api_base: "https://user:{SECRET}@host/v1?key={SECRET}"}}
router_settings:
  routing_strategy: usage-based-routing
  fallbacks: [{{gpt-4o: [claude]}}]
  model_group_alias: {{gpt-4: gpt-4o, hidden: {{model: claude, hidden: true}}, lost: nobody}}
  redis_password: {SECRET}
general_settings: {{master_key: {SECRET}, database_url: "postgres://u:{SECRET}@db/x"}}
litellm_settings: {{drop_params: true, callbacks: [langfuse]}}
environment_variables: {{OPENAI_API_KEY: {SECRET}}}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["config", "import", *arguments])


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Config, str]:
    """What became of the example: read back, and as text."""
    monkeypatch.chdir(tmp_path)
    Path("litellm.yaml").write_text(PROXY)
    result = run("litellm.yaml")
    assert result.exit_code == 0, result.output
    return load_config("fitrouter.yaml"), Path("fitrouter.yaml").read_text()


def test_models_prices_and_limits_are_taken_over(made: tuple[Config, str]) -> None:
    """Names, targets, addresses, prices per million, windows and capabilities: the file's, else litellm's table's."""
    config, _ = made
    models = {model.name: model for model in config.models}
    assert list(models) == ["gpt-4o", "gpt-4o-2", "local", "claude", "claude-too", "keyed"]
    assert (models["gpt-4o"].target, models["gpt-4o"].prices.input, models["gpt-4o"].prices.output) == (
        "openai/gpt-4o",
        2.5,
        10.0,
    )
    assert models["gpt-4o-2"].prices.output == 10.0
    local = models["local"]
    assert (local.target, local.prices.input, local.prices.output) == ("llama", 0.1, 0.2)
    assert (local.context_window, local.max_output_tokens) == (8192, 1024)
    assert set(local.capabilities) == {"streaming", "json", "images"}
    assert config.default_model == "gpt-4o"
    assert config.aliases == {"gpt-4": "gpt-4o", "hidden": "claude"}


def test_deployments_that_are_reached_alike_share_a_provider(made: tuple[Config, str]) -> None:
    """A provider for each vendor, address and key; those that speak OpenAI's protocol themselves need no litellm."""
    config, _ = made
    providers = config.providers
    by_model = {model.name: model.provider for model in config.models}
    assert by_model["claude"] == by_model["claude-too"]
    assert providers[by_model["claude"]].api_key_env == "ANTHROPIC_API_KEY"
    assert providers[by_model["gpt-4o"]].kind == "litellm"
    azure = providers[by_model["gpt-4o-2"]]
    assert (azure.kind, azure.base_url, azure.options) == (
        "litellm",
        "https://x.openai.azure.com",
        {"api_version": "2025-01-01"},
    )
    assert azure.api_key_env == "AZURE_API_KEY"
    local = providers[by_model["local"]]
    assert (local.kind, local.base_url, local.api_key_env) == ("openai_compatible", "http://10.0.0.5:8000/v1", None)


def test_no_secret_is_written(made: tuple[Config, str]) -> None:
    """Keys that stood in the file become variables with a note; nothing else that may be one is copied."""
    _, text = made
    assert SECRET not in text
    assert "user:" not in text
    assert "put it into the environment variable AZURE_API_KEY" in text


@pytest.mark.parametrize(
    "words",
    [
        "embed: its mode is embedding",
        "a wildcard",
        "gpt-4o-2 of its own",
        "gpt-4o: rpm, temperature of its litellm_params",
        "aws_secret_access_key",
        "router_settings.fallbacks: ",
        "router_settings: redis_password",
        "general_settings.master_key: clients' keys are named in server.keys",
        "litellm_settings: drop_params, callbacks",
        "environment_variables: OPENAI_API_KEY",
        "the alias lost",
        "keyed: its api_base has credentials",
        "keyed: its price is not known",
        "keyed: its context window is not known",
    ],
)
def test_what_is_left_out_is_said(made: tuple[Config, str], words: str) -> None:
    """Everything that has no place here stands in a comment."""
    comments = [line for line in made[1].splitlines() if line.startswith("#")]
    assert any(words in line for line in comments), "\n".join(comments)


def test_no_file_is_overwritten(made: tuple[Config, str]) -> None:
    """A second import needs another name, and leaves the first as it was."""
    again = run("litellm.yaml")
    assert again.exit_code != 0
    assert "is there already" in str(again.exception)
    assert Path("fitrouter.yaml").read_text() == made[1]
    assert run("litellm.yaml", "--out", "other.yaml").exit_code == 0
    assert Path("other.yaml").read_text() == made[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        (f"key: {SECRET}: [", "cannot be read as YAML"),
        ("a: 1", "has no 'model_list'"),
        ("- 1", "has no 'model_list'"),
        ("model_list: []", "no chat model"),
        ("model_list: [{model_name: '*', litellm_params: {model: 'openai/*'}}, 7]", "a wildcard"),
    ],
)
def test_what_cannot_be_used_says_why(tmp_path: Path, text: str | None, words: str) -> None:
    """No half file is written, and the message repeats nothing that may be secret."""
    source, out = tmp_path / "litellm.yaml", tmp_path / "out.yaml"
    if text is not None:
        source.write_text(text)
    result = run(str(source), "--out", str(out))
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
    assert SECRET not in str(result.exception)
    assert not out.exists()


WORDS = st.text(max_size=12)
VALUES: Any = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 10**7), st.floats(), WORDS, st.lists(WORDS, max_size=1)
)
PARAMS = st.dictionaries(st.one_of(st.sampled_from(["api_base", "rpm", "api_version", "base_url"]), WORDS), VALUES)
FACTS = ["mode", "input_cost_per_token", "max_input_tokens", "max_output_tokens", "max_tokens", "base_model"]
INFO = st.dictionaries(st.sampled_from(FACTS), VALUES)
ENTRIES = st.fixed_dictionaries({"model_name": VALUES, "litellm_params": PARAMS}, optional={"model_info": INFO})
TARGETS = st.one_of(st.sampled_from(["openai/gpt-4o", "gpt-4o", "hosted_vllm/é/ü"]), WORDS)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ENTRIES, min_size=1, max_size=4), TARGETS, VALUES)
def test_whatever_stands_there_becomes_valid(entries: list[dict[str, Any]], target: str, other: Any) -> None:
    """Any list of deployments becomes a configuration that loads, without its keys; or it has no model to route to."""
    for entry in entries:
        entry["litellm_params"] |= {"model": target, "api_key": SECRET}
    try:
        made = convert({"model_list": entries, "router_settings": other, "other": other})
    except ConfigError as error:
        refused = str(error)
        assert "no chat model" in refused, refused
        return
    assert SECRET not in made.text
    assert len(parse_config(yaml.safe_load(made.text)).models) == made.models
