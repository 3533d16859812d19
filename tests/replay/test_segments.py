"""Replay of segments: the same log and the same numbers as from the file of DuckDB, in a folder and in a bucket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.replay_story import assert_same, story, write_folder
from typer.testing import CliRunner

from fitrouter.errors import ConfigError
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse.segments import MANIFEST, SegmentFeed, _editor, _read, manifest_of, storage_at
from fitrouter_evaluators.personal.exposure import exposed
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.evaluation import ReplaySettings, evaluate
from fitrouter_evaluators.replay.log.sources import export, read_log
from fitrouter_integrations.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gateway's folder in which everything happens."""
    return write_folder(tmp_path_factory.mktemp("data"), story())


def write_segments(folder: Path, place: str, events: int = 60) -> None:
    journal = SqliteJournal(folder / "journal.db")
    feed = SegmentFeed(journal, place, folder, every_s=0.0, events=events)
    while feed.step():
        pass
    journal.close()


def test_segments_give_the_same_log(folder: Path, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Columns of single and of merged segments are those of the file, bit for bit; so is an export of them."""
    monkeypatch.setattr(_editor, "FAN_IN", 3)
    write_segments(folder, place)
    assert {each.level for each in manifest_of(storage_at(place)).manifest.segments} == {0, 1}
    for window in ({}, {"since": 1e9 + 205.0, "until": 1e9 + 610.0}, {"features": False}):
        expected = read_log(folder / "fitrouter.duckdb", **window)  # type: ignore[arg-type]
        assert expected.decisions.n > 30
        for path in (place, Path(place)):  # as a path it has lost a slash of its URL
            found = read_log(path, **window)  # type: ignore[arg-type]
            assert_same(expected, found)
            assert found.source == f"segments {place!r} up to event {manifest_of(storage_at(place)).manifest.seq}"
    export(place, tmp_path / "export")
    assert_same(read_log(folder / "fitrouter.duckdb"), read_log(tmp_path / "export"))
    assert {path.name for path in (tmp_path / "export").iterdir()} >= {"models.parquet", "decisions.parquet"}


def test_segments_give_the_same_numbers(folder: Path, place: str) -> None:
    """Every number of a replay and of a report is equal, also on the command line."""
    write_segments(folder, place)
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


def test_segments_of_an_earlier_version(folder: Path, place: str, tmp_path: Path) -> None:
    """A column that was added since is NULL in old files, and the log is read all the same."""
    write_segments(folder, place, events=10_000)
    import duckdb

    storage, found = storage_at(place), manifest_of(storage_at(place))
    (segment,) = found.manifest.segments
    old = segment.files["executions"]
    storage.fetch(old.name, tmp_path / "now.parquet")
    sql = f"COPY (SELECT * EXCLUDE (cost_assumed) FROM '{tmp_path}/now.parquet') TO '{tmp_path}/old.parquet'"
    duckdb.sql(sql)
    with (editor := _editor.Editor(storage, tmp_path)).scratch() as own, _editor.database(own) as connection:
        file = editor.write(
            connection, f"FROM '{tmp_path}/old.parquet' LIMIT 10", "executions", segment.first, segment.last, own
        )
        rest = editor.write(
            connection, f"FROM '{tmp_path}/now.parquet' OFFSET 10", "executions", segment.last, segment.last, own
        )
    assert file is not None
    assert rest is not None
    parts = [
        msgspec.structs.replace(segment, files={**segment.files, "executions": file}, last=segment.last - 1),
        msgspec.structs.replace(segment, files={"executions": rest}, first=segment.last),
    ]
    editor.commit(parts)
    assert_same(read_log(folder / "fitrouter.duckdb"), read_log(place))


def test_segments_that_change_while_they_are_read(folder: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose files are merged and deleted under it reads the merged ones."""
    monkeypatch.setattr(_editor, "FAN_IN", 1000)
    write_segments(folder, place)
    monkeypatch.setattr(_editor, "FAN_IN", 2)
    fetched, calls = _read.fetched, iter(range(10_000))

    def disturbed(*args: Any) -> Path:
        if next(calls) == 3:
            write_segments(folder, place)
        return fetched(*args)

    monkeypatch.setattr(_read, "fetched", disturbed)
    monkeypatch.setattr(_read, "_AT_ONCE", 1)
    assert_same(read_log(folder / "fitrouter.duckdb"), read_log(place))


def test_places_without_segments(place: str, tmp_path: Path) -> None:
    """A place without a manifest is told with what to give."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"there are no segments in|there is no log at"):
        read_log(place if place.startswith("s3") else tmp_path / "empty")
    assert MANIFEST == "segments.json"
