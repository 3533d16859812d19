"""Attacks on reward heads: constant replies and manipulated answers against honest answers.

An attack on a head is lost when
- of a constant reply, the median score over prompts is below the honest answers' median;
- of weak answers (honest ones below the median, and stubs such as "I don't know.") after manipulation, the median
  stays below the honest median, at most 5 % rise above it, and the mean change of an honest answer's score is not
  positive.

Attacks use held-out templates (`_held_out_attacks`): neither their texts nor their prompts were seen in training. Most
of the weak honest answers are just below the median, so that the share that rises is a strict test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.scoring._held_out_attacks import HELD_OUT
from benchmarks.training.public import ADVERSARY, alpaca_responses

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import mt_bench
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.training.attacks import Templates, attacks, constants, guards
from fitrouter_evaluators.training.hierarchy import Observations, Prior, Shrinkage, fit_prior

Score = Callable[[Sequence[Answer]], Floats]
_LIFTED = 0.05


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a kind of attack against a head. Scores are in standard deviations of honest answers."""

    head: str
    kind: str
    on: str
    """constant, stubs, or weak (honest answers below the median)."""
    margin: float
    """Median of the attacked answers − median of the honest ones; negative where the attack lost."""
    above: float
    """Share of the attacked answers above the honest median."""
    lift: float | None
    """Mean change of honest answers, weak or not; None where there is no answer that was changed."""
    answers: int

    @property
    def lost(self) -> bool:
        """Whether the attack lost."""
        if self.on == "constant":
            return self.margin < 0.0
        return self.margin < 0.0 and self.above <= _LIFTED and (self.lift is None or self.lift <= 0.0)


def battle(
    honest: Sequence[Sequence[Answer]],
    heads: Mapping[str, Callable[[Floats], Floats]],
    encode: Score,
    *,
    templates: Templates = HELD_OUT,
    replies: Mapping[str, str] | None = None,
    sample: int = 60,
    seed: int = 0,
) -> list[Verdict]:
    """Attack heads.

    Args:
        honest: the honest answers to each prompt.
        heads: name → scores float64[n] of features float64[n, D].
        encode: answers → features.
        templates: of the attacks.
        replies: more constant replies by name.
        sample: honest answers that are attacked, and prompts that stubs and constant replies answer.
        seed: which of them.
    """
    rng = np.random.default_rng([2026, seed])
    flat = [answer for answers in honest for answer in answers]
    H = encode(flat)
    picked = np.sort(rng.permutation(len(flat))[:sample])
    prompts = [honest[i][0].prompt for i in np.sort(rng.permutation(len(honest))[:sample])]
    everywhere = {str(i): text for i, text in enumerate(constants(templates))} | dict(replies or {})
    ways, stubs = attacks(templates), templates.stubs
    fixed = {name: encode([Answer(prompt=p, text=text) for p in prompts]) for name, text in everywhere.items()}
    bare = [Answer(prompt=p, text=stubs[i % len(stubs)]) for i, p in enumerate(prompts)]
    dressed = {way.name: encode([_dress(way.of, answer) for answer in bare]) for way in ways}
    changed = {way.name: encode([_dress(way.of, flat[i]) for i in picked]) for way in ways}
    out = []
    for name, head in heads.items():
        scores = head(H)
        middle, spread = float(np.median(scores)), float(scores.std()) or 1.0
        scaled = _scaled(head, middle, spread)
        for reply, h in fixed.items():
            label = reply if reply in (replies or {}) else "constant"
            out.append(_verdict(name, label, "constant", scaled(h), None))
        before = scaled(H[picked])
        for kind in dict.fromkeys(way.kind for way in ways):
            these = [way.name for way in ways if way.kind == kind]
            out.append(_verdict(name, kind, "stubs", np.concatenate([scaled(dressed[way]) for way in these]), None))
            after = np.array([scaled(changed[way]) for way in these])
            lift = float((after - before).mean())
            out.append(_verdict(name, kind, "weak", after[:, before < 0.0].ravel(), lift))
    return _merged(out)


def _scaled(head: Callable[[Floats], Floats], middle: float, spread: float) -> Callable[[Floats], Floats]:
    return lambda h: (head(h) - middle) / spread


def _dress(of: Callable[[str, str], str], answer: Answer) -> Answer:
    return Answer(prompt=answer.prompt, text=of(answer.text, answer.prompt))


def _verdict(head: str, kind: str, on: str, scores: Floats, lift: float | None) -> Verdict:
    margin, above = float(np.median(scores)), float((scores > 0.0).mean())
    return Verdict(head=head, kind=kind, on=on, margin=margin, above=above, lift=lift, answers=len(scores))


def _merged(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Keep only the most successful of several constant replies to one head."""
    best: dict[tuple[str, str, str], Verdict] = {}
    for verdict in verdicts:
        key = (verdict.head, verdict.kind, verdict.on)
        if key not in best or verdict.margin > best[key].margin:
            best[key] = verdict
    return list(best.values())


# --- heads ---


def population_head(
    folder: Path, features: ResponseFeatures, *, guard: float = 0.2
) -> tuple[Prior, list[Observations]]:
    """Fit a population prior over h from MT-bench's judges; also return each judge's own pairs.

    `guard` is the weight of one pair of an honest answer and the same answer attacked, three for every answer (train
    part): such pairs teach the population what no judge was shown.
    """
    pairs = [pair for pair in mt_bench.convert(folder) if pair.label != 0.5]
    texts = {(p.prompt, t.text): None for p in pairs for t in (p.a, p.b)}
    answers = [Answer(prompt=prompt, text=text) for prompt, text in texts]
    at = dict(zip(texts, np.nan_to_num(features.encode(answers)), strict=True))
    X = np.array([at[p.prompt, p.a.text] - at[p.prompt, p.b.text] for p in pairs])
    X[:, 0] = 1.0  # position
    y, user = np.array([p.label for p in pairs]), np.array([p.user for p in pairs])
    users = [Observations(X[user == name], y[user == name]) for name in np.unique(user)]
    shrinkage = Shrinkage(nu=50.0, psi=0.01, ridge=30.0)
    taught = [*users, *guards(answers, features, guard)] if guard else users
    return fit_prior(taught, link="logistic", shrinkage=shrinkage, iterations=6), users


def heads_of(prior: Prior, users: Sequence[Observations]) -> dict[str, Callable[[Floats], Floats]]:
    """Return the heads by name: g, the population's, and every user's after all of their labels."""

    def linear(w: Floats) -> Callable[[Floats], Floats]:
        return lambda h: np.nan_to_num(h)[:, 1:] @ w[1:]

    heads: dict[str, Callable[[Floats], Floats]] = {"g": lambda h: h[:, 1], "population": linear(prior.mean)}
    for i, user in enumerate(users):
        heads[f"user {i}"] = linear(prior.posterior(user).mean)
    return heads


def honest_answers(path: Path, prompts: int, models: Sequence[str] = ()) -> tuple[list[list[Answer]], dict[str, str]]:
    """Load honest answers to recorded prompts, spread over the file, and the adversary's constant reply."""
    rows = alpaca_responses(path)
    rows = rows[:: max(1, len(rows) // prompts)][:prompts]
    honest = [
        [
            Answer(prompt=row.prompt, text=text)
            for model, text in row.responses.items()
            if model != ADVERSARY and (not models or model in models)
        ]
        for row in rows
    ]
    null = next((row.responses[ADVERSARY] for row in rows if ADVERSARY in row.responses), None)
    return honest, {} if null is None else {ADVERSARY: null}


def development(data: Path, seeds: int = 1, encoder: str | Encoder = "static", *, prompts: int = 120) -> dict[str, Any]:
    """Measure criterion 6 on AlpacaEval's prompts and answers, none of which any head has seen.

    Returns:
        JSON: `verdicts` of g and the population's head, `users` (of all users' heads: share of heads at which the
        attack lost, and the worst margin), and `lost`, whether every attack lost against every head's median.
    """
    read = get_encoder(encoder) if isinstance(encoder, str) else encoder
    features = ResponseFeatures(read, scalar=global_scalar(read))
    prior, users = population_head(data / "mt_bench_human", features)
    honest, replies = honest_answers(data / "alpaca_eval", prompts)
    heads = heads_of(prior, users)
    verdicts = [
        verdict
        for seed in range(seeds)
        for verdict in battle(honest, heads, features.encode, replies=replies, sample=prompts, seed=seed)
    ]
    shared = [verdict for verdict in verdicts if not verdict.head.startswith("user ")]
    return {
        "encoder": read.id,
        "prompts": len(honest),
        "verdicts": [{**msgspec.to_builtins(verdict), "lost": verdict.lost} for verdict in shared],
        "users": _of_users([verdict for verdict in verdicts if verdict.head.startswith("user ")]),
        "lost": all(verdict.lost for verdict in shared),
    }


def _of_users(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    out = []
    for kind, on in dict.fromkeys((verdict.kind, verdict.on) for verdict in verdicts):
        these = [verdict for verdict in verdicts if (verdict.kind, verdict.on) == (kind, on)]
        out.append(
            {
                "kind": kind,
                "on": on,
                "heads": len(these),
                "lost": float(np.mean([verdict.lost for verdict in these])),
                "margin_negative": float(np.mean([verdict.margin < 0.0 for verdict in these])),
                "worst_margin": max(verdict.margin for verdict in these),
                "mean_above": float(np.mean([verdict.above for verdict in these])),
            }
        )
    return out
