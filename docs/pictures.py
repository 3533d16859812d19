"""Pictures of the documentation, as SVG text.

Every picture is an opaque card with its own background, so that it reads the same on a light and on a dark page.
"""

from __future__ import annotations

from html import escape
from typing import Any, Literal

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.small { font-size: 11.5px; fill: #59636e; }
.bold { font-weight: 600; }
.title { font-size: 15px; font-weight: 600; }
.box { fill: #f6f8fa; stroke: #818b98; }
.store { fill: #fff8c5; stroke: #9a6700; }
.key { fill: #ddf4ff; stroke: #0969da; }
.line { stroke: #59636e; stroke-width: 1.4; fill: none; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.head { fill: #59636e; }
.a { fill: #818b98; } .b { fill: #0969da; } .c { fill: #bf8700; } .d { fill: #8250df; } .e { fill: #1a7f37; }
.f { fill: #cf222e; }
"""
Anchor = Literal["start", "middle", "end"]


class Picture:
    """Shapes on a card of `width` × `height` pixels.

    Args:
        width: pixels.
        height: pixels.
        says: description for readers who cannot see the picture.
    """

    def __init__(self, width: int, height: int, says: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(says)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        ]

    def svg(self) -> str:
        """The picture."""
        return "\n".join((*self._parts, "</svg>\n"))

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: Anchor = "start") -> None:
        """One line of text; y is its baseline."""
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, rx: float = 0) -> None:
        """A rectangle."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{rx:g}"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str) -> None:
        """A box with a bold first line and small further ones, centred."""
        self.rect(x, y, width, height, kind, rx=5)
        top = y + height / 2 - 8 * (len(lines) - 1) + 4.5
        for i, line in enumerate(lines):
            self.text(x + width / 2, top + 16 * i, line, "small" if i else "bold", "middle")

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A straight arrow, horizontal or vertical."""
        self._parts.append(f'<path class="line" d="M{x1:g} {y1:g} L{x2:g} {y2:g}"/>')
        if y1 == y2:
            back = -8 if x2 > x1 else 8
            points = f"{x2:g},{y2:g} {x2 + back:g},{y2 - 4:g} {x2 + back:g},{y2 + 4:g}"
        else:
            back = -8 if y2 > y1 else 8
            points = f"{x2:g},{y2:g} {x2 - 4:g},{y2 + back:g} {x2 + 4:g},{y2 + back:g}"
        self._parts.append(f'<polygon class="head" points="{points}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        """A straight line."""
        self._parts.append(f'<path class="{kind}" d="M{x1:g} {y1:g} L{x2:g} {y2:g}"/>')


_ROWS = (
    ("random", "random model"),
    ("user-blind bandit", "user-blind bandit, labels only"),
    ("user-blind + scores", "user-blind bandit, with scores"),
    ("best single", "best single model (hindsight)"),
    ("ours", "fitrouter"),
    ("knowing oracle", "oracle that knows every taste"),
)


def demo(results: dict[str, Any]) -> str:
    """Satisfaction in the last quarter of the demo, with and without differing tastes: docs/results/demo.json."""
    worlds = (("demo", "Users differ in taste"), ("null", "All users alike"))
    seeds = results["demo"]["summary"]["seeds"]
    found = {world: results[world]["summary"]["last_quarter"] for world, _ in worlds}
    says = "; ".join(
        f"{title}: fitrouter {found[w]['ours']:.2f}, best single model {found[w]['best single']:.2f}"
        for w, title in worlds
    )
    picture = Picture(860, 262, f"Share of satisfied requests in the last quarter of the demo. {says}.")
    picture.text(20, 28, "Share of satisfied requests, last quarter of the demo", "title")
    picture.text(
        20, 46, f"simulated users and models, mean of {seeds} seeds; make demo (docs/results/demo.md)", "small"
    )
    for left, (world, title) in zip((226, 556), worlds, strict=True):
        picture.text(left, 74, title, "bold")
        for i, (row, label) in enumerate(_ROWS):
            y = 86 + 27 * i
            if world == "demo":
                picture.text(214, y + 14, label, "bold" if row == "ours" else "", "end")
            value = found[world][row]
            picture.rect(left, y, 240 * value, 19, "b" if row == "ours" else "a", rx=2)
            picture.text(left + 240 * value + 6, y + 14, f"{value:.3f}", "bold" if row == "ours" else "small")
        picture.line(left, 82, left, 250, "line")
    return picture.svg()


def request_path() -> str:
    """A request from the client to the answer, and what learns from it."""
    picture = Picture(
        860,
        364,
        "A request is read, models that cannot take it are excluded, the others get a predicted fit and a cost, "
        "a policy turns these into probabilities, one model is drawn and asked. Decision, execution, score and "
        "feedback are appended to the journal, from which the learner and the warehouse are updated.",
    )
    picture.text(20, 28, "One request", "title")
    steps = (
        ("read", "identity, prompt", "→ features x"),
        ("eligibility", "tools, context,", "parameters, budget"),
        ("predict", "fit ± sd, cost,", "latency per model"),
        ("policy", "utilities →", "probabilities"),
        ("draw", "one seeded draw,", "logged unrounded"),
        ("attempt", "ask the model,", "fall back on failure"),
    )
    for i, step in enumerate(steps):
        x = 20 + 139 * i
        picture.box(x, 78, 122, 66, "key" if step[0] in {"policy", "draw"} else "box", *step)
        if i:
            picture.arrow(x - 17, 111, x, 111)
    picture.text(20, 62, "client → gateway or Router", "small")
    picture.text(840, 62, "answer → client", "small", "end")
    picture.arrow(81, 66, 81, 78)
    picture.arrow(776, 78, 776, 66)
    picture.box(279, 168, 160, 42, "box", "learner", "posteriors, sessions")
    picture.arrow(359, 168, 359, 144)
    picture.arrow(359, 240, 359, 210)
    picture.box(20, 240, 820, 38, "store", "journal (SQLite): Decision, Execution, Score, Feedback …, append-only")
    for x, name in ((637, "Decision"), (776, "Execution")):
        picture.arrow(x, 144, x, 240)
        picture.text(x - 7, 196, name, "small", "end")
    for x, *lines in (
        (20, "people", "votes → Feedback"),
        (350, "scorer", "answer text → Score"),
        (680, "warehouse", "DuckDB"),
    ):
        picture.box(x, 306, 160, 42, "box", *lines)
    picture.arrow(100, 306, 100, 278)
    picture.arrow(410, 278, 410, 306)
    picture.arrow(450, 306, 450, 278)
    picture.arrow(760, 278, 760, 306)
    return picture.svg()


def probabilities() -> str:
    """Every model's probability as a stack of what each rule contributes."""
    share, uniform_slice, raised, floor = 0.9, 0.05, 0.25, 0.1
    names = ("large (default)", "medium", "small", "newest (new)")
    pmf = (0.2, 0.65, 0.05, 0.1)
    default, new = 0, 3
    models = len(names)
    routed = share * (1 - uniform_slice) * (1 - raised)
    kinds = (
        ("a", "floor", "minimum for every eligible model"),
        ("c", "uniform slice", "routed uniformly, for estimators"),
        ("d", "new models", "extra exploration of models that joined"),
        ("b", "policy", "SquareCB, Thompson sampling, …"),
        ("e", "default share", "1 − share, to the default model"),
    )
    picture = Picture(860, 250, "Stacked bars: each model's probability is a sum of five parts that add up to 1.")
    picture.text(20, 28, "Probabilities are a stack", "title")
    picture.text(
        20,
        46,
        f"example: share {share}, uniform_slice {uniform_slice}, newcomer_floor {raised}, floor {floor} "
        f"(more than the defaults, so that every part is visible)",
        "small",
    )
    for i, (name, p) in enumerate(zip(names, pmf, strict=True)):
        parts = (
            routed * floor / models,
            share * uniform_slice / models,
            share * (1 - uniform_slice) * raised if i == new else 0.0,
            routed * (1 - floor) * p,
            1 - share if i == default else 0.0,
        )
        y, x = 70 + 42 * i, 140.0
        picture.text(128, y + 18, name, "", "end")
        for (kind, *_), part in zip(kinds, parts, strict=True):
            picture.rect(x, y, 560 * part, 26, kind)
            x += 560 * part
        picture.text(x + 8, y + 18, f"{sum(parts):.3f}", "bold")
    for i, (kind, name, what) in enumerate(kinds):
        picture.rect(560, 72 + 34 * i, 14, 14, kind)
        picture.text(582, 80 + 34 * i, name, "bold")
        picture.text(582, 94 + 34 * i, what, "small")
    picture.text(140, 240, "The whole vector is logged before the draw; it sums to 1 to machine precision.", "small")
    return picture.svg()


def terms() -> str:
    """The utility of one model as a sum of terms."""
    values = (
        ("text", 0.52, "b", "taste of all users, applied to how this model writes"),
        ("role", 0.03, "b", "what the role adds to that taste, and its liking for this model"),
        ("style", 0.08, "b", "what the user adds to that taste"),
        ("model", 0.06, "c", "what labels add on such prompts beyond the text"),
        ("offset", 0.03, "d", "the user's liking for this model, whatever it writes"),
        ("price", -0.05, "f", "cost_weight × expected cost (+ budget price, + switch in a session)"),
        ("latency", -0.02, "f", "latency_weight × expected latency"),
        ("availability", -0.01, "f", "what is lost because it may not answer"),
    )
    picture = Picture(860, 336, "A waterfall: eight terms add up to the utility of one model for one request.")
    picture.text(20, 28, "Utility of one model for one request (example)", "title")
    left, scale, total = 130.0, 440.0, 0.0
    for i, (name, value, kind, what) in enumerate(values):
        y = 46 + 30 * i
        start, total = total, total + value
        picture.text(left - 10, y + 15, name, "", "end")
        picture.rect(left + scale * min(start, total), y, scale * abs(value), 20, kind, rx=2)
        picture.text(left + scale * max(start, total) + 6, y + 15, f"{value:+.2f}".replace("-", "−"), "small")
        picture.text(510, y + 15, what, "small")
    y = 46 + 30 * len(values)
    picture.line(left, 40, left, y + 26, "line")
    picture.text(left - 10, y + 15, "utility", "bold", "end")
    picture.rect(left, y, scale * total, 20, "e", rx=2)
    picture.text(left + scale * total + 6, y + 15, f"{total:.2f}", "bold")
    picture.text(510, y + 15, "what the policy compares between models", "small")
    picture.text(
        20,
        326,
        "The first six terms are the fit, a predicted label from 0 to 1. The sum is multiplied by "
        "P(the model answers).",
        "small",
    )
    return picture.svg()


def events() -> str:
    """The journal and the projections that are computed from it."""
    picture = Picture(860, 300, "Events are appended to the journal; all state is computed from it by projections.")
    picture.text(20, 28, "Events and projections", "title")
    kinds = (
        ("Decision", "probabilities, draw, features"),
        ("Execution", "answer's status, tokens, cost"),
        ("Score", "response features, predicted label"),
        ("Feedback", "a person's vote"),
        ("others", "changes of profile, policy, models"),
    )
    for i, kind in enumerate(kinds):
        picture.box(20, 46 + 49 * i, 250, 41, "box", *kind)
        picture.arrow(270, 66 + 49 * i, 320, 66 + 49 * i)
    picture.box(320, 46, 150, 237, "store", "journal.db", "append-only", "one order", "source of truth")
    rows = (
        ("learner, in memory", "posteriors, sessions, budgets, monitors"),
        ("snapshot, in journal.db", "so that a start need not read everything"),
        ("warehouse, fitrouter.duckdb", "tables for SQL and for replay"),
    )
    for i, row in enumerate(rows):
        picture.box(540, 58 + 80 * i, 300, 52, "key", *row)
        picture.arrow(470, 84 + 80 * i, 540, 84 + 80 * i)
    picture.text(840, 288, "All three can be computed again from the journal.", "small", "end")
    return picture.svg()
