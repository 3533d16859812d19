"""Fit certificates: they follow from their rows, cover the truth, and fail after any single edit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.quiz import install
from tests.personal.test_quizzes import played
from typer.testing import CliRunner

from fitrouter.config import Config
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.router import Router
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.stores.signing import FIELD, signed, signing_key
from fitrouter.types import Decision, Execution, FeedbackKind, Identity, Mode, PolicyVersion, Request
from fitrouter_evaluators.personal import Quizzes
from fitrouter_evaluators.personal.certificate import Method, Rows, anchor_scores, certified, issued, layout, verify
from fitrouter_evaluators.personal.certificate.figures import figures
from fitrouter_evaluators.personal.certificate.rows import Anchor, Compared, Decided, Draw, logged_rows
from fitrouter_integrations.cli import app

FITS = {"a": 0.75, "b": 0.35, "c": 0.55}
ADA = Identity(user="ada")


def person(seed: int, n: int = 60, draws: int = 50) -> Rows:
    """Thumbs of somebody with these fits, under probabilities that vary, with predictions that are biased."""
    rng = np.random.default_rng(seed)
    decisions = []
    for i in range(n):
        models = ("a", "b", "c") if i % 4 else ("a", "b")
        probs = rng.dirichlet(np.full(len(models), 3.0)) * 0.85 + 0.15 / len(models)
        chosen = str(rng.choice(models, p=probs))
        decisions.append(
            Decided(
                seq=10 + 3 * i,
                session=i // 2,
                models=models,
                probs=tuple((probs / probs.sum()).tolist()),
                predicted=tuple(0.8 * FITS[name] for name in models) if i % 5 else (),
                chosen=chosen,
                y=float(rng.random() < FITS[chosen]) if i % 7 else None,
            )
        )
    ratings = rng.normal(list(FITS.values()), 0.1, (draws, 3)).round(6)
    return Rows(
        tuple(decisions),
        Compared(names=tuple(FITS), population_first="c"),
        tuple(Draw(ratings=tuple(row)) for row in ratings.tolist()),
        (Anchor(model="a", score=0.4),),
    )


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return signing_key(tmp_path_factory.mktemp("keys") / "signing.key")


@pytest.fixture(scope="module")
def files(key: Any) -> tuple[bytes, bytes]:
    return issued(person(1), ADA, key, ts=1.5)


def test_a_certificate_follows_from_its_rows(files: tuple[bytes, bytes], key: Any) -> None:
    """Verification returns what was signed; another key, when one is expected, and other rows are refused."""
    found = verify(*files)
    assert found.certificate.figures == figures(person(1), Method())
    assert found.certificate.log == hashlib.sha256(files[1]).hexdigest()
    assert Rows.decoded(files[1]) == person(1)
    assert verify(*files, found.key) == found
    with pytest.raises(InvalidRequest, match="signed by the key"):
        verify(*files, "0" * 32)
    with pytest.raises(InvalidRequest, match="SHA-256"):
        verify(files[0], issued(person(2), ADA, key, ts=1.5)[1])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_single_edit_fails(files: tuple[bytes, bytes], data: st.DataObject) -> None:
    """A byte of either file that is changed, removed, added, or swapped with its neighbour."""
    which = data.draw(st.integers(0, 1))
    file = files[which]
    at = data.draw(st.integers(0, len(file) - 2))
    byte = bytes([data.draw(st.integers(0, 255))])
    edited = data.draw(
        st.sampled_from(
            [
                file[:at] + byte + file[at + 1 :],
                file[:at] + file[at + 1 :],
                file[:at] + byte + file[at:],
                file[:at] + file[at : at + 2][::-1] + file[at + 2 :],
            ]
        )
    )
    if edited == file:
        return
    with pytest.raises(InvalidRequest):
        verify(files[0] if which else edited, edited if which else files[1])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of the values in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [found for name, each in items for found in leaves(each, (*path, name))]
    return below if isinstance(value, dict | list) else [path]


def test_a_signer_cannot_invent_a_figure(files: tuple[bytes, bytes], key: Any) -> None:
    """Every figure, the method, and the hash, changed by the holder of the key and signed anew, is refused."""
    document = json.loads(files[0])
    paths = [path for path in leaves(document) if path[0] in {"figures", "method", "log", "object", "version"}]
    assert len(paths) > 60
    for path in paths:
        forged = json.loads(files[0])
        place = forged
        for name in path[:-1]:
            place = place[name]
        old = place[path[-1]]
        if path == ("method", "parameter"):
            new: Any = 2.0
        else:
            new = not old if isinstance(old, bool) else f"{old}x" if isinstance(old, str) else (old or 0) + 0.001
            new = old + 1 if isinstance(old, int) and not isinstance(old, bool) else new
        place[path[-1]] = new
        with pytest.raises((InvalidRequest, ConfigError)):
            verify(layout(signed(forged, key)), files[1])


def test_intervals_and_sequences_cover() -> None:
    """Over 150 simulated people, 80% intervals cover 80 ± 6% of the truth, sequences at least 80%; IPS agrees."""
    hits, sequence, n = 0, 0, 0
    for seed in range(150):
        for row in figures(person(seed, draws=2), Method()).estimates:
            assert row.low is not None
            assert row.high is not None
            hits += row.low <= FITS[row.model] <= row.high
            sequence += row.sequence_low <= FITS[row.model] <= row.sequence_high
            n += 1
    assert abs(hits / n - 0.8) <= 0.06
    assert sequence / n >= 0.8
    rows = person(3, 4000, 2)
    for name in ("ips", "sndr", "snips", "dr"):
        for row in figures(rows, Method(estimator=name)).estimates:
            assert row.value == pytest.approx(FITS[row.model], abs=0.06)


def test_no_estimate_is_beyond_the_scale() -> None:
    """Few ratings, all but one of the best, weigh more than 1: the estimate ends at 1, and its interval has a width."""
    decided = tuple(
        Decided(seq=i, session=i, models=("a", "b"), probs=(0.2, 0.8), chosen="ab"[i % 2], y=float(i < 15))
        for i in range(1, 17)
    )
    rows = person(1)._replace(decisions=decided)
    row, _ = figures(rows, Method(estimator="ips")).estimates
    assert row.value == 1.0
    assert row.low is not None
    assert row.high is not None
    assert 0.0 <= row.low < row.high <= 1.0


def test_what_is_not_known_is_not_said() -> None:
    """A model with few rated answers has a sequence but no interval; nothing rated, no estimate."""
    rows = person(1)
    few = rows._replace(decisions=tuple(each for each in rows.decisions if each.chosen != "b"))
    (b,) = (each for each in figures(few, Method()).estimates if each.model == "b")
    assert (b.answered, b.low, b.high) == (0, None, None)
    assert (b.sequence_low, b.sequence_high) == (0.0, 1.0)
    assert figures(rows._replace(decisions=()), Method()).estimates == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probs": (0.5, 0.4)}, "add up"),
        ({"probs": (0.0, 1.0)}, "probability is 0"),
        ({"chosen": "d"}, "fit together"),
        ({"y": 1.5}, "from 0 to 1"),
        ({"seq": 3}, "does not follow"),
    ],
)
def test_rows_that_contradict_themselves(change: dict[str, Any], message: str) -> None:
    """The line and what is wrong with it are named."""
    good = Decided(seq=5, session=0, models=("a", "b"), probs=(0.5, 0.5), chosen="a", y=1.0)
    bad = msgspec.structs.replace(good, **{"seq": 6, **change})
    with pytest.raises(InvalidRequest, match=message):
        Rows.decoded(person(1)._replace(decisions=(good, bad)).encoded())


def test_rows_that_do_not_belong_together() -> None:
    """One line names the models, and there are draws of one rating for each of them."""
    rows = person(1)
    line = msgspec.json.encode(rows.compared) + b"\n"
    for payload, message in (
        (rows.encoded() + line, "2 lines"),
        (rows.encoded().replace(line, b""), "0 lines"),
        (rows._replace(draws=()).encoded(), "draws of 3 ratings"),
        (rows._replace(draws=(Draw(ratings=(0.5, 0.5)),)).encoded(), "draws of 3 ratings"),
        (rows._replace(compared=Compared(names=(), population_first="c")).encoded(), "draws of 0 ratings"),
        (rows._replace(compared=Compared(names=("a", "b", "d"), population_first="c")).encoded(), "population's first"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            Rows.decoded(payload)


def test_predictions_are_logged_as_ratings(tmp_path: Path) -> None:
    """From 0 to 1, as estimators take them; rows with predictions of something else have none."""
    common: dict[str, Any] = {"ts": 1.0, "identity": Identity(user="u")}
    drawn: dict[str, Any] = {"eligible": ("a", "b"), "probs": (0.5, 0.5), "propensity": 0.5, "chosen": "a"}
    journal = SqliteJournal(tmp_path / "journal.db")
    for name, mean in (("out", (-0.5, 1.5)), ("in", (0.25, 0.75)), ("none", ())):
        decision = Decision(
            id=name,
            draw_id=name,
            mode=Mode.ONLINE,
            policy=PolicyVersion(algorithm="squarecb"),
            mean=mean,
            **drawn,
            **common,
        )
        execution = Execution(id=f"e {name}", decision_id=name, chosen="a", served_by="a", status="ok", **common)
        journal.append(Entry(decision), Entry(execution)).result()
    journal.close()
    rows = logged_rows(
        tmp_path, tenant="default", subject="u", compared=("a", "b"), population_first="a", draws=np.full((2, 2), 0.5)
    )
    assert [each.predicted for each in rows.decisions] == [(0.0, 1.0), (0.25, 0.75), ()]


def test_what_is_no_certificate(files: tuple[bytes, bytes], key: Any) -> None:
    """Clear errors for other files, later versions, unknown estimators and suites without anchors."""
    document = {name: each for name, each in json.loads(files[0]).items() if name != FIELD}
    for broken, message in (
        (b"\xff", "not JSON"),
        (b"{}", "not a fit certificate"),
        (layout(document | {"version": 2}), "version 2"),
        (layout(document), "missing"),
        (layout(signed(document | {"more": 1}, key)), "more"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            verify(broken, files[1])
    with pytest.raises(ConfigError, match="choose one of"):
        Method(estimator="magic").build()
    for alpha in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="above 0 and below 1"):
            Method(alpha=alpha).build()
    with pytest.raises(ConfigError, match="no parameter"):
        Method(parameter=2.0).build()
    assert anchor_scores(b'{"model": "a", "anchor": 0.5, "more": 1}\n\n{"model": "b"}\n \n') == {"a": 0.5}
    for bad in (b"", b"{", b'{"model": "a", "anchor": 1}\n{"model": "a", "anchor": 2}\n'):
        with pytest.raises(InvalidRequest, match="suite"):
            anchor_scores(bad)


def test_the_commands(tmp_path: Path) -> None:
    """From a log with two people: the rows hold one person's decisions and no text, and verify elsewhere."""

    async def test(router: Router, _: Quizzes, config: Config) -> None:
        for i in range(12):
            for who in (ADA, Identity(user="bob")):
                ask = Request(messages=({"role": "user", "content": f"What about {i}?"},), identity=who)
                answer = await router.complete(ask)
                await router.feedback(answer.decision.id, FeedbackKind.RATING, 0.25 * (i % 5), identity=who)
        await router.settled()
        with pytest.raises(InvalidRequest, match="no user"):
            await certified(router, config, Identity())
        with pytest.raises(InvalidRequest, match="nothing is known"):
            await certified(router, config, Identity(user="nobody"))

    file = install(tmp_path)
    played(file, test)
    out, rows, results = tmp_path / "ada.json", tmp_path / "ada.jsonl", tmp_path / "results.jsonl"
    results.write_text('{"model": "brief", "anchor": 0.31}\n')
    run = CliRunner()
    made = run.invoke(
        app,
        [
            *("personal", "certificate", "--user", "ada", "-o", str(out), "--rows", str(rows)),
            *("--suite", str(results), "-c", str(file)),
        ],
    )
    assert made.exit_code == 0, made.output
    assert all(len(line) <= 80 for line in made.stdout.splitlines())
    found = verify(out.read_bytes(), rows.read_bytes()).certificate.figures
    assert 10 <= found.rated <= found.decisions <= 12  # on a busy machine an answer may not be logged in time
    assert found.anchors == {"brief": 0.31}
    assert "What about" not in rows.read_text()
    assert "bob" not in rows.read_text() + out.read_text()
    checked = run.invoke(app, ["personal", "verify", str(out), "--rows", str(rows)])
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.startswith("verified\nuser ada\n")
    rows.write_text(rows.read_text().replace('"y":0.5', '"y":1.0', 1))
    assert isinstance(run.invoke(app, ["personal", "verify", str(out), "--rows", str(rows)]).exception, InvalidRequest)
    again = run.invoke(
        app, ["personal", "certificate", "--user", "ada", "-o", str(out), "--rows", str(rows), "-c", str(file)]
    )
    assert isinstance(again.exception, ConfigError)
