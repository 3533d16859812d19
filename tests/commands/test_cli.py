"""The command line: one clear message for every error, and files that are never half written."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml
from tests.kits.gateway import chat, config, serving, wait_for
from typer.testing import CliRunner, Result

from fitrouter.config import load_config
from fitrouter.errors import ConfigError, MissingExtra
from fitrouter.router import Router
from fitrouter.types import Prices
from fitrouter_integrations import cli
from fitrouter_integrations.commands._files import set_top_level
from fitrouter_integrations.commands.setup.init import KEYS, VENDORS, known, render

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
    names = [name for name, vendor in VENDORS.items() if vendor.models]
    for subset in ([], names, *([name] for name in names), names[1:4]):
        file = tmp_path / "c.yaml"
        file.write_text(render([known(name) for name in subset]))
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
    assert result.exit_code == 2
    assert "the environment variable OPENAI_API_KEY is not set" in result.output
    assert "127.0.0.1:8484" in result.output
    assert "sk-canary" not in result.output


UNPRICED = """\
providers: {p: {kind: openai_compatible, base_url: "http://127.0.0.1:1/v1"}, free: {kind: simulated}}
models:
  - {name: dear, provider: p, prices: {input: 3, output: 15}}
  - {name: half, provider: p, prices: {input: 1}}
  - {name: none, provider: p}
  - {name: played, provider: free}
  - {name: nothing, provider: free, prices: {input: 0, output: 0}}
"""


@pytest.mark.parametrize(
    ("more", "code"),
    [("", 0), ("objective: {cost_weight: 0.1}\n", 2), ("budget: {usd_per_request: 0.01}\n", 2)],
)
def test_check_fails_where_money_matters_and_a_price_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, more: str, code: int
) -> None:
    """Missing and half prices are named; they are a mistake with a budget or a cost weight only."""
    monkeypatch.setenv("COLUMNS", "300")
    (folder / "fitrouter.yaml").write_text(UNPRICED + more)
    result = run("config", "check")
    assert result.exit_code == code
    assert "unknown for half, none, played." in result.output


def test_check_says_what_is_known_of_a_missing_price(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's prices of a model that the file has none for."""
    monkeypatch.setenv("COLUMNS", "400")
    (folder / "fitrouter.yaml").write_text(UNPRICED.replace("name: none", "name: none, target: gpt-4.1-mini"))
    assert "none {input: 0.4, output: 1.6, cache_read: 0.1}" in run("config", "check").output


def test_an_unknown_price_counts_as_the_highest_known_one(folder: Path) -> None:
    """Nothing without a price seems free or cheap, not even what is simulated; what has prices of 0 costs nothing."""
    (folder / "fitrouter.yaml").write_text(UNPRICED)
    prices = {card.name: card.prices for card in load_config(folder / "fitrouter.yaml").cards()}
    assert prices["dear"] == Prices(input=3.0, output=15.0)
    assert prices["half"] == prices["none"] == prices["played"] == Prices(input=3.0, output=15.0, known=False)
    assert prices["nothing"] == Prices()


def test_a_judge_without_a_price_fails_the_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`usd_per_day` would limit nothing."""
    monkeypatch.setenv("COLUMNS", "300")
    judge = "{name: j, kind: judge, model: m, provider: p, principles: {'*': [be brief]}, send_text: true}"
    (folder / "fitrouter.yaml").write_text(UNPRICED + f"scorer: {{models: [{judge}]}}\n")
    result = run("config", "check")
    assert result.exit_code == 2
    assert "usd_per_day limits nothing" in result.output


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ("providers: {a: {kind: openai_compatible}}", "needs 'base_url'"),
        ("providers: {a: {kind: openai_compatible, base_url: x}}", "base_url is 'x'"),
        ("providers: {a: {kind: recorded}}", "needs 'path'"),
        ("providers: {a: {kind: simulated, options: {m: {lenght: 2}}}}", "unknown field `lenght`"),
        ("providers: {a: {kind: simulated}}\npolicy: {algorithm: sqarecb}", "there is no algorithm 'sqarecb'"),
        ("providers: {a: {kind: simulated}}\nscorer: {prior: x.safetensors}", "there is no prior"),
        ("providers: {a: {kind: simulated}}\nencoder: statik", "did you mean 'static'?"),
    ],
)
def test_check_fails_where_serve_would(folder: Path, monkeypatch: pytest.MonkeyPatch, settings: str, word: str) -> None:
    """What keeps the router from being built is one ✗, with no mistakes that follow from it."""
    monkeypatch.setenv("COLUMNS", "400")
    (folder / "fitrouter.yaml").write_text(f"{settings}\nmodels: [{{name: m, provider: a}}]\n")
    result = run("config", "check")
    assert result.exit_code == 2
    assert word in result.output
    assert result.output.count("✗") == 2  # and in the last line
    assert not (folder / "fitrouter-data").exists()


@pytest.mark.parametrize(
    ("absent", "settings", "extra"),
    [
        ("litellm", "{p: {kind: litellm}}", "litellm"),
        ("starlette", "{p: {kind: simulated}}", "gateway"),
        ("sentence_transformers", "{p: {kind: simulated}}\nencoder: minilm", "reward"),
        (
            "torch",
            "{p: {kind: simulated}}\nscorer: {models: [{name: r, kind: sequence_classification, model: x}]}",
            "reward",
        ),
    ],
)
def test_a_missing_extra_is_named_before_anything_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, absent: str, settings: str, extra: str
) -> None:
    """`serve` and `config check` name the smallest extra; no port is bound, no folder made."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setitem(sys.modules, absent, None)
    (folder / "fitrouter.yaml").write_text(f"providers: {settings}\nmodels: [{{name: m, provider: p}}]\n")
    checked, served = run("config", "check"), run("serve", "--port", "0", "--workers", "2")
    assert checked.exit_code == 2
    assert f"pip install 'fitrouter[{extra}]'" in checked.output
    assert isinstance(served.exception, MissingExtra)
    assert isinstance(served.exception, ModuleNotFoundError)
    assert str(served.exception).endswith(f"`pip install 'fitrouter[{extra}]'`")
    assert [path.name for path in folder.iterdir()] == ["fitrouter.yaml"]


@pytest.mark.parametrize(
    ("module", "adapter"),
    [("litellm", "litellm"), ("langchain_core", "langchain"), ("crewai", "crewai")],
)
def test_an_adapter_names_its_extra(module: str, adapter: str) -> None:
    """Importing an adapter without its framework says what to install."""
    code = f"import sys; sys.modules[{module!r}] = None; import fitrouter_integrations.{adapter}"
    result = subprocess.run(
        [sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert f"`pip install 'fitrouter[{adapter}]'`" in result.stderr.splitlines()[-1]


def test_the_share_has_one_switch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config share` changes the file and the running gateway; the check shows a change at run time."""
    monkeypatch.setenv("COLUMNS", "300")
    file = folder / "fitrouter.yaml"
    file.write_text(COMMENTED)
    settings = load_config(file)
    with serving(Router.from_config(settings), settings.model_copy(update={"server": config(port=0).server})) as url:
        monkeypatch.setattr("fitrouter_integrations.commands.setup.config.url_of", lambda _: url)
        assert "the running gateway has it" in run("config", "share", "0.5").output
        assert httpx.get(f"{url}/v1/policy", timeout=300.0).json()["settings"] == {"share": 0.5}
    assert load_config(file).share == 0.5
    assert "50.000% of the traffic" in run("config", "check").output
    with Router.offline(load_config(file)) as router:
        asyncio.run(router.policy.apply_configuration())
        asyncio.run(router.policy.set({"share": 0.75}))
    found = run("config", "check").output
    assert "75.000% of the traffic" in found
    assert "the file says 0.5: `fitrouter config share 0.75`" in found
    assert "it takes effect at the next start" in run("config", "share", "0.75").output
    assert "the file says" not in run("config", "check").output


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


FRAMEWORKS = ("starlette", "uvicorn", "aiohttp", "torch", "litellm", "duckdb", "sentence_transformers", "sklearn")
LOADED = (
    (("fitrouter_integrations.cli",), (*FRAMEWORKS, "numpy", "msgspec", "pydantic", "yaml", "fitrouter.types")),
    (
        tuple(cli.MODULES[name] for name in ("rate", "explain", "decisions", "models", "top", "personal leaderboard")),
        (*FRAMEWORKS, "fitrouter.router", "fitrouter.stores.journal", "fitrouter.config", "yaml"),
    ),
    (tuple(cli.MODULES[name] for name in ("init", "feedback", "policy")), (*FRAMEWORKS, "fitrouter_evaluators")),
)
"""Modules of commands, in the order of their weight → what their import must not load."""


def test_commands_import_what_they_need() -> None:
    """Help, and commands that only ask a running gateway, load neither router nor stores nor any framework."""
    code = f"""
import importlib, json, sys
found = []
for modules, heavy in {LOADED!r}:
    for module in modules:
        importlib.import_module(module)
        found += [[module, name] for name in heavy if name in sys.modules]
print(json.dumps(found))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(result.stdout) == []


@pytest.mark.parametrize(("workers", "temporary"), [(1, ""), (2, ""), (1, 100 * "t")])
def test_serve_answers_and_ends_on_sigterm(folder: Path, workers: int, temporary: str) -> None:
    """`init`, `serve` on a free port, a request, SIGTERM to all processes at once: a stream ends well; exit code 0.

    Also where the temporary folder has no place for the fork server's socket.
    """
    run("init")
    (folder / temporary).mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "fitrouter_integrations.cli", "serve", "--port", "0", "--workers", str(workers)],
        cwd=folder,
        env=_environment() | ({"TMPDIR": str(folder / temporary)} if temporary else {}),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "3 models on http://127.0.0.1:" in line
        url = line.split()[-1].removesuffix("/console")
        wait_for(lambda: _alive(url), 300.0)
        assert f"on {url}/v1; its console: {url}/console\n" in line
        assert "console" in httpx.get(url, headers={"accept": "text/html"}, follow_redirects=True).text
        reply = httpx.post(f"{url}/v1/chat/completions", json=chat("Write a line."), timeout=300.0)
        assert reply.status_code == 200
        assert reply.headers["x-fitrouter-model"] in {"brief", "thorough", "friendly"}
        asked = chat("Write a page.", model="thorough") | {"stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, timeout=300.0) as streamed:
            lines = streamed.iter_lines()
            next(lines)
            os.killpg(process.pid, signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert process.wait(300.0) == 0
        said = process.stderr.read()
        assert "Traceback" not in said
        assert ("no fork server (OSError: AF_UNIX path too long)" in said) is bool(temporary)
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


@pytest.mark.parametrize(
    "command", [[], ["explain"], ["config"], ["config", "check"], ["journal", "salvage"], ["bench"]]
)
def test_every_command_has_a_short_help_option(command: list[str]) -> None:
    """`-h` prints what `--help` does."""
    short, long = (run(*command, option) for option in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.output == long.output != ""


def test_help_is_one_list_and_named_groups() -> None:
    """What runs a router comes first, in a list of about a dozen; the rest is in groups, and each command is in one."""
    shown = dict[str, list[str]]()
    for line in run("--help").output.splitlines():
        if title := re.match(r"╭─ (.+?) ─+╮", line):
            names = shown.setdefault(title[1], [])
        elif name := re.match(r"│ ([a-z-]+) {2,}\S", line):
            names.append(name[1])
    assert list(shown) == ["Options", "Commands", "Groups of commands"]
    assert {"init", "serve", "explain", "rate", "policy", "replay"} <= set(shown["Commands"])
    assert len(shown["Commands"]) <= 14
    assert {name.split()[0] for name in cli.MODULES} == {*shown["Commands"], *shown["Groups of commands"]}
    for command in cli.MODULES:
        assert run(*command.split(), "--help").exit_code == 0, command


def commands_of(app: typer.Typer) -> Iterator[Any]:
    """The commands of an app, and those of its groups."""
    command: Any = typer.main.get_command(app)
    yield from getattr(command, "commands", {"": command}).values()


def test_a_configuration_and_a_person_have_one_name() -> None:
    """`--config`, or `-c`, in every command that reads or writes one; a person is `--user`."""
    named = 0
    for verb, name in cli.MODULES.items():
        module: Any = importlib.import_module(name)
        apps = module.app if hasattr(module, "app") else typer.Typer()
        if apps is not getattr(module, "app", None):
            apps.command()(module.command)
        for command in commands_of(apps):
            for parameter in command.params:
                assert parameter.name not in {"person", "who", "name_of_user"}, (verb, command.name)
                if parameter.name == "user":
                    assert parameter.opts == ["--user"], (verb, command.name)
                if "onfiguration file" in (parameter.help or "") and not parameter.hidden:
                    assert parameter.opts == ["--config", "-c"], (verb, command.name, parameter.opts)
                    named += 1
    assert named >= 12


def test_the_version_is_printed() -> None:
    """`fitrouter --version` prints the installed version and ends with 0."""
    ran = run("--version")
    assert (ran.exit_code, ran.output) == (0, f"fitrouter {metadata.version('fitrouter')}\n")
