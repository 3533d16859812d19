"""Laws of the list of reward models: named, standardised, logged features, and no bad model holds up the scorer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.tiny_models import save_model

from fitrouter.config import RewardModelConfig, ScorerConfig, load_config, parse_config
from fitrouter.context.encoders import Static
from fitrouter.draw import uuid7
from fitrouter.errors import ConfigError
from fitrouter.hooks import Hooks, Trouble
from fitrouter.plain import pack, unpack
from fitrouter.posterior.tastes import TasteParams, Tastes
from fitrouter.state.learner import Learner
from fitrouter.stores.content import pack_content
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import Entry, MemoryJournal, Row
from fitrouter.types import Execution, Feedback, FeedbackKind, Floats, Identity, Score
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.models import Item, RewardModel, RewardModels, ScriptedModel
from fitrouter_evaluators.scoring.models.state import WARM_UP, ModelState, load_state
from fitrouter_evaluators.scoring.plugin import ScorerService, make_scorer

NOW = 1_800_000_000.0
X = np.array([1.0, 0.5])


def entry(name: str = "m", **settings: Any) -> RewardModelConfig:
    return RewardModelConfig(**({"name": name, "kind": "sequence_classification", "model": "/nowhere"} | settings))


def items(n: int, start: int = 0) -> list[Item]:
    return [
        Item(answer=Answer(text=f"{i} " * (i % 7 + 1)), decision_id=uuid7(NOW + i)) for i in range(start, start + n)
    ]


def length(item: Item) -> float:
    return 100.0 + len(item.answer.text)


class World:
    """A scorer with reward models over a journal in memory."""

    def __init__(self, folder: Path, configs: Sequence[RewardModelConfig], **replaced: Any) -> None:
        self.now = NOW
        self.journal, self.identities = MemoryJournal(), SqliteIdentities(folder / "identities.db")
        self.service: ScorerService = make_scorer(ScorerConfig(models=tuple(configs)), folder, {}, **replaced)
        self.learner = Learner(2, self.service.dim, schema=self.service.schema, names=self.service.names)
        self.troubles: list[str] = []
        hooks = Hooks(lambda notice: self.troubles.append(notice.part) if isinstance(notice, Trouble) else None)
        self.service.attach(self.journal, self.identities, self.learner, hooks, lambda: self.now)

    def answer(self, text: str, number: int, role: str = "cook") -> str:
        """Spool an answer."""
        decision_id, subject = uuid7(NOW + number), self.identities.subject("t", "ann")
        content = self.identities.encrypt(subject, pack_content("Why?", {"role": "assistant", "content": text}))
        who = Identity(tenant="t", user=subject, role=role)
        execution = Execution(
            id=f"{decision_id}:e", ts=NOW, decision_id=decision_id, identity=who, chosen="a", served_by="a",
            status="ok", features=pack(X),
        )  # fmt: skip
        self.journal.append(Entry(execution, content)).result()
        return decision_id

    def scored(self) -> dict[str, Score]:
        """Step until nothing is left; all scores by decision."""
        while self.service.step():
            pass
        return {
            row.event.decision_id: row.event for row in self.journal.tail(0, 10_000) if isinstance(row.event, Score)
        }

    def close(self) -> None:
        self.journal.close()
        self.identities.close()


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """Makes worlds, and closes them."""
    made: list[World] = []

    def make(configs: Sequence[RewardModelConfig], **replaced: Any) -> World:
        made.append(World(tmp_path, configs, **replaced))
        return made[-1]

    yield make
    for one in made:
        one.close()


# --- standardising ---


@given(st.lists(st.lists(st.floats(-1e3, 1e3) | st.just(np.nan), min_size=1, max_size=20), min_size=1, max_size=8))
def test_statistics_are_those_of_everything_seen(batches: list[list[float]]) -> None:
    """In whatever batches and order: number, mean and variance of the finite outputs; NaN stays NaN, all within ±3."""
    state = ModelState()
    state.begin("w", ("score",))
    for batch in batches:
        out = state.standardise(np.array(batch)[:, None])
        assert (np.isnan(out[:, 0]) | (np.abs(out[:, 0]) <= 3.0)).all()
        assert np.isnan(out[np.isnan(batch), 0]).all()
    seen = np.array([x for batch in batches for x in batch if np.isfinite(x)])
    assert state.n == [len(seen)]
    if len(seen):
        assert state.mean[0] == pytest.approx(seen.mean(), abs=1e-6)
        assert state.m2[0] == pytest.approx(((seen - seen.mean()) ** 2).sum(), rel=1e-6, abs=1e-6)


def test_a_feature_begins_after_its_warm_up() -> None:
    """Until there is a scale the feature is missing; then it has mean 0 and variance 1; a constant stays missing."""
    state, rng = ModelState(), np.random.default_rng(0)
    state.begin("w", ("a", "b"))
    x = np.column_stack([rng.normal(50.0, 9.0, 500), np.full(500, 7.0)])
    assert np.isnan(state.standardise(x[: WARM_UP - 1])).all()
    out = state.standardise(x[WARM_UP - 1 :])
    assert np.isnan(out[:, 1]).all()
    assert abs(out[:, 0].mean()) < 0.05
    assert abs(out[:, 0].std() - 1.0) < 0.05


def test_the_state_round_trips(tmp_path: Path) -> None:
    """A saved state reads back exactly and goes on alike; a damaged or missing file is a new state."""
    state, path = ModelState(usd=0.25, day=9), tmp_path / "rm" / "m.json"
    state.begin("w", ("a", "b"))
    x = np.random.default_rng(1).normal(size=(40, 2)) * [1.0, 1e-7]
    state.standardise(x)
    state.save(path)
    again = load_state(path)
    assert again == state
    assert again.standardise(x).tolist() == state.standardise(x).tolist()
    path.write_text('{"n": [1.0]}')
    assert load_state(path) == ModelState()
    path.write_text("{")
    assert load_state(path) == load_state(tmp_path / "none") == load_state(None) == ModelState()


def test_other_weights_begin_a_new_scale() -> None:
    """The same weights and dimensions keep the statistics; others drop them, but not what was spent today."""
    state = ModelState(usd=0.5)
    state.begin("w", ("a",))
    state.standardise(np.ones((20, 1)))
    state.begin("w", ("a",))
    assert state.n == [20.0]
    state.begin("v", ("a",))
    assert (state.n, state.usd) == ([0.0], 0.5)


# --- names and schema ---


def test_the_schema_follows_the_list(tmp_path: Path) -> None:
    """Names are `rm.NAME.DIMENSION` behind the built-in ones; a change of list, outputs or weights is a new schema."""
    plain = make_scorer(ScorerConfig())
    save_model(tmp_path / "a", "llama")
    save_model(tmp_path / "b", "qwen2", labels=2)
    one = entry("sky", model=str(tmp_path / "a"))
    two = entry("two", model=str(tmp_path / "b"), dimensions=("help", "truth"))
    lists = [(), (one,), (two,), (one, two), (two, one), (one.model_copy(update={"name": "sea"}),)]
    lists.append((two.model_copy(update={"dimensions": ("help", "verbosity")}),))
    made = [make_scorer(ScorerConfig(models=models)) for models in lists]
    assert made[3].names == (*plain.names, "rm.sky.score", "rm.two.help", "rm.two.truth")
    assert [service.dim for service in made] == [len(service.names) for service in made]
    assert (made[0].schema, made[0].names) == (plain.schema, plain.names)
    save_model(tmp_path / "a", "llama", initializer_range=0.4)
    schemas = [service.schema for service in made] + [make_scorer(ScorerConfig(models=(one,))).schema]
    assert len({*schemas}) == len(schemas)


def test_unknown_features_start_neutral() -> None:
    """The shipped prior has no reward model: mean 0 and the ordinary variance there, and the rest as without it."""
    with_model, plain = make_scorer(ScorerConfig(models=(entry(),))), make_scorer(ScorerConfig())
    assert with_model.prior is not None
    assert plain.prior is not None
    j, ordinary = with_model.names.index("rm.m.score"), Tastes(with_model.dim, TasteParams(), with_model.names)
    assert with_model.prior.mean[j] == 0.0
    assert with_model.prior.cov[j, j] == ordinary.population.cov[j, j] > 0
    assert not with_model.prior.cov[j, :j].any()
    assert with_model.prior.mean[:j].tolist() == plain.prior.mean.tolist()


# --- in the scorer ---


def test_a_model_scores_in_the_scorer(world: Callable[..., World], tmp_path: Path) -> None:
    """A real model's outputs enter h, standardised by everything that was scored; a restart goes on from the file."""
    save_model(tmp_path / "a", "llama", labels=2)
    config = entry("sky", model=str(tmp_path / "a"))
    made = world([config])
    texts = [f"it is {'good ' * (i % 9)} answer {i % 4}" for i in range(40)]
    ids = [made.answer(text, i) for i, text in enumerate(texts)]
    scores = made.scored()
    h = np.array([unpack(scores[i].h) for i in ids])
    built_in = ResponseFeatures(Static(), scalar=global_scalar(Static()))
    plain = built_in.encode([Answer(text=text, prompt="Why?") for text in texts])
    assert {score.schema for score in scores.values()} == {made.service.schema}
    np.testing.assert_allclose(h[:, :-3], plain, atol=1e-6)
    assert np.isfinite(h[-8:, -2:]).all()
    assert np.abs(h[-8:, -2:]).max() > 0.1
    assert made.troubles == []
    health = made.service.models()["sky"]
    assert (health.error, health.answers) == ("", 40)
    assert health.tokens > 0
    again = world([config])
    again.answer(texts[0], 99)
    (score,) = again.scored().values()
    assert np.isfinite(unpack(score.h)[-2:]).all()
    assert json.loads((tmp_path / "reward_models" / "sky.json").read_bytes())["n"] == [41.0, 41.0]


def test_a_missing_model_leaves_the_scorer_serving(world: Callable[..., World], tmp_path: Path) -> None:
    """A wrong path is reported with its remedy; answers are scored, its features are missing, other models count."""
    save_model(tmp_path / "a", "qwen2")
    made = world([entry("gone"), entry("sky", model=str(tmp_path / "a"))])
    assert made.troubles == ["reward model gone"]
    ids = [made.answer(f"it is good {'long ' * i}", i) for i in range(20)]
    scores = made.scored()
    h = unpack(scores[ids[-1]].h)
    assert {score.status for score in scores.values()} == {"ok"}
    assert np.isnan(h[made.service.names.index("rm.gone.score")])
    assert np.isfinite(h[made.service.names.index("rm.sky.score")])
    health = made.service.models()
    assert "no folder '/nowhere'" in health["gone"].error
    assert (health["gone"].missing, health["sky"].error) == (20, "")


def test_a_model_that_is_gone_for_a_while_keeps_the_schema(world: Callable[..., World], tmp_path: Path) -> None:
    """A model that was there once and cannot be read at a later start keeps names and schema, so tastes are kept."""
    save_model(tmp_path / "a", "llama", labels=2)
    config = entry("sky", model=str(tmp_path / "a"))
    before = world([config])
    before.answer("it is good", 0)
    before.scored()
    (tmp_path / "a").rename(tmp_path / "b")
    during = world([config])
    assert (during.service.names, during.service.schema) == (before.service.names, before.service.schema)
    during.answer("it is good", 1)
    (score,) = during.scored().values()
    assert np.isnan(unpack(score.h)[-2:]).all()


def test_whatever_a_model_does_the_scorer_goes_on(
    world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN, infinities, the wrong shape, exceptions: masked, reported, counted; the others' features stay right."""
    from fitrouter_evaluators.scoring.models import reward_models

    monkeypatch.setitem(reward_models._DESCRIBE, "sequence_classification", _described)

    class Raises:
        def score(self, items: Sequence[Item]) -> Floats:
            raise RuntimeError("device-side assert")

    def half(item: Item) -> float:
        return np.nan if "bad" in item.answer.text else length(item)

    loaded: dict[str, RewardModel] = {
        "raises": Raises(),
        "shape": ScriptedModel(lambda _item: (1.0, 2.0)),
        "half": ScriptedModel(half),
        "inf": ScriptedModel(lambda _item: np.inf),
        "good": ScriptedModel(length),
    }
    made = world([entry(name) for name in loaded], loaded=loaded)
    ids = [made.answer(("bad " if i % 2 else "good ") * (i + 1), i) for i in range(32)]
    h = np.array([unpack(made.scored()[i].h)[-5:] for i in ids])
    bad = np.arange(32) % 2 == 1
    assert np.isnan(h[:, [0, 1, 3]]).all()
    assert np.isnan(h[bad, 2]).all()
    assert np.isfinite(h[-4:, 4]).all()
    assert np.isfinite(h[-2, 2])
    health = made.service.models()
    assert "device-side assert" in health["raises"].error
    assert "shape (16, 2)" in health["shape"].error
    assert "no finite numbers" in health["inf"].error
    assert (health["good"].error, health["raises"].missing) == ("", 32)
    assert {"reward model raises", "reward model shape", "reward model half", "reward model inf"} == {*made.troubles}


def _described(config: RewardModelConfig) -> Any:
    from fitrouter_evaluators.scoring.models.reward_model import Description

    return Description(config.dimensions or ("score",), config.model)


def test_a_useful_feature_earns_weight(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that follow a reward model's output teach its feature a positive weight, through the fold."""
    from fitrouter_evaluators.scoring.models import reward_models

    monkeypatch.setitem(reward_models._DESCRIBE, "sequence_classification", _described)
    draw = np.random.default_rng(3)
    truth = {f"answer {i}": float(draw.normal()) for i in range(200)}
    made = world([entry()], loaded={"m": ScriptedModel(lambda item: 5.0 * truth[item.answer.text])})
    ids = [made.answer(text, i) for i, text in enumerate(truth)]
    scores = made.scored()
    for seq, (decision_id, quality) in enumerate(zip(ids, truth.values(), strict=True)):
        made.learner.apply(Row(2 * seq + 1, scores[decision_id]))
        vote = Feedback(
            id=uuid7(NOW + seq), ts=NOW + seq, decision_id=decision_id, identity=scores[decision_id].identity,
            kind=FeedbackKind.THUMB, value=float(quality > 0),
        )  # fmt: skip
        made.learner.apply(Row(2 * seq + 2, vote), [scores[decision_id]])
    weights = made.learner.fit.taste(scores[ids[0]].identity)
    j = made.service.names.index("rm.m.score")
    assert weights[j] == max(weights[1:]) > 0.02
    assert weights[j] > 2.0 * np.abs(np.delete(weights, [0, j])).max()


# --- settings ---


def plain(**model: Any) -> dict[str, Any]:
    return {
        "providers": {"p": {"kind": "simulated"}},
        "models": [{"name": "m", "provider": "p"}],
        "scorer": {"models": [{"name": "r", "kind": "sequence_classification", "model": "a/b"} | model]},
    }


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "embedding"}, r"no 'basis'; `fitrouter train basis`"),
        ({"head": "regression_layer"}, r"list the names of its outputs as 'dimensions'"),
        ({"kind": "judge"}, r"give it a 'provider' and 'principles'"),
        ({"kind": "judge", "provider": "p", "principles": {"*": ["Be kind"]}}, r"send_text: true"),
        ({"kind": "judge", "provider": "q", "principles": {"*": ["x"]}, "send_text": True}, r"unknown provider 'q'"),
        ({"dimensions": ["a", "a"]}, r"names must be unique"),
        ({"basi": "x"}, r"scorer\.models\.0\.basi: unknown setting; did you mean 'basis'"),
        ({"name": "R M"}, r"scorer\.models\.0\.name"),
    ],
)
def test_settings_are_checked(model: dict[str, Any], message: str) -> None:
    """Every mistake names the place, what is allowed, and the remedy."""
    with pytest.raises(ConfigError, match=message):
        parse_config(plain(**model))


def test_names_are_unique() -> None:
    """Two reward models of one name are refused."""
    config = plain()
    config["scorer"]["models"] *= 2
    with pytest.raises(ConfigError, match=r"scorer\.models: the names are \['r', 'r'\]"):
        parse_config(config)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """Folders that are there, and names that look like paths, are relative to the configuration; hub ids stay."""
    (tmp_path / "models" / "sky").mkdir(parents=True)
    config = plain()
    config["scorer"]["models"] = [
        {"name": f"r{i}", "kind": "embedding", "model": model, "basis": "b.safetensors"}
        for i, model in enumerate(("models/sky", "./other", "owner/name", "/absolute"))
    ]
    (tmp_path / "fitrouter.yaml").write_text(json.dumps(config))
    found = load_config(tmp_path / "fitrouter.yaml").scorer.models
    assert [model.model for model in found] == [
        str(tmp_path / "models/sky"), str(tmp_path / "other"), "owner/name", "/absolute",
    ]  # fmt: skip
    assert found[0].basis == tmp_path / "b.safetensors"


def test_features_never_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """No items, and no models, are no special case."""
    from fitrouter_evaluators.scoring.models import reward_models

    monkeypatch.setitem(reward_models._DESCRIBE, "sequence_classification", _described)
    models = RewardModels([entry()], loaded={"m": ScriptedModel(length)})
    assert models.features([]).shape == (0, 1)
    assert RewardModels([]).features(items(3)).shape == (3, 0)
    assert np.isnan(models.features(items(3))).all()
    assert np.isfinite(models.features(items(30, 3))).all()


@pytest.mark.parametrize("damage", [b"{", b'{"dimensions": 7}', b""])
def test_damaged_statistics_are_told(damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A state that is not there is new; one that cannot be read, with a judge's costs, begins anew and is logged."""
    path = tmp_path / "state.json"
    with caplog.at_level(logging.WARNING):
        assert load_state(path) == ModelState()
        assert not caplog.messages
        path.write_bytes(damage)
        assert load_state(path) == ModelState()
    assert "not readable" in caplog.text
    told: list[Exception] = []
    assert load_state(path, told.append) == ModelState()
    assert ["not readable, and begin anew" in str(error) for error in told] == [True]


def test_a_damaged_state_is_reported_with_its_model(tmp_path: Path) -> None:
    """Whoever attaches the hooks learns which model has lost its statistics and costs."""
    (tmp_path / "reward_models").mkdir()
    (tmp_path / "reward_models" / "r.json").write_bytes(b"{")
    models, told = RewardModels([entry("r")], data=tmp_path), list[tuple[str, str]]()
    models.attach(lambda part, error: told.append((part, str(error))))
    assert [part for part, error in told if "begin anew" in error] == ["reward model r"]
