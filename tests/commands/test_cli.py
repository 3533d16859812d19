"""The command line: one clear message for every error, and files that are never half written."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from tests.kits.gateway import chat, wait_for
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import ConfigError
from fitrouter_integrations import cli
from fitrouter_integrations.commands._files import set_top_level
from fitrouter_integrations.commands.init import KEYS, found_keys, render

COMMENTED = """\
# my gateway
providers: {p: {kind: simulated}}
models:
  - {name: a, provider: p}
  - {name: b, provider: p}   # share: 1
default_model: a  # cheap
share: 0.25       # carefully
seed: 7
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_init_without_keys_makes_a_gateway_that_works_offline(folder: Path) -> None:
    """Without provider keys the configuration loads, and every model is simulated."""
    result = run("init")
    assert result.exit_code == 0
    assert "simulated models" in result.output
    config = load_config(folder / "fitrouter.yaml")
    assert {provider.kind for provider in config.providers.values()} == {"simulated"}
    assert len(config.models) >= 3
    assert set(config.providers["simulated"].options) == {model.name for model in config.models}


def test_init_uses_provider_keys_and_writes_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key that is set adds its models; the file names the variables, never their values."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-canary")
    monkeypatch.setenv("GROQ_API_KEY", "  ")
    assert run("init", "--path", "a.yaml").exit_code == 0
    text = (folder / "a.yaml").read_text()
    assert "sk-canary" not in text
    config = load_config(folder / "a.yaml")
    assert set(config.providers) == {"openai", "anthropic"}
    assert {provider.api_key_env for provider in config.providers.values()} == {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"}


def test_every_combination_of_keys_is_a_valid_file(tmp_path: Path) -> None:
    """`config check` accepts what `init` writes, and every model has a price."""
    names = tuple(KEYS)
    for subset in ((), names, *((name,) for name in names), names[1:4]):
        assert found_keys(dict.fromkeys(subset, "x")) == subset
        file = tmp_path / "c.yaml"
        file.write_text(render(subset))
        config = load_config(file)
        assert config.default_model is not None
        assert all(model.prices.output > 0 for model in config.models)


def test_init_does_not_overwrite(folder: Path) -> None:
    """An existing file stays unchanged, byte for byte."""
    (folder / "fitrouter.yaml").write_text("precious")
    result = run("init")
    assert isinstance(result.exception, ConfigError)
    assert (folder / "fitrouter.yaml").read_text() == "precious"


def test_check_summarises_a_file_and_what_it_lacks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary has models, share, missing keys, encoders and address."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    run("init")
    assert run("config", "check", "fitrouter.yaml").output.count("✗") == 0
    monkeypatch.delenv("OPENAI_API_KEY")
    result = run("config", "check")
    assert result.exit_code == 0
    assert "the environment variable OPENAI_API_KEY is not set" in result.output
    assert "127.0.0.1:8484" in result.output
    assert "sk-canary" not in result.output


@pytest.mark.parametrize(("value", "written"), [("0", "0.0"), ("0.05", "0.05"), ("1", "1.0")])
def test_share_changes_only_its_value(folder: Path, value: str, written: str) -> None:
    """Comments, order and spaces are kept."""
    file = folder / "fitrouter.yaml"
    file.write_text(COMMENTED)
    assert run("config", "share", value).exit_code == 0
    assert file.read_text() == COMMENTED.replace("share: 0.25 ", f"share: {written} ")
    assert load_config(file).share == float(value)


def test_share_is_appended_if_missing(folder: Path) -> None:
    """A file without the setting gets it at its end, together with a default model if given."""
    file = folder / "fitrouter.yaml"
    bare = (
        COMMENTED.replace("share: 0.25       # carefully\n", "").replace("default_model: a  # cheap\n", "").rstrip("\n")
    )
    file.write_text(bare)
    refused = run("config", "share", "0.5")
    assert isinstance(refused.exception, ConfigError)
    assert file.read_text() == bare
    assert run("config", "share", "0.5", "--default-model", "b").exit_code == 0
    assert file.read_text() == bare + '\ndefault_model: "b"\nshare: 0.5\n'
    assert (load_config(file).share, load_config(file).default_model) == (0.5, "b")


@pytest.mark.parametrize("ending", ["share:\n", "share: 0.5\n", "share:   0.5   # why\n", "share: 0.5\r\n"])
def test_settings_are_edited_in_every_usual_form(tmp_path: Path, ending: str) -> None:
    """Blanks, comments, empty values and Windows line endings are kept."""
    file = tmp_path / "fitrouter.yaml"
    head = COMMENTED.split("share: 0.25")[0]
    file.write_bytes((head + ending).encode())
    set_top_level(file, {"share": "0.75"})
    assert yaml.safe_load(file.read_bytes())["share"] == 0.75
    assert file.read_bytes().decode().startswith(head)


def test_a_setting_in_a_form_that_cannot_be_edited_is_refused(tmp_path: Path) -> None:
    """A file that is one flow mapping, or has the setting twice, is not changed."""
    file = tmp_path / "fitrouter.yaml"
    flow = json.dumps(
        {"providers": {"p": {"kind": "simulated"}}, "models": [{"name": "a", "provider": "p"}], "share": 1}
    )
    file.write_text(flow)
    with pytest.raises(ConfigError):
        set_top_level(file, {"share": "1.0"})
    assert file.read_text() == flow


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fitrouter_integrations.cli", *arguments],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def _environment() -> dict[str, str]:
    root = Path(__file__).parents[2]
    sources = [str(root / name) for name in ("router", "evaluators", "dashboards", "integrations")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sources)}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("serve",), "there is no file 'fitrouter.yaml'"),
        (("config", "check", "bad.yaml"), "did you mean 'policy'?"),
        (("serve", "--config", "open.yaml"), "no keys are configured"),
    ],
)
def test_an_error_is_one_message_on_standard_error(tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    """The exit code is 2, with nothing on standard output and no traceback."""
    (tmp_path / "bad.yaml").write_text(COMMENTED + "polcy: {}\n")
    (tmp_path / "open.yaml").write_text(COMMENTED + "server: {host: 0.0.0.0}\n")
    result = command(*arguments, folder=tmp_path)
    assert result.returncode == 2
    assert word in result.stderr
    assert result.stderr.startswith("fitrouter: ")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_the_command_line_imports_nothing_heavy() -> None:
    """Help and checks load neither the ASGI framework nor a model library."""
    heavy = ("fastapi", "uvicorn", "torch", "litellm", "duckdb", "sentence_transformers", "sklearn")
    code = f"import sys, fitrouter_integrations.cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, check=True, timeout=300
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("workers", [1, 2])
def test_serve_answers_and_ends_on_sigterm(folder: Path, workers: int) -> None:
    """`init`, `serve` on a free port, a request, SIGTERM, exit code 0."""
    run("init")
    process = subprocess.Popen(
        [sys.executable, "-m", "fitrouter_integrations.cli", "serve", "--port", "0", "--workers", str(workers)],
        cwd=folder,
        env=_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "3 models on http://127.0.0.1:" in line
        url = line.split()[-1].removesuffix("/v1")
        wait_for(lambda: _alive(url), 300.0)
        reply = httpx.post(f"{url}/v1/chat/completions", json=chat("Write a line."), timeout=300.0)
        assert reply.status_code == 200
        assert reply.headers["x-fitrouter-model"] in {"brief", "thorough", "friendly"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(300.0) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _alive(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


async def test_train_refit_reaches_a_running_router(tmp_path: Path) -> None:
    """`train refit` appends one event to the journal, which a running router folds; without a journal it fails."""
    from fitrouter.router import Router
    from fitrouter.types import Refit

    file = tmp_path / "fitrouter.yaml"
    file.write_text("data: d\nproviders: {s: {kind: simulated}}\nmodels: [{name: m, provider: s}]\n")
    early = await asyncio.to_thread(CliRunner().invoke, cli.app, ["train", "refit", "--config", str(file)])
    assert isinstance(early.exception, ConfigError)
    async with Router.from_config(load_config(file)) as router:
        done = await asyncio.to_thread(CliRunner().invoke, cli.app, ["train", "refit", "--config", str(file)])
        assert done.exit_code == 0, done.output
        assert any(isinstance(row.event, Refit) for row in router._journal.tail(0))
        async with asyncio.timeout(300.0):
            await router._follower.caught_up()
        assert router._learner.stale == 0
