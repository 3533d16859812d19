"""Laws of the population prior: one command makes it, nothing is executed to read it, and it speaks by names."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.scoring.attacks import battle, honest_answers
from tests.kits.datasets import folder
from typer.testing import CliRunner

from fitrouter.config import ScorerConfig, load_config
from fitrouter.context.encoders import get_encoder
from fitrouter.errors import ConfigError
from fitrouter.posterior.model import Fit
from fitrouter.posterior.tastes import TasteParams, Tastes
from fitrouter.types import ArtifactChange, Identity
from fitrouter_evaluators.datasets import Pair, Rating, Text, write_jsonl
from fitrouter_evaluators.scoring import ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.plugin import make_scorer
from fitrouter_evaluators.scoring.prior import load_prior, read_sheet, shipped_prior, write_prior
from fitrouter_evaluators.training.train_prior import train_prior
from fitrouter_integrations.cli import app

NAMES = ("one", "g", "length", "latent_0")


def _arrays(D: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(D, D)) / 10
    return {
        "mean": rng.normal(size=D) / 10,
        "cov": root @ root.T + 1e-3 * np.eye(D),
    }


def test_round_trip_by_names(tmp_path: Path) -> None:
    """What is written is read, in whatever order the features stand; what the file does not know is as without it."""
    path, arrays = tmp_path / "p.safetensors", _arrays()
    write_prior(path, NAMES, "enc", arrays, {"why": "test"})
    names = ("one", "latent_0", "new", "length", "g")
    prior = load_prior(path, names, "enc")
    there = [0, 3, 2, 1]
    here = [0, 1, 3, 4]
    np.testing.assert_array_equal(prior.mean[here], arrays["mean"][there])
    np.testing.assert_array_equal(prior.cov[np.ix_(here, here)], arrays["cov"][np.ix_(there, there)])
    plain = Tastes(5, TasteParams())
    assert prior.mean[2] == 0.0
    assert prior.cov[2, 2] == plain.population.cov[2, 2]
    assert read_sheet(path) == {"why": "test"}


def test_latents_of_another_encoder_are_not_taken(tmp_path: Path) -> None:
    """A latent direction means something only for the encoder that it was learnt with."""
    path = tmp_path / "p.safetensors"
    write_prior(path, NAMES, "enc", _arrays(), {})
    prior = load_prior(path, NAMES, "other encoder")
    assert prior.mean[3] == 0.0
    assert prior.mean[1] == _arrays()["mean"][1]


@pytest.mark.parametrize("harm", ["missing", "cut", "text", "nan", "negative", "shape"])
def test_a_file_that_is_no_prior_is_named(tmp_path: Path, harm: str) -> None:
    """A missing, damaged or impossible file is a ConfigError that names it."""
    path, arrays = tmp_path / "p.safetensors", _arrays()
    if harm == "nan":
        arrays["mean"][0] = np.nan
    if harm == "negative":
        arrays["cov"][1, 1] = -1.0
    if harm == "shape":
        arrays["cov"] = np.eye(3)
    write_prior(path, NAMES, "enc", arrays, {})
    if harm == "missing":
        path.unlink()
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:50])
    if harm == "text":
        path.write_text("not a prior")
    with pytest.raises(ConfigError, match=r"p\.safetensors"):
        load_prior(path, NAMES, "enc")


def test_the_shipped_prior_is_what_the_scorer_starts_from() -> None:
    """By default; `none` starts from nothing; g, which people's votes taught, is liked."""
    service = make_scorer(ScorerConfig())
    assert service.prior is not None
    g = service.names.index("g")
    assert service.prior.mean[g] > 0
    assert make_scorer(ScorerConfig(prior="none")).prior is None
    with pytest.raises(ConfigError, match=r"nowhere\.safetensors"):
        make_scorer(ScorerConfig(prior="nowhere.safetensors"))
    fit = Fit(2, service.dim, names=service.names, prior=service.prior)
    h = np.zeros(service.dim)
    h[0] = 1.0
    better = h.copy()
    better[g] = 1.0
    assert fit.score(Identity(), better)[0] > fit.score(Identity(), h)[0]


def test_its_data_sheet_says_where_it_comes_from() -> None:
    """Sources with licences and counts, and what it was worth to each when that one was left out: it harms none."""
    sheet = read_sheet()
    assert {source["name"] for source in sheet["sources"]} >= {"mt_bench_human", "halie", "realhumaneval"}
    for source in sheet["sources"]:
        assert source["licence"] != "not stated"
        assert source["users"] > 5
        assert source["labels"] > 100
        assert source["left_out_gain_nats"] > -0.5
    assert sum(source["left_out_gain_nats"] for source in sheet["sources"]) > 5.0


def test_attacks_lose_against_it() -> None:
    """Criterion 6 on the shipped head: constant replies lose to the median honest answer, and so do dressed-up ones."""
    path = folder("alpaca_eval") / "responses.parquet"
    service = make_scorer(ScorerConfig())
    assert service.prior is not None
    w = service.prior.mean[1:]
    encoder = get_encoder("static")
    features = ResponseFeatures(encoder, scalar=global_scalar(encoder))
    answers, replies = honest_answers(path, 40)
    head = {"shipped": lambda h: np.nan_to_num(h)[:, 1:] @ w[: features.dim - 1]}  # nobody declared anything
    for verdict in battle(answers, head, features.encode, replies=replies, sample=40):
        assert verdict.margin < 0.0, verdict
        assert verdict.lift is None or verdict.lift <= 0.0, verdict
        assert verdict.on == "constant" or verdict.above <= 0.12, verdict


def test_it_is_small_and_safe() -> None:
    """A few kilobytes of safetensors, whose header is JSON."""
    from importlib import resources

    payload = (resources.files("fitrouter_evaluators.scoring") / "data" / "prior.safetensors").read_bytes()
    assert len(payload) < 40_000
    size = int.from_bytes(payload[:8], "little")
    assert set(json.loads(payload[8 : 8 + size])) == {"__metadata__", "mean", "cov"}


def _files(data: Path, rng: np.random.Generator) -> None:
    """A pairs and a ratings file of people who like headings and lists, written with the same pen."""
    plain, rich = "It rains because clouds cool down.", "# Why it rains\n\n- clouds rise\n- they cool\n- it rains"
    pairs, ratings = [], []
    for u in range(12):
        for i in range(8):
            good = rng.random() < 0.9
            a, b = (rich, plain) if i % 2 else (plain, rich)
            a, b = f"{a} ({u}.{i})", f"{b} ({i}.{u})"
            pairs.append(Pair(f"u{u}", "Why does it rain?", Text(a), Text(b), float((i % 2 == 1) == good)))
            text, rating = (rich, 5) if good else (plain, 2)
            ratings.append(Rating(f"v{u}", "Why?", rating, (1, 5), f"{text} {u} {i}"))
    write_jsonl(data / "pairs.jsonl", pairs)
    write_jsonl(data / "ratings.jsonl", ratings)


def test_one_command_learns_from_open_formats(tmp_path: Path) -> None:
    """`fitrouter train prior` on a folder of files: what people like is liked, twice the same bytes."""
    data = tmp_path / "data"
    data.mkdir()
    _files(data, np.random.default_rng(0))
    digests = []
    for name in ("one", "two"):
        out = tmp_path / f"{name}.safetensors"
        result = CliRunner().invoke(app, ["train", "prior", "--data", str(data), "--out", str(out)])
        assert result.exit_code == 0, result.output
        digests.append(hashlib.sha256(out.read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    sheet = json.loads(result.output)
    assert [(source["name"], source["users"], source["labels"]) for source in sheet["sources"]] == [
        ("pairs.jsonl", 12, 96),
        ("ratings.jsonl", 12, 96),
    ]
    encoder = get_encoder("static")
    features = ResponseFeatures(encoder, scalar=global_scalar(encoder))
    prior = load_prior(out, features.names, encoder.id)
    assert prior.mean[features.names.index("structure")] + prior.mean[features.names.index("emphasis")] > 0


def test_bad_data_is_named(tmp_path: Path) -> None:
    """An empty folder and a bad line are errors that say what to do."""
    with pytest.raises(ConfigError, match="holds no judgements"):
        train_prior(tmp_path, tmp_path / "p", get_encoder("static"))
    (tmp_path / "x.jsonl").write_text('{"user": "u"}\n')
    with pytest.raises(ConfigError, match="line 1"):
        train_prior(tmp_path, tmp_path / "p", get_encoder("static"))


@pytest.mark.reproduction
def test_the_shipped_prior_is_made_by_the_command(tmp_path: Path) -> None:
    """On the public sets the command writes what ships, to 1e-6."""
    folder("mt_bench_human")
    out = tmp_path / "prior.safetensors"
    encoder = get_encoder("static")
    train_prior(folder("mt_bench_human").parent, out, encoder)
    features = ResponseFeatures(encoder, scalar=global_scalar(encoder))
    made, shipped = load_prior(out, features.names, encoder.id), shipped_prior(features.names, encoder.id)
    for one, other in zip(made[1:], shipped[1:], strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6)


async def test_a_router_says_which_prior_it_started_from(tmp_path: Path) -> None:
    """The journal names the file by its hash, once, and a path in the configuration is relative to its folder."""
    encoder = get_encoder("static")
    features = ResponseFeatures(encoder, scalar=global_scalar(encoder))
    write_prior(tmp_path / "mine.safetensors", features.names, encoder.id, _arrays(features.dim), {})
    (tmp_path / "fitrouter.yaml").write_text(
        "data: d\nproviders: {s: {kind: simulated}}\nmodels: [{name: m, provider: s}]\n"
        "scorer: {prior: mine.safetensors}\n"
    )
    from fitrouter.router import Router

    for _ in range(2):
        async with Router.from_config(load_config(tmp_path / "fitrouter.yaml")) as router:
            async with asyncio.timeout(300.0):
                while not any(isinstance(row.event, ArtifactChange) for row in router._journal.tail(0)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            changes = [row.event for row in router._journal.tail(0) if isinstance(row.event, ArtifactChange)]
            assert router._learner.prior is not None
            assert [(change.name, change.sha256) for change in changes] == [("prior", router._learner.prior.id)]
