"""Open Bandit Pipeline's own evaluation of estimators on Open Bandit Data; `obd.py` runs it in another environment.

    python -m benchmarks.replay._obd_peer DATA CAMPAIGN BEHAVIOUR ROUNDS OUT

The protocol is that of its examples/obd with a logistic regression: the target is the other policy of the same week
(Bernoulli Thompson sampling with ZOZOTOWN's prior, by a million simulated draws; or uniform), its true value the mean
click of that policy's own log, round b a bootstrap sample from seed b. The outcome model is one logistic regression for
each position (C = 100), cross-fitted on three folds from seed 12345; λ of Switch-DR and DRos are tuned by SLOPE.

Two things differ from the example. Regressions converge to 1e-8: so today's scikit-learn repeats the numbers that the
example publishes for the campaign "all", and with its default it does not. And where the training part of a fold holds
no click at that position, the example fails; here the model predicts none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import obp
import sklearn
from obp.dataset import OpenBanditDataset
from obp.ope import (
    DirectMethod,
    DoublyRobust,
    DoublyRobustWithShrinkageTuning,
    InverseProbabilityWeighting,
    OffPolicyEvaluation,
    RegressionModel,
    SelfNormalizedDoublyRobust,
    SelfNormalizedInverseProbabilityWeighting,
    SwitchDoublyRobustTuning,
)
from obp.policy import BernoulliTS
from sklearn.linear_model import LogisticRegression

SEED = 12345
SIMULATIONS = 1_000_000
FOLDS = 3
LAMBDAS = [10, 50, 100, 500, 1000, 5000, 10000, np.inf]
NAMES = ["dm", "ips", "snips", "dr", "sndr", "switch_dr", "dr_os"]
"""Ours for its estimators, in the order of `estimators`."""
KEPT = 3
"""Rounds whose predictions are handed over, so that the estimators can be compared number by number."""


class Regression(LogisticRegression):
    """A logistic regression that also predicts where only one class occurs, such as no clicks at all."""

    one_class = 0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        self.constant_ = float(y[0]) if y.min() == y.max() else None
        if self.constant_ is None:
            return super().fit(X, y, sample_weight)
        Regression.one_class += 1
        return self

    def predict_proba(self, X: Any) -> Any:
        if self.constant_ is None:
            return super().predict_proba(X)
        return np.tile([1.0 - self.constant_, self.constant_], (len(X), 1))


def target(evaluated: str, campaign: str, logged: OpenBanditDataset) -> Any:
    """Return the target policy's pmf at each position, float64[K, L]."""
    if evaluated == "random":
        return np.full((logged.n_actions, logged.len_list), 1.0 / logged.n_actions)
    policy = BernoulliTS(
        n_actions=logged.n_actions,
        len_list=logged.len_list,
        random_state=SEED,
        is_zozotown_prior=True,
        campaign=campaign,
    )
    return policy.compute_batch_action_dist(n_sim=SIMULATIONS)[0]


def estimators() -> list[Any]:
    """Create the estimators of OBP's example; tuned ones keep their λ, so each round needs new ones."""
    return [
        DirectMethod(),
        InverseProbabilityWeighting(),
        SelfNormalizedInverseProbabilityWeighting(),
        DoublyRobust(),
        SelfNormalizedDoublyRobust(),
        SwitchDoublyRobustTuning(lambdas=LAMBDAS),
        DoublyRobustWithShrinkageTuning(lambdas=LAMBDAS),
    ]


def predicted(logged: OpenBanditDataset, sample: dict[str, Any]) -> Any:
    """Predict rewards by cross-fitting, float64[n, K, L]."""
    model = RegressionModel(
        n_actions=logged.n_actions,
        len_list=logged.len_list,
        action_context=logged.action_context,
        base_model=Regression(C=100, tol=1e-8, max_iter=100_000, random_state=SEED),
    )
    return model.fit_predict(
        **{name: sample[name] for name in ("context", "action", "reward", "pscore", "position")},
        n_folds=FOLDS,
        random_state=SEED,
    )


def main() -> None:
    folder, campaign, behaviour, rounds, out = sys.argv[1:]
    data, evaluated = Path(folder), "bts" if behaviour == "random" else "random"
    logged = OpenBanditDataset(behavior_policy=behaviour, campaign=campaign, data_path=data)
    truth = OpenBanditDataset.calc_on_policy_policy_value_estimate(evaluated, campaign, data)
    pmf = target(evaluated, campaign, logged)
    in_file = logged.data.index.to_numpy()
    n = logged.n_rounds
    assert np.array_equal(np.sort(in_file), np.arange(n))
    values, lambdas, rows, kept = [], [], [], []
    for b in range(int(rounds)):
        sample = logged.sample_bootstrap_bandit_feedback(random_state=b)
        picked = np.random.RandomState(b).choice(np.arange(n), size=n, replace=True)
        assert np.array_equal(sample["reward"], logged.reward[picked])
        model = predicted(logged, sample)
        each = estimators()
        found = OffPolicyEvaluation(bandit_feedback=sample, ope_estimators=each).estimate_policy_values(
            action_dist=np.tile(pmf, (n, 1, 1)), estimated_rewards_by_reg_model=model
        )
        values.append([found[estimator.estimator_name] for estimator in each])
        lambdas.append([estimator.best_hyperparam for estimator in each[-2:]])
        rows.append(in_file[picked])
        if b < KEPT:
            kept.append(model[np.arange(n), :, sample["position"]])
    about = {
        "obp": obp.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "models_without_a_click": Regression.one_class,
    }
    np.savez(
        out,
        pmf=pmf,
        truth=truth,
        rows=rows,
        values=values,
        lambdas=lambdas,
        model=kept,
        names=NAMES,
        about=json.dumps(about),
    )


if __name__ == "__main__":
    main()
