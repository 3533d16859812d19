"""The section `ray` and the command's refusals, without Ray."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kits.pages import blocks, section
from typer.testing import CliRunner

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError, MissingExtra
from fitrouter_integrations import deploy
from fitrouter_integrations.commands.running.deploy import app
from fitrouter_integrations.deploy import _cluster, _folder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deployment.md"
BASE: dict[str, Any] = {"providers": {"s": {"kind": "simulated"}}, "models": [{"name": "m", "provider": "s"}]}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ray were installed."""
    monkeypatch.setattr(_cluster, "require", lambda module, user: None)


def test_one_section_more() -> None:
    """The file of one machine plus one section is a deployment; decisions do not depend on that section."""
    alone, deployed = parse_config(BASE), parse_config(BASE | {"ray": {}})
    assert alone.ray is None
    assert deployed.ray is not None
    assert (deployed.ray.gateways.min, deployed.ray.gateways.most) == (2, 2)
    assert (deployed.ray.scorers.min, deployed.ray.scorers.gpus) == (1, 0.0)
    assert deployed.hash() == alone.hash()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"gateways": {"min": 3, "max": 2}}, "max is 2, below min, which is 3"),
        ({"gateways": {"min": 0}}, "greater than or equal to 1"),
        ({"scorers": {"lag_s": 0}}, "greater than 0"),
        ({"scorers": {"lag_s": float("nan")}}, "finite"),
        ({"scorers": {"gpu": 1}}, "did you mean 'gpus'"),
        ({"gateway": {}}, "did you mean 'gateways'"),
        ({"down_s": -1}, "ray.down_s"),
    ],
)
def test_mistakes_are_named(section: dict[str, Any], said: str) -> None:
    """A wrong setting of the section is refused with its place and what is allowed."""
    with pytest.raises(ConfigError, match="ray") as found:
        parse_config(BASE | {"ray": section})
    assert said in str(found.value)


def test_missing_ray_is_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray the message names the extra, before the configuration is judged."""

    def require(module: str, user: str) -> None:
        raise MissingExtra.of(module, user)

    monkeypatch.setattr(_cluster, "require", require)
    with pytest.raises(MissingExtra, match=r"fitrouter\[ray\]"):
        deploy.check(parse_config(BASE))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "no such section"),
        ({"ray": {}, "server": {"port": 0}}, "server.port"),
        ({"ray": {}, "server": {"host": "0.0.0.0"}}, "keys"),
    ],
)
def test_what_cannot_be_deployed(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """A configuration that Ray Serve cannot serve is refused before anything starts."""
    with pytest.raises(ConfigError, match=said):
        deploy.check(parse_config(BASE | {"data": str(tmp_path)} | changes))


@pytest.mark.usefixtures("installed")
def test_the_command_refuses_and_starts_nothing(tmp_path: Path) -> None:
    """`fitrouter deploy ray` gives these errors, and makes no folder."""
    file = tmp_path / "fitrouter.yaml"
    file.write_text("providers: {s: {kind: simulated}}\nmodels: [{name: m, provider: s}]\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["ray", str(file)])
    assert isinstance(done.exception, ConfigError), done
    assert [each.name for each in tmp_path.iterdir()] == ["fitrouter.yaml"]


def test_a_file_is_for_one_machine() -> None:
    """Several machines need a journal in a database; one machine does not."""
    file, database = parse_config(BASE), parse_config(BASE | {"data": "postgresql://u@h/n"})
    _cluster.require_shared(file, 1)
    _cluster.require_shared(database, 3)
    with pytest.raises(ConfigError, match=r"3 machines.*postgresql://"):
        _cluster.require_shared(file, 3)


def test_the_folder_is_known_again(tmp_path: Path) -> None:
    """A replica takes the folder with the deployment's mark, which later deployments keep, and refuses any other."""
    mark = _folder.marked(tmp_path / "data")
    assert _folder.marked(tmp_path / "data") == mark
    _folder.require_same(tmp_path / "data", mark)
    _folder.marked(tmp_path / "other")
    for other in ("other", "missing"):
        with pytest.raises(ConfigError, match="not the folder of this deployment"):
            _folder.require_same(tmp_path / other, mark)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A data folder that is a file is refused with its path."""
    (tmp_path / "data").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        _folder.marked(tmp_path / "data")


def test_own_cluster_has_room_for_a_restart() -> None:
    """A cluster of one machine offers what all replicas need while new gateways start beside the old ones."""
    ray = parse_config(BASE | {"ray": {"gateways": {"min": 2, "max": 4, "cpus": 0.5}, "scorers": {"min": 3}}}).ray
    assert ray is not None
    assert _cluster.cpus_needed(ray) == 4 + 3 + 2


def test_nothing_else_imports_ray() -> None:
    """Neither the command nor the gateway imports Ray before a deployment starts."""
    code = (
        "import sys, fitrouter_integrations.cli, fitrouter_integrations.commands.running.deploy, "
        "fitrouter_integrations.gateway._app; sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_page_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's section makes the file of one machine a deployment, and its commands reach Ray with that file."""
    (_, shown), *_ = blocks(PAGE, "yaml", under="Ray Serve")
    text = "providers: {s: {kind: simulated}}\nmodels: [{name: m, provider: s}]\n" + shown
    (tmp_path / "fitrouter.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done: list[str] = []
    monkeypatch.setattr(deploy, "check", lambda config: None)
    monkeypatch.setattr(deploy, "deploy", lambda config, told: done.append(f"up to {config.ray.gateways.most}"))
    monkeypatch.setattr(deploy, "stop", lambda config: done.append("stop"))
    given = re.findall(r"fitrouter deploy (ray\b[^\n`]*)", section(PAGE, "Ray Serve"))
    for arguments in given:
        ran = CliRunner().invoke(app, arguments.split())
        assert ran.exit_code == 0, ran
    assert done == ["up to 4", "stop"]
