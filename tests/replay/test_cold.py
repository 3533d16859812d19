"""Replay of a cold store: the same log and the same numbers as from the file of DuckDB, in a folder and in a bucket."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.replay_story import assert_same, story, write_folder
from typer.testing import CliRunner

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.stores import cold
from fitrouter.stores.cold_feed import ColdFeed
from fitrouter.stores.journal import SqliteJournal
from fitrouter_evaluators.personal.exposure import exposed
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.evaluation import ReplaySettings, evaluate
from fitrouter_evaluators.replay.log import _cold
from fitrouter_evaluators.replay.log.sources import export, read_log
from fitrouter_integrations.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gateway's folder in which everything happens."""
    return write_folder(tmp_path_factory.mktemp("data"), story())


def write_cold(folder: Path, place: str, events: int = 60) -> list[cold.File]:
    with closing(SqliteJournal(folder / "journal.db")) as journal:
        feed = ColdFeed(journal, place, folder, every_s=0.0, events=events)
        while feed.step():
            pass
    return cold.files_at(feed.storage)


def test_it_gives_the_same_log(folder: Path, place: str, tmp_path: Path) -> None:
    """Its columns are those of the file, bit for bit; so is an export of them."""
    files = write_cold(folder, place)
    assert len(files) > 2
    for window in ({}, {"since": 1e9 + 205.0, "until": 1e9 + 610.0}, {"features": False}):
        expected = read_log(folder / "fitrouter.duckdb", **window)  # type: ignore[arg-type]
        assert expected.decisions.n > 30
        for path in (place, Path(place)):  # as a path it has lost a slash of its URL
            found = read_log(path, **window)  # type: ignore[arg-type]
            assert_same(expected, found)
            assert found.source == f"cold store {place!r} up to event {files[-1].last}"
    export(place, tmp_path / "export")
    assert_same(read_log(folder / "fitrouter.duckdb"), read_log(tmp_path / "export"))
    assert {path.name for path in (tmp_path / "export").iterdir()} >= {"models.parquet", "decisions.parquet"}


def test_it_gives_the_same_numbers(folder: Path, place: str) -> None:
    """Every number of a replay and of a report is equal, also on the command line."""
    write_cold(folder, place)
    candidate, current = load_candidate("uniform"), load_candidate("current")
    settings = ReplaySettings(by=("role",), idle_s=300.0)

    def numbers(log: Any) -> Any:
        found = msgspec.to_builtins(evaluate(read_log(log), candidate, current, settings))
        found["window"].pop("source")
        return {key: value for key, value in found.items() if key != "made"}

    expected = numbers(folder / "fitrouter.duckdb")
    assert expected["estimates"]
    assert numbers(place) == expected
    exposures = [exposed(Path(log), tenant="acme", schema="style-1", style=[0, 1]) for log in (folder, place)]
    assert exposures[0] == exposures[1]
    assert exposures[0].people == 5
    words = ["replay", "--log", place, "--candidate", "uniform", "--by", "role", "--idle", "5m", "--json"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    (first,) = [row for row in json.loads(ran.stdout)["estimates"] if row == expected["estimates"][0]]
    assert first


def test_files_that_grow_while_they_are_read(folder: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose file is written again under a longer name reads that one, up to where it began."""
    first, *_ = write_cold(folder, place)
    storage = cold.storage_at(place)
    query, before = _cold.query, [first]

    def disturbed(storage: cold.Storage, file: cold.File, *args: Any) -> Any:
        for each in iter(lambda: before and before.pop(), []):
            rows = [row for part in cold.files_at(storage)[:2] for row in query(storage, part, "FROM read_parquet(?)")]
            cold.write(storage, each._replace(last=cold.files_at(storage)[1].last), rows)
            cold.sweep(storage)
        return query(storage, file, *args)

    monkeypatch.setattr(_cold, "query", disturbed)
    assert_same(read_log(folder / "fitrouter.duckdb"), read_log(place))
    gone = cold.files_at(storage)[1]
    storage.delete([gone.name])
    with pytest.raises(InvalidLog, match=rf"the events {gone.first} to {gone.last} are missing"):
        read_log(place)


def test_places_without_one(place: str, tmp_path: Path) -> None:
    """A place without files is told with what to give."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"there is no cold store in|there is no log at"):
        read_log(place if place.startswith("s3") else tmp_path / "empty")
