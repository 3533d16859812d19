"""The image's command in a read-only file system without capabilities, and the files of Compose and Kubernetes.

No container runtime is needed: the wheel's environment stands for the image, a mount namespace for its file system.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.kits.fake_openai import FakeOpenAI, in_a_thread
from tests.kits.gateway import wait_for
from tests.kits.pages import ROOT, blocks
from tests.kits.postgres import MISSING, Server, binaries, serving
from tests.kits.prometheus import tool

from fitrouter.config import load_config

from .conftest import Create, Journey

FOLDER = ROOT / "containers"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
PAGE = ROOT / "docs" / "deployment.md"


def image() -> dict[str, str]:
    """Instruction → its last arguments in the image's last stage; of ARG and RUN, of the whole file."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^([A-Z]+) +(.+)$", text, re.MULTILINE)
    last = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    return dict([*(item for item in found if item[0] in {"ARG", "RUN"}), *found[last:]])


def environment_file(folder: Path) -> dict[str, str]:
    """The variables that the page's first block writes to containers/.env."""
    (folder / "containers").mkdir()
    (block, *_) = blocks(PAGE, "bash", under="Containers")
    subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], cwd=folder, check=True, timeout=60)
    file = folder / "containers" / ".env"
    assert file.stat().st_mode & 0o077 == 0
    return dict(line.split("=", 1) for line in file.read_text(encoding="utf-8").splitlines())


def without_rights(command: str, data: Path, temporary: Path) -> str:
    """A command with a read-only file system but for two folders, and without capabilities."""
    inside = (
        f"mount --make-rprivate / && mount --bind {data} {data} && mount --types tmpfs tmpfs {temporary}"
        " && mount --options remount,ro,bind / && ! touch written 2> /dev/null"
        f" && exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs {command}"
    )
    return f"unshare --mount bash -c {shlex.quote(inside)}"


def may_mount() -> bool:
    """Whether this process may make mount namespaces."""
    if not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        return False
    probe = ["unshare", "--mount", "bash", "-c", "mount --make-rprivate / && mount --options remount,ro,bind /"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.fixture
def database() -> Iterator[Server]:
    """A server that postgres.sh has prepared."""
    if binaries() is None:
        pytest.skip(MISSING)
    with serving() as server:
        server.folder.chmod(0o755)  # the gateway has no right to pass by modes
        yield server


@pytest.mark.skipif(not may_mount(), reason="mount namespaces are not permitted here")
@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_the_image_serves_without_rights(
    environment: Create, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """The entry point answers, logs, is healthy and ends on SIGTERM; it writes to /data and /tmp only."""
    made, keys = image(), environment_file(tmp_path)
    data, temporary = tmp_path / "data", tmp_path / "tmp"
    data.mkdir(mode=0o700)
    temporary.mkdir()
    file = FOLDER / ("kubernetes/fitrouter.yaml" if kind == "kubernetes" else "fitrouter.yaml")
    places = {"/data": str(data), "https://api.openai.com/v1": "", "0.0.0.0": "127.0.0.1"}
    if kind == "compose":
        url = prepared(request.getfixturevalue("database"), keys)
        places["postgresql://fitrouter@postgres/fitrouter"] = url
        places["postgresql://fitrouter_identities@postgres/fitrouter"] = url.replace(
            "fitrouter@", "fitrouter_identities@"
        )
        command = COMPOSE["services"]["gateway"]["command"]
    else:
        command = container()["args"]
    places |= {"/etc/fitrouter": str(tmp_path)}
    variables = {**keys, "TMPDIR": str(temporary), "HOME": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    (extras,) = re.findall(r"EXTRAS=(\S+)", made["ARG"])
    with ExitStack() as stack:
        models = stack.enter_context(in_a_thread(FakeOpenAI(models=("gpt-5-mini", "gpt-5"))))
        places["https://api.openai.com/v1"] = models.base_url
        journey = stack.enter_context(Journey(environment(*extras.split(",")), tmp_path, variables))
        places["8484"] = str(journey.port)
        (tmp_path / "fitrouter.yaml").write_text(placed(file.read_text(encoding="utf-8"), places), encoding="utf-8")
        words = [*json.loads(made["ENTRYPOINT"]), *(placed(word, places) for word in command)]
        journey.serve(without_rights(shlex.join(words), data, temporary))
        check = json.loads(made["HEALTHCHECK"].partition(" CMD ")[2])
        assert journey.run(placed(shlex.join(check), places)).stderr == ""
        said = {"model": "fitrouter/auto", "user": "ann", "messages": [{"role": "user", "content": "Hello"}]}

        def asked(key: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(f"{journey.url}/v1/chat/completions", json=said, headers=headers, timeout=60)

        def logged() -> bool:
            return asked(keys["FITROUTER_APP_KEY"]).headers["x-fitrouter-logged"] == "true"

        wait_for(logged)  # on a busy machine a commit can take longer than an answer waits for it
        assert asked("x").status_code == 401
        measured = httpx.get(
            f"{journey.url}/metrics", headers={"authorization": f"Bearer {keys['FITROUTER_METRICS_KEY']}"}, timeout=60
        )
        assert "fitrouter_requests_total" in measured.text
    assert (data / "identities.db").exists() == (kind == "kubernetes")
    assert not (tmp_path / "written").exists()


def placed(text: str, places: Mapping[str, str]) -> str:
    for old, new in places.items():
        text = text.replace(old, new)
    return text


def prepared(server: Server, keys: Mapping[str, str]) -> str:
    """The URL of a database that postgres.sh has made."""
    variables = {
        "PATH": f"{server.bin}:/usr/bin:/bin",
        "PGHOST": str(server.folder),
        "PGDATABASE": "postgres",
        "POSTGRES_USER": "admin",
        "FITROUTER_PASSWORD": keys["POSTGRES_PASSWORD"],
        "FITROUTER_IDENTITIES_PASSWORD": keys["POSTGRES_IDENTITIES_PASSWORD"],
    }
    subprocess.run(["sh", str(FOLDER / "postgres.sh")], env=variables, check=True, timeout=60, capture_output=True)
    return f"postgresql://fitrouter@/fitrouter?host={server.folder}"


def container() -> dict[str, Any]:
    """The gateway's container in the manifest."""
    (found,) = (each for each in manifests() if each["kind"] == "StatefulSet")
    (only,) = found["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes" / "gateway.yaml").read_text(encoding="utf-8")))


def test_the_pod_reaches_no_metadata_service() -> None:
    """The NetworkPolicy is part of what is applied, is valid, and leaves out addresses of links."""
    policy = yaml.safe_load((FOLDER / "kubernetes" / "network.yaml").read_text(encoding="utf-8"))
    applied = yaml.safe_load((FOLDER / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8"))
    assert "network.yaml" in applied["resources"]
    assert strange(policy, "V1NetworkPolicy", "NetworkPolicy") == []
    assert policy["spec"]["podSelector"] == manifests()[1]["spec"]["selector"]
    blocks_ = [peer["ipBlock"] for rule in policy["spec"]["egress"] for peer in rule.get("to", ())]
    assert [each["except"][0] for each in blocks_] == ["169.254.0.0/16", "fd00:ec2::/32"]


def test_each_role_of_the_database_has_a_password_of_its_own() -> None:
    """The superuser, the gateway and the identities; the gateway has none of the superuser."""
    of_server, of_gateway = (COMPOSE["services"][name]["environment"] for name in ("postgres", "gateway"))
    passwords = {name: value for name, value in of_server.items() if name.endswith("PASSWORD")}
    assert len(set(passwords.values())) == len(passwords) == 3
    assert passwords["POSTGRES_PASSWORD"] not in of_gateway.values()
    assert of_gateway["PGPASSWORD"] == passwords["FITROUTER_PASSWORD"]
    assert of_gateway["PGPASSWORD_FITROUTER_IDENTITIES"] == passwords["FITROUTER_IDENTITIES_PASSWORD"]
    script = (FOLDER / "postgres.sh").read_text(encoding="utf-8")
    assert len(re.findall(r"LOGIN PASSWORD :'(?:password|identities)';", script)) == 2


def test_compose_names_what_exists(tmp_path: Path) -> None:
    """Mounted files exist, images have versions, variables are those of the page; rights are dropped."""
    text = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
    keys = environment_file(tmp_path)
    assert set(re.findall(r"\$\{(\w+):\?", text)) == keys.keys()
    assert not re.findall(r"\$\{\w+\}", text), "a variable without a word on what it is"
    for name, service in COMPOSE["services"].items():
        for source, *_ in (volume.split(":") for volume in service["volumes"]):
            where = (FOLDER / source).resolve() if source.startswith(".") else None
            assert where.exists() if where else source in COMPOSE["volumes"], f"{name}: {source}"
        assert "no-new-privileges:true" in service["security_opt"]
        exact = re.search(r":v?\d+\.\d+(?:\.\d+)?$", service["image"])
        assert exact or "build" in service, f"{name}: an image without an exact version"
        secret = any("environment" in COMPOSE["secrets"][each] for each in service.get("secrets", ()))
        assert not (secret and service.get("read_only")), f"{name}: Compose cannot write its secret"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), f"{name} is open to the network"
    assert COMPOSE["services"]["gateway"]["read_only"]
    built = COMPOSE["services"]["gateway"]["build"]
    assert (FOLDER / built["context"] / built["dockerfile"]).is_file()


def test_prometheus_of_compose_is_valid(tmp_path: Path) -> None:
    """`promtool check config` accepts the file beside the rules that Compose mounts, and the key's file."""
    for volume in COMPOSE["services"]["prometheus"]["volumes"][:3]:
        shutil.copy(FOLDER / volume.split(":")[0], tmp_path)
    file = tmp_path / "prometheus.yml"
    (tmp_path / "key").write_text(secrets.token_hex(8), encoding="utf-8")
    file.write_text(file.read_text(encoding="utf-8").replace("/run/secrets/metrics_key", "key"), encoding="utf-8")
    checked = subprocess.run([tool("promtool"), "check", "config", str(file)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("file", ["fitrouter.yaml", "kubernetes/fitrouter.yaml"])
def test_configurations_are_valid(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both configurations load, listen for others than loopback, and have a key for each scope."""
    for name in ("MAIN_API_KEY", "FITROUTER_APP_KEY", "FITROUTER_OPS_KEY", "FITROUTER_METRICS_KEY"):
        monkeypatch.setenv(name, "x" * 24)
    config = load_config(FOLDER / file)
    assert config.server.host == "0.0.0.0"  # inside a container
    assert [key.name for key in config.server.keys] == ["app", "ops", "prometheus"]


def strange(value: object, kind: str, where: str) -> list[str]:
    """Fields of a manifest that Kubernetes' API does not have, by the models of its Python client."""
    models = pytest.importorskip("kubernetes.client")
    if isinstance(value, list):
        inner = kind.removeprefix("list[").removesuffix("]")
        return [fault for i, item in enumerate(value) for fault in strange(item, inner, f"{where}[{i}]")]
    model = getattr(models, kind, None)
    if not isinstance(value, dict) or model is None:
        return []
    known = {name: model.openapi_types[field] for field, name in model.attribute_map.items()}
    faults = [f"{where}.{name}" for name in value if name not in known]
    return faults + [
        fault for name in value if name in known for fault in strange(value[name], known[name], f"{where}.{name}")
    ]


def test_manifests_are_valid() -> None:
    """Kinds, fields, names and probes of the manifests are right, and the pod may do no more than it needs."""
    kinds: dict[str, Sequence[str]] = {"Service": ["V1Service"], "StatefulSet": ["V1StatefulSet"]}
    assert [each["kind"] for each in manifests()] == list(kinds)
    for each in manifests():
        assert strange(each, kinds[each["kind"]][0], each["kind"]) == []
    only = container()
    assert [only[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")] == [
        "/healthz",
        "/healthz",
        "/readyz",
    ]
    assert only["securityContext"]["readOnlyRootFilesystem"]
    (user,) = {each["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for each in manifests()[1:]}
    assert image()["USER"] == f"{user}:{user}"
    assert {str(port["containerPort"]) for port in only["ports"]} == {image()["EXPOSE"]}
    if shutil.which("kubectl"):
        built = subprocess.run(
            ["kubectl", "kustomize", str(FOLDER / "kubernetes")], capture_output=True, text=True, check=False
        )
        assert built.returncode == 0, built.stderr
        assert {each["kind"] for each in yaml.safe_load_all(built.stdout)} == {"ConfigMap", "NetworkPolicy", *kinds}


def test_the_image_has_what_it_copies() -> None:
    """Every path that the Dockerfile copies exists and passes .dockerignore, which lets nothing else through."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY ([^-].*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    let = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    assert copied == let
    assert all((ROOT / name).exists() for name in copied)
