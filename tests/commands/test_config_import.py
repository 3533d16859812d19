"""`fitrouter config import` writes a valid file without secrets and reports what it left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kits.tables import table_driven
from typer.testing import CliRunner, Result

from fitrouter.config import Config, load_config, parse_config
from fitrouter.errors import ConfigError
from fitrouter_integrations import cli
from fitrouter_integrations.commands.setup.import_litellm import convert

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
  - model_name: claude-own
    litellm_params: {{model: anthropic/own-tune}}
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


def test_models_prices_and_limits_are_converted(made: tuple[Config, str]) -> None:
    """Names, targets, URLs, prices, context windows and capabilities come from the file, else from litellm's table."""
    config, _ = made
    models = {model.name: model for model in config.models}
    assert list(models) == ["gpt-4o", "gpt-4o-2", "local", "claude", "claude-too", "claude-own"]
    assert (models["gpt-4o"].target, models["gpt-4o"].prices.input, models["gpt-4o"].prices.output) == (
        "openai/gpt-4o",
        2.5,
        10.0,
    )
    assert models["gpt-4o"].prices.cache_read == 1.25
    assert models["gpt-4o-2"].prices.output == 10.0
    local = models["local"]
    assert (local.target, local.prices.input, local.prices.output) == ("llama", 0.1, 0.2)
    assert (local.context_window, local.max_output_tokens) == (8192, 1024)
    assert set(local.capabilities) == {"streaming", "json", "images"}
    assert config.default_model == "gpt-4o"
    assert config.aliases == {"gpt-4": "gpt-4o", "hidden": "claude"}


def test_deployments_with_the_same_access_share_a_provider(made: tuple[Config, str]) -> None:
    """One provider for each vendor, URL and key; OpenAI-compatible ones do not need litellm."""
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
    """Keys in the file become variables with a note; nothing else that may be secret is copied."""
    _, text = made
    assert SECRET not in text
    assert "user:" not in text
    assert "set the environment variable AZURE_API_KEY" in text


@table_driven(
    "words",
    [
        "embed: its mode is embedding",
        "wildcards are not supported",
        "gpt-4o-2 of its own",
        "gpt-4o: rpm, temperature of its litellm_params",
        "aws_secret_access_key",
        "router_settings.fallbacks: ",
        "router_settings: redis_password",
        "general_settings.master_key: define the keys of clients in server.keys",
        "litellm_settings: callbacks",
        "litellm_settings.drop_params: ",
        "environment_variables: OPENAI_API_KEY",
        "the alias lost",
        "keyed: its api_base is not a plain URL, or contains credentials or a query",
        "claude-own: its price is unknown",
        "claude-own: its context window is unknown",
    ],
)
def test_dropped_settings_are_listed(made: tuple[Config, str], words: str) -> None:
    """Every setting that is not converted is listed in a comment."""
    comments = [line for line in made[1].splitlines() if line.startswith("#")]
    assert any(words in line for line in comments), "\n".join(comments)


def test_no_file_is_overwritten(made: tuple[Config, str]) -> None:
    """A second import fails and leaves the first file as it was."""
    again = run("litellm.yaml")
    assert again.exit_code != 0
    assert "exists already" in str(again.exception)
    assert Path("fitrouter.yaml").read_text() == made[1]
    assert run("litellm.yaml", "--out", "other.yaml").exit_code == 0
    assert Path("other.yaml").read_text() == made[1]


# --- what stands in other people's files ---


def deployment(name: str, model: str, **params: Any) -> dict[str, Any]:
    """An entry of model_list."""
    return {"model_name": name, "litellm_params": {"model": model, **params}}


def imported(*entries: dict[str, Any], **sections: Any) -> tuple[Config, str]:
    """What becomes of a file with these deployments and sections."""
    made = convert({"model_list": list(entries), **sections})
    assert SECRET not in made.text
    return parse_config(yaml.safe_load(made.text)), made.text


def test_equivalent_deployments_become_one_model() -> None:
    """Several keys and regions of one model, which litellm balances, are one model."""
    config, text = imported(
        deployment("gpt", "azure/gpt-4o", api_base="https://eu.example", api_key="os.environ/EU"),
        deployment("gpt", "azure/gpt-4o", api_base="https://us.example", api_key=SECRET),
        deployment("gpt", "openai/gpt-4o"),
        deployment("other", "azure/gpt-4o", api_base="https://us.example"),
    )
    assert [model.name for model in config.models] == ["gpt", "gpt-2", "other"]
    assert "gpt: another deployment of azure/gpt-4o; fitrouter does not balance load" in text


def test_each_key_in_a_file_gets_a_variable_of_its_own() -> None:
    """The key of one URL is never read from the variable of another, or of OpenAI."""
    config, text = imported(
        deployment("gpt", "openai/gpt-4o", api_key=SECRET + "1"),
        deployment("mini", "openai/gpt-4o-mini", api_key=SECRET + "2"),
        deployment("nano", "openai/gpt-4.1-nano", api_key=SECRET + "1"),
        deployment("my local-llm", "openai/llama", api_base="http://localhost:8000", api_key=SECRET + "3"),
        deployment("4all", "hosted_vllm/llama", api_base="http://localhost:8001", api_key=SECRET + "4"),
        deployment("open", "openai/llama", api_base="http://localhost:8002", api_key="fake-key"),
    )
    keys = {model.name: config.providers[model.provider].api_key_env for model in config.models}
    assert keys == {
        "gpt": "OPENAI_API_KEY",
        "mini": "OPENAI_2_API_KEY",
        "nano": "OPENAI_API_KEY",
        "my local-llm": "MY_LOCAL_LLM_API_KEY",
        "4all": "MODEL_4ALL_API_KEY",
        "open": None,
    }
    assert "mini: its key was in the file; set the environment variable OPENAI_2_API_KEY" in text


def test_urls_come_from_the_environment_or_the_model_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without a known URL is left out; a URL with a secret is not written."""
    monkeypatch.delenv("NOWHERE", raising=False)
    monkeypatch.setenv("HERE", "http://10.0.0.1:8000/v1")
    monkeypatch.setenv("HIDDEN", f"http://user:{SECRET}@10.0.0.1/v1")
    monkeypatch.setenv("NO_ADDRESS", SECRET)
    config, text = imported(
        *(deployment(f"at {name}", "openai/llama", api_base=f"os.environ/{name}") for name in ("NOWHERE", "HERE")),
        *(deployment(f"at {name}", "openai/llama", api_base=f"os.environ/{name}") for name in ("HIDDEN", "NO_ADDRESS")),
        deployment("azure", "azure/", api_base="https://eu.example"),
        deployment("which", "os.environ/MODEL"),
    )
    assert [model.name for model in config.models] == ["at HERE"]
    assert next(iter(config.providers.values())).base_url == "http://10.0.0.1:8000/v1"
    for name in ("NOWHERE", "HIDDEN", "NO_ADDRESS"):
        assert f"at {name}: its api_base came from the environment variable {name}, which has no plain URL" in text
    for name in ("azure", "which"):
        assert f"{name}: its litellm_params.model does not say which model it is" in text


def test_credentials_by_name_and_prices_of_bedrock_are_found() -> None:
    """A named credential gives the variable, all Bedrock call types have one price; secrets are not written."""
    config, text = imported(
        deployment("named", "openai/gpt-4o", litellm_credential_name="ours"),
        deployment(
            "claude", "bedrock/converse/us.anthropic.claude-haiku-4-5-20251001-v1:0", aws_region_name="us-east-1"
        ),
        credential_list=[
            {
                "credential_name": "ours",
                "credential_values": {"api_key": "os.environ/OURS", "aws_session_token": SECRET},
            }
        ],
    )
    assert config.providers[config.models[0].provider].api_key_env == "OURS"
    assert config.models[1].prices.input > 0
    assert config.providers[config.models[1].provider].options == {"aws_region_name": "us-east-1"}
    assert "named: aws_session_token of its litellm_params" in text


def test_an_alias_that_hides_a_model_is_left_out() -> None:
    """A name that is a model is not an alias."""
    config, text = imported(
        deployment("gpt", "openai/gpt-4o"),
        deployment("mini", "openai/gpt-4o-mini"),
        router_settings={"model_group_alias": {"mini": "gpt", "small": "mini", "gpt-*": "gpt", "fitrouter/x": "gpt"}},
    )
    assert config.aliases == {"small": "mini"}
    assert "the alias gpt-*: it is a pattern" in text
    assert "the alias fitrouter/x: it is a pattern, or a name of fitrouter's own" in text
    assert "the alias mini: a model has that name" in text


def test_the_url_of_an_endpoint_is_noted() -> None:
    """A deployment whose address is no base URL is left out; the rest of the file is imported."""
    config, text = imported(
        deployment("odd", "openai/odd", api_base="https://models.example.com/v1/chat/completions"),
        deployment("gpt", "openai/gpt-4o", api_base="https://models.example.com/v1"),
    )
    assert [model.name for model in config.models] == ["gpt"]
    assert "odd: its api_base is the URL of one endpoint" in text


@pytest.mark.parametrize(
    "target",
    [
        *("openai/dall-e-3", "openai/gpt-image-1", "vertex_ai/imagen-3.0-generate-001", "openai/whisper-1"),
        *("openai/tts-1-hd", "openai/gpt-4o-realtime-preview", "replicate/black-forest-labs/flux-pro", "openai/sora-2"),
        *("openai/text-embedding-3-small", "cohere/rerank-v3.5", "openai/omni-moderation-latest", "vertex_ai/veo-3.0"),
    ],
)
def test_a_model_without_text_is_no_model_and_no_default(target: str) -> None:
    """Although it stands first; one that can write, but is made for pictures or sound, is a model and no default."""
    config, _ = imported(deployment("odd", target), deployment("gpt", "openai/gpt-4o"))
    assert [model.name for model in config.models] == ["gpt"]
    for able in ("openrouter/google/gemini-2.5-flash-image-preview", "openai/gpt-4o-audio-preview"):
        config, _ = imported(deployment("odd", able), deployment("gpt", "openai/gpt-4o"))
        assert config.default_model == "gpt"


@pytest.mark.parametrize("kind", ["complexity_router", "auto_router_1", "x/y", "semantic", "quality-router", "v2"])
def test_a_router_of_litellm_is_an_alias(kind: str) -> None:
    """Its name reaches fitrouter/auto, as do aliases of it; it is neither a model nor the default one."""
    config, text = imported(
        deployment("clever", f"auto_router/{kind}"),
        deployment("fast", "openai/gpt-4o-mini"),
        deployment("smart", "openai/gpt-4o"),
        deployment("smart", f"auto_router/{kind}"),
        router_settings={"model_group_alias": {"best": "clever", "small": "fast"}},
    )
    assert [model.name for model in config.models] == ["fast", "smart"]
    assert config.aliases == {"clever": "fitrouter/auto", "best": "fitrouter/auto", "small": "fast"}
    assert config.default_model in {"fast", "smart"}
    assert f"clever: auto_router/{kind} is a router, not a model" in text


def test_included_files_are_read(tmp_path: Path) -> None:
    """Lists of included files are appended, as in litellm; each file once; a missing one is an error."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "more.yaml").write_text(
        "include: [../litellm.yaml]\nmodel_list: [{model_name: mini, litellm_params: {model: openai/gpt-4o-mini}}]"
    )
    source = tmp_path / "litellm.yaml"
    source.write_text(
        "include: [models/more.yaml]\nmodel_list: [{model_name: gpt, litellm_params: {model: openai/gpt-4o}}]"
    )
    assert run(str(source), "--out", str(tmp_path / "out.yaml")).exit_code == 0
    assert [model.name for model in load_config(tmp_path / "out.yaml").models] == ["gpt", "mini"]
    for i in range(30):
        (tmp_path / f"{i}.yaml").write_text(f"include: [{i + 1}.yaml, ./{i + 1}.yaml, {i + 1}.yaml]")
    (tmp_path / "30.yaml").write_text("model_list: [{model_name: gpt, litellm_params: {model: openai/gpt-4o}}]")
    assert run(str(tmp_path / "0.yaml"), "--out", str(tmp_path / "once.yaml")).exit_code == 0
    assert [model.name for model in load_config(tmp_path / "once.yaml").models] == ["gpt"]
    source.write_text("include: [nowhere.yaml]")
    missing = run(str(source), "--out", str(tmp_path / "again.yaml"))
    assert isinstance(missing.exception, ConfigError)
    assert "nowhere.yaml" in str(missing.exception)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        (f"key: {SECRET}: [", "cannot be read as YAML"),
        ("a: 1", "has no 'model_list'"),
        ("- 1", "has no 'model_list'"),
        ("model_list: []", "no chat model"),
        ("model_list: [{model_name: '*', litellm_params: {model: 'openai/*'}}, 7]", "wildcards are not supported"),
    ],
)
def test_unusable_files_are_errors(tmp_path: Path, text: str | None, words: str) -> None:
    """No partial file is written, and the message reveals nothing that may be secret."""
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


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ENTRIES, min_size=1, max_size=4), TARGETS, VALUES)
def test_any_deployments_become_a_valid_configuration(entries: list[dict[str, Any]], target: str, other: Any) -> None:
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
