"""A wheel of this tree, new environments with it and named extras, and pages followed in them.

An environment has what `pip install 'WHEEL[EXTRAS]'` would put there, and nothing else: the wheel itself, and links to
the distributions of the test environment that it requires. That takes a second and no network.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeAlias

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.kits.pages import ROOT, blocks

PATIENCE_S = 240.0
PAGES = ROOT / "docs"


class Ran(NamedTuple):
    """A block that was run, and what it printed."""

    text: str
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree; skips where its build backend is neither installed nor to be downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"  # a copy, so that nothing is written beside the sources
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("router", "evaluators", "integrations", "dashboards"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    alone = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", *alone]
    made = subprocess.run(
        [*command, "-w", str(folder), str(tree)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    if made.returncode and not alone:
        pytest.skip(f"hatchling is not installed, and no package index gives it: {made.stderr.strip()[-300:]}")
    assert made.returncode == 0, made.stderr
    (found,) = folder.glob("*.whl")
    return found


def _required(requirements: Sequence[str], extras: frozenset[str]) -> set[tuple[str, frozenset[str]]]:
    """The distributions that requirements name for some extras, with their own extras."""
    found = set()
    for text in requirements:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            found.add((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


@cache
def _closure(requirements: tuple[str, ...], extras: frozenset[str]) -> dict[str, metadata.Distribution]:
    """All distributions that pip would install; skips where the test environment lacks one."""
    todo, seen = _required(requirements, extras), set()
    found: dict[str, metadata.Distribution] = {}
    while todo:
        name, own = item = todo.pop()
        seen.add(item)
        if name == "fitrouter":  # an extra that is made of others
            todo |= _required(requirements, own) - seen
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"the test environment has no {name}")
        todo |= _required(found[name].requires or (), own) - seen
    return found


class Environment:
    """A virtual environment with the wheel and some extras.

    Args:
        folder: of the environment.
        wheel: the wheel.
        extras: names of extras.
    """

    def __init__(self, folder: Path, wheel: Path, extras: Sequence[str]) -> None:
        self.extras = frozenset(extras)
        venv.create(folder, symlinks=True, with_pip=False)
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        (site,) = folder.glob("lib/python3*/site-packages")
        install = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        subprocess.run([*install, "--no-index", "--no-compile", str(wheel)], check=True, timeout=PATIENCE_S)
        own = metadata.Distribution.at(next(site.glob("fitrouter-*.dist-info")))
        self.distributions = _closure(tuple(own.requires or ()), self.extras)
        for distribution in self.distributions.values():
            self._link(distribution, site)

    def _link(self, distribution: metadata.Distribution, site: Path) -> None:
        for top in sorted({file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}):
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())

    def variables(self, **more: str) -> dict[str, str]:
        """The environment variables of a process: no sources of this tree, and no keys."""
        hidden = re.compile(
            r"PYTHONPATH|VIRTUAL_ENV|PROMETHEUS_MULTIPROC_DIR|.*(_API_KEY|_BASE|_URL|_ENDPOINT|_TOKEN\w*)"
        )
        kept = {name: value for name, value in os.environ.items() if not hidden.fullmatch(name)}
        return {**kept, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200", **more}


Create: TypeAlias = Callable[..., Environment]


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Create:
    """Makes an environment with extras, once for each set of them: `environment("gateway", "langchain")`."""

    @cache
    def make(*extras: str) -> Environment:
        return Environment(tmp_path_factory.mktemp("-".join(("environment", *extras))), wheel, extras)

    return lambda *extras: make(*sorted(extras))


class Journey:
    """Somebody with an environment in an empty folder.

    Args:
        environment: with the wheel.
        folder: where everything runs.
        variables: environment variables, such as keys.
        replaced: text in the pages' blocks → what takes its place, such as the address of the user's own models.
    """

    def __init__(
        self,
        environment: Environment,
        folder: Path,
        variables: Mapping[str, str] | None = None,
        replaced: Mapping[str, str] | None = None,
    ) -> None:
        self.environment, self.folder = environment, folder
        self.port = _free_port()
        self._variables = environment.variables(**(variables or {}))
        self._replaced = {"127.0.0.1:8484": f"127.0.0.1:{self.port}", **(replaced or {})}
        self._servers = ExitStack()

    def __enter__(self) -> Journey:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    @property
    def url(self) -> str:
        """Of the gateway."""
        return f"http://127.0.0.1:{self.port}"

    def run(self, command: str, code: int | None = 0) -> Ran:
        """Run lines of a shell to their end; the exit code must be `code`, or any for None."""
        return self._ran(["bash", "-euo", "pipefail", "-c", self._placed(command)], command, code)

    def python(self, text: str) -> Ran:
        """Run a script."""
        return self._ran([str(self.environment.python), "-c", self._placed(text)], text, 0)

    def block(self, page: str, language: str, number: int = 0, under: str | None = None) -> str:
        """A block of a page, or of its section under a heading."""
        return blocks(PAGES / page, language, under=under)[number].text

    def _placed(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    def _ran(self, command: Sequence[str], text: str, code: int | None) -> Ran:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
        assert code in {None, done.returncode}, f"{text}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        self._move_port()
        return Ran(text, done.stdout, done.stderr)

    def _move_port(self) -> None:
        """Put the gateway of a configuration that was just written on a free port."""
        file = self.folder / "fitrouter.yaml"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if text and f"port: {self.port}" not in text:
            moved = text.replace("port: 8484", f"port: {self.port}")
            file.write_text(moved if moved != text else f"{text}server: {{port: {self.port}}}\n", encoding="utf-8")

    def serve(self, command: str = "fitrouter serve") -> None:
        """Start a gateway, and wait until it is ready; it is stopped when the journey ends."""
        self._servers.enter_context(self._server(command))

    def stop(self) -> None:
        """Stop the gateway."""
        self._servers.close()

    @contextmanager
    def _server(self, command: str) -> Iterator[None]:
        log, line = self.folder / "serve.log", f"exec {self._placed(command)}"
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self._variables,
                stdout=out,
                stderr=out,
            )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not _ready(self.url):
                assert process.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
                time.sleep(0.05)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, log.read_text(encoding="utf-8")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def follow(self, page: str) -> list[Ran]:
        """Run the shell and Python blocks of a page in their order, each unchanged but for `replaced`.

        A line `pip install …` must name extras that the environment has; `fitrouter serve` goes on in the background.
        Lines that make an environment or leave the shell's variables as they are (`export …`) apply to later blocks.
        """
        done = []
        for language, block in blocks(PAGES / page, "bash", "python"):
            if language == "python":
                done.append(self.python(block))
                continue
            lines = [line for line in block.splitlines() if not self._is_installation(line)]
            for line in lines:
                if export := re.fullmatch(r"export (\w+)=(\S*)\s*(?:#.*)?", line):
                    self._variables.setdefault(export[1], export[2])
            lines = [line for line in lines if line.strip() and not line.startswith("export ")]
            if lines and lines[0].startswith("fitrouter serve"):
                self.serve(re.sub(r"\s+#.*", "", lines.pop(0)))
            if lines:
                done.append(self.run("\n".join(lines)))
        return done

    def _is_installation(self, line: str) -> bool:
        """Whether a line installs the package or makes an environment; its extras must be those of this one."""
        if line.startswith("pip install"):
            (named,) = re.findall(r"(?:fitrouter|\.)\[([\w,]+)\]", line) or [""]
            assert frozenset(filter(None, named.split(","))) == self.environment.extras, line
            return True
        return line.startswith("python -m venv")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False
