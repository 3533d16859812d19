"""What an application's key learns of one person's taste by probing the population's scores. Prints JSON.

    python -m benchmarks.personal.probing

A key without `trusted` gets the population's scores of any text (`POST /v1/score`), and so, from as many texts as there
are features, the population's taste w_0 exactly. Installations have a crowd of `--people` people with ten thumbs each,
and then a person with sixty, whose taste is drawn independently. The attacker's estimate of that person's deviation
from the population is

* *once*: w_0 as it is after the votes;
* *before and after*: its change over the period of the votes, in which the rest of the crowd also votes (once each),
  or does not (*alone*).

Reported: mean and 90 % quantile over seeds of |cos| to the deviation that the scores of a trusted key have, and that of
a random direction. *published* is what such a key really gets: copies of w_0 that are renewed after the votes of 200
further people (`Publication`), here read before and after the renewal that has the person's votes in it.
"""

from __future__ import annotations

import argparse
import copy
import json

import numpy as np

from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.model import Fit
from fitrouter.posterior.tastes import OVERALL
from fitrouter.state.publication import PEOPLE, Publication
from fitrouter.types import FeedbackKind, Floats, Identity

CROWD_VOTES, VOTES = 10, 60
X = np.ones(1)


def vote(fit: Fit, user: str, taste: Floats, rng: np.random.Generator) -> None:
    """Let the model learn a random thumb of a user."""
    h = np.array([1.0, *rng.normal(size=len(taste) - 1)])
    y = float(rng.random() < 1.0 / (1.0 + np.exp(-(h @ taste))))
    fit.learn(Label(Identity(user=user), Answered("model", X, h), y, FeedbackKind.THUMB))


def published(D: int, seed: int) -> float:
    """Return |cos| between the change of two published copies and the deviation of a person who voted between them."""
    rng = np.random.default_rng([D, seed])
    fit, copies = Fit(1, D, FitParams()), Publication()
    fit.arms.join("model")
    common, seen = 0.5 * rng.normal(size=D), []
    own = common + 0.7 * rng.normal(size=D)
    for block in range(2):
        tastes = [common + 0.7 * rng.normal(size=D) for _ in range(PEOPLE - block)]
        order = [i for i in range(len(tastes)) for _ in range(CROWD_VOTES)] + [-1] * VOTES * block
        for i in rng.permutation(order).tolist():
            user = "ann" if i < 0 else f"{block}-{i}"
            vote(fit, user, own if i < 0 else tastes[i], rng)
        for i in range(PEOPLE):  # whoever comes last, the copy has all of the block's votes
            copies.observe(f"{block}-{i}", fit.tastes)
        seen.append(copies.tastes[OVERALL].mean)
    return cosine(seen[1] - seen[0], fit.taste(Identity(user="ann")) - fit.tastes.population.mean)


def attacked(people: int, seed: int, D: int) -> dict[str, float]:
    """Return |cos| between the result of each attack on one person and their true deviation."""
    rng = np.random.default_rng([people, seed])
    fit = Fit(1, D, FitParams())
    fit.arms.join("model")
    common, found = 0.5 * rng.normal(size=D), {}
    tastes = [common + 0.7 * rng.normal(size=D) for _ in range(people)]
    for _ in range(CROWD_VOTES):
        for i, taste in enumerate(tastes):
            vote(fit, f"u{i}", taste, rng)
    own = common + 0.7 * rng.normal(size=D)
    start = fit.tastes.population.mean.copy()
    between = [*range(people), *[-1] * VOTES]
    for name, who in (("alone", [-1] * VOTES), ("before and after", rng.permutation(between).tolist())):
        now = copy.deepcopy(fit)
        for i in who:
            vote(now, "ann" if i < 0 else f"u{i}", own if i < 0 else tastes[i], rng)
        population = now.tastes.population.mean
        truth = now.taste(Identity(user="ann")) - population
        found[name] = cosine(population - start, truth)
        if name != "alone":
            found["once"] = cosine(population, truth)
    return found


def cosine(a: Floats, b: Floats) -> float:
    """Return |cos| of two vectors without the intercept."""
    a, b = a[1:], b[1:]
    return abs(float(a @ b)) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12)


def main() -> None:
    """Parse the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--people", type=int, nargs="+", default=[10, 40, 160])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--features", type=int, nargs="+", default=[12, 40])
    args = parser.parse_args()
    rng, out = np.random.default_rng(0), {}
    for D in args.features:
        found = [published(D, seed) for seed in range(args.seeds)]
        chance = [cosine(*rng.normal(size=(2, D))) for _ in range(10_000)]
        out[f"published, {D} features"] = {
            "mean": round(float(np.mean(found)), 3),
            "q90": round(float(np.quantile(found, 0.9)), 3),
            "chance": round(float(np.mean(chance)), 3),
        }
    for people in args.people:
        attacks = [attacked(people, seed, 12) for seed in range(args.seeds)]
        out[f"live, {people} people, 12 features"] = {
            name: {"mean": round(float(np.mean(c)), 3), "q90": round(float(np.quantile(c, 0.9)), 3)}
            for name in attacks[0]
            if (c := [each[name] for each in attacks])
        }
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
