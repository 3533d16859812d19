"""The gate: what it reads, how its α is spent, and that nothing but exact limits ever promotes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kits.tables import table_driven

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.gate import GateEvidence, decide, sequence_levels
from fitrouter_evaluators.replay.gate_file import Gate, load_gate, parse_gate
from fitrouter_evaluators.replay.inference.sequences import exact_band
from fitrouter_evaluators.replay.report import Band, Check, Diagnostics, UserSatisfaction


def band(low: float, high: float, *, n: int = 5000, **changes: Any) -> Band:
    how: dict[str, Any] = {"policy": "difference", "kind": "exact", "value": 0.5 * (low + high), "alpha": 0.001}
    how |= changes
    return Band(low=low, high=high, n=n, **how)


def diagnostics(policy: str = "candidate", unsupported: float = 0.0, max_weight: float = 10.0) -> Diagnostics:
    return Diagnostics(
        policy=policy,
        n=5000,
        ess=2000.0,
        max_weight=max_weight,
        mean_weight=1.0,
        mean_weight_se=0.01,
        unsupported=unsupported,
        manski_low=0.4,
        manski_high=0.6,
        dm_dr_gap=0.0,
    )


def people(worse: float = 0.1, change: float = 0.0, role: str = "") -> UserSatisfaction:
    return UserSatisfaction(
        role=role,
        users=100,
        mean=0.6,
        sd=0.1,
        sd_low=0.0,
        sd_high=1.0,
        worst_decile=0.4 + change,
        worst_decile_low=0.3,
        worst_decile_high=0.5,
        worse_off=worse,
        worse_off_low=0.0,
        worse_off_high=1.0,
        sd_against=0.1,
        worst_decile_against=0.4,
    )


def asked(gate: Gate, low: float, high: float, *more: GateEvidence, **how: Any) -> tuple[str, list[str]]:
    """Verdict and reasons where the gain in fit lies in [low, high]."""
    n = how.pop("n", 5000)
    answer = decide(
        gate, [GateEvidence(gate.metric, band(low, high, n=n)), *more], how.pop("seen", [diagnostics()]), **how
    )
    return answer.verdict, answer.reasons


# --- reading ---


def test_a_gate_is_read_from_its_file(tmp_path: Path) -> None:
    """Every rule can be set, an empty file is the shortest gate, and what is not set has its default."""
    file = tmp_path / "promote.yaml"
    file.write_text(
        """
metric: fit
alpha: 0.1
min_gain: 0.01
keep_below: 0.05
ceilings: {cost: 0.5}
guardrails:
  - {metric: cost, max_increase: 0.001}
  - {metric: fit, slice: role=nurse, max_decrease: 0.05, require: no_harm_shown}
users: {max_worse_off: 0.3, max_worst_decile_decrease: 0.02, per_role: true}
max_weight: 100
"""
    )
    gate = load_gate(file)
    assert (gate.alpha, gate.keep_threshold, gate.guardrails[0].worst, gate.guardrails[1].worst) == (
        0.1,
        0.05,
        -0.001,
        -0.05,
    )
    file.write_text("")
    assert load_gate(file) == Gate()
    assert Gate().keep_threshold == pytest.approx(0.02)
    assert parse_gate({"metric": "cost", "min_gain": 0.1, "ceilings": {"cost": 1.0}}).keep_threshold == 0.1


@table_driven(
    ("given", "words"),
    [
        ({"metric": "score"}, ["metric", "a score is a model's prediction", "users are worse off", "'fit'"]),
        ({"guardrails": [{"metric": "score", "max_decrease": 0.0}]}, ["guardrails.0.metric", "a score is"]),
        ({"metric": "revenue"}, ["metric", "'fit', 'cost', 'latency', 'utility' or 'outcome'", "given was 'revenue'"]),
        ({"min_gains": 0.1}, ["min_gains", "no such setting", "did you mean 'min_gain'", "Allowed here: alpha"]),
        ({"guardrails": [{"metric": "fit", "max_decreas": 1}]}, ["did you mean 'max_decrease'", "require"]),
        ({"users": {"worse": 0.1}}, ["users.worse", "max_worse_off"]),
        ({"alpha": 0.7}, ["alpha", "less than 0.5", "given was 0.7"]),
        ({"alpha": "often"}, ["alpha", "given was 'often'"]),
        ({"min_gain": 0.05, "keep_below": 0.01}, ["keep_below: 0.01 is below min_gain 0.05"]),
        ({"guardrails": [{"metric": "fit", "max_increase": 1.0}]}, ["on 'fit' needs 'max_decrease'"]),
        ({"guardrails": [{"metric": "cost", "max_decrease": 1.0}]}, ["on 'cost' needs 'max_increase'"]),
        ({"guardrails": [{"metric": "cost"}]}, ["needs 'max_increase'"]),
        ({"guardrails": [{"metric": "cost", "max_increase": 0.1}]}, ["ceilings", "'cost'", "ceilings: {cost: 0.5}"]),
        ({"metric": "latency"}, ["ceilings: {latency: 60}"]),
        ({"sensitivity": 0.5}, ["sensitivity", "given was 0.5"]),
        ([1, 2], ["the gate cannot be used"]),
    ],
)
def test_invalid_rules_are_explained(given: Any, words: list[str]) -> None:
    """Errors give the value, what is allowed, and a remedy; scores are refused with the reason."""
    with pytest.raises(ConfigError) as error:
        parse_gate(given)
    for word in words:
        assert word in str(error.value)


def test_missing_and_invalid_files_are_named(tmp_path: Path) -> None:
    """A missing file and one that is not YAML are named."""
    with pytest.raises(ConfigError, match=r"there is no file .*promote\.yaml"):
        load_gate(tmp_path / "promote.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_gate(tmp_path / "broken.yaml")


# --- levels ---


@given(st.floats(0.001, 0.4), st.integers(0, 5), st.integers(1, 4))
def test_alpha_is_split_between_promotions_and_keeps(alpha: float, rails: int, roles: int) -> None:
    """Every promoting limit has level α/2; the keeping limits have α/2 together."""
    slices = [f"role={r}" for r in range(roles)]
    kinds: list[dict[str, Any]] = [
        {"metric": "cost", "max_increase": 0.1},
        {"metric": "latency", "max_increase": 0.1},
        {"metric": "utility", "max_decrease": 0.1},
        {"metric": "fit", "slice": "role", "max_decrease": 0.1},
        {"metric": "utility", "slice": "role=0", "max_decrease": 0.1},
    ]
    gate = parse_gate({"alpha": alpha, "guardrails": kinds[:rails], "ceilings": {"cost": 1.0, "latency": 1.0}})
    found = sequence_levels(gate, slices)
    less = {"cost", "latency"}
    assert all((level.high if level.metric in less else level.low) == alpha / 2 for level in found)
    keeps = sum(level.low if level.metric in less else level.high for level in found)
    assert keeps == pytest.approx(alpha / 2)
    assert len(found) == 1 + rails + (roles - 1) * (rails > 3)


def test_two_rules_on_one_sequence_take_the_stricter_level() -> None:
    """A sequence that several rules read is as sure as each of them needs."""
    rules = [
        {"metric": "fit", "slice": "role=a", "max_decrease": 0.1},
        {"metric": "fit", "slice": "role", "max_decrease": 0},
    ]
    found = {
        level.slice: level
        for level in sequence_levels(parse_gate({"guardrails": rules}), ["role=a", "role=b", "task=x"])
    }
    assert set(found) == {"", "role=a", "role=b"}
    assert found["role=a"].high == found["role=b"].high == pytest.approx(0.025 / 3 / 2)
    assert found[""].high == pytest.approx(0.025 / 3)


# --- deciding ---


def test_the_three_verdicts() -> None:
    """Promote above min_gain, keep below keep_below, neither in between or before min_units."""
    gate = parse_gate({"min_gain": 0.01, "keep_below": 0.03})
    assert asked(gate, 0.02, 0.04)[0] == "promote"
    assert asked(gate, -0.02, 0.02)[0] == "keep"
    assert asked(gate, -0.02, 0.04)[0] == "not enough evidence"
    assert asked(gate, 0.015, 0.02)[0] == "promote"  # sure to be above the least, though not by much
    verdict, reasons = asked(gate, 0.02, 0.04, n=499)
    assert verdict == "not enough evidence"
    assert "499 units; at least 500 are required" in reasons[0]


def test_limits_are_strict() -> None:
    """A gain equal to min_gain does not promote, and one equal to keep_below does not keep."""
    gate = parse_gate({"min_gain": 0.01, "keep_below": 0.03})
    assert asked(gate, 0.01, 0.05)[0] == "not enough evidence"
    assert asked(gate, 0.0, 0.03)[0] == "not enough evidence"


@given(st.floats(-0.3, 0.3), st.floats(0.0, 0.3), st.floats(0.0, 0.1), st.floats(0.0, 0.1))
def test_non_response_only_withholds(low: float, width: float, down: float, up: float) -> None:
    """Non-response widens both limits: it can neither cause a promotion nor a keep."""
    gate = Gate()
    printable = decide(gate, [GateEvidence("fit", band(low, low + width))], [diagnostics()]).verdict
    wide = decide(gate, [GateEvidence("fit", band(low, low + width), (down, up))], [diagnostics()]).verdict
    assert wide != "promote" or printable == "promote"
    assert wide != "keep" or low + width < gate.keep_threshold
    assert (wide == "promote") == (low - down > 0.0)
    assert (wide == "keep") == (low + width + up < gate.keep_threshold and wide != "promote")


def test_a_gain_in_cost_is_a_saving() -> None:
    """Where less is better, the upper limit of the difference promotes and the lower one keeps."""
    gate = parse_gate({"metric": "cost", "min_gain": 0.001, "ceilings": {"cost": 1.0}})
    assert asked(gate, -0.01, -0.002)[0] == "promote"
    assert asked(gate, -0.01, -0.0005)[0] == "not enough evidence"
    assert asked(gate, -0.0005, 0.01)[0] == "keep"


def test_guardrails_require_proof_or_no_shown_harm() -> None:
    """`proof` waits, `no_harm_shown` promotes until harm is shown; both keep once it is, whatever the gain."""
    for require, open_verdict in (("proof", "not enough evidence"), ("no_harm_shown", "promote")):
        rule = {"metric": "cost", "max_increase": 0.001, "require": require}
        gate = parse_gate({"guardrails": [rule], "ceilings": {"cost": 1.0}})

        def with_cost(low: float, high: float, gate: Gate = gate) -> str:
            return asked(gate, 0.01, 0.02, GateEvidence("cost", band(low, high)))[0]

        assert with_cost(-0.002, 0.0005) == "promote"
        assert with_cost(-0.002, 0.002) == open_verdict
        assert with_cost(0.002, 0.004) == "keep"
    verdict, reasons = asked(gate, 0.01, 0.02, GateEvidence("cost", band(0.002, 0.004)))
    assert verdict == "keep"
    assert reasons == ["cost: gain in [-0.004, -0.002] after 5000 units, at least -0.001 is required"]


def test_a_guardrail_on_each_role_reads_all_of_them() -> None:
    """One harmed role is enough to keep, and is named; roles that were never seen withhold."""
    gate = parse_gate({"guardrails": [{"metric": "fit", "slice": "role", "max_decrease": 0.02}]})
    nurse = GateEvidence("fit", band(-0.01, 0.05, slice="role=nurse"))
    clerk = GateEvidence("fit", band(-0.08, -0.03, slice="role=clerk"))
    other = GateEvidence("fit", band(-0.9, -0.8, slice="task=code"))
    assert asked(gate, 0.01, 0.02, nurse, other)[0] == "promote"
    verdict, reasons = asked(gate, 0.01, 0.02, nurse, clerk)
    assert verdict == "keep"
    assert len(reasons) == 1
    assert "role=clerk" in reasons[0]
    verdict, reasons = asked(gate, 0.01, 0.02)
    assert verdict == "not enough evidence"
    assert "no unit of 'role' in the log" in reasons[0]
    typo = parse_gate({"guardrails": [{"metric": "fit", "slice": "role=nurze", "max_decrease": 0.02}]})
    verdict, reasons = asked(typo, 0.01, 0.02, nurse)
    assert verdict == "not enough evidence"
    assert "no unit of 'role=nurze' in the log; correct the name" in reasons[0]


def test_unsupported_mass_and_large_weights_withhold() -> None:
    """Unsupported mass and weights above the limit withhold a promotion and never cause one."""
    gate = parse_gate({"max_unsupported": 0.01, "max_weight": 50})
    assert asked(gate, 0.01, 0.02)[0] == "promote"
    for seen in (diagnostics(unsupported=0.02), diagnostics(max_weight=51.0)):
        assert asked(gate, 0.01, 0.02, seen=[seen])[0] == "not enough evidence"
    with pytest.raises(ValueError, match="diagnostics of the candidate"):
        asked(gate, 0.01, 0.02, seen=[diagnostics("against")])


def test_user_limits_withhold_and_never_promote() -> None:
    """They are valid for a single look: at best they do not withhold what exact limits promote."""
    gate = parse_gate({"users": {"max_worse_off": 0.3, "max_worst_decile_decrease": 0.02}})
    assert asked(gate, 0.01, 0.02, satisfaction=[people()])[0] == "promote"
    for bad in (people(worse=0.31), people(change=-0.03)):
        assert asked(gate, 0.01, 0.02, satisfaction=[bad])[0] == "not enough evidence"
    best = people(worse=0.0, change=0.5)
    assert asked(gate, -0.01, 0.05, satisfaction=[best])[0] == "not enough evidence"
    assert asked(gate, -0.01, 0.01, satisfaction=[best])[0] == "keep"
    verdict, reasons = asked(gate, 0.01, 0.02)
    assert verdict == "not enough evidence"
    assert "too few users" in reasons[0]
    harmed = [people(), people(worse=0.9, role="nurse")]
    assert asked(gate, 0.01, 0.02, satisfaction=harmed)[0] == "promote"
    each = parse_gate({"users": {"max_worse_off": 0.3, "per_role": True}})
    verdict, reasons = asked(each, 0.01, 0.02, satisfaction=harmed)
    assert verdict == "not enough evidence"
    assert "role nurse" in reasons[0]


def test_only_exact_limits_at_the_required_level_are_accepted() -> None:
    """Asymptotic sequences, other policies, looser levels, and ranges taken from the log are refused."""
    for wrong in ({"kind": "asymptotic"}, {"policy": "candidate"}, {"alpha": 0.06}):
        with pytest.raises(ValueError, match=r"exact sequences|α = 0\.06"):
            decide(Gate(), [GateEvidence("fit", band(0.1, 0.2, **wrong))], [diagnostics()])
    with pytest.raises(ConfigError, match="ceilings"):
        decide(Gate(), [GateEvidence("fit", band(0.1, 0.2), fixed=False)], [diagnostics()])


def test_a_log_that_fails_its_audit_is_refused() -> None:
    """No verdict is given on such a log; the failed checks are named."""
    checks = [Check(name="draws", ok=True, detail="fine"), Check(name="weights", ok=False, detail="mean 1.4, not 1")]
    with pytest.raises(InvalidLog, match=r"weights: mean 1\.4, not 1"):
        asked(Gate(), 0.1, 0.2, checks=checks)
    assert asked(Gate(), 0.1, 0.2, checks=checks[:1])[0] == "promote"


def test_a_metric_without_evidence_is_named() -> None:
    """A rule on what was not replayed says what there is and what to do."""
    gate = parse_gate({"guardrails": [{"metric": "cost", "max_increase": 0.1}], "ceilings": {"cost": 1.0}})
    with pytest.raises(ConfigError, match=r"'cost', for which there is no evidence, only for \['fit'\]"):
        asked(gate, 0.1, 0.2)


# --- simulations ---


def promoted(x: np.ndarray, cost: np.ndarray, gate: Gate) -> tuple[bool, bool]:
    """(promoted, kept) by a gate that is asked after every 50 of the units and stops at its first answer."""
    at = np.arange(50, len(x) + 1, 50)
    paths = {}
    for level in sequence_levels(gate):
        z = {"fit": x, "cost": cost}[level.metric]
        paths[level.metric] = exact_band(z, z, 1.0, 1.0, alpha=(level.low, level.high), looks=at)
    for j, n in enumerate(at):
        evidence = [
            GateEvidence(metric, band(path.lows[j], path.highs[j], n=int(n), alpha=path.alpha))
            for metric, path in paths.items()
        ]
        verdict = decide(gate, evidence, [diagnostics()]).verdict
        if verdict != "not enough evidence":
            return verdict == "promote", verdict == "keep"
    return False, False


def test_intersection_union_controls_wrong_promotions() -> None:
    """If one condition is false, the promotion probability is at most α/2 without a correction."""
    rules: dict[str, Any] = {"guardrails": [{"metric": "cost", "max_increase": 0.0}], "ceilings": {"cost": 1.0}}
    gate = parse_gate({"alpha": 0.2, "min_units": 50, **rules})
    wrong = {"gain": 0, "guardrail": 0}
    for seed in range(200):
        rng = np.random.default_rng([11, seed])
        none, much = (2.0 * (rng.random(1000) < p) - 1.0 for p in (0.5, 0.75))
        wrong["gain"] += promoted(none, -much, gate)[0]  # no gain, though it saves
        wrong["guardrail"] += promoted(much, none, gate)[0]  # a gain, and the cost is just at its limit
    # α/2 = .1 of 200 are 20; 32 are three standard deviations more.
    assert max(wrong.values()) <= 32
    # The limits are tight enough for that to be a test: some are promoted.
    assert min(wrong.values()) >= 1


def test_bonferroni_controls_wrong_keeps() -> None:
    """If all conditions just hold, the probability of a keep is at most α/2."""
    rules: dict[str, Any] = {"guardrails": [{"metric": "cost", "max_increase": 0.0}], "ceilings": {"cost": 1.0}}
    gate = parse_gate({"alpha": 0.2, "min_units": 50, "min_gain": 0.0, "keep_below": 0.0, **rules})
    kept = 0
    for seed in range(200):
        rng = np.random.default_rng([12, seed])
        x, cost = (2.0 * (rng.random(1000) < 0.5) - 1.0 for _ in range(2))
        kept += promoted(x, cost, gate)[1]
    assert 1 <= kept <= 32
