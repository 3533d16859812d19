"""Real people's streams of judgements: does a personal prediction help, and whom does it harm? Prints JSON.

    python -m benchmarks.people                 # about three minutes on an idle core
    python -m benchmarks.people --draws 15 --share 0.067   # fifteen draws of a fifteenth of the people

`../shared/data/human_feedback`: people compare two models' answers and rate both. Every label is predicted,
then learnt, by the reward model as it ships, with the default encoder, features and prior
(`posterior.model.Fit`).

* `crowd`: half of the people with 20 comparisons or more are new, one after the other, after everybody else;
* `alone`: each of them in an installation of their own;
* `ratings`: the crowd's order, with the rating of each comparison's first answer instead of the comparison.

Rows: population (taste for the text alone), user-blind (a reward model without personal terms), served score
(the person's taste for the text), full decision (everything), and for ratings also bias-only (the person's
mean) and running mean (of everybody). Per band of labels that the person had given before: nats, accuracy or
RMSE. Worse and better: shares of people whose mean nats differ from those of user-blind by more than a standard
error, with bootstrap intervals over people; noise alone gives .16 of each.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, context_names, read_prompt
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.likelihoods import SIGNALS
from fitrouter.posterior.model import Fit
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.scoring.prior import shipped_prior

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "human_feedback" / "comparisons.parquet"
BANDS = ((0, 5), (5, 20), (20, 40), (40, 1 << 30))
EXPERIENCED = 20
PAIR_ROWS = ("population", "user-blind", "served score", "full decision")
RATING_ROWS = (*PAIR_ROWS, "bias-only", "running mean")


class Comparison(NamedTuple):
    """One comparison of one person."""

    user: str
    answers: tuple[Answered, Answered]
    ratings: tuple[float, float]
    """In [0, 1]."""


class People:
    """A set's comparisons in the file's order, with contexts and features as the router reads them."""

    def __init__(self, file: Path) -> None:
        import duckdb

        encoder = get_encoder("static")
        self.features = ResponseFeatures(encoder, scalar=global_scalar(encoder))
        self.prior = shipped_prior(self.features.names, encoder.id)
        columns = '"user", prompt, a, a_model, b, b_model, a_rating, b_rating'
        found = duckdb.sql(f"SELECT {columns} FROM '{file}' ORDER BY \"order\"").fetchall()
        self.rows = []
        for user, prompt, a, a_model, b, b_model, one, other in found:
            request = Request(messages=({"role": "user", "content": prompt or " "},))
            x = context_features(read_prompt(request), encoder)
            h = self.features.encode([Answer(prompt=prompt, text=text) for text in (a, b)])
            answers = Answered(a_model, x, h[0]), Answered(b_model, x, h[1])
            self.rows.append(Comparison(user, answers, ((one - 1) / 4, (other - 1) / 4)))

    def fit(self, *, personal: bool = True) -> Fit:
        """Return the reward model of a fresh installation."""
        names = self.features.names
        return Fit(len(context_names()), self.features.dim, FitParams(personal=personal), names=names, prior=self.prior)

    def split(self, draw: int, share: float) -> tuple[list[Comparison], list[Comparison]]:
        """Return the crowd's comparisons in the file's order, and those of a share of the experienced people."""
        mine: defaultdict[str, list[Comparison]] = defaultdict(list)
        for row in self.rows:
            mine[row.user].append(row)
        able = sorted(user for user, rows in mine.items() if len(rows) >= EXPERIENCED)
        order = np.random.default_rng([0, draw]).permutation(len(able))
        new = [able[i] for i in order[: math.ceil(share * len(able))]]
        return [row for row in self.rows if row.user not in set(new)], [row for user in new for row in mine[user]]


class Seen(NamedTuple):
    """The prediction of one label of a new person."""

    user: str
    before: int
    """Labels that the person had given."""
    loss: tuple[float, ...]
    """Nats of a comparison, or squared error of a rating, by row."""
    hit: tuple[float, ...]
    """Whether a comparison was foreseen, by row."""


def stream(
    people: People, crowd: Sequence[Comparison], new: Sequence[Comparison], *, ratings: bool = False
) -> list[Seen]:
    """Predict and learn every label; return the predictions of new people."""
    fit, blind = people.fit(), people.fit(personal=False)
    given: defaultdict[str, list[float]] = defaultdict(list)
    everybody: list[float] = []
    out = []
    for place, row in enumerate((*crowd, *new)):
        y = row.ratings[0] if ratings else 0.5 + 0.5 * float(np.sign(row.ratings[0] - row.ratings[1]))
        kind = FeedbackKind.RATING if ratings else FeedbackKind.PAIR
        label = Label(Identity(user=row.user), row.answers[0], y, kind, against=None if ratings else row.answers[1])
        if place >= len(crowd) and (ratings or y != 0.5):
            own, other = fit.predict(label), blind.predict(label)
            found = other.population, other.blind, own.score, own.full
            before = given[row.user]
            if ratings:
                out.append(Seen(row.user, len(before), _errors(fit, row.user, y, found, before, everybody), ()))
            else:
                losses = tuple(_nats(y, *moments) for moments in found)
                out.append(Seen(row.user, len(before), losses, tuple(float((m > 0) == (y > 0.5)) for m, _ in found)))
        given[row.user].append(y)
        everybody.append(y)
        fit.learn(label)
        blind.learn(label)
    return out


def _nats(y: float, mean: float, variance: float) -> float:
    tau = SIGNALS[FeedbackKind.PAIR].temperature
    a = mean / tau / math.sqrt(1.0 + math.pi / 8.0 * variance / tau**2)
    return math.log1p(math.exp(-abs(a))) + max(a, 0.0) - y * a


def _errors(
    fit: Fit, user: str, y: float, found: Sequence[tuple[float, float]], before: list[float], everybody: list[float]
) -> tuple[float, ...]:
    """Return squared errors; personal predictions are mapped to the person's scale, means are shrunk by one label."""
    person, level = fit.tastes.users.get(user), fit.tastes.params.level
    running = (sum(everybody) + level) / (len(everybody) + 1)
    means = [mean for mean, _ in found]
    if person is not None:
        means[2:] = [level + person.scale.offset + person.scale.gain * (mean - level) for mean in means[2:]]
    means += [(sum(before) + running) / (len(before) + 1), running]
    return tuple((y - mean) ** 2 for mean in means)


def summary(seen: Sequence[Seen], rows: Sequence[str], *, ratings: bool = False) -> dict[str, Any]:
    """Summarise means by band, differences to user-blind with their standard errors, and who is worse or better off."""
    out: dict[str, Any] = {"people": len({each.user for each in seen}), "labels": len(seen)}
    for low, high in (*BANDS, (0, 1 << 30)):
        band = [each for each in seen if low <= each.before < high]
        if not band:
            continue
        loss = np.array([each.loss for each in band])
        name = f"{low}+" if high == 1 << 30 else f"{low} to {high - 1}"
        values = np.sqrt(loss.mean(axis=0)) if ratings else loss.mean(axis=0)
        out[name] = {
            "labels": len(band),
            "rmse" if ratings else "nats": dict(zip(rows, values.round(4).tolist(), strict=True)),
        }
        if not ratings:
            hits = np.array([each.hit for each in band]).mean(axis=0)
            out[name]["accuracy"] = dict(zip(rows, hits.round(4).tolist(), strict=True))
        users = sorted({each.user for each in band})
        of = np.array([users.index(each.user) for each in band])
        for j, row in ((2, "served score"), (3, "full decision")):
            gap = loss[:, j] - loss[:, 1]
            sums = np.bincount(of, gap - gap.mean(), len(users))
            error = math.sqrt(float((sums**2).sum())) / len(gap)
            out[name][f"{row} minus user-blind"] = [round(float(gap.mean()), 4), round(error, 4)]
    for least in (5, 20):
        for j, row in ((2, "served score"), (3, "full decision")):
            out[f"{row}, {least}+ labels"] = _harm([each for each in seen if each.before >= least], j)
    return out


def _harm(seen: Sequence[Seen], j: int) -> dict[str, Any]:
    """Return the shares of people worse and better off than user-blind by a standard error, with 95 % intervals."""
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    for each in seen:
        gaps[each.user].append(each.loss[j] - each.loss[1])
    z = np.array([np.mean(g) / (np.std(g, ddof=1) / math.sqrt(len(g)) + 1e-12) for g in gaps.values() if len(g) >= 5])
    if not len(z):
        return {}
    again = z[np.random.default_rng(0).integers(len(z), size=(2000, len(z)))]
    shares = {"worse": (z > 1.0, again > 1.0), "better": (z < -1.0, again < -1.0)}
    found: dict[str, Any] = {"people": len(z)}
    for name, (here, there) in shares.items():
        interval = np.quantile(there.mean(axis=1), (0.025, 0.975)).round(3).tolist()
        found[name] = [round(float(here.mean()), 3), interval]
    return found


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.5, help="of the experienced people that are new")
    args = parser.parse_args()
    if not args.data.exists():
        print(f"skipped: there is no {args.data.name} in {args.data.parent.name} beside the project", file=sys.stderr)
        return
    people = People(args.data)
    crowd, rated, alone = [], [], []
    for draw in range(args.draws):
        old, new = people.split(draw, args.share)
        for into, ratings in ((crowd, False), (rated, True)):
            for each in stream(people, old, new, ratings=ratings):
                into.append(each._replace(user=f"{draw} {each.user}"))
    for user in sorted({row.user for row in people.split(0, 1.0)[1]}):
        alone += stream(people, (), [row for row in people.rows if row.user == user])
    print(
        json.dumps(
            {
                "crowd": summary(crowd, PAIR_ROWS),
                "alone": summary(alone, PAIR_ROWS),
                "ratings": summary(rated, RATING_ROWS, ratings=True),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
