"""A fit report as one HTML page: no script, no external request, light and dark, readable on a phone.

Every text of users and models goes through `escape`; a Content-Security-Policy allows nothing but the page's own style.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from fitrouter.stores.figures import chance, many, percent, usd
from fitrouter_evaluators.personal.base import describe_base
from fitrouter_evaluators.personal.leaderboard import LeaderboardRow
from fitrouter_evaluators.personal.report import FitReport, ModelFit, ModelUsage, Quote
from fitrouter_evaluators.personal.scores import votes_said

_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf7; --card: #fff; --ink: #22252b; --soft: #626873; --line: #dfe1e6;
  --own: #2459c4; --band: #2459c455; --all: #b4530a; --good: #1d7a46; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #14161a; --card: #1d2026; --ink: #e8eaee; --soft: #a2a9b5;
  --line: #343943; --own: #8ab4ff; --band: #8ab4ff55; --all: #f2a35e; --good: #6fd19b; --bad: #ff8f86; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; } p { margin: .4rem 0; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); font-size: .9rem; } .lead { font-size: 1.1rem; }
section.card { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: .9rem 1rem;
  margin: .7rem 0; }
figure { margin: 0; } svg { display: block; width: 100%; height: auto; }
.row { display: flex; justify-content: space-between; gap: 0 1rem; flex-wrap: wrap; margin-top: .5rem; }
.row span { overflow-wrap: anywhere; } .grid { stroke: var(--line); stroke-width: .6; } .band { stroke: var(--band);
  stroke-width: 6; stroke-linecap: round; } .own { fill: var(--own); } .all { fill: none; stroke: var(--all);
  stroke-width: 1.4; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .9rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
blockquote { margin: .6rem 0; padding: .1rem 0 .1rem .8rem; border-left: 3px solid var(--line); }
blockquote.best { border-color: var(--good); } blockquote.worst { border-color: var(--bad); }
ul { padding-left: 1.2rem; margin: .4rem 0; } .big { font-size: 1.5rem; font-weight: 600; }
"""
_WIDE, _HIGH, _EDGE = 400, 14, 6
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def page(report: FitReport) -> str:
    """Render the fit report as an HTML page."""
    board = report.board
    who = board.user or f"the role {board.role}"
    about = f" as {board.role}" if board.user and board.role else ""
    basis = votes_said(board.labels, board.people)
    tasks = f"their latest {many(board.tasks, 'request')}" if board.tasks else "an average task"
    tasks = f"{many(board.prompts, 'prompt')} with recorded answers" if board.prompts else tasks
    body = [
        f"<p class=soft>fitrouter · fit report, from {basis}, for {tasks}</p>",
        f"<h1>Which model fits {_text(who)}{_text(about)}?</h1>",
        f"<p class=lead>{_text(board.sentences[0])}</p>",
        *(f"<p>{_text(each)}</p>" for each in board.sentences[1:]),
        "<h2>Match</h2>",
        _plot(board.models),
        "<h2>What they like</h2>",
        _list(f"{each.words.capitalize()} — {chance(each.sure)} sure, from {basis}" for each in report.likes)
        or f"<p class=soft>No preference in style is clear yet, from {basis}.</p>",
        "<h2>What personalising is worth</h2>",
        f"<p>{_text(worth_words(report))}</p>",
        _list(tuple(f"Cost of everybody's answers: {each}." for each in report.saved)),
        "<h2>What would change this</h2>",
        _list(report.change),
        "<h2>Model by model</h2>",
        *(_card(model, standing) for model, standing in zip(report.models, board.models, strict=True)),
        "<p class=soft>Match is the predicted rating on a scale from 0 to 100%. Intervals hold with a probability of "
        "80%. A ranking of their own is claimed from 80% on.</p>",
    ]
    return whole_page(f"Fit report of {who}", body)


def whole_page(title: str, body: Iterable[str]) -> str:
    """Build a page from HTML parts, in the style of all reports; the title is escaped."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def worth_words(report: FitReport) -> str:
    """Gain of personalising, in a sentence."""
    board, worth = report.board, report.worth
    if worth is None:
        return f"Nothing yet: {board.first} is first for them and for everybody."
    said = (
        f"{board.first} instead of {board.population_first} is worth {100 * worth.satisfaction:+.0f} points of "
        f"satisfaction out of 100 (80% interval {100 * worth.low:+.0f} to {100 * worth.high:+.0f}), from "
        f"{votes_said(board.labels, board.people)}"
    )
    if worth.usd_per_1000 is None:
        return f"{said}; what it costs is not known: the price or the answers of one of them are missing."
    return (
        f"{said} and changes the cost of 1,000 answers by {'+' * (worth.usd_per_1000 >= 0)}{usd(worth.usd_per_1000)}."
    )


def cost_words(usage: ModelUsage) -> str:
    """Cost of a thousand answers in words."""
    return "price not known" if usage.cost_usd is None else f"{usd(1000.0 * usage.cost_usd)} for 1,000 answers"


def seconds(latency_s: float) -> str:
    """Describe a latency in words."""
    return f"{latency_s:.2g} s" if latency_s >= 0.01 else "under 0.01 s"


def _text(text: str) -> str:
    """Escape a text for HTML, replacing control characters."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def _list(items: Iterable[str]) -> str:
    found = "".join(f"<li>{_text(each)}</li>" for each in items)
    return f"<ul>{found}</ul>" if found else ""


def _plot(models: tuple[LeaderboardRow, ...]) -> str:
    """Plot the models' rating intervals as HTML: a dot for the person, a ring for everybody."""
    ticks = "".join(f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{_HIGH}"/>' for x in map(_position, _TICKS))
    rows = []
    for each in models:
        told = f"{percent(each.rating)}% ({percent(each.low)} to {percent(each.high)}), best with {chance(each.best)}"
        middle = _HIGH / 2
        rows.append(
            f"<div class=row><span>{each.rank}. {_text(each.model)}</span><span class=soft>{told}</span></div>"
            f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="{_text(f"{each.model}: {told}")}">{ticks}'
            f'<line class="band" x1="{_position(each.low)}" x2="{_position(each.high)}" y1="{middle}" y2="{middle}"/>'
            f'<circle class="own" cx="{_position(each.rating)}" cy="{middle}" r="4"/>'
            f'<circle class="all" cx="{_position(each.population)}" cy="{middle}" r="4.5"/></svg>'
        )
    axis = "".join(f"<span>{round(100 * tick)}%</span>" for tick in _TICKS)
    return (
        f'<figure>{"".join(rows)}<div class="row soft">{axis}</div>'
        "<figcaption>Dot: they; bar: 80% interval; ring: everybody.</figcaption></figure>"
    )


def _position(rating: float) -> float:
    """Horizontal position of a rating on the plot."""
    return round(_EDGE + (_WIDE - 2 * _EDGE) * min(max(rating, 0.0), 1.0), 1)


def _card(model: ModelFit, standing: LeaderboardRow) -> str:
    rows = [("everybody", f"{percent(standing.population)}%, rank {standing.population_rank}")]
    rows += [
        (name, f"{percent(each.mean)}% ({percent(each.low)} to {percent(each.high)})")
        for name, each in model.dimensions.items()
        if name != "overall"
    ]
    if model.usage is not None:
        rows += [("cost", cost_words(model.usage)), ("tokens", model.usage.tokens)]
        rows.append(("latency", f"{seconds(model.usage.latency_s)}, median of {many(model.usage.answers, 'answer')}"))
    if model.base is not None:
        rows.append(("base", describe_base(model.base)))
    listed = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows)
    match = f"{percent(standing.rating)}% ({percent(standing.low)} to {percent(standing.high)})"
    return (
        f"<section class=card><h3>{standing.rank}. {_text(standing.model)}</h3><p class=big>{match}</p>"
        + _list(f"It {each.words}".replace(" which you", " which they") for each in model.style)
        + f"<dl>{listed}</dl>"
        + "".join(map(_quote, model.quotes))
        + "</section>"
    )


def _quote(quote: Quote) -> str:
    kind, said = ("best", "fits best") if quote.best else ("worst", "fits least")
    return (
        f'<blockquote class="{kind}"><p class=soft>Of its answers this one {said} ({percent(quote.rating)}%), '
        f"to “{_text(quote.prompt)}”</p><p>{_text(quote.text)}</p></blockquote>"
    )
