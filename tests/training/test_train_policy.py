"""Laws of the warm start: it helps where it is right, washes out where it is wrong, and is never worth a failure."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.gateway import wait_for
from typer.testing import CliRunner

from fitrouter.config import Config, parse_config
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, context_names, read_prompt
from fitrouter.errors import ArtifactError, ConfigError
from fitrouter.hooks import Hooks, Notice, Trouble
from fitrouter.policies import SquareCB
from fitrouter.posterior.arm_prior import MAGIC, ArmPrior, ModelPrior, load, pack_prior
from fitrouter.posterior.arms import ArmParams, Arms
from fitrouter.posterior.labels import FitParams
from fitrouter.router import Router
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import Event, Feedback, FeedbackKind, Identity, ModelCard, Request, Score
from fitrouter_evaluators.datasets import Cell, MatrixRow, Rating, write_jsonl, write_parquet
from fitrouter_evaluators.training.train_policy import TRUST, discounted, train_policy
from fitrouter_integrations import cli

TOPICS = (
    "sort the list with a python function and a loop",
    "write a poem in rhyme and verse about autumn",
    "what does the tax law say about dividends",
    "prove the theorem by induction over integers",
)
QUALITY = np.array([[0.9, 0.5, 0.6, 0.3], [0.3, 0.9, 0.5, 0.5], [0.5, 0.4, 0.9, 0.6], [0.6, 0.6, 0.4, 0.9]])
"""Model × topic."""
MODELS = ("ant", "bee", "cat", "dog")
D_X = len(context_names())


def config(**changes: Any) -> Config:
    """Hashing encoders and four simulated models."""
    base: dict[str, Any] = {
        "providers": {"s": {"kind": "simulated"}},
        "models": [{"name": name, "provider": "s", "prices": {"output": 2.0}} for name in MODELS],
        "encoder": "hashing",
        "scorer": {"encoder": "none"},
    }
    return parse_config(base | changes)


def matrix(n: int, seed: int = 0, **cell: Any) -> list[MatrixRow]:
    """Prompts of four topics, and how good each model is at each, with noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        topic = int(rng.integers(4))
        words = rng.permutation(TOPICS[topic].split())
        rewards = np.clip(QUALITY[:, topic] + 0.1 * rng.normal(size=4), 0.0, 1.0)
        cells = {name: Cell(reward=float(y), **cell) for name, y in zip(MODELS, rewards, strict=True)}
        rows.append(MatrixRow(prompt=f"{' '.join(words)} number {i}", models=cells))
    return rows


def trained(folder: Path, rows: Sequence[MatrixRow], name: str = "m", **more: Any) -> ArmPrior:
    data = folder / f"{name}.jsonl"
    write_jsonl(data, rows)
    sheet = train_policy(data, folder / f"{name}.arms", config(), **more)
    return here(Path(sheet["path"]))


def here(path: Path, **changes: Any) -> ArmPrior:
    """Read a file as the installation of `config` would."""
    wanted = {"d": D_X, "D": 1, "encoder": get_encoder("hashing").id, "schema": ""}
    return load(path, **(wanted | changes))


def regrets(rows: Sequence[MatrixRow], prior: ArmPrior | None, seed: int) -> np.ndarray:
    """What the product's own decisions lose on a stream of prompts, round by round, every answer rated."""
    encoder = get_encoder("hashing")
    learner = Learner(D_X, 1, params=FitParams(personal=False))
    if prior is not None:
        assert prior.apply(learner.fit.arms, MODELS) == MODELS
    for name in MODELS:
        learner.fit.arms.row(name)
    decider = Decider(SquareCB(gamma=640.0), learner, Rules(floor=0.05, newcomer_floor=0.0, seed=seed))
    cards = [ModelCard(name=name, provider="s") for name in MODELS]
    lost, seq = [], 0
    for i, row in enumerate(rows):
        x = context_features(read_prompt(Request(messages=({"role": "user", "content": row.prompt},))), encoder)
        decision = decider.decide(str(uuid.UUID(int=i)), float(i), Identity(), x, cards)
        rewards = {name: cell.reward for name, cell in row.models.items()}
        lost.append(max(rewards.values()) - rewards[decision.chosen])
        who = {"ts": float(i), "decision_id": decision.id, "identity": Identity(user=f"u{i}")}
        score = Score(id=f"s{i}", served_by=decision.chosen, features=decision.features, status="failed", **who)
        vote = Feedback(id=f"f{i}", kind=FeedbackKind.RATING, value=rewards[decision.chosen], **who)
        for event, related in ((score, []), (vote, [score])):
            seq += 1
            learner.apply(Row(seq, event), list[Event](related))
    return np.array(lost)


@pytest.fixture(scope="module")
def halves() -> tuple[list[MatrixRow], list[MatrixRow]]:
    rows = matrix(1000)
    return rows[:400], rows[400:]


def test_a_warm_start_saves_early_regret(halves: tuple[list[MatrixRow], list[MatrixRow]], tmp_path: Path) -> None:
    """Half of a matrix teaches the other: the first hundred rounds lose less than six tenths as much."""
    known, stream = halves
    prior = trained(tmp_path, known)
    cold = sum(regrets(stream[:100], None, seed).sum() for seed in range(3))
    warm = sum(regrets(stream[:100], prior, seed).sum() for seed in range(3))
    assert warm < 0.6 * cold


def test_a_wrong_prior_washes_out(halves: tuple[list[MatrixRow], list[MatrixRow]], tmp_path: Path) -> None:
    """With every model under another's name it begins worse than cold, and ends about as well."""
    known, stream = halves
    turned = dict(zip(MODELS, MODELS[1:] + MODELS[:1], strict=True))
    wrong = [
        msgspec.structs.replace(row, models={turned[name]: cell for name, cell in row.models.items()}) for row in known
    ]
    prior = trained(tmp_path, wrong)
    cold = sum(regrets(stream, None, seed) for seed in range(3))
    misled = sum(regrets(stream, prior, seed) for seed in range(3))
    assert misled[:50].sum() > cold[:50].sum()
    assert misled[-100:].sum() < 0.2 * misled[:100].sum()
    assert (misled[-100:].sum() - cold[-100:].sum()) / 300 < 0.03


def test_what_was_learnt_counts_as_much_as_it_is_trusted(tmp_path: Path) -> None:
    """Narrower with more trust, never wider than without a file; the same data give the same bytes."""
    rows = matrix(100)
    plain = Arms(D_X, 1, ArmParams())
    plain.row("ant")
    variances = []
    for trust in (1.0, 5.0, 50.0, 1e9):
        arms = Arms(D_X, 1, ArmParams())
        prior = trained(tmp_path, rows, trust=trust)
        assert prior.models["ant"].worth["correction"] == min(trust, 100.0)
        assert prior.models["ant"].seen == {"correction": 100}
        assert prior.apply(arms, ["ant", "zebra"]) == ("ant",)
        variances.append(float(np.trace(arms.correction_cov[arms.names["ant"], 0])))
        assert "zebra" not in arms.names
        assert prior.id == trained(tmp_path, rows, trust=trust).id
    assert variances == sorted(variances, reverse=True)
    assert variances[0] < float(np.trace(plain.correction_cov[1, -1]))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), share=st.floats(0.01, 1.0), n=st.integers(1, 40), outputs=st.integers(1, 3))
def test_discounting_is_the_posterior_of_weighed_observations(seed: int, share: float, n: int, outputs: int) -> None:
    """It equals the ridge whose observations each count for the share, and with share 1 it changes nothing."""
    rng = np.random.default_rng(seed)
    d = 4
    prior, start = np.diag(rng.uniform(0.05, 2.0, d)), rng.normal(size=(d, outputs))
    x, y = rng.normal(size=(n, d)), rng.normal(size=(n, outputs))

    def posterior(rho: float) -> tuple[np.ndarray, np.ndarray]:
        precision = np.linalg.inv(prior) + rho * x.T @ x
        return np.linalg.solve(precision, np.linalg.inv(prior) @ start + rho * x.T @ y), np.linalg.inv(precision)

    for rho in (share, 1.0):
        mean, cov = discounted(start, prior, *posterior(1.0), rho)
        wanted = posterior(rho)
        np.testing.assert_allclose(mean, wanted[0], atol=1e-8)
        np.testing.assert_allclose(cov, wanted[1], atol=1e-8)


def test_variants_and_revisions_start_from_their_model(tmp_path: Path) -> None:
    """A new revision starts as the model; what variants share starts with it; an arm that has begun to learn stays."""
    prior = trained(tmp_path, matrix(20))
    arms = Arms(D_X, 1, ArmParams())
    assert prior.apply(arms, ["ant#brief@2026", "ant", "ant", "bee#long"]) == ("ant@2026", "ant", "bee")
    assert arms.model("ant#brief@2026") == arms.names["ant@2026"] == 1
    np.testing.assert_array_equal(arms.correction[1], arms.correction[2])
    arms.correction[2] = 7.0
    assert prior.apply(arms, ["ant"]) == ()
    assert float(arms.correction[2, 0, 0]) == 7.0
    assert prior.apply(arms, ["ant@2027"]) == ()  # the arm itself says more of its next revision than the file does


def test_costs_and_texts_teach_operations_and_profiles(tmp_path: Path) -> None:
    """With prices, times and answers all three blocks are learnt; over other features the profile is left out."""
    rows = matrix(30, cost_usd=200e-6, latency_s=3.0, response="- Well, this may be long.\n- Perhaps.")
    data, out = tmp_path / "m.parquet", tmp_path / "m.arms"
    write_parquet(data, rows)
    full = config(scorer={"encoder": "hashing", "prior": "none"})
    sheet = train_policy(data, out, full, trust=1e9)
    assert sheet["models"]["ant"] == {"correction": 30, "profile": 30, "operations": 30}
    made = _any(out)
    arms = Arms(D_X, made.D, ArmParams())
    here(out, D=made.D, schema=made.schema).apply(arms, ["ant"])
    said = Request(messages=({"role": "user", "content": rows[0].prompt},))
    x = context_features(read_prompt(said), get_encoder("hashing"))
    tokens, seconds = arms.operations[1] @ x
    assert tokens == pytest.approx(100.0, rel=0.1)
    assert seconds == pytest.approx(3.0, rel=0.1)
    assert arms.responses[1] == 30
    assert np.abs(x @ arms.profile[1])[1:].max() > 0.1
    other = here(out)
    assert set(other.models["ant"].blocks) == {"correction", "operations"}
    texts = train_policy(data, tmp_path / "n.arms", full, responses=False)
    assert set(texts["models"]["ant"]) == {"correction", "operations"}


def _any(path: Path) -> ArmPrior:
    payload = path.read_bytes()[len(MAGIC) + 32 :]
    return msgspec.msgpack.decode(payload, type=ArmPrior)


def test_ratings_with_model_names_teach_too(tmp_path: Path) -> None:
    """Ratings on any scale; other dimensions and rows without a model take no part, bad lines are counted."""
    rng = np.random.default_rng(0)
    rows = [
        Rating(f"u{i % 5}", f"{TOPICS[i % 4]} {i}", float(rng.integers(4, 6)), (1.0, 5.0), model="ant")
        for i in range(40)
    ]
    rows += [Rating("u", "p", 1.0, (1.0, 5.0), model="bee", dimension="tone"), Rating("u", "p", 1.0, (1.0, 5.0))]
    data = tmp_path / "r.jsonl"
    write_jsonl(data, rows)
    with data.open("a") as file:
        file.write('{"user": 1}\n')
    sheet = train_policy(data, tmp_path, config())
    assert sheet["models"] == {"ant": {"correction": 40}}
    assert (sheet["problems"], sheet["labels"]) == (1, 40)
    assert Path(sheet["path"]).name == f"{sheet['sha256']}.arms"
    prior = here(Path(sheet["path"]))
    assert (
        prior.id == sheet["sha256"] == hashlib.sha256(Path(sheet["path"]).read_bytes()[len(MAGIC) + 32 :]).hexdigest()
    )
    arms = Arms(D_X, 1, ArmParams())
    prior.apply(arms, ["ant"])
    assert (arms.correction[1, :, 0] > 0.02).all()


async def test_an_installation_teaches_another(tmp_path: Path) -> None:
    """A journal, and the same as exported tables, give the same prior."""
    import duckdb

    personas = {"kind": "simulated", "options": {name: {"length": 2 + i} for i, name in enumerate(MODELS)}}
    settings_ = config(
        data=str(tmp_path / "d"), scorer={"encoder": "hashing", "prior": "none"}, providers={"s": personas}
    )
    async with Router.from_config(settings_) as router:
        for i in range(8):
            message = {"role": "user", "content": f"{TOPICS[i % 4]} {i}"}
            answer = await router.complete(Request(messages=(message,), identity=Identity(user=f"u{i % 3}")))
            await router.feedback(answer.decision.id, FeedbackKind.THUMB, float(answer.served_by == "ant"))
        await router.settled()
        await asyncio.to_thread(wait_for, lambda: router._learner.fit.labels == 8)
        await router.settled()
        assert router._feed is not None
        await asyncio.to_thread(wait_for, lambda: router._feed.warehouse.position() == router._journal.head())
    from_journal = train_policy(tmp_path / "d", tmp_path / "a.arms", settings_)
    tables = tmp_path / "tables"
    tables.mkdir()
    with duckdb.connect(tmp_path / "d" / "fitrouter.duckdb", read_only=True) as connection:
        for name in ("decisions", "executions", "scores", "feedback"):
            connection.table(name).write_parquet(str(tables / f"{name}.parquet"))
    from_tables = train_policy(tables, tmp_path / "b.arms", settings_)
    assert from_journal["models"] == from_tables["models"]
    assert sum(seen["correction"] for seen in from_journal["models"].values()) == 8
    one, two = _any(tmp_path / "a.arms"), _any(tmp_path / "b.arms")
    assert one.models == two.models
    other = config(encoder="static")
    for data in (tmp_path / "d", tables):
        with pytest.raises(ConfigError, match="--config"):
            train_policy(data, tmp_path / "c.arms", other)


def damaged(content: bytes) -> dict[str, bytes]:
    """Ways in which a file can be no prior."""
    at = len(content) // 2
    prior = msgspec.msgpack.decode(content[len(MAGIC) + 32 :], type=ArmPrior)

    def with_model(model: ModelPrior) -> bytes:
        return pack_prior(msgspec.structs.replace(prior, models={"ant": model}))[0]

    ant = prior.models["ant"]
    mean, cov = ant.blocks["correction"]
    nan = np.full(D_X, np.nan).tobytes()
    return {
        "is no prior of models": b"PK" + content,
        "its sha256 does not match": content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
        "was cut": content[:-5],
        "cannot be used": pack_prior(prior)[0][: len(MAGIC)] + hashlib.sha256(b"\x81").digest() + b"\x81",
        "not finite": with_model(msgspec.structs.replace(ant, blocks={"correction": (nan, cov)})),
        "has 8 bytes": with_model(msgspec.structs.replace(ant, blocks={"correction": (b"12345678", cov)})),
        "covariance of correction is none": with_model(
            msgspec.structs.replace(ant, blocks={"correction": (mean, np.full((D_X, D_X), -1.0).tobytes())})
        ),
        "a block 'taste'": with_model(msgspec.structs.replace(ant, blocks={"taste": (mean, cov)})),
    }


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Cut, changed, of another kind, with numbers that nothing can have: one clear error each, and nothing loaded."""
    trained(tmp_path, matrix(10))
    for words, content in damaged((tmp_path / "m.arms").read_bytes()).items():
        (tmp_path / "bad.arms").write_bytes(content)
        with pytest.raises(ArtifactError, match=words) as raised:
            here(tmp_path / "bad.arms")
        assert "fitrouter train policy" in str(raised.value)
    with pytest.raises(ArtifactError, match="cannot be read"):
        here(tmp_path / "missing.arms")
    with pytest.raises(ArtifactError, match="train it again with this configuration"):
        here(tmp_path / "m.arms", encoder="other-1")


@settings(max_examples=30)
@given(data=st.data())
def test_no_bytes_break_the_reader(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever stands in a file, it is a prior or an `ArtifactError`."""
    content = data.draw(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: MAGIC + tail)))
    payload = data.draw(st.sampled_from([content, MAGIC + hashlib.sha256(content).digest() + content]))
    path = tmp_path_factory.mktemp("bytes") / "x.arms"
    path.write_bytes(payload)
    with pytest.raises(ArtifactError):
        here(path)


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        (matrix(3), {"trust": 0.0}, "--trust"),
        (matrix(3), {"scale": (1.0, 0.0)}, "--scale"),
        (matrix(3), {"scale": (0.0, 0.1)}, "--scale LOW HIGH"),
        ([Rating("u", "p", 1.0, (0.0, 1.0))], {}, "names no model"),
    ],
)
def test_data_that_cannot_be_used_is_explained(
    tmp_path: Path, rows: Sequence[Any], more: dict[str, Any], words: str
) -> None:
    """What was given, what is allowed, what to do."""
    data = tmp_path / "m.jsonl"
    write_jsonl(data, rows)
    with pytest.raises(ConfigError, match=words):
        train_policy(data, tmp_path / "m.arms", config(), **more)
    with pytest.raises(ConfigError, match="no file"):
        train_policy(tmp_path / "nowhere.jsonl", tmp_path / "m.arms", config())
    with pytest.raises(ConfigError, match=r"neither a journal\.db nor"):
        train_policy(tmp_path, tmp_path / "m.arms", config())


def test_the_command_makes_the_file(tmp_path: Path) -> None:
    """`fitrouter train policy` writes what an installation with the same encoders can start from."""
    data, out = tmp_path / "m.jsonl", tmp_path / "models.arms"
    write_jsonl(data, matrix(12))
    (tmp_path / "fitrouter.yaml").write_text(
        "providers: {s: {kind: simulated}}\nmodels: [{name: ant, provider: s}]\n"
        "encoder: hashing\nscorer: {encoder: none}\n"
    )
    arguments = [
        "train",
        "policy",
        "--data",
        str(data),
        "--out",
        str(out),
        "--config",
        str(tmp_path / "fitrouter.yaml"),
    ]
    result = CliRunner().invoke(cli.app, [*arguments, "--trust", "7", "--scale", "0", "1"])
    assert result.exit_code == 0, result.output
    sheet = json.loads(result.output)
    assert sheet["models"]["dog"] == {"correction": 12}
    assert here(out).id == sheet["sha256"]
    assert here(out).models["dog"].worth == {"correction": 7.0}
    wrong = CliRunner().invoke(cli.app, [*arguments, "--scale", "0", "0.1"])
    assert isinstance(wrong.exception, ConfigError)
    assert TRUST == 5.0  # the option's default, written out so that help loads nothing heavy


@pytest.mark.parametrize("damage", [False, True])
async def test_a_router_starts_with_the_file_and_without_a_damaged_one(tmp_path: Path, damage: bool) -> None:
    """A good file is where models begin; a bad one is trouble that is told, and every request is answered."""
    trained(tmp_path, matrix(40), trust=40.0)
    path = tmp_path / "m.arms"
    if damage:
        path.write_bytes(path.read_bytes()[:-1])
    personas = {"kind": "simulated", "options": {name: {"length": 2} for name in MODELS}}
    notices: list[Notice] = []
    settings_ = config(data=str(tmp_path / "d"), providers={"s": personas}, policy={"prior": str(path)})
    async with Router.from_config(settings_, hooks=Hooks(notices.append)) as router:
        await asyncio.to_thread(wait_for, lambda: router._learner.fit.arms.names)  # the registry is an event too
        answer = await router.complete(Request(messages=({"role": "user", "content": TOPICS[0]},)))
        await router.settled()
        means = dict(zip(answer.decision.eligible, answer.decision.mean, strict=True))
        blank = router._learner.blank()
        assert blank.version == router._learner.version
    told = [notice.part for notice in notices if isinstance(notice, Trouble)]
    assert told == (["policy"] if damage else [])
    assert (len(set(means.values())) == 1) is damage
    if not damage:
        assert max(means, key=lambda name: means[name]) == "ant"
