"""Each mechanism of learning and exploration taken out alone, on the cells of the people table. Prints JSON.

    python -m benchmarks.people.ablation --rounds 4 --out kept.jsonl       # an hour of two idle cores; resumes
    python -m benchmarks.people.ablation --rounds 1 --only "growth of the scale" --parts strangers crews

A round is one draw of each cell of people, one seed of strangers (eight people a cell), one order of outcomes, and two
seeds of crews. A switch runs on the parts that it reaches. Numbers are without the mechanism minus as shipped, of the
same people, seeds and orders, with a standard error: losses of people (more is worse); else a person's share of the
possible, the mean reward of an order's last half and a crew's satisfaction (less is worse).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from benchmarks import strangers
from benchmarks.people import __main__ as people
from benchmarks.people import page, streams
from benchmarks.people.sets import People, folder_of
from benchmarks.policies import crews, outcomes

from fitrouter.policies import LinearThompson
from fitrouter.policies._linear_thompson import argmax_pmf
from fitrouter.posterior import mixture, model
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import HINGES
from fitrouter.posterior.labels import FitParams
from fitrouter.posterior.model import Fit
from fitrouter.posterior.people import Person
from fitrouter.posterior.tastes import Tastes
from fitrouter.routing import decider
from fitrouter.types import Floats

replace = msgspec.structs.replace


class Switch(NamedTuple):
    """How a mechanism is taken out, and the parts that it reaches: people, strangers, outcomes, crews."""

    off: Callable[[], None]
    reaches: str


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _params(change: Callable[[FitParams], FitParams]) -> Callable[[], None]:
    made = Fit.__init__

    def init(self: Fit, d: int, D: int, params: FitParams | None = None, **rest: Any) -> None:
        made(self, d, D, change(params or FitParams()), **rest)

    return _set(Fit, "__init__", init)


def _width(slopes: float) -> Callable[[], None]:
    def change(params: FitParams) -> FitParams:
        kept = tuple(prior for prior in params.arms.corrections if prior.slopes == slopes)
        return replace(params, arms=replace(params.arms, corrections=kept))

    return _params(change)


def _without(*heads: str) -> Callable[[], None]:
    """Give heads no weight: none at the start, and no likelihood of any label."""

    def off() -> None:
        out, nats = [mixture.EXPERTS.index(head) for head in heads], model._log_likelihoods
        for context in ("user", "role", "sensitive"):
            start = np.array(mixture.START[context])
            start[out] = 1e-12
            mixture.START[context] = tuple(start / start.sum())
            mixture._LEAST[context] = mixture.FLOOR * start / start.sum()

        def none(*args: Any) -> Any:
            found = nats(*args)
            found[out] = -1e9
            return found

        model._log_likelihoods = none

    return off


def _no_hinges() -> None:
    """Let everybody's taste be linear in length: its prior, given that the weights of `HINGES` are 0."""
    prior_of = Tastes.prior_of

    def linear(self: Tastes, dimension: str) -> Gaussian:
        prior, out = prior_of(self, dimension), [self.names[name] for name in HINGES if name in self.names]
        if not out:
            return prior
        gain = prior.cov[:, out] @ np.linalg.pinv(prior.cov[np.ix_(out, out)])  # some dimensions have none of a hinge
        mean, cov = prior.mean - gain @ prior.mean[out], prior.cov - gain @ prior.cov[out]
        mean[out], cov[out], cov[:, out] = 0.0, 0.0, 0.0
        return Gaussian(mean, cov)

    Tastes.prior_of = linear


def _all_variance() -> None:
    model.CHOICE_SHARE = streams.CHOICE_SHARE = 1.0


def _scaled(scale: float, start: float) -> Callable[[], None]:
    """Explore by another default scale, of which a share counts at first and √2 of that after 200 labels."""

    def pmf(_: LinearThompson, utility: Floats, sd: Floats, steps: float | Floats) -> Floats:
        grown = np.minimum(start * np.sqrt(1.0 + np.maximum(steps, 0.0) / 200.0), 1.0)
        return argmax_pmf(utility, scale * grown * sd)

    return _set(LinearThompson, "pmf", pmf)


def _no_floor() -> None:
    mix = decider._mix
    decider._mix = lambda *args, **given: mix(*args, **given | {"floor": 0.0})


def _one_temperature(self: Fit, label: Any) -> Any:
    del label, self
    return 1.0


def _of_all(reweigh: Callable[..., None]) -> Callable[..., None]:
    """Learn temperatures for everybody together."""

    def found(self: Person, context: Any, nats: Any, prior: Any, *, pooled: bool) -> None:
        reweigh(self, context, nats, prior, pooled=pooled)
        if context == "temperature":
            self.weights.pop(context)

    return found


SWITCHES: Mapping[str, Switch] = {
    "as shipped": Switch(lambda: None, "psoc"),
    "temperature of choices": Switch(_set(Fit, "temperature", _one_temperature), "p"),
    "a person's own temperature": Switch(_set(Person, "reweigh", _of_all(Person.reweigh)), "p"),
    "wide slopes of corrections": Switch(_width(0.003), "psoc"),
    "narrow slopes of corrections": Switch(_width(0.03), "psoc"),
    "user-blind head": Switch(_without("population"), "psc"),
    "head: narrow": Switch(_without("narrow"), "psc"),
    "head: length": Switch(_without("length"), "psc"),
    "quarter of a person's variance": Switch(_all_variance, "psc"),
    "first labels teach all": Switch(_set(Person, "known", property(lambda _: 1.0)), "psc"),
    "novelty of a person's labels": Switch(_set(Person, "novelty", lambda *_: 1.0), "psc"),
    "rating scale": Switch(_set(Fit, "_on_common_scale", lambda _self, _y, seen, *_: seen), "p"),
    "changes of mind": Switch(_set(Person, "watch", lambda *_: None), "ps"),
    "hinges of length": Switch(_no_hinges, "psc"),
    "terms of roles": Switch(_params(lambda each: replace(each, tastes=replace(each.tastes, roles=0))), "c"),
    "growth of the scale": Switch(_scaled(0.4, 1.0), "soc"),
    "scale of .3 at once": Switch(_scaled(0.3, 1.0), "soc"),
    "scale of .3, from half": Switch(_scaled(0.3, 0.5), "soc"),
    "exploration floor": Switch(_no_floor, "soc"),
}

Units = dict[str, list[float]]


def _unit(task: tuple[str, str, int]) -> Units:
    """Numbers of one draw, seed or order of a cell."""
    part, cell, number = task
    if part == "people":
        played = {who: np.array([each.loss for each in seen]) for who, seen in people._play((cell, number)).items()}
        return {who: [len(losses), *losses.sum(axis=0).tolist()] for who, losses in played.items() if len(losses)}
    if part == "strangers":
        tastes = (*strangers.TASTES, *strangers.MORE)
        found = strangers._play((_STRANGERS[cell], number, {}, tastes))
        return {who: [float(each) for each in person] for who, person in found.items()}
    if part == "outcomes":
        return {str(number): page._pass((cell, None, number))}
    probs, satisfied = crews.play(crews.Play(crews.SETTINGS[cell][0], 300, number))
    right = (probs[-crews.LATE :].mean(axis=0).argmax(axis=1) == _places).all()
    return {str(number): [float(right), float(satisfied[-100:].mean())]}


_STRANGERS = dict(zip(("3 fresh", "3 crowd", "11 fresh", "11 crowd", "change"), strangers.CELLS, strict=True))
_places: list[int] = []


def tasks_of(part: str, number: int) -> Iterator[tuple[str, str, int]]:
    """Draws, seeds and orders of a round."""
    cells: Mapping[str, Sequence[int]] = {
        "people": {cell: [number][: draws > number] for cell, (_, draws) in people.CELLS.items()},
        "strangers": {cell: [number] for cell in _STRANGERS},
        "outcomes": {cell: [number] for cell in outcomes.CELLS},
        "crews": {cell: [2 * number, 2 * number + 1] for cell in page.CREWS},
    }[part]
    return ((part, cell, each) for cell, numbers in cells.items() for each in numbers)


def _read(parts: Sequence[str]) -> None:
    """Read the parts' data once, for all processes."""
    if "people" in parts:
        names = {cell.partition("/")[0] for cell in people.CELLS}
        people._sets.update({n: People(n, people.SHARED) for n in names if folder_of(n, people.SHARED).exists()})
    if "strangers" in parts:
        strangers._start(strangers.DATA)
    if "outcomes" in parts:
        page._matrices.update({name: cell.matrix() for name, cell in outcomes.CELLS.items()})
    if "crews" in parts:
        pool = crews.recorded(crews.RECORDED)
        crews.start(pool, crews.read(pool))
        worth = crews.truth(pool, {role: pool.tastes[taste] for role, taste in crews.TASTES.items()})
        _places[:] = [pool.models.index(max(pool.models, key=of.__getitem__)) for of in worth.values()]


def differences(kept: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Mean differences of each switch to as shipped by cell, with standard error and number of people or seeds."""
    units: defaultdict[tuple[str, str, str], Units] = defaultdict(dict)
    for row in kept:
        units[row["switch"], row["part"], row["cell"]] |= row["units"]
    out: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
    for (switch, part, cell), mine in units.items():
        theirs = units["as shipped", part, cell]
        a, b = (np.array([each[who] for who in mine.keys() & theirs.keys()]) for each in (mine, theirs))
        if part == "people":
            change = people.beside({cell: mine}, {cell: theirs})[cell]["full decision"]
        else:
            if cell == "change":
                a, b = np.minimum(a[:, 5:], 15.0), np.minimum(b[:, 5:], 15.0)
            gap = (a - b)[:, 1 if part == "crews" else 0]
            change = [round(float(gap.mean()), 4), round(float(gap.std(ddof=1) / np.sqrt(len(gap))), 4)]
        out[switch][cell] = [*change, len(a)]
    return dict(out)


def main() -> None:
    """Parse the command line, measure what is missing, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SWITCHES, default=list(SWITCHES))
    parser.add_argument("--parts", nargs="+", choices=page.PARTS, default=list(page.PARTS))
    parser.add_argument("--cells", nargs="+", help="of these parts")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, to which what is missing is added")
    args = parser.parse_args()
    data = {"people": people.SHARED, "strangers": strangers.DATA, "outcomes": outcomes.DATA, "crews": strangers.DATA}
    for part in [part for part in args.parts if not data[part].exists()]:
        print(f"skipped {part}: there is no {data[part].name} beside the project", file=sys.stderr)
        args.parts.remove(part)
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(row["switch"], row["part"], row["cell"], row["number"]) for row in rows}
    todo = [
        (name, [task for part in args.parts if part[0] in SWITCHES[name].reaches for task in tasks_of(part, number)])
        for number in range(args.rounds)
        for name in dict.fromkeys(("as shipped", *args.only))
    ]
    cells = set(args.cells or [task[1] for _, tasks in todo for task in tasks])
    todo = [(name, [task for task in tasks if task[1] in cells and (name, *task) not in done]) for name, tasks in todo]
    if any(tasks for _, tasks in todo):
        _read(args.parts)
    with args.out.open("a") as out:
        for name, tasks in todo:
            off = SWITCHES[name].off
            with ProcessPoolExecutor(args.jobs, mp_context=get_context("fork"), initializer=off) as workers:
                for (part, cell, number), units in zip(tasks, workers.map(_unit, tasks), strict=True):
                    row = {"switch": name, "part": part, "cell": cell, "number": number, "units": units}
                    print(json.dumps(row), file=out, flush=True)
                    rows.append(row)
            print(name, len(tasks), file=sys.stderr, flush=True)
    print(json.dumps(differences(rows), indent=1))


if __name__ == "__main__":
    main()
