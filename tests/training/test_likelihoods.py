"""Laws of the signals: what is planted is found, what carries nothing does nothing, and the table is the command's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.training._evidence import Evidence, Track
from benchmarks.training._signal import LEVEL, Signal
from benchmarks.training._signal_fit import fit_edit, fit_length, fit_signals
from benchmarks.training.likelihoods import load_signals, main, render
from hypothesis import given
from hypothesis import strategies as st

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.types import Floats

DATA = Path(__file__).parents[3] / "shared/data"
KINDS = ("rating", "pair", "tie", "thumb", "accept", "edit", "copy", "dwell", "regenerate", "interrupt")


def _sigmoid(a: Floats) -> Floats:
    out: Floats = 1.0 / (1.0 + np.exp(-a))
    return out


def _flips(rng: np.random.Generator, a: Floats) -> Floats:
    """0 or 1 with log odds a."""
    return (rng.random(len(a)) < _sigmoid(a)).astype(np.float64)


def _people(rng: np.random.Generator, people: int, events: int, spread: float = 0.3) -> list[tuple[Floats, Floats]]:
    """(X, u) of each person: tastes around a common one, utility of mean 0.7 and sd `spread`."""
    common = np.array([LEVEL, 0.5 * spread, -0.5 * spread])
    out = []
    for _ in range(people):
        X = np.hstack([np.ones((events, 1)), rng.standard_normal((events, 2))])
        out.append((X, X @ (common + rng.standard_normal(3) * spread / np.sqrt(6.0))))
    return out


def _tracks(people: Sequence[tuple[Floats, Floats]], y: Sequence[Floats], primary: Sequence[Floats]) -> list[Track]:
    return [
        Track(X, mine, outcome, np.full(len(X), 100.0))
        for (X, _), mine, outcome in zip(people, y, primary, strict=True)
    ]


def _nothing(people: Sequence[tuple[Floats, Floats]]) -> list[Floats]:
    return [np.full(len(X), np.nan) for X, _ in people]


def _ratings(rng: np.random.Generator, people: Sequence[tuple[Floats, Floats]], noise: float) -> Evidence:
    y = [u + np.sqrt(noise) * rng.standard_normal(len(u)) for _, u in people]
    return Evidence("rating", "simulated", _tracks(people, y, _nothing(people)))


@pytest.mark.parametrize(("temperature", "level"), [(0.15, 0.6), (0.3, 0.9)])
def test_the_planted_temperature_level_and_noise_are_found(temperature: float, level: float) -> None:
    """Events drawn from σ((u − level) / T) beside ratings of the same people give T and level back."""
    rng = np.random.default_rng(1)
    people = _people(rng, 80, 40)
    taken = [_flips(rng, (u - level) / temperature) for _, u in people]
    found = fit_signals(
        [_ratings(rng, people, 0.04), Evidence("accept", "simulated", _tracks(people, taken, _nothing(people)))]
    )
    assert found["rating"].noise == pytest.approx(0.04, rel=0.1)
    assert found["accept"].temperature == pytest.approx(temperature, rel=0.2)
    assert found["accept"].level == pytest.approx(level, abs=0.06)
    assert found["accept"].weight > 0.5  # independent events of the model itself count almost in full


def test_behaviour_that_says_nothing_of_the_outcome_counts_less_than_doubt() -> None:
    """ρ of flips of personal coins, unrelated to ratings, falls below the prior mean ¼; that of a real signal rises."""
    rng = np.random.default_rng(2)
    people = _people(rng, 60, 20)
    rated = _ratings(rng, people, 0.04)
    every_other: Floats = np.where(np.arange(20) % 2 == 0, 0.0, np.nan)
    outcome: list[Floats] = [track.y + every_other for track in rated.tracks]
    habits = [_flips(rng, np.full(len(u), 2.0 * rng.standard_normal())) for _, u in people]
    honest = [_flips(rng, (u - 0.7) / 0.15) for _, u in people]
    weight = {}
    for name, y in (("habit", habits), ("honest", honest)):
        found = fit_signals([rated, Evidence("accept", name, _tracks(people, y, outcome), "rating")])
        weight[name] = found["accept"].weight
    assert weight["habit"] < 0.25 < weight["honest"]


@given(
    predicted=st.floats(-1, 2),
    variance=st.floats(1e-4, 1.0),
    y=st.floats(0, 1),
    link=st.sampled_from(["gaussian", "logistic"]),
)
def test_weight_nought_changes_nothing(predicted: float, variance: float, y: float, link: str) -> None:
    """An event of weight 0 leaves mean and covariance as they are, whatever it says; a weight above 0 does not."""
    signal = Signal(kind="any", link=link, weight=0.0, noise=0.1, temperature=0.3, level=0.5)  # type: ignore[arg-type]
    taste = Gaussian(np.array([predicted]), np.array([[variance]]))
    taste.learn(taste.gain(np.ones(1)), signal.gaussian_update(predicted, variance, y))
    assert taste.mean[0] == predicted
    assert taste.cov[0, 0] == variance
    louder = msgspec.structs.replace(signal, weight=0.5)
    assert louder.gaussian_update(predicted, variance, y).shrink > 0.0


@given(predicted=st.floats(0, 1), variance=st.floats(1e-3, 0.5), weight=st.floats(0.05, 1.0))
def test_a_better_label_never_lowers_utility(predicted: float, variance: float, weight: float) -> None:
    """The step rises with y for every shipped kind."""
    for signal in load_signals().values():
        steps = [signal.gaussian_update(predicted, variance, y, weight).step for y in (0.0, 0.25, 0.5, 1.0)]
        assert steps == sorted(steps)


def test_dwell_does_not_reward_length() -> None:
    """Where time is spent on length alone, y is as high for short answers as for long ones; slower reading is more."""
    rng = np.random.default_rng(3)
    tracks = []
    for _ in range(20):
        tokens = np.exp(rng.uniform(2.0, 7.0, 50))
        seconds = np.expm1(1.0 + 0.6 * np.log1p(tokens) + 0.2 * rng.standard_normal(50))
        tracks.append(Track(np.ones((50, 1)), seconds, np.full(50, np.nan), tokens))
    length = fit_length(tracks)
    assert length[1] == pytest.approx(0.6, abs=0.05)
    signal = Signal(kind="dwell", link="logistic", weight=0.2, temperature=0.5, length=length)
    y = np.array([signal.label(s, n) for track in tracks for s, n in zip(track.y, track.tokens, strict=True)])
    tokens = np.concatenate([track.tokens for track in tracks])
    assert abs(np.corrcoef(y, np.log(tokens))[0, 1]) < 0.1
    assert signal.label(80.0, 200.0) > signal.label(40.0, 200.0)


@pytest.fixture(scope="module")
def bent() -> tuple[tuple[float, float], ...]:
    """Knots learnt from people who mind only edits of more than half."""
    rng = np.random.default_rng(4)
    tracks = []
    for _ in range(80):
        distance = rng.random(30)
        outcome = np.where(distance > 0.5, 0.2, 0.9) + 0.02 * rng.standard_normal(30)
        tracks.append(Track(np.ones((30, 1)), distance, np.clip(outcome, 0.0, 1.0), np.zeros(30)))
    return fit_edit(tracks)


@given(distances=st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_the_edit_map_never_rises(bent: tuple[tuple[float, float], ...], distances: list[float]) -> None:
    """The more of a text was changed, the lower y: of the shipped map and of one with fitted knots."""
    shipped = load_signals()["edit"]
    for signal in (shipped, msgspec.structs.replace(shipped, knots=bent)):
        y = [signal.label(distance) for distance in sorted(distances)]
        assert y == sorted(y, reverse=True)


def test_an_isotonic_edit_map_is_taken_only_where_it_is_surely_better(bent: tuple[tuple[float, float], ...]) -> None:
    """A step is not a line: its knots are fitted. With outcomes that are noise the closed form 1 − ε stays."""
    assert len(bent) > 2
    signal = Signal(kind="edit", link="logistic", weight=1.0, temperature=1.0, knots=bent)
    assert signal.label(0.2) - signal.label(0.8) > 0.5
    rng = np.random.default_rng(5)
    noise = [Track(np.ones((30, 1)), rng.random(30), rng.random(30), np.zeros(30)) for _ in range(40)]
    assert fit_edit(noise) == ((0.0, 1.0), (1.0, 0.0))


def test_ratings_come_first() -> None:
    """Without ratings there is no unit; a kind that should predict one that is not fitted is refused by name."""
    rng = np.random.default_rng(6)
    people = _people(rng, 8, 5)
    thumbs = Evidence(
        "thumb", "simulated", _tracks(people, [(u > LEVEL).astype(np.float64) for _, u in people], _nothing(people))
    )
    with pytest.raises(ValueError, match="no ratings"):
        fit_signals([thumbs])
    with pytest.raises(ValueError, match="'copy', which is not fitted yet"):
        fit_signals([_ratings(rng, people, 0.1), thumbs._replace(primary="copy")])


def test_the_shipped_table_has_every_kind() -> None:
    """Every kind is there, with usable numbers and what it was fitted on; what no data shows says so."""
    table = load_signals()
    assert tuple(table) == KINDS
    for kind, signal in table.items():
        assert signal.kind == kind
        assert 0.0 <= signal.weight <= 1.0
        assert (signal.noise if signal.link == "gaussian" else signal.temperature) > 0.0  # type: ignore[operator]
        assert signal.note
        assert (signal.events > 0) is bool(signal.source)
    assert all("no public data" in table[kind].note for kind in ("regenerate", "interrupt"))


@pytest.mark.reproduction
@pytest.mark.skipif(not (DATA / "realhumaneval").is_dir(), reason="the public sets are not here")
def test_the_shipped_table_is_what_the_command_writes(tmp_path: Path) -> None:
    """The command gives the shipped table from the data, to the last digit that another BLAS may change."""
    out = tmp_path / "signals.json"
    assert main([str(DATA), str(out)]) == 0
    written = msgspec.json.decode(out.read_bytes(), type=dict[str, Signal])
    shipped = load_signals()
    assert tuple(written) == tuple(shipped)
    for kind, signal in written.items():
        one, two = msgspec.structs.asdict(signal), msgspec.structs.asdict(shipped[kind])
        assert {k: v for k, v in one.items() if not _number(v)} == {k: v for k, v in two.items() if not _number(v)}
        for name, value in one.items():
            if _number(value):
                np.testing.assert_allclose(value, two[name], rtol=5e-3, err_msg=f"{kind} {name}")


def test_the_table_survives_its_own_format() -> None:
    """What is rendered reads back as the same signals, four significant digits kept."""
    assert msgspec.json.decode(render(load_signals()), type=dict[str, Signal]) == load_signals()
    assert main([]) == 2


def _number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, tuple) and value != ())
