"""An installation of the company's gateway: real processes, on SQLite or PostgreSQL, that stop and start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml
from tests.acceptance.company import KEYS
from tests.acceptance.mutants import BLANK, create

from fitrouter.stores.cold import files_at, storage_at
from fitrouter_evaluators.replay.log.sources import export

__all__ = ["Installation", "wait_for"]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [str(ROOT / name) for name in ("router", "evaluators", "dashboards", "integrations")]
HOOK = str(Path(__file__).with_name("blank"))
ENVIRONMENT = {f"DAY_KEY_{(tenant or 'ops').upper()}": key for tenant, key in KEYS.items()}
PATIENCE_S = 120.0
T = TypeVar("T")


class Installation:
    """A folder with a configuration, and the processes that serve it.

    Args:
        folder: of configuration and data.
        settings: the configuration.
        workers: processes that serve.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], workers: int = 1) -> None:
        self.folder, self.workers, self.url = folder, workers, ""
        self.config = folder / "fitrouter.yaml"
        self.config.write_text(yaml.safe_dump(settings))
        self.data = Path(settings.get("folder") or settings["data"])
        self.tables = self.data / "fitrouter.duckdb"
        """The file whose tables are asked."""
        self.said: list[str] = []
        """Lines of its log."""
        self.blank: tuple[str, ...] = ()
        """Reads of the stores that return nothing, after the next start."""
        self._process: subprocess.Popen[str] | None = None
        self._listener = threading.Thread()

    def copied(self, folder: Path) -> Installation:
        """A copy in another folder; this one must not be running."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        data = str(folder / self.data.relative_to(self.folder))
        return Installation(folder, {**yaml.safe_load(self.config.read_text()), "data": data}, self.workers)

    def start(self) -> None:
        """Start, and wait until all workers are ready."""
        command = [sys.executable, "-m", "fitrouter_integrations.cli", "serve", "--config", str(self.config)]
        self.url = ""
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--workers", str(self.workers)],
            env={
                **os.environ,
                **ENVIRONMENT,
                "PYTHONPATH": os.pathsep.join([*([HOOK, str(ROOT)] if self.blank else []), *SOURCES]),
                "HF_HUB_OFFLINE": "1",
                BLANK: " ".join(self.blank),
            },
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()
        wait_for(lambda: self.url or self._process is None or self._process.poll() is not None)
        assert self.url, "".join(self.said)
        wait_for(lambda: len(self.reports()) == self.workers)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self.said.append(line)
                if not self.url and (found := re.search(r" on (http://[\d.]+:\d+)", line)):
                    self.url = found[1]

    def reports(self) -> dict[int, dict[str, Any]]:
        """The workers' reports at /readyz, by process id."""
        found: dict[int, dict[str, Any]] = {}
        headers = {"authorization": f"Bearer {KEYS['']}"}
        for _ in range(1 if self.workers == 1 else 12 * self.workers):
            try:  # another connection may be another worker's; not reading certificates saves 50 ms
                reply = httpx.get(f"{self.url}/readyz", headers=headers, timeout=20.0, verify=False)
            except httpx.TransportError:
                continue
            if reply.status_code == 200:
                found[reply.json()["pid"]] = reply.json()
            if len(found) == self.workers:
                break
        return found

    def rest(self) -> None:
        """Wait until nothing is left to score, fold or ingest, and all workers agree."""

        def settled() -> Any:
            found = list(self.reports().values())
            quiet = all(not any(each["lag"].values()) and each["digest"] for each in found)
            return quiet and len({(each["seq"], each["digest"]) for each in found}) == 1 and found[0]["seq"]

        while True:
            before = wait_for(settled)
            time.sleep(1.2)  # the services report every half second what they read every half second
            if wait_for(settled) == before:
                return

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()
        self.rest()

    def rebuild(self) -> None:
        """Start without the warehouse's file, and wait until all of the journal is in a new one."""
        self.stop()
        for file in self.data.glob("fitrouter.duckdb*"):
            file.unlink()
        self.start()
        self.rest()

    def cold_store(self) -> None:
        """Ask what the cold store has from now on; the views are those of the warehouse."""
        import duckdb

        place, seq = str(self.folder / "cold"), next(iter(self.reports().values()))["seq"]
        wait_for(lambda: (found := files_at(storage_at(place))) and found[-1].last >= seq)
        self.stop()  # nothing grows meanwhile
        with duckdb.connect(str(self.tables), read_only=True) as connection:
            found = connection.execute("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall()
            tables = connection.execute("SELECT table_name, sql FROM duckdb_tables()").fetchall()
        files = {path.stem: str(path) for path in export(place, self.folder / "exported")}
        self.tables = self.folder / "cold.duckdb"
        with duckdb.connect(str(self.tables)) as connection:
            for table, statement in tables:
                connection.execute(statement)
                if table in files:
                    connection.execute(f'INSERT INTO "{table}" BY NAME SELECT * FROM read_parquet(?)', [files[table]])
            create(connection, [sql for (sql,) in found])
        self.start()

    def stop(self) -> None:
        """End it as an operator does."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(PATIENCE_S) == 0, "".join(self.said)
            self._process = None
            self._listener.join()

    def kill(self) -> None:
        """End it, whatever it does; its workers end with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._listener.join()


def wait_for(condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The first true value of a condition; fails the test when it does not come."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return value
