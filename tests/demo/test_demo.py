"""The demo: its world, the users' feedback, its oracles, and one short run over HTTP."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fitrouter.errors import ConfigError
from fitrouter.hooks import Happened
from fitrouter.monitors.drift import Drift, DriftParams
from fitrouter.providers import topic_of
from fitrouter.router import Router
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Decision, FeedbackKind, Identity, Mode, PolicyVersion
from fitrouter_evaluators.scoring import STYLE
from fitrouter_integrations.cli import app
from fitrouter_integrations.demo import _command, _visit
from fitrouter_integrations.demo._gateway import RoundClock, demo_config
from fitrouter_integrations.demo._play import People
from fitrouter_integrations.demo._reading import HIDDEN, notice
from fitrouter_integrations.demo._report import summary
from fitrouter_integrations.demo._seeds import Gammas, SeedResult, Strategy, learned, play_seeds, strategies, strategy
from fitrouter_integrations.demo._stage import Stage, set_stage
from fitrouter_integrations.demo._world import DemoWorld, open_world

ROUNDS = 200


@pytest.fixture(scope="module")
def world() -> DemoWorld:
    return open_world()[0]


@pytest.fixture(scope="module")
def stage(world: DemoWorld) -> Stage:
    return set_stage(world, "hashing")


@pytest.fixture(scope="module")
def people(world: DemoWorld, stage: Stage) -> People:
    return People(world, stage, 3)


# --- the world ---


def test_the_pinned_world_is_shipped() -> None:
    """`benchmarks/simulation/worlds/demo.yaml` and the package's file are the same bytes."""
    pinned = Path(__file__).parents[2] / "benchmarks" / "simulation" / "worlds" / "demo.yaml"
    assert pinned.read_bytes() == resources.files("fitrouter_integrations.demo").joinpath("demo.yaml").read_bytes()


def test_a_third_of_the_attributes_is_hidden_from_the_scorer(world: DemoWorld, people: People) -> None:
    """All attributes have tastes of the same spread; a third are hidden, and no style dimension has their name."""
    assert 2 * len(world.hidden_tastes) == len(world.tastes)
    assert set(world.hidden_tastes) == set(HIDDEN)
    assert not set(HIDDEN) & {dimension.name for dimension in STYLE}
    seeds = [People(world, people.stage, seed).play.tastes for seed in range(20)]
    spread = np.concatenate(seeds).std(axis=0)
    assert spread.max() / spread.min() < 1.5


def test_users_in_the_uniform_role_are_alike(world: DemoWorld, people: People) -> None:
    """In the uniform role every user has the same taste; in the others no two have."""
    for i, role in enumerate(world.role_names):
        distinct = len(np.unique(people.play.tastes[people.play.role == i], axis=0))
        assert distinct == (1 if role == world.uniform_role else int((people.play.role == i).sum()))


def test_the_flatterer_copies_the_best_model_and_is_bad(world: DemoWorld, stage: Stage, people: People) -> None:
    """Its attributes are the best model's within 0.3 of a standard deviation; its quality is the lowest by far."""
    models = stage.pool.models
    flatterer, best = models.index(world.flatterer), models.index(world.imitates)
    means = stage.pool.attributes.mean(axis=1)
    assert np.abs(means[flatterer] - means[best]).max() < 0.3
    assert np.abs(means[flatterer] - means[best]).mean() < 0.1
    others = [np.abs(means[k] - means[best]).mean() for k in range(len(models)) if k not in {flatterer, best}]
    assert min(others) > 0.3
    for seed in range(20):
        worth = People(world, stage, seed).worth.mean(axis=1)
        assert worth.argmax() == best
        assert worth.argmin() == flatterer
        assert np.sort(worth)[1] - worth[flatterer] > 0.5


def test_without_tastes_all_users_are_the_same(world: DemoWorld, stage: Stage) -> None:
    """In the null world users do not differ, and knowing them gains nothing."""
    null = open_world("null")[0]
    people = People(null, stage, 3)
    assert np.ptp(people.play.reward, axis=0).max() == 0.0
    assert (people.best_for_all() == people.best_for_user()).all()
    assert msgspec.structs.replace(null, name=world.name, taste_weight=world.taste_weight) == world


def test_every_prompt_is_read_as_its_topic(world: DemoWorld) -> None:
    """The personas' strengths hold for the topic that a prompt stands under."""
    assert all(topic_of(prompt) == topic for topic, prompt in world.asked())
    assert len({prompt for _, prompt in world.asked()}) == len(world.asked()) == 240


def test_an_invalid_world_is_an_error(tmp_path: Path, world: DemoWorld) -> None:
    """A missing file, an unknown field and an unknown model each have a message."""
    with pytest.raises(ConfigError, match="give a file, or 'null'"):
        open_world(str(tmp_path / "none.yaml"))
    text = resources.files("fitrouter_integrations.demo").joinpath("demo.yaml").read_text()
    for old, new, message in (
        ("level:", "levle:", "levle"),
        ("flatterer: mirage-pro", "flatterer: nobody", "nobody"),
        ("uniform_role: tax analyst", "uniform_role: clown", "role"),
    ):
        (tmp_path / "w.yaml").write_text(text.replace(old, new))
        with pytest.raises(ConfigError, match=message):
            open_world(str(tmp_path / "w.yaml"))


def test_hidden_attributes_are_computed() -> None:
    """Values for a small text, counted by hand; an empty text has values too."""
    text = "Do not go there now. Stay. It is never too late to wait here for them"
    rhythm, negation, opening, ending = notice(text, (), tuple(HIDDEN))
    assert rhythm == pytest.approx(np.std([5, 1, 10]))
    assert negation == pytest.approx(2 / 4)
    assert (opening, ending) == pytest.approx((np.log(6), np.log(11)))
    assert np.isfinite(notice("", (), tuple(HIDDEN))).all()
    with pytest.raises(ConfigError, match="rythm"):
        notice(text, (), ("rythm",))


# --- what people say ---


def test_unsatisfied_users_volunteer_three_times_as_often(world: DemoWorld, stage: Stage) -> None:
    """Of the unsatisfied 45% volunteer, of the others 15%; of those asked 80% answer, whatever they feel."""
    many = People(msgspec.structs.replace(world, rounds=40_000), stage, 5)
    for satisfaction, rate in ((0.0, 0.45), (1.0, 0.15)):
        said = [many.opinion(t, satisfaction, False) is not None for t in range(40_000)]
        assert np.mean(said) == pytest.approx(rate, abs=0.012)
        said = [many.opinion(t, satisfaction, True) is not None for t in range(40_000)]
        assert np.mean(said) == pytest.approx(0.8, abs=0.012)


@pytest.mark.parametrize("satisfaction", [0.2, 0.7])
def test_stars_and_thumbs_average_to_the_satisfaction(world: DemoWorld, stage: Stage, satisfaction: float) -> None:
    """Where all answer alike, thumbs and stars on [0, 1] average to the satisfaction; each user keeps to one."""
    many = People(msgspec.structs.replace(world, rounds=40_000), stage, 5)
    said: dict[FeedbackKind, list[float]] = {FeedbackKind.THUMB: [], FeedbackKind.RATING: []}
    kinds: dict[int, set[FeedbackKind]] = {}
    for t in range(40_000):
        verdict = many.opinion(t, satisfaction, True)
        if verdict is not None:
            low, high = verdict.scale
            assert low <= verdict.value <= high
            said[verdict.kind].append((verdict.value - low) / (high - low))
            kinds.setdefault(int(many.play.user[t]), set()).add(verdict.kind)
    for values in said.values():
        assert np.mean(values) == pytest.approx(satisfaction, abs=0.015)
    assert all(len(kind) == 1 for kind in kinds.values())


def test_users_rate_the_text_that_they_received(stage: Stage, people: People) -> None:
    """Read over the wire or from the stage, a model's answer satisfies a user alike; another text does not."""
    answers = set_texts(people.world)
    for user, model, prompt in ((0, "aurora-large", 7), (31, "dahlia-warm", 100), (59, "cobalt-code", 239)):
        k = stage.pool.models.index(model)
        read = people.satisfaction(user, model, prompt, answers[model, prompt])
        assert read == pytest.approx(people.play.reward[user, k, prompt])
        assert people.satisfaction(user, model, prompt, "No.") != pytest.approx(read)


def set_texts(world: DemoWorld) -> dict[tuple[str, int], str]:
    """(model, number of the prompt) → the text."""
    import asyncio

    from fitrouter_integrations.demo._stage import _answers

    models = tuple(sorted(world.models))
    rows = asyncio.run(_answers(world, models, tuple(prompt for _, prompt in world.asked())))
    return {
        (model, n): str(a.message["content"])
        for model, row in zip(models, rows, strict=True)
        for n, a in enumerate(row)
    }


# --- what routing is worth ---


def test_oracles_are_ordered(world: DemoWorld, stage: Stage) -> None:
    """Random ≤ best single ≤ user-blind ≤ taste-knowing, which is an upper bound."""
    for seed in range(5):
        people = People(world, stage, seed)
        _, rows = strategies(people, world.rounds)
        worth = [rows[row].reward for row in ("random", "best single", "blind oracle", "knowing oracle")]
        # The user-blind oracle knows how active people are, not who comes: it may lose a hair to hindsight.
        assert worth[0] < worth[1] < worth[2] + 0.005 < worth[3]
        chance = np.random.default_rng(seed).dirichlet(np.ones(6), world.rounds)
        assert strategy(people, chance).reward < worth[3]


def test_a_strategy_is_scored_by_its_probabilities(people: People) -> None:
    """Always the same model earns its mean, costs its prices, and has all the traffic."""
    always = np.zeros((people.world.rounds, 6))
    always[:, 2] = 1.0
    found = strategy(people, always)
    assert found.reward == pytest.approx(people.rounds()[:, 2].mean())
    assert np.mean(found.quarters) == pytest.approx(found.reward)
    assert found.cost_usd == pytest.approx(people.stage.cost[2, people.play.prompt].sum())
    assert found.shares == {model: float(k == 2) for k, model in enumerate(people.stage.pool.models)}


def test_seeds_differ_and_repeat(world: DemoWorld, stage: Stage) -> None:
    """Users, qualities, order and draws differ by seed, and the same seed is the same again."""
    one, other, again = (People(world, stage, seed) for seed in (1, 2, 1))
    for name in ("tastes", "user", "prompt", "label", "rated"):
        assert not np.array_equal(getattr(one.play, name), getattr(other.play, name))
        assert np.array_equal(getattr(one.play, name), getattr(again.play, name))
    assert not np.allclose(one.worth, other.worth)
    assert np.array_equal(one.play.reward, again.play.reward)


def test_seeds_in_processes_are_seeds_in_process(world: DemoWorld, stage: Stage) -> None:
    """Two seeds on two processes give what each gives alone; a deadline in the past gives none."""
    short = msgspec.structs.replace(world, rounds=60)
    gammas = Gammas(ours=100.0, blind=100.0, floor=0.05)
    together = {result.seed: result for result in play_seeds(short, stage, gammas, (1, 2))}
    alone = next(iter(play_seeds(short, stage, gammas, (2,))))
    assert set(together) == {1, 2}
    for row, found in alone.rows.items():
        assert together[2].rows[row].quarters == pytest.approx(found.quarters)
    assert list(play_seeds(short, stage, gammas, (1, 2), deadline=0.0)) == []


def test_a_seed_goes_on_after_a_drift_alarm(world: DemoWorld, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm stores the whole state in the middle of a seed, which is plain whatever votes are made of."""
    heard: list[str] = []

    class Nervous(Drift):
        def observe(self, arm: str, z: float) -> bool:
            if fired := super().observe(arm, z):
                heard.append(arm)
            return fired

    monkeypatch.setattr("fitrouter.posterior.model.Drift", lambda: Nervous(DriftParams(threshold=1.0, warmup=0)))
    probs, _ = learned(People(world, stage, 3), "ours", 320.0, 0.02, ROUNDS)
    assert len(heard) > 1
    assert np.isfinite(probs).all()


def test_the_summary_is_computed(world: DemoWorld) -> None:
    """Closing half of the gap in one seed and none in the other is a quarter on average."""

    def result(seed: int, ours: float) -> SeedResult:
        last = {"random": 0.5, "default model": 0.6, "best single": 0.65, "user-blind bandit": 0.6}
        last |= {"user-blind + scores": 0.62, "ours": ours, "blind oracle": 0.7, "knowing oracle": 0.8}
        shares = dict.fromkeys(world.models, 0.01)
        rows = {
            row: Strategy(reward=v, quarters=(0.5, 0.5, 0.5, v), cost_usd=1.0, shares=shares, all_shares=shares)
            for row, v in last.items()
        }
        return SeedResult(seed=seed, best_single="aurora-large", rows=rows, mixture=(1.0,))

    found = summary([result(1, 0.75), result(2, 0.64)], world)
    assert found["closed_mean"] == pytest.approx((0.5 - 0.6) / 2)
    assert found["closed_se"] == pytest.approx(0.55)
    assert found["above_best_single"] == 1
    assert found["margin_over_best_single"]["min"] == pytest.approx(-0.01)
    assert found["flatterer_share"]["max"] == pytest.approx(0.01)


# --- the clock and the run ---


def test_the_clock_runs_by_decisions() -> None:
    """200 decisions are a day, other events take no time; after `let_go` it follows the machine's clock."""
    clock = RoundClock(400, 200)
    start = clock()
    decision = Decision(
        id="d", ts=0.0, draw_id="d", identity=Identity(), mode=Mode.ONLINE, eligible=("a",), chosen="a",
        propensity=1.0, policy=PolicyVersion(algorithm="uniform"),
    )  # fmt: skip
    for _ in range(200):
        clock.hear(Happened(decision))
    assert clock() - start == pytest.approx(86_400.0)
    for _ in range(200):
        clock.hear(Happened(decision))
    ended = clock()
    clock.let_go()
    assert 0.0 <= clock() - ended < 60.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    """(the JSON of a short run, its data folder, what it printed)."""
    folder = tmp_path_factory.mktemp("demo")
    out = folder / "demo.json"
    arguments = ["demo", "--exit", "--rounds", str(ROUNDS), "--seeds", "1"]
    result = CliRunner().invoke(app, [*arguments, "--json", str(out), "--data", str(folder / "data")])
    assert result.exit_code == 0, result.output
    return json.loads(out.read_text()), folder / "data", result.output


def test_a_run_over_http_adds_up(demo: tuple[dict[str, Any], Path, str]) -> None:
    """Every request is one decision, one execution and one score in DuckDB; every vote is there, and asked ones too."""
    document, data, _ = demo
    http = document["http"]
    assert http["rounds"] == ROUNDS
    assert http["warehouse"] == {
        "decisions": ROUNDS,
        "executions": ROUNDS,
        "scores": ROUNDS,
        "feedback": http["votes"],
    }
    assert http["requests"] == ROUNDS + http["votes"]
    assert 0.1 * ROUNDS < http["votes"] < 0.6 * ROUNDS
    warehouse = Warehouse(data / "fitrouter.duckdb")
    asked, users, roles = warehouse.query(
        "SELECT sum(asked::INT), count(DISTINCT user), count(DISTINCT role) FROM decisions"
    )[0]
    assert asked == http["asked"]
    assert (users > 20, roles) == (True, 4)
    assert warehouse.query("SELECT count(*) FROM executions WHERE status = 'ok' AND chosen = served_by") == [(ROUNDS,)]
    days = warehouse.query("SELECT (max(ts) - min(ts)) / 86400 FROM decisions")[0][0]
    assert days == pytest.approx(ROUNDS / 200, rel=0.1)
    heard = dict(warehouse.query("SELECT kind, count(*) FROM feedback GROUP BY kind"))
    assert set(heard) == {"thumb", "rating"}
    counted = warehouse.query("SELECT sum(cost_usd) FROM executions")[0][0]
    assert http["cost_usd"] == pytest.approx(counted)


async def test_people_of_the_demo_ask_again(demo: tuple[dict[str, Any], Path, str], world: DemoWorld) -> None:
    """All texts are kept, and somebody asks one question twice: where two models answered it, Try has a pair."""
    rows = Warehouse(demo[1] / "fitrouter.duckdb").query('SELECT "user", decision_id FROM decisions')
    async with Router.from_config(demo_config(world, demo[1])) as router:
        prompts = await router.prompts([decision for _, decision in rows])
    assert len(prompts) == ROUNDS
    assert max(Counter((user, prompts[decision]) for user, decision in rows).values()) > 1


def test_the_json_carries_all_that_a_reader_needs(demo: tuple[dict[str, Any], Path, str], world: DemoWorld) -> None:
    """World, settings, versions, seeds, rows and quarters are there; shares are shares."""
    document, _, _ = demo
    assert document["world"]["name"] == "demo"
    assert len(document["world"]["sha256"]) == 64
    assert document["config"]["feedback"]["ask"] == 0.03
    assert document["versions"]["fitrouter"]
    assert [result["seed"] for result in document["seeds"]] == [1]
    rows = {"random", "default model", "best single", "user-blind bandit", "user-blind + scores", "ours"}
    rows |= {"blind oracle", "knowing oracle"}
    for part in (document["http"], *document["seeds"]):
        assert set(part["rows"]) == rows
        for found in part["rows"].values():
            assert len(found["quarters"]) == 4
            assert sum(found["all_shares"].values()) == pytest.approx(1.0)
    assert set(document["summary"]) >= {"closed_mean", "above_best_single", "flatterer_share", "ours_over_user_blind"}
    assert set(document["http"]["traffic"]) == set(world.role_names)
    random = document["http"]["rows"]["random"]
    assert random["shares"][world.flatterer] == pytest.approx(1 / 6)


def test_the_summary_is_printed(demo: tuple[dict[str, Any], Path, str]) -> None:
    """Progress lines, and every row of the table."""
    _, _, printed = demo
    assert printed.count("round ") >= 4
    for row in (
        "random",
        "default model",
        "best single model",
        "user-blind bandit",
        "fitrouter",
        "oracle, knows tastes",
    ):
        assert row in printed


@pytest.mark.parametrize(("arguments", "seeds"), [([], 0), (["--seeds", "3"], 3), (["--exit"], 10)])
def test_seeds_are_run_at_the_end_or_on_request(
    arguments: list[str], seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console's address is the first line; what goes on serving skips the ten seeds of `--exit`."""
    ran, served = [], []
    monkeypatch.setattr(_command, "play_seeds", lambda world, stage, gammas, seeds, deadline: ran.extend(seeds) or [])
    monkeypatch.setattr(_command, "_serve_on", lambda url, console: served.append(url))
    result = CliRunner().invoke(app, ["demo", "--rounds", "8", *arguments])
    assert result.exit_code == 0, result.output
    first = result.output.splitlines()[0]
    assert re.fullmatch(r"Watch it in a browser: http://127\.0\.0\.1:\d+/console", first), first
    assert len(ran) == seeds
    assert served == ([] if "--exit" in arguments else [first.split()[-1].removesuffix("/console")])


def test_the_last_line_is_the_one_that_screenshots_wait_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`docs/screenshots.py` finds the console's address in it, once everything is in the log."""

    def wait() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_command, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=wait)))
    _command._serve_on("http://127.0.0.1:1", Console())
    assert "Ctrl-C ends it. The console: http://127.0.0.1:1/console\n" in capsys.readouterr().out
    screenshots = Path(__file__).parents[2] / "docs" / "screenshots.py"
    assert r'r"Ctrl-C ends it\. The console: (\S+)\n"' in screenshots.read_text()


def test_a_bounded_run_ends_early_with_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --seconds no round starts after the deadline; those that started are complete."""
    out, asked = tmp_path / "demo.json", itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 0.0 if next(asked) < 50 else math.inf)  # the deadline passes after 50
    monkeypatch.setattr(_visit, "time", clock)
    arguments = ["demo", "--exit", "--rounds", "100000", "--seconds", "60", "--seeds", "0", "--world", "null"]
    result = CliRunner().invoke(app, [*arguments, "--json", str(out)])
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert document["http"]["rounds"] == document["http"]["warehouse"]["decisions"] == 50
    assert document["summary"] is None


def test_data_must_be_a_new_folder(tmp_path: Path) -> None:
    """--data takes a new folder only."""
    (tmp_path / "journal.db").write_text("precious")
    result = CliRunner().invoke(app, ["demo", "--exit", "--rounds", "8", "--data", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert (tmp_path / "journal.db").read_text() == "precious"
