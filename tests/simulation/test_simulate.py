"""The personal pool in process: worlds are reproducible, rows are comparable, and the laws show in what they do."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.kits.tables import table_driven
from typer.testing import CliRunner

from fitrouter.errors import ConfigError
from fitrouter.providers._simulated import Persona, write
from fitrouter_evaluators.simulation.gaps import benefit, gaps
from fitrouter_evaluators.simulation.personal_pool import compare, open_pool, run_tasks
from fitrouter_evaluators.simulation.pool import ATTRIBUTES, Pool, attributes
from fitrouter_evaluators.simulation.simulate import ROWS, SeedResult, best_single, contender, simulate
from fitrouter_evaluators.simulation.worlds import Play, World, draw_play, load_world
from fitrouter_integrations.cli import app

PERSONAS = {
    "lists": Persona(length=6, bullets=0.9, headings=0.4),
    "long": Persona(length=20, formality=0.8),
    "short": Persona(length=2),
    "warm": Persona(length=6, warmth=1.0),
}
TOPICS = ("tax law", "python code", "short stories", "vaccines", "travel plans")
WORLD = World(
    name="test",
    quality={"lists": 1.0, "long": 0.8, "short": 0.0, "warm": 0.6},
    quality_weight=0.5,
    prompt_noise=0.1,
    taste_weight=1.0,
    users=12,
    roles=2,
    rounds=900,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of four personas and forty prompts."""
    file = tmp_path_factory.mktemp("pool") / "pool.jsonl"
    prompts = [f"What should I know about {topic}, question {i}?" for i in range(8) for topic in TOPICS]
    with file.open("w", encoding="utf-8") as out:
        for number, prompt in enumerate(prompts):
            for model, persona in PERSONAS.items():
                response = write(persona, prompt, 0, model)
                row = {"prompt_id": number, "prompt": prompt, "model": model, "response": response}
                out.write(json.dumps(row) + "\n")
    return file


@pytest.fixture(scope="module")
def pool(path: Path) -> Pool:
    """The pool with encoders that need no weights."""
    return open_pool(path, encoder="hashing", topics="hashing", scorer="hashing")


def play_of(pool: Pool, world: World = WORLD, seed: int = 0) -> Play:
    return draw_play(world, pool, seed)


def run(pool: Pool, row: str, world: World = WORLD, seed: int = 0, feedback: float = 0.5) -> SeedResult:
    return simulate(world, pool, play_of(pool, world, seed), contender(row, 160.0), feedback=feedback)


@pytest.fixture(scope="module")
def played(pool: Pool) -> Callable[[str, int], SeedResult]:
    """(row, seed) -> its result in `WORLD`, run once."""
    return functools.cache(lambda row, seed: run(pool, row, seed=seed))


def test_a_play_is_reproducible_and_seeds_differ(pool: Pool) -> None:
    """The same seed draws the same people, qualities, order and luck; another one draws others."""
    first, again, other = play_of(pool), play_of(pool), play_of(pool, seed=1)
    for name in ("role", "tastes", "reward", "user", "prompt", "label", "rated"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.tastes, other.tastes)
    assert not np.array_equal(first.reward, other.reward)


def test_without_tastes_all_users_are_alike(pool: Pool) -> None:
    """A world of taste weight 0 gives every user the same rewards."""
    play = play_of(pool, msgspec.structs.replace(WORLD, taste_weight=0.0))
    assert np.ptp(play.reward, axis=0).max() == 0.0
    assert np.ptp(play_of(pool).reward, axis=0).max() > 0.1


def test_an_impostor_writes_as_the_best_model(pool: Pool) -> None:
    """The scorer and the people's eyes see the best model's texts, while its quality stays what it was."""
    world = msgspec.structs.replace(WORLD, impostor="short", taste_weight=0.0)
    play, plain = play_of(pool, world), play_of(pool, msgspec.structs.replace(world, impostor=None))
    short, best = pool.models.index("short"), pool.models.index("lists")
    np.testing.assert_array_equal(play.h[short], play.h[best])
    np.testing.assert_array_equal(play.attributes[short], play.attributes[best])
    np.testing.assert_array_equal(play.reward, plain.reward)
    assert not np.array_equal(pool.h[short], pool.h[best], equal_nan=True), "the pool itself is left alone"


@pytest.mark.parametrize("row", ROWS)
def test_every_row_runs_and_is_reproducible(pool: Pool, row: str) -> None:
    """Pmfs are pmfs, regret is never negative, and a second run gives the same bits."""
    first, again = (run(pool, row, msgspec.structs.replace(WORLD, rounds=300)) for _ in range(2))
    assert np.allclose(first.probs.sum(axis=1), 1.0)
    assert (first.probs >= 0.05 / 4 - 1e-9).all()
    assert (first.regret >= 0).all()
    assert first.probs.tobytes() == again.probs.tobytes()


def test_labels_teach(pool: Pool, played: Callable[[str, int], SeedResult]) -> None:
    """Ours ends far better than it began, better than without labels, and weighs heads of people's own."""
    ours, deaf = played("ours", 0), run(pool, "ours", feedback=0.0)
    quarter = WORLD.rounds // 4
    assert ours.regret[-quarter:].mean() < 0.8 * ours.regret[:quarter].mean()
    assert ours.regret[-quarter:].mean() < 0.8 * deaf.regret[-quarter:].mean()
    assert ours.mixture[2:].sum() > 0.5


def test_learning_from_scores_fails_where_learning_from_labels_does_not(
    played: Callable[[str, int], SeedResult],
) -> None:
    """Law 5 on three seeds: a bandit fed with the reward model's scores has more regret than ours, in each of them."""
    for seed in range(3):
        assert played("reward-score", seed).regret.sum() > played("ours", seed).regret.sum()


def test_knowing_the_tastes_beats_learning_them(played: Callable[[str, int], SeedResult]) -> None:
    """The row with knowledge that nobody has is a ceiling: less regret than ours, over three seeds together."""
    total = {row: sum(played(row, seed).regret.sum() for seed in range(3)) for row in ("ours", "true-tastes")}
    assert total["true-tastes"] < total["ours"]


def test_rows_are_compared_on_common_random_numbers(pool: Pool) -> None:
    """A row compared with itself differs by nothing; worker processes and one process give the same numbers."""
    world = msgspec.structs.replace(WORLD, rounds=200)
    found = compare(pool, world, {"label-only": 160.0, "ours": 160.0}, 0.5, range(2), processes=1)
    again = compare(pool, world, {"label-only": 160.0, "ours": 160.0}, 0.5, range(2), processes=2)
    assert found == again
    ours = found["rows"]["ours"]["change_vs_label-only"]
    assert ours["low"] <= ours["mean"] <= ours["high"]
    alone = found["rows"]["ours"]
    per_round = alone["gaps"]["mean"]["mean"] * world.rounds
    assert alone["feasible_regret"]["mean"] == pytest.approx(per_round, abs=0.01)
    for row in found["rows"].values():
        assert row["feasible_regret"]["mean"] == pytest.approx(
            row["regret"] - found["feasible_oracle"]["regret"], abs=0.01
        )
    assert run_tasks(pool, []) == []


def test_the_feasible_oracle_lies_between_knowing_all_and_the_best_single_model(pool: Pool) -> None:
    """Without luck it is the first oracle's equal where texts do not matter; with luck it has regret, but little."""
    lucky = play_of(pool, msgspec.structs.replace(WORLD, prompt_noise=2.0, taste_weight=0.0)).rounds()
    known = play_of(pool, msgspec.structs.replace(WORLD, prompt_noise=0.0, taste_weight=0.0)).rounds()
    np.testing.assert_allclose(known.feasible, known.best)
    rounds = play_of(pool).rounds()
    assert lucky.feasible.mean() < lucky.best.mean() - 0.1
    assert rounds.reward.mean(axis=0).max() < rounds.feasible.mean() < rounds.best.mean()
    assert (rounds.feasible <= rounds.best).all()


def test_kinds_say_what_a_taste_is_about(pool: Pool) -> None:
    """A model-offset world looks at names only; a hidden one at what is orthogonal to all that the scorer reads."""
    offset = play_of(pool, msgspec.structs.replace(WORLD, kind="model-offset", prompt_noise=0.0, topic_sd=0.0))
    assert np.ptp(offset.reward, axis=2).max() < 1e-12
    assert np.ptp(offset.reward, axis=0).max() > 0.1
    play_of(pool, msgspec.structs.replace(WORLD, kind="hidden-features"))
    assert pool.unseen is not None
    h = np.nan_to_num(pool.h.reshape(-1, pool.h.shape[2]))
    raw = pool.unseen.reshape(len(h), -1)
    inside = np.abs(raw).max(axis=1) < 3.0  # what was cut is no longer orthogonal
    fitted = h @ np.linalg.lstsq(h, raw, rcond=None)[0]
    assert (fitted[inside].var(axis=0) < 0.1).all()
    with pytest.raises(ConfigError, match="no feature for"):
        play_of(msgspec.structs.replace(pool, unseen=None), msgspec.structs.replace(WORLD, kind="hidden-features"))


def test_role_only_and_user_only_worlds(pool: Pool) -> None:
    """Without a spread between users a role is of one mind; without one between roles roles say nothing."""
    alike = play_of(pool, msgspec.structs.replace(WORLD, user_sd=0.0))
    for role in np.unique(alike.role):
        assert np.ptp(alike.tastes[alike.role == role], axis=0).max() == 0.0
    assert np.ptp(play_of(pool, msgspec.structs.replace(WORLD, role_sd=0.0)).tastes, axis=0).max() > 0.0


def test_tastes_turn_after_every_so_many_labels(pool: Pool) -> None:
    """All change sign at once after so many rated rounds, whatever a row chose; the next change undoes it."""
    world = msgspec.structs.replace(WORLD, flip_every=50, prompt_noise=0.0, quality_weight=0.0)
    play = play_of(pool, world)
    rounds, steady = play.rounds(0.5), play_of(pool, msgspec.structs.replace(world, flip_every=0)).rounds(0.5)
    before = np.cumsum(play.rated < 0.5) - (play.rated < 0.5)
    turned = before // 50 % 2 == 1
    assert turned.any()
    assert not turned[:50].any()
    np.testing.assert_allclose(rounds.reward[turned], 1.0 - steady.reward[turned])
    np.testing.assert_array_equal(rounds.reward[~turned], steady.reward[~turned])
    assert rounds.feasible.mean() > rounds.reward.mean() + 0.05, "the feasible oracle turns too"


def test_the_variance_between_users_is_without_that_of_their_rounds() -> None:
    """Users who are alike have next to none, although their means differ; others have theirs."""
    rng = np.random.default_rng(5)
    U, T = 60, 4000
    activity = 1.0 / np.arange(1, U + 1) ** 0.7
    role = rng.integers(0, 4, U)
    found: dict[float, list[float]] = {0.0: [], 0.1: []}
    for spread, seen in found.items():
        for _ in range(20):
            user = rng.choice(U, T, p=activity / activity.sum())
            told = gaps(user, 0.2 + rng.normal(0, spread, U)[user] + rng.normal(0, 0.4, T), role)
            seen.append(told.between_sd)
            assert told.mean <= told.worst_decile + 1e-12
            assert told.mean <= told.worst_role + 1e-12
    assert np.mean(found[0.0]) < 0.02
    assert abs(np.mean(found[0.1]) - 0.1) < 0.02


def test_labels_until_knowing_a_user_pays() -> None:
    """The first number of labels from which on the isotonic fit of the savings is positive; never where none is."""
    assert benefit([-1.0, -1.0, 0.5, -0.2, 1.0, 1.0], [1.0] * 6) == 2
    assert benefit([-1.0, -1.0, -1.0], [1.0] * 3) is None
    assert benefit([0.0, 2.0], [0.0, 4.0]) == 1
    assert benefit([], []) is None


def test_best_single_is_best_in_hindsight(pool: Pool) -> None:
    """No other model would have earned more over these rounds."""
    play = play_of(pool)
    earned = play.reward[play.user, :, play.prompt].mean(axis=0)
    assert earned[best_single(play)] == earned.max()


def test_attributes_see_what_they_are_named_for() -> None:
    """Each attribute rises when its property is added to a text."""
    plain = "The tax is due in spring. It is paid once."
    richer = {
        "length": plain * 3,
        "structure": f"# Tax\n- {plain}\n- **Once**.",
        "hedging": "Perhaps it might be so. " + plain,
        "warmth": "I hope your day is fine! " + plain,
        "word_length": "Extraordinarily complicated administrative considerations.",
        "code": plain + "\n```\nx = 1\n```",
        "digits": plain + " 2024, 2025.",
        "examples": plain + " For example, now.",
    }
    base = dict(zip(ATTRIBUTES, attributes(plain), strict=True))
    for name, text in richer.items():
        assert dict(zip(ATTRIBUTES, attributes(text), strict=True))[name] > base[name], name


def test_bad_worlds_and_pools_are_refused(pool: Pool, tmp_path: Path) -> None:
    """A message says what was given and what is needed."""
    with pytest.raises(ConfigError, match="benchmarks/simulation/worlds"):
        load_world(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: x\nquality: {}\nquality_weight: 1\nprompt_noise: 0\ntastes_weight: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="tastes_weight"):
        load_world(bad)
    with pytest.raises(ConfigError, match="no quality for"):
        draw_play(msgspec.structs.replace(WORLD, quality={"lists": 1.0}), pool, 0)
    with pytest.raises(ConfigError, match="there is no pool"):
        open_pool(tmp_path / "none.parquet", encoder="hashing", topics="hashing", scorer="hashing")
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"prompt": "x"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="prompt_id, prompt, model, response"):
        open_pool(empty, encoder="hashing", topics="hashing", scorer="hashing")


PINNED = sorted(
    path.stem for path in (Path(__file__).parents[2] / "benchmarks" / "simulation" / "worlds").glob("*.yaml")
)


@table_driven("name", [name for name in PINNED if name != "demo"])
def test_pinned_worlds_can_be_read(name: str) -> None:
    """Every pinned world is a world."""
    assert load_world(Path(__file__).parents[2] / "benchmarks" / "simulation" / "worlds" / f"{name}.yaml").name == name


def test_the_command_prints_and_writes(path: Path, tmp_path: Path) -> None:
    """`fitrouter bench simulate` runs a world over a pool, and writes what it printed."""
    world, out = tmp_path / "world.yaml", tmp_path / "out.json"
    world.write_bytes(msgspec.yaml.encode(msgspec.structs.replace(WORLD, rounds=80)))
    arguments = ["--world", str(world), "--pool", str(path), "--seeds", "2", "--topics", "hashing", "--json", str(out)]
    result = CliRunner().invoke(app, ["bench", "simulate", *arguments, "--encoder", "hashing", "--reward", "score"])
    assert result.exit_code == 0, result.output
    assert "reward-score" in result.output
    assert set(json.loads(out.read_text())["rows"]) == {"label-only", "scores", "role", "ours", "reward-score"}
