"""Warm start: train arm priors for a new installation from a logged data set.

The data set is converted to the events of a router, and a `Learner` folds them with tastes fixed at their prior. What n
observations taught of a model then counts as n₀ = `trust` observations: the likelihood is raised to the power n₀ / n
(the power prior of Ibrahim and Chen 2000), which widens the posterior towards the installation's own prior, so that a
wrong prior is soon overruled. ParetoBandit (arXiv:2604.00136) has a similar warm start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.config import Config, FeedbackConfig
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, context_names, estimate_tokens, read_prompt
from fitrouter.errors import ConfigError
from fitrouter.posterior.arm_prior import BLOCKS, ArmPrior, ModelPrior, pack_prior
from fitrouter.posterior.arms import Arms, base_arm
from fitrouter.posterior.labels import FitParams
from fitrouter.posterior.tastes import OVERALL, TastePrior, Tastes
from fitrouter.state.learner import Learner
from fitrouter.state.vouching import LeftOut, LoggedVote
from fitrouter.stores.journal import Row
from fitrouter.types import CHOSEN, Execution, Feedback, Floats, Request, Score
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.prior import load_prior, shipped_prior
from fitrouter_evaluators.training._logged import LabelLog, LoggedAnswer, Related, TextEncoding, read_log

TRUST = 5.0
"""Effective number of observations of a trained arm prior."""


def train_policy(
    data: Path,
    out: Path,
    config: Config,
    *,
    trust: float = TRUST,
    scale: tuple[float, float] = (0.0, 1.0),
    responses: bool = True,
) -> dict[str, Any]:
    """Train arm priors from a data set, and write them.

    Args:
        data: a matrix, ratings with model names, a folder with the warehouse's tables as Parquet, or a journal.
        out: the file; a folder gets a file that is named by its sha256.
        config: whose encoders and prices count.
        trust: n₀, the effective number of observations of each model.
        scale: lowest and highest reward of a matrix.
        responses: read the answers' texts where there are any.

    Returns:
        The data sheet: path, sha256, and the observations of each model.

    Raises:
        ConfigError: the data cannot be used, or the file cannot be written.
    """
    if not trust > 0 or not np.isfinite(trust):
        raise ConfigError(f"--trust: {trust!r} is not allowed; give a number of observations above 0")
    if not scale[0] < scale[1]:
        raise ConfigError(f"--scale: {scale[0]!r} to {scale[1]!r} is not allowed; give the lowest reward first")
    reading, learner = _parts(config, responses)
    log = read_log(data, reading, scale)
    seen = _fold(learner, log._replace(events=heard(log.events, config.feedback)))
    models = {
        name: _model(learner.fit.arms, k, int(learner.fit.widths.weights.argmax()), seen[name], trust)
        for name, k in sorted(learner.fit.arms.names.items())
    }
    models = {name: model for name, model in models.items() if model.blocks}
    if not models:
        raise ConfigError(f"--data: {str(data)!r} has no usable answer; is it empty?")
    fit = learner.fit
    sheet = {"data": data.name, "trust": trust, "labels": fit.labels, "problems": len(log.problems)}
    prior = ArmPrior(d=fit.d, D=fit.D, encoder=reading.encoder, schema=reading.schema, models=models, sheet=sheet)
    content, sha256 = pack_prior(prior)
    path = out / f"{sha256}.arms" if out.is_dir() else out
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"--out: {str(path)!r} cannot be written: {error.strerror}") from None
    return {
        "path": str(path),
        "sha256": sha256,
        **sheet,
        "models": {name: model.seen for name, model in models.items()},
    }


def _parts(config: Config, responses: bool) -> tuple[TextEncoding, Learner]:
    """Build what reads prompts and answers, and a learner with fixed tastes."""
    encoder = get_encoder(config.encoder)
    prices = {model.name: model.prices for model in config.models}
    features: ResponseFeatures | None = None
    if config.scorer.encoder != "none":
        scoring = get_encoder(config.scorer.encoder)
        features = ResponseFeatures(scoring, scalar=global_scalar(scoring), declared=True)

    def x(prompt: str) -> Floats:
        return context_features(read_prompt(_request(prompt)), encoder)

    def h(pairs: Any) -> Floats:
        assert features is not None
        return np.asarray(features.encode([Answer(prompt=prompt, text=text) for prompt, text in pairs]))

    def tokens(answer: LoggedAnswer) -> float | None:
        price = prices.get(answer.model)
        if answer.cost_usd is not None and price is not None and price.output > 0:
            asked = estimate_tokens(_request(answer.prompt).messages, {})
            return max((answer.cost_usd * 1e6 - price.input * asked) / price.output, 1.0)
        return None if answer.response is None else max(len(answer.response) / 4.0, 1.0)

    schema = features.schema if features else ""
    learner = Learner(
        len(context_names()),
        features.dim if features else 1,
        schema=schema,
        params=FitParams(personal=False),
        names=features.names if features else (),
        prior=_frozen(config, features),
        votes_per_day=10**9,
    )
    return TextEncoding(x, h if features is not None and responses else None, tokens, schema, encoder.id), learner


def _request(prompt: str) -> Request:
    return Request(messages=({"role": "user", "content": prompt},))


def _frozen(config: Config, features: ResponseFeatures | None) -> TastePrior:
    """Initial tastes as a prior with zero variance, so that they stay fixed."""
    name, D = config.scorer.prior, features.dim if features else 1
    mean = Tastes(D, FitParams().tastes).population.mean
    if features is not None and name != "none":
        names, encoder = features.names, features.encoder.id
        mean = (shipped_prior(names, encoder) if name == "shipped" else load_prior(Path(name), names, encoder)).mean
    return TastePrior("frozen", mean.copy(), np.zeros((D, D)))


def heard(events: Iterable[Related], limits: FeedbackConfig) -> Iterator[Related]:
    """Leave out the votes that do not count for others (`fitrouter.state.vouching`): a prior is for others."""
    votes = LeftOut(people=limits.people_per_key, votes_per_day=limits.votes_per_day)
    served, known, unheard = dict[str, str](), set[Any](), set[Any]()

    def key(vote: Feedback) -> Any:
        return vote.decision_id, vote.kind, vote.dimension, vote.other

    for n, (event, related) in enumerate(events):
        if isinstance(event, Execution) and event.served_by is not None:
            served[event.decision_id] = event.served_by
        if isinstance(event, Feedback):
            if (
                event.source != CHOSEN
                and key(event) not in known
                and (arm := served.get(event.decision_id)) is not None
            ):
                known.add(key(event))
                who, day = event.identity, int(event.ts // 86_400.0)
                vote = LoggedVote(n, who.tenant, who.user, event.vouched, arm, event.dimension, day)
                unheard |= {key(event) for _ in votes.read([vote])}
            if key(event) in unheard:
                continue
        yield event, tuple(each for each in related if not (isinstance(each, Feedback) and key(each) in unheard))


def _fold(learner: Learner, log: LabelLog) -> dict[str, Counter[str]]:
    """Fold the log into the learner; return the number of observations of each block of each model."""
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for seq, (event, related) in enumerate(log.events, start=1):
        if isinstance(event, Execution | Score) and event.served_by:
            learner.fit.arms.row(event.served_by)
        learner.apply(Row(seq, event), related)
        if isinstance(event, Execution) and event.served_by is not None:
            seen[base_arm(event.served_by)]["operations"] += 1
        elif isinstance(event, Score):
            seen[event.served_by]["profile"] += event.status == "ok" and event.schema == learner.schema
        # A vote counts once it and the scores of its answers are known, in any order.
        served = {one.decision_id: base_arm(one.served_by) for one in (event, *related) if isinstance(one, Score)}
        for vote in (event, *related) if isinstance(event, Feedback | Score) else ():
            if not isinstance(vote, Feedback) or vote.dimension != OVERALL:
                continue
            answers = {vote.decision_id, vote.other} - {""}
            if answers <= served.keys() and (
                vote is event or (isinstance(event, Score) and event.decision_id in answers)
            ):
                for arm in {served[answer] for answer in answers}:
                    seen[arm]["correction"] += 1
    return seen


def _model(arms: Arms, k: int, width: int, seen: Counter[str], trust: float) -> ModelPrior:
    """Build a model's prior from its posteriors, discounted to `trust` observations; the correction's at one width."""
    blocks, worth = {}, {}
    for block in BLOCKS:
        if not seen[block]:
            continue
        share = min(1.0, trust / seen[block])
        means, covs = getattr(arms, block), getattr(arms, f"{block}_cov")
        if block == "correction":
            means, covs = means[:, width], covs[:, width]
        turned = block == "operations"  # whose means are rows
        start, end = (means[0].T, means[k].T) if turned else (means[0], means[k])
        mean, cov = discounted(start, covs[0], end, covs[k], share)
        blocks[block] = _bytes(mean.T if turned else mean), _bytes(cov)
        worth[block] = share * seen[block]
    spread = _bytes(arms.spread[k]) if "profile" in blocks else b""
    return ModelPrior(blocks=blocks, spread=spread, worth=worth, seen={b: seen[b] for b in blocks})


def discounted(mean0: Floats, cov0: Floats, mean: Floats, cov: Floats, share: float) -> tuple[Floats, Floats]:
    """Posterior with the likelihood raised to a power ρ.

    In natural parameters a posterior is prior + likelihood, so the likelihood is their difference and can be scaled:
    Λ = Λ₀ + ρ (Λ₁ − Λ₀), η = η₀ + ρ (η₁ − η₀).

    Args:
        mean0: float64[d] or float64[d, outputs], of the prior.
        cov0: float64[d, d], of the prior.
        mean: of the posterior.
        cov: of the posterior.
        share: ρ in (0, 1].

    >>> mean, cov = discounted(np.zeros(1), np.eye(1), np.array([0.5]), np.eye(1) / 2, 0.5)
    >>> mean.round(3).tolist(), cov.round(3).tolist()
    ([0.333], [[0.667]])
    """
    before, after = np.linalg.inv(cov0), np.linalg.inv(cov)
    precision = before + share * (after - before)
    pull = before @ mean0 + share * (after @ mean - before @ mean0)
    covariance = np.linalg.inv((precision + precision.T) / 2.0)
    weighed: Floats = np.asarray(np.linalg.solve(precision, pull), dtype=np.float64)
    return weighed, (covariance + covariance.T) / 2.0


def _bytes(values: Floats) -> bytes:
    return np.ascontiguousarray(values, dtype="<f8").tobytes()
