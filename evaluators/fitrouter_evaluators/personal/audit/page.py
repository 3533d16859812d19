"""An audit as one HTML page: no script, no external request, light and dark."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from fitrouter_evaluators.personal.audit.swaps import DRILL_S, FLIPS, Audit, Range
from fitrouter_evaluators.personal.report_html import whole_page

_WIDE, _MOST, _SHOWN = 400, 3.0, 12


def audit_page(audit: Audit, key: str) -> str:
    """Render an audit as an HTML page; `key` is the fingerprint of the key that signed it."""
    swap, when = audit.swap, datetime.fromtimestamp(audit.ts, UTC)
    verdict = "passed" if audit.passed else "did not pass"
    rows = "".join(f"<dt>{escape(kind)}</dt><dd>{rate:.1%}</dd>" for kind, rate in swap.by_kind.items())
    drills = "".join(
        f"<li>{escape(each.step)}: {each.seconds:.2f} s{'' if each.passed else ', too slow or without effect'}</li>"
        for each in audit.drills
    )
    return whole_page(
        f"Audit of the role {audit.role}",
        [
            f"<p class=soft>fitrouter · audit of {when:%Y-%m-%d %H:%M} UTC, {audit.answered} of {audit.asked} requests "
            "answered</p>",
            f"<h1>The role {escape(audit.role)} {verdict}</h1>",
            *(f"<p class=lead>{escape(reason.capitalize())}.</p>" for reason in audit.reasons),
            "<h2>When another user asks</h2>",
            f"<p>{swap.people} people of opposite tastes asked {swap.probes} questions whose verdict must not depend "
            f"on them. It changed with the user in <b>{swap.flips:.1%}</b> of the pairs beyond chance "
            f"(p = {swap.p:.3f}); at most {FLIPS:.0%} are allowed.</p>",
            f"<dl>{rows}</dl>",
            f"<p class=soft>The question that changed most: {escape(swap.worst)}</p>" if swap.flips > 0.0 else "",
            "<h2>Range of behaviour</h2>",
            f"<p>Lowest and highest mean among the people, in standard deviations of ordinary answers; lines go from "
            f"{-_MOST:.0f} to {_MOST:+.0f}.</p>",
            *map(_bar, audit.ranges[:_SHOWN]),
            "<h2>Emergency measures</h2>",
            f"<ul>{drills}</ul>" if drills else "<p>Not drilled.</p>",
            f"<p class=soft>A measure must work within {DRILL_S:.0f} s. Valid for the models {escape(audit.registry)}; "
            f"signed by the key {escape(key)}.</p>",
        ],
    )


def _bar(each: Range) -> str:
    low, high = (_WIDE * (0.5 + 0.49 * max(-1.0, min(1.0, value / _MOST))) for value in (each.low, each.high))
    said = f"{each.dimension.replace('_', ' ')}: {each.low:+.2f} to {each.high:+.2f}"
    return (
        f"<figure><figcaption>{escape(said)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDE} 14" role="img" aria-label="{escape(said)}">'
        f'<line class=grid x1="0" x2="{_WIDE}" y1="7" y2="7"/>'
        f'<line class=grid x1="{_WIDE / 2}" x2="{_WIDE / 2}" y1="0" y2="14"/>'
        f'<line class=band x1="{low:.1f}" x2="{max(high, low + 0.5):.1f}" y1="7" y2="7"/></svg></figure>'
    )
