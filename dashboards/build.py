"""Write the Grafana dashboards: `python dashboards/build.py`, with `--check` to compare only.

Four dashboards from one table of panels, with Grafana's own builders (grafana-foundation-sdk). The JSON is committed,
so that only changes need them; a test compares it and runs every expression against a real Prometheus.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DynamicConfigValue,
    VariableRefresh,
)

FOLDER = Path(__file__).parent / "fitrouter_dashboards" / "grafana"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
MODEL = 'model=~"$model"'
ROLE = 'role=~"$role"'
BOTH = f"{MODEL},{ROLE}"


class Panel(NamedTuple):
    """A panel: its queries are (PromQL, legend)."""

    title: str
    unit: str
    about: str
    queries: Sequence[tuple[str, str]]
    kind: str = "lines"
    """`lines`, `stacked` (lines), or `number`."""
    span: int = 12
    top: float | None = None


def _rate(name: str, by: str = "", where: str = "") -> str:
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({name}{{{where}}}[$__rate_interval]))"


def _mean(name: str, by: str = "", where: str = "") -> str:
    return f"{_rate(f'{name}_sum', by, where)} / ({_rate(f'{name}_count', by, where)} > 0)"


def _quantile(q: float, name: str, by: str = "", where: str = "") -> str:
    return f"histogram_quantile({q}, {_rate(f'{name}_bucket', f'le, {by}' if by else 'le', where)})"


def _bounds(name: str, where: str = "", middle: str = "estimate") -> list[tuple[str, str]]:
    comma = "," if where else ""
    return [(f'{name}{{{where}{comma}bound="{bound}"}}', bound) for bound in ("low", middle, "high")]


def _or_zero(expression: str, label: str = "") -> str:
    """Return a PromQL expression that is 0 while it has no series; `label` is then "none", or absent for a ratio."""
    if label:
        return f'{expression} or on() label_replace(vector(0), "{label}", "none", "", "")'
    return f"max({expression}) or vector(0)"


OPERATIONS = [
    Panel(
        "Requests per second",
        "reqps",
        "Of the last five minutes.",
        [("fitrouter:requests:rate5m", "requests")],
        "number",
        8,
    ),
    Panel(
        "Time in the router",
        "s",
        "99th percentile of the overhead of a request, last five minutes.",
        [("fitrouter:overhead_seconds:p99_5m", "p99")],
        "number",
        8,
    ),
    Panel(
        "Leases",
        "short",
        "Processes that hold the lease of a service; 1 is right.",
        [("fitrouter_lease_held", "{{name}}")],
        "number",
        8,
    ),
    Panel(
        "Requests",
        "reqps",
        "Requests per second, by the model that answered.",
        [(_rate("fitrouter_requests_total", "model", BOTH), "{{model}}")],
        "stacked",
    ),
    Panel(
        "Not answered",
        "percentunit",
        "Share of requests that ended without a whole answer.",
        [(_or_zero("fitrouter:failed_requests:ratio5m"), "not answered")],
        span=6,
        top=1.0,
    ),
    Panel(
        "Fallbacks",
        "percentunit",
        "Share of answers that came from another model than the chosen one.",
        [(_or_zero("fitrouter:fallbacks:ratio5m"), "fallbacks")],
        span=6,
        top=1.0,
    ),
    Panel(
        "Time to the whole answer",
        "s",
        "Median and 99th percentile, by model.",
        [
            (_quantile(0.5, "fitrouter_latency_seconds", "model", MODEL), "{{model}} p50"),
            (_quantile(0.99, "fitrouter_latency_seconds", "model", MODEL), "{{model}} p99"),
        ],
    ),
    Panel(
        "Time to the first token",
        "s",
        "Of streams: median and 99th percentile, by model.",
        [
            (_quantile(0.5, "fitrouter_ttft_seconds", "model", MODEL), "{{model}} p50"),
            (_quantile(0.99, "fitrouter_ttft_seconds", "model", MODEL), "{{model}} p99"),
        ],
    ),
    Panel(
        "Time in the router",
        "s",
        "Overhead of a request without the call of the model.",
        [(_quantile(0.5, "fitrouter_overhead_seconds"), "p50"), (_quantile(0.99, "fitrouter_overhead_seconds"), "p99")],
    ),
    Panel(
        "Failed calls",
        "cps",
        "Failed attempts to call a model, by error.",
        [
            (_or_zero(_rate("fitrouter_attempts_failed_total", "model, error", MODEL), "error"), "{{model}} {{error}}"),
        ],
    ),
    Panel(
        "Error responses",
        "cps",
        "Responses with an error, by its code.",
        [(_or_zero(_rate("fitrouter_errors_total", "kind"), "kind"), "{{kind}}")],
    ),
    Panel(
        "Availability",
        "percentunit",
        "Estimated probability that a model answers.",
        [(f"fitrouter_availability_ratio{{{MODEL}}}", "{{model}}")],
        top=1.0,
    ),
    Panel(
        "Not called now",
        "short",
        "1 while a worker does not call a model or provider.",
        [(_or_zero("fitrouter_breaker_open", "name"), "{{name}}")],
    ),
    Panel(
        "Troubles",
        "cps",
        "Failures of a part that did not fail the request.",
        [
            (_or_zero(_rate("fitrouter_trouble_total", "part"), "part"), "{{part}}"),
            (_rate("fitrouter_unlogged_total"), "unlogged answers"),
        ],
    ),
]
QUALITY = [
    Panel(
        "Satisfaction: mean",
        "percentunit",
        "Mean over people of their true mean ratings.",
        [('fitrouter_satisfaction_ratio{measure="mean",bound="estimate"}', "mean")],
        "number",
        6,
        1.0,
    ),
    Panel(
        "Satisfaction: variance",
        "none",
        "Variance between people, without sampling noise.",
        [('fitrouter_satisfaction_ratio{measure="variance",bound="estimate"}', "variance")],
        "number",
        6,
    ),
    Panel(
        "Satisfaction: worst tenth",
        "percentunit",
        "Mean of the tenth of the people who are served worst (CVaR10).",
        [('fitrouter_satisfaction_ratio{measure="cvar10",bound="estimate"}', "CVaR10")],
        "number",
        6,
        1.0,
    ),
    Panel(
        "Satisfaction: worst role",
        "percentunit",
        "Mean of the role that is served worst.",
        [('fitrouter_satisfaction_ratio{measure="worst_role",bound="estimate"}', "worst role")],
        "number",
        6,
        1.0,
    ),
    Panel(
        "Satisfaction over time",
        "percentunit",
        "Mean and worst tenth with their intervals.",
        [
            *((q, f"mean, {b}") for q, b in _bounds("fitrouter_satisfaction_ratio", 'measure="mean"')),
            *((q, f"worst tenth, {b}") for q, b in _bounds("fitrouter_satisfaction_ratio", 'measure="cvar10"')),
        ],
        top=1.0,
    ),
    Panel(
        "Personalisation",
        "percentunit",
        "Estimated gain per label, with an anytime-valid interval.",
        _bounds("fitrouter_personalisation_gain_ratio", middle="gain"),
    ),
    Panel(
        "Personalisation by role",
        "percentunit",
        "Lower bound of the gain in each role.",
        [(f'fitrouter_role_gain_ratio{{bound="low",{ROLE}}}', "{{role}}")],
    ),
    Panel(
        "Votes",
        "percentunit",
        "Mean of all votes as they came, replaced ones too, by model.",
        [(_mean("fitrouter_reward_ratio", "model", BOTH), "{{model}}")],
        top=1.0,
    ),
    Panel(
        "Votes by role",
        "percentunit",
        "Mean of all votes as they came, replaced ones too, by role.",
        [(_mean("fitrouter_reward_ratio", "role", BOTH), "{{role}}")],
        top=1.0,
    ),
    Panel(
        "Votes on dimensions",
        "percentunit",
        "Mean of all votes as they came on other dimensions than overall.",
        [(_mean("fitrouter_reward_dimension_ratio", "dimension", BOTH), "{{dimension}}")],
        top=1.0,
    ),
    Panel(
        "Predicted ratings",
        "percentunit",
        "Mean prediction of the reward models, by model.",
        [(_mean("fitrouter_score_ratio", "model", BOTH), "{{model}}")],
        top=1.0,
    ),
    Panel(
        "Decisions",
        "reqps",
        "Decisions per second, by the chosen model.",
        [(_rate("fitrouter_decisions_total", "model", BOTH), "{{model}}")],
        "stacked",
    ),
]
COST = [
    Panel(
        "Cost of a day",
        "currencyUSD",
        "At the rate of the last hour.",
        [("fitrouter:cost_usd:rate1h * 86400", "per day")],
        "number",
        6,
    ),
    Panel(
        "Saved",
        "percentunit",
        "Share of the cost of the best single model; its interval in USD is in the panel below.",
        [('fitrouter_saved_ratio{against="best",bound="estimate"}', "saved")],
        "number",
        6,
    ),
    Panel(
        "Cost of a request",
        "currencyUSD",
        "Mean over all requests.",
        [(f"{_rate('fitrouter_cost_usd_total')} / ({_rate('fitrouter_requests_total')} > 0)", "mean")],
        "number",
        6,
    ),
    Panel(
        "Not known exactly",
        "percentunit",
        "Share of requests without a price, which the sums leave out, and with estimated tokens or cost.",
        [
            (f"({_or_zero(_rate(f'fitrouter_{name}_total'))}) / ({_rate('fitrouter_requests_total')} > 0)", said)
            for name, said in (("unpriced", "without a price"), ("estimated", "estimated"))
        ],
        "number",
        6,
    ),
    Panel(
        "Cost",
        "currencyUSD",
        "USD per hour, by model.",
        [(f"3600 * {_rate('fitrouter_cost_usd_total', 'model', MODEL)}", "{{model}}")],
        "stacked",
    ),
    Panel(
        "Saved per request, with its interval",
        "currencyUSD",
        "Estimated from the log; 95% interval of one look.",
        _bounds("fitrouter_saved_usd", 'against="best"'),
    ),
    Panel(
        "Tokens",
        "short",
        "Tokens per second, by model and direction; and those of them cached, written and reasoning.",
        [
            (_rate("fitrouter_tokens_total", "model, direction", MODEL), "{{model}} {{direction}}"),
            (_rate("fitrouter_token_parts_total", "model, part", MODEL), "{{model}} {{part}}"),
        ],
    ),
    Panel(
        "Budgets",
        "percentunit",
        "Share of the period's limit that is spent, by tenant.",
        [('fitrouter_budget_spent_ratio{tenant=~"$tenant"}', "{{tenant}}")],
        top=1.0,
    ),
    Panel(
        "Cost weights",
        "short",
        "Weight of cost that the budget sets, by tenant.",
        [('fitrouter_budget_weight_ratio{tenant=~"$tenant"}', "{{tenant}}")],
    ),
    Panel(
        "Judges",
        "currencyUSD",
        "Cost of the reward models that are language models, today.",
        [(_or_zero("fitrouter_reward_model_usd_today", "model"), "{{model}}")],
    ),
]
LEARNING = [
    Panel("Labels", "short", "Labels in the learner's state.", [("fitrouter_learner_labels", "labels")], "number", 6),
    Panel(
        "Labels per request",
        "percentunit",
        "Feedback events per request of the last hour.",
        [("fitrouter:labels:ratio1h", "labels")],
        "number",
        6,
    ),
    Panel(
        "Exploration",
        "percentunit",
        "Share of draws that took another model than the likeliest, last hour.",
        [(_or_zero("fitrouter:exploration:ratio1h"), "explored")],
        "number",
        6,
        1.0,
    ),
    Panel(
        "Propensity audit",
        "short",
        "e-value against the logged probabilities; an alarm at 1000.",
        [("fitrouter_propensity_evidence_ratio", "e-value")],
        "number",
        6,
    ),
    Panel(
        "Entropy of the draws",
        "percentunit",
        "Mean entropy of the probabilities; 1 if uniform.",
        [(_mean("fitrouter_entropy_ratio"), "entropy")],
        top=1.0,
    ),
    Panel(
        "Inverse propensities",
        "short",
        "Mean of 1 / (K p); 1 if the logged probabilities are right.",
        [(_mean("fitrouter_inverse_propensity_ratio"), "mean")],
    ),
    Panel(
        "Lag of the learner",
        "short",
        "Durable events that are not folded.",
        [("fitrouter_learner_lag_events", "events"), ("fitrouter_learner_stalled_seconds", "seconds without progress")],
    ),
    Panel(
        "Lag of the scorer",
        "s",
        "Age of the oldest answer that waits.",
        [("fitrouter_scorer_lag_seconds", "seconds")],
        span=6,
    ),
    Panel("Answers that wait for a score", "short", "Number.", [("fitrouter_scorer_lag_answers", "answers")], span=6),
    Panel(
        "Lag of the warehouse",
        "s",
        "Age of the oldest event that is missing in DuckDB.",
        [("fitrouter_warehouse_lag_seconds", "seconds")],
        span=6,
    ),
    Panel(
        "Disk",
        "percentunit",
        "Free share of the disk of the data folder.",
        [("fitrouter_disk_free_ratio", "free")],
        span=6,
        top=1.0,
    ),
    Panel(
        "Memory of sessions",
        "s",
        "Silence after which a session was forgotten to make room for another; a day if none was.",
        [("clamp_max(fitrouter_session_memory_seconds, 86400)", "seconds")],
    ),
    Panel(
        "Drift",
        "percentunit",
        "CUSUM statistic of each model's residuals; an alarm at 1.",
        [(f"fitrouter_drift_ratio{{{MODEL}}}", "{{model}}")],
        top=1.0,
    ),
    Panel(
        "Flattery",
        "percentunit",
        "Bias of the scores of models whose scores are ignored for it.",
        [(_or_zero("fitrouter_flattery_ratio", "model"), "{{model}}")],
        span=6,
    ),
    Panel(
        "Excluded events",
        "short",
        "Quarantined events, numbers out of range, and votes beyond what users of an untrusted key may teach.",
        [
            ("fitrouter_quarantined_events", "quarantined"),
            ("fitrouter_skipped_events", "out of range"),
            ("fitrouter_votes_left_out", "votes of a key"),
        ],
        span=6,
    ),
    Panel("Scores", "cps", "Scored answers, by status.", [(_rate("fitrouter_scores_total", "status"), "{{status}}")]),
    Panel(
        "Feedback",
        "cps",
        "Feedback events, by kind, and understood remarks.",
        [
            (_rate("fitrouter_feedback_total", "kind"), "{{kind}}"),
            (_or_zero(_rate("fitrouter_remarks_total")), "remarks"),
        ],
    ),
    Panel(
        "Personalisation switched off",
        "short",
        "Scopes (the installation, roles) in which it was found to harm.",
        [("fitrouter_personalisation_off", "scopes")],
        span=6,
    ),
    Panel(
        "Rows that the warehouse lacks",
        "short",
        "Durable events that are missing in DuckDB.",
        [("fitrouter_warehouse_lag_events", "events")],
        span=6,
    ),
    Panel(
        "Reward models: answers",
        "cps",
        "Answers read, and those without features, by reward model.",
        [
            (_or_zero(_rate("fitrouter_reward_model_answers_total", "model"), "model"), "{{model}}"),
            (_or_zero(_rate("fitrouter_reward_model_missing_total", "model"), "model"), "{{model}} missing"),
            (_or_zero("fitrouter_reward_model_failing", "model"), "{{model}} fails"),
        ],
    ),
    Panel(
        "Reward models: tokens per second of work",
        "short",
        "Throughput, by reward model.",
        [
            (
                _or_zero(
                    f"{_rate('fitrouter_reward_model_tokens_total', 'model')}"
                    f" / ({_rate('fitrouter_reward_model_seconds_total', 'model')} > 0)",
                    "model",
                ),
                "{{model}}",
            )
        ],
        span=6,
    ),
    Panel(
        "Memory of the device",
        "bytes",
        "GPU memory allocated by the scorer.",
        [("fitrouter_scorer_device_bytes", "bytes")],
        span=6,
    ),
]
DASHBOARDS = {
    "operations": ("fitrouter: operations", OPERATIONS, ("model", "role")),
    "quality": ("fitrouter: quality and fit", QUALITY, ("model", "role")),
    "cost": ("fitrouter: cost", COST, ("model", "tenant")),
    "learning": ("fitrouter: learning health", LEARNING, ("model",)),
}
VALUES = {
    "model": "label_values(fitrouter_decisions_total, model)",
    "role": "label_values(fitrouter_decisions_total, role)",
    "tenant": "label_values(fitrouter_budget_spent_ratio, tenant)",
}


def built(name: str) -> str:
    """Return the JSON of a dashboard."""
    title, panels, variables = DASHBOARDS[name]
    made = (
        dashboard.Dashboard(title)
        .uid(f"fitrouter-{name}")
        .tags(["fitrouter"])
        .refresh("30s")
        .time("now-6h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in variables:
        made = made.with_variable(
            dashboard.QueryVariable(variable)
            .label(variable.capitalize())
            .datasource(SOURCE)
            .query(VALUES[variable])
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".*")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    for number, panel in enumerate(panels, 1):
        made = made.with_panel(_panel(panel).id(number))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _panel(panel: Panel) -> Any:
    made: Any = _number() if panel.kind == "number" else _lines(panel)
    made = made.title(panel.title).description(panel.about).unit(panel.unit).span(panel.span).datasource(SOURCE)
    if panel.top is not None:
        made = made.min(0.0).max(panel.top)
    for k, (expression, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(65 + k)).datasource(SOURCE)
        made = made.with_target(query)
    legends = [legend for _, legend in panel.queries]
    for legend in legends:  # an interval is a band between its bounds
        low = legend.removesuffix("high") + "low"
        if legend.endswith("high") and low in legends:
            made = made.override_by_name(legend, [DynamicConfigValue("custom.fillBelowTo", low), *_BOUND])
            made = made.override_by_name(low, _BOUND)
    return made


_BOUND = [
    DynamicConfigValue("custom.lineWidth", 0),
    DynamicConfigValue("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}),
    DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "#8e9aaf"}),
]
"""Settings of a bound's series."""


def _number() -> Any:
    return stat.Panel().height(4).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _lines(panel: Panel) -> Any:
    legend = common.VizLegendOptions().show_legend(show_legend=True)
    made = (
        timeseries.Panel()
        .height(8)
        .legend(legend.display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if panel.top is None:
        made = made.axis_soft_min(0.0)
    if panel.kind == "stacked":
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30.0)
    return made


def main(check: bool) -> int:
    """Write the dashboard files, or with `check` only list those that differ."""
    stale = []
    for name in DASHBOARDS:
        path, text = FOLDER / f"{name}.json", built(name)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.stdout.write(f"{'differ' if check else 'written'}: {', '.join(stale)}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
