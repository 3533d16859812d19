"""Tables of docs/results/personal_pool.md, from the output of `personal_pool.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from fitrouter.posterior.mixture import EXPERTS

Cell = dict[str, Any]
_NONE = "–"


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Format the tables in Markdown, by name."""
    cells = found["cells"]
    return {
        "settings": _settings(found),
        "regret": _regret(cells),
        "feasible": _feasible(cells),
        "users": _users(cells),
        "gaps": _gaps(cells),
        "parts": _parts(cells),
        "targets": _targets(cells),
    }


def fill(text: str, made: dict[str, str]) -> str:
    """Replace the blocks between `<!-- name -->` and `<!-- end -->` of a document by the tables of these names."""

    def block(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- {name} -->\n\n{made[name]}\n\n<!-- end -->" if name in made else match.group(0)

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


# --- cells ---------------------------------------------------------------------------------------------------------


def _title(cell: Cell) -> str:
    return f"{cell['world']}, {cell['feedback']:.0%}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(change: dict[str, float] | None) -> str:
    if not change:
        return _NONE
    return f"{100 * change['mean']:+.1f} ({100 * change['low']:+.1f}, {100 * change['high']:+.1f})"


def _against(cell: Cell, row: str, other: str) -> dict[str, float] | None:
    found: dict[str, float] | None = cell["rows"].get(row, {}).get(f"change_vs_{other}")
    return found


def _number(value: float | None, form: str = ".0f") -> str:
    return _NONE if value is None else format(value, form)


def _each(cells: Sequence[Cell], head: Sequence[str], line: Callable[[Cell], list[str]]) -> str:
    return _markdown(["world, rated", *head], [[_title(cell), *line(cell)] for cell in cells])


# --- tables --------------------------------------------------------------------------------------------------------


def _settings(found: dict[str, Any]) -> str:
    tuned = ", ".join(f"{row} {gamma:g}" for row, gamma in found["tuned"].items())
    return (
        f"{found['seeds']} seeds; floor {found['floor']}; prompts read by {found['encoder']}; γ ({found['tuned_in']}, "
        f"seeds {found['tuning_seeds'][0]} to {found['tuning_seeds'][-1]}): {tuned}; sources {found['sources']}."
    )


def _regret(cells: Sequence[Cell]) -> str:
    def line(cell: Cell) -> list[str]:
        base = cell["rows"]["label-only"]["regret"]
        still = [f"{100 * (cell[name]['regret'] / base - 1):+.0f} %" for name in ("random", "best_single")]
        return [
            *still,
            f"{base:.0f}",
            *(_percent(_against(cell, row, "label-only")) for row in ("scores", "role", "ours", "true-tastes")),
        ]

    head = ["random", "best single", "label-only", "+ scores", "+ role", "+ user (ours)", "true tastes"]
    return _each(cells, head, line)


def _feasible(cells: Sequence[Cell]) -> str:
    rows = ("label-only", "scores", "role", "ours", "true-tastes")

    def line(cell: Cell) -> list[str]:
        learnt = [cell["rows"].get(row, {}).get("feasible_regret", {}).get("mean") for row in rows]
        luck = cell["feasible_oracle"]["regret"]
        still = [cell[name]["regret"] - luck for name in ("random", "best_single")]
        return [_number(luck), *map(_number, still), *map(_number, learnt)]

    head = ["feasible oracle's own", "random", "best single", "label-only", "scores", "role", "ours", "true tastes"]
    return _each(cells, head, line)


def _users(cells: Sequence[Cell]) -> str:
    def line(cell: Cell) -> list[str]:
        share, n = cell.get("share_of_true_gain"), cell.get("labels_until_benefit")
        gain = _against(cell, "true-tastes", "scores")
        part = _NONE
        if share is not None and gain is not None and gain["high"] < 0:  # of no gain there is no share
            part = f"{100 * share['mean']:.0f} % ({100 * share['low']:.0f}, {100 * share['high']:.0f})"
        return [
            _percent(_against(cell, "ours", "scores")),
            _percent(_against(cell, "ours", "role")),
            _percent(cell.get("experienced_users")),
            "never" if n is None else str(n),
            part,
        ]

    head = [
        "user against scores",
        "user against role",
        "the same, users with 20+ labels",
        "labels until it pays",
        "share of the true tastes' gain",
    ]
    return _each(cells, head, line)


def _gaps(cells: Sequence[Cell]) -> str:
    names = ("mean", "between_sd", "worst_decile", "worst_role")

    def line(cell: Cell) -> list[str]:
        out = []
        for row in ("label-only", "scores", "ours"):
            gaps = cell["rows"][row]["gaps"]
            out.append(" / ".join(f"{gaps[name]['mean']:.3f}" for name in names))
        return out

    return _each(cells, ["label-only", "scores", "ours"], line)


def _parts(cells: Sequence[Cell]) -> str:
    def line(cell: Cell) -> list[str]:
        ours = cell["rows"]["ours"]
        twin = ours["twin"]
        verdicts = ", ".join(f"{word} {n}" for word, n in twin["verdicts"].items())
        return [
            ", ".join(f"{value:.2f}" for value in ours["mixture"]),
            f"{twin['ever_helps']:.0%}, {twin['ever_helps_in_a_role']:.0%}",
            f"{twin['ever_off']:.0%}, {twin['off_at_end']:.0%}",
            verdicts,
        ]

    head = [
        f"weights ({', '.join(EXPERTS)})",
        'ever "helps" (all, a role)',
        "ever off, off at the end",
        "final state",
    ]
    return _each(cells, head, line)


# --- targets -------------------------------------------------------------------------------------------------------


def _targets(cells: Sequence[Cell]) -> str:
    by = {(cell["world"], cell["feedback"]): cell for cell in cells}
    rows: list[list[str]] = []

    def judge(name: str, key: tuple[str, float], value: Callable[[Cell], float | None], most: float) -> None:
        cell = by.get(key)
        got = value(cell) if cell else None
        met = _NONE if got is None else "met" if got <= most else "missed"
        rows.append([name, f"≤ {100 * most:+.0f} %", _NONE if got is None else f"{100 * got:+.1f} %", met])

    def change(row: str, other: str) -> Callable[[Cell], float | None]:
        return lambda cell: (_against(cell, row, other) or {}).get("mean")

    for feedback, most in ((0.1, -0.12), (0.3, -0.15), (1.0, -0.14)):
        name = f"S = 1, {feedback:.0%}: ours against label-only"
        judge(name, ("lab-s1", feedback), change("ours", "label-only"), most)
    for feedback in (0.3, 1.0):
        name = f"S = 1, {feedback:.0%}: ours against scores"
        judge(name, ("lab-s1", feedback), change("ours", "scores"), -0.05)
    judge(
        "S = 1, 30%: minus the share of the true tastes' gain",
        ("lab-s1", 0.3),
        lambda cell: -cell["share_of_true_gain"]["mean"] if "share_of_true_gain" in cell else None,
        -0.6,
    )
    for feedback in (0.3, 1.0):
        judge(
            f"S = 1, {feedback:.0%}: ours against role, users with 20+ labels",
            ("lab-s1", feedback),
            lambda cell: (cell.get("experienced_users") or {}).get("mean"),
            -0.03,
        )
    judge("model-offset: ours against label-only", ("model-offset", 0.3), change("ours", "label-only"), -0.2)
    for world, feedback in (("lab-s0", 0.3), ("lab-s0", 1.0), ("hidden-features", 0.3)):
        judge(f"{world}, {feedback:.0%}: ours against scores", (world, feedback), change("ours", "scores"), 0.02)
    for feedback in (0.3, 1.0):
        name = f"S = 0, {feedback:.0%}: seeds in which the monitor ever reports a benefit"
        judge(name, ("lab-s0", feedback), lambda cell: float(cell["rows"]["ours"]["twin"]["ever_helps"]), 0.05)
    judge(
        "harm: negated share of seeds in which the term is switched off",
        ("harm", 0.3),
        lambda cell: -float(cell["rows"]["ours"]["twin"]["ever_off"]),
        -0.8,
    )
    return _markdown(["target", "bound", "measured", ""], rows)
