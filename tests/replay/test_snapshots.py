"""Snapshots: what a learner as it stood would have done with every logged request."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.replay import Town, log_of

from fitrouter.config import Config, load_config
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_names
from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.posterior.arm_prior import ArmPrior, ModelPrior, pack_prior
from fitrouter.router import Router
from fitrouter.stores.journal import SqliteJournal
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_evaluators.replay.candidates._learners import fold
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.candidates._snapshot import SnapshotCandidate
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.log.log import Log

YAML = """
providers: {p: {kind: simulated, options: {speed: 1.0e+6, terse: {length: 1.0}, chatty: {length: 3.0}}}}
models:
  - {name: terse, provider: p}
  - {name: chatty, provider: p}
encoder: hashing
scorer: {encoder: none}
policy: {algorithm: squarecb, gamma: 20.0, floor: 0.1}
session: {redraw_every: 1}
"""


def window(log: Log, since: int) -> np.ndarray:
    """Rows from there on."""
    return np.arange(since, log.decisions.n)


def entries(log: Log, since: int) -> slice:
    """Their entries."""
    return slice(log.decisions.start[since], None)


def test_a_learner_that_stood_still_gives_the_logged_pmf() -> None:
    """Where the live learner did not learn either, its snapshot with the live settings is the log, to 1e-12."""
    made = Town(votes=0.8)
    made.live(150, user="ann")
    made.learns = False
    for _ in range(10):
        last = made.request(user="ann")
        made.request(last, again=True, user="ann")
    log = made.log()
    candidate = SnapshotCandidate(made.learner, Settings(algorithm="squarecb", parameters={"gamma": 20.0}))
    found = candidate.pmf(log, window(log, 150))
    np.testing.assert_allclose(found, log.options.prob[entries(log, 150)], rtol=0, atol=1e-12)
    blind = SnapshotCandidate(made.learner, Settings(algorithm="squarecb", parameters={"gamma": 20.0}, personal=False))
    assert log.options.twin is not None
    twin = blind.pmf(log, window(log, 150))
    np.testing.assert_allclose(twin, log.options.twin[entries(log, 150)], rtol=0, atol=1e-12)
    before = made.learner.digest()
    candidate.pmf(log, window(log, 0))
    assert made.learner.digest() == before, "a snapshot stays as it is"


def test_a_learner_is_folded_up_to_a_position_or_a_time() -> None:
    """The fold to position n is the learner that had read n rows; a time is the last row that is not after it."""
    made = Town()
    made.live(60)
    rows = made.journal.tail(0, 10**9)
    halfway = rows[100]
    some = fold(made.journal, made.blank(), until=halfway.seq)
    assert some.learner.seq == halfway.seq
    assert some.trained_until == max(row.event.ts for row in rows[:101])
    again = made.blank()
    for at, row in enumerate(rows[:101]):
        related = [other.event for other in made.journal.of(getattr(row.event, "decision_id", "")) if other.seq <= at]
        again.apply(row, related)
    assert some.learner.digest() == again.digest()
    moment = datetime.datetime.fromtimestamp(halfway.event.ts, tz=datetime.UTC)
    by_time = fold(made.journal, made.blank(), until=moment)
    assert by_time.trained_until is not None
    assert by_time.trained_until <= halfway.event.ts
    assert by_time.learner.seq >= halfway.seq
    assert fold(made.journal, made.blank(), until=moment.replace(tzinfo=None)).learner.seq == by_time.learner.seq
    assert fold(made.journal, made.blank(), until=0).trained_until is None


async def _gateway(tmp_path: Path) -> tuple[Config, str]:
    """A router on disk that has answered and heard; and what its learner knows."""
    (tmp_path / "fitrouter.yaml").write_text(YAML)
    config = load_config(tmp_path / "fitrouter.yaml")
    async with Router.from_config(config) as router:
        for i in range(30):
            who = Identity(user=f"u{i % 3}", role="nurse", session=f"s{i % 4}")
            answer = await router.complete(Request(messages=({"role": "user", "content": f"hi {i}"},), identity=who))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(i % 3 > 0))
        await router.settled()
        return config, router._learner.digest()


async def test_a_gateways_journal_gives_the_gateways_learner(tmp_path: Path) -> None:
    """From fitrouter.yaml and the journal comes the learner that the gateway itself had, bit for bit."""
    config, digest = await _gateway(tmp_path)
    journal = SqliteJournal(config.data / "journal.db")
    log = log_of(row.event for row in journal.tail(0, 10**6))
    journal.close()
    beside = {path.name for path in config.data.iterdir()}
    (tmp_path / "c.yaml").write_text("over: fitrouter.yaml\nname: now\nsnapshot: {journal: fitrouter-data}\n")
    candidate = load_candidate(tmp_path / "c.yaml")
    assert {path.name for path in config.data.iterdir()} - beside <= {"journal.db-shm", "journal.db-wal"}
    assert isinstance(candidate, SnapshotCandidate)
    assert candidate.learner(log).digest() == digest
    assert candidate.trained_until is not None
    assert candidate.trained_until >= log.decisions.ts.max()
    assert candidate.description.startswith("now: posterior of the learner at position ")
    pmf = candidate.pmf(log, np.arange(log.decisions.n))
    np.testing.assert_allclose(np.add.reduceat(pmf, log.decisions.start[:-1]), 1.0, atol=1e-12)
    assert np.abs(pmf - log.options.prob).max() > 1e-3, "it knows more than the learner did then"
    early = load_candidate({"snapshot": {"journal": str(config.data), "until": 1}, "floor": 0.5}, config=config)
    assert early.trained_until is not None
    assert early.trained_until <= log.decisions.ts.min()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"snapshot": {"journal": "nowhere"}}, "name it with 'over: fitrouter.yaml'"),
        (
            {"snapshot": {"journal": "nowhere"}, "over": "fitrouter.yaml"},
            "no file .*; give a gateway's folder",
        ),
        ({"snapshot": {"prior": "none.arms"}, "over": "fitrouter.yaml"}, "none.arms' cannot be read"),
    ],
    ids=str,
)
def test_what_a_snapshot_needs_is_named(tmp_path: Path, said: dict[str, Any], message: str) -> None:
    """Without its configuration, its journal or its file a snapshot is refused."""
    (tmp_path / "fitrouter.yaml").write_text(YAML)
    (tmp_path / "c.yaml").write_bytes(msgspec.yaml.encode(said))
    made = Town()
    made.live(2)
    with pytest.raises(ConfigError, match=message):
        load_candidate(tmp_path / "c.yaml").pmf(made.log(), np.arange(2))


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    """What is no journal is refused, and left as it was."""
    (tmp_path / "fitrouter.yaml").write_text(YAML)
    (tmp_path / "journal.db").write_bytes(b"SQLite format 3\x00" + bytes(200))
    with pytest.raises(InvalidLog, match="restore it from a backup"):
        load_candidate({"snapshot": {"journal": str(tmp_path)}, "over": str(tmp_path / "fitrouter.yaml")})
    assert [path.name for path in tmp_path.glob("journal*")] == ["journal.db"]


def test_contexts_of_another_kind_are_refused() -> None:
    """A learner that reads other contexts than the log holds is refused; so is a decision without one."""
    made, other = Town(), Town()
    made.live(3)
    log = made.log()
    narrow = log._replace(decisions=log.decisions._replace(x=np.ones((3, 2), dtype=np.float32)))
    candidate = SnapshotCandidate(other.learner, Settings(algorithm="softmax"))
    with pytest.raises(ConfigError, match="context has 3 features, and that of a test has 2"):
        candidate.pmf(narrow, np.arange(3))
    assert log.decisions.x is not None
    holed = log.decisions.x.copy()
    holed[1] = np.nan
    with pytest.raises(InvalidLog, match="does not log its context"):
        candidate.pmf(log._replace(decisions=log.decisions._replace(x=holed)), np.arange(3))


def test_a_prior_is_a_learner_before_its_first_label(tmp_path: Path) -> None:
    """A file of `fitrouter train policy` gives what it says of models; the others start cold."""
    (tmp_path / "fitrouter.yaml").write_text(YAML)
    d = len(context_names())
    mean = np.zeros(d)
    mean[0] = 0.3
    blocks = {"correction": (mean.tobytes(), (np.eye(d) * 0.01).tobytes())}
    prior = ArmPrior(
        d=d, D=1, encoder="hashing", schema="", models={"b": ModelPrior(blocks=blocks, worth={"correction": 5.0})}
    )
    config = load_config(tmp_path / "fitrouter.yaml")
    prior = msgspec.structs.replace(prior, encoder=get_encoder(config.encoder).id)
    (tmp_path / "models.arms").write_bytes(pack_prior(prior)[0])
    (tmp_path / "c.yaml").write_text("over: fitrouter.yaml\nalgorithm: softmax\nsnapshot: {prior: models.arms}\n")
    made = Town()
    made.live(4)
    log = made.log()
    x = np.zeros((4, d), dtype=np.float32)
    x[:, 0] = 1.0
    log = log._replace(decisions=log.decisions._replace(x=x))
    candidate = load_candidate(tmp_path / "c.yaml")
    pmf = candidate.pmf(log, np.arange(4)).reshape(4, 3)
    assert (pmf[:, 1] > 0.9).all()
    np.testing.assert_allclose(pmf[:, 0], pmf[:, 2], rtol=0.2)
    assert candidate.description.startswith("posterior of the prior models.arms; softmax")
