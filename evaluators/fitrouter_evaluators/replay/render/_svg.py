"""Minimal SVG drawing: shapes with CSS classes, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

_LETTER = 7.0
"""Width of a 12 px letter in pixels, rounded up."""
_DRAWABLE = 1e150


class Axis(NamedTuple):
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, x: float) -> float:
        """Convert a value to its pixel; values far outside the axis are clamped."""
        part = (x - self.low) / (self.high - self.low)
        return self.start + min(max(part, -9.0), 10.0) * (self.end - self.start)

    def holds(self, x: float) -> bool:
        return self.low <= x <= self.high


class Canvas:
    """An SVG image with a title and a description for screen readers."""

    def __init__(self, width: float, height: float, title: str, says: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg class="plot" viewBox="0 0 {_px(width)} {_px(height)}" width="{_px(width)}" height="{_px(height)}" '
            f'role="img" aria-label="{escape(f"{title}. {says}")}">'
        ]

    def svg(self) -> str:
        return "".join((*self._parts, "</svg>"))

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        ends = f'x1="{_px(x1)}" y1="{_px(y1)}" x2="{_px(x2)}" y2="{_px(y2)}"'
        self._parts.append(f'<line class="{kind}" {ends}/>')

    def path(self, points: Iterable[tuple[float, float]], kind: str, *, closed: bool = False) -> None:
        steps = " ".join(f"{_px(x)},{_px(y)}" for x, y in points)
        shape = "polygon" if closed else "polyline"
        self._parts.append(f'<{shape} class="{kind}" points="{steps}"/>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, title: str = "") -> None:
        """Draw a rectangle with an optional tooltip."""
        size = f'x="{_px(x)}" y="{_px(y)}" width="{_px(max(width, 0))}" height="{_px(max(height, 0))}"'
        self._parts.append(f'<rect class="{kind}" {size}>{_titled(title)}</rect>')

    def mark(self, x: float, y: float, kind: str, shape: str = "circle", title: str = "") -> None:
        """Draw a small circle, square, diamond or bar: shapes distinguish marks without colours."""
        if shape == "circle":
            self._parts.append(f'<circle class="{kind}" cx="{_px(x)}" cy="{_px(y)}" r="4">{_titled(title)}</circle>')
            return
        if shape == "bar":
            self.rect(x - 1.5, y - 8, 3, 16, kind, title)
            return
        r = 5.2 if shape == "diamond" else 3.6
        corners = [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
        if shape == "square":
            corners = [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
        steps = " ".join(f"{_px(u)},{_px(v)}" for u, v in corners)
        self._parts.append(f'<polygon class="{kind}" points="{steps}">{_titled(title)}</polygon>')

    def text(
        self, x: float, y: float, words: str, kind: str = "label", *, anchor: str = "start", room: float = 0
    ) -> None:
        """Draw a text; if it exceeds `room` pixels it is shortened, with the full text as tooltip."""
        short = fitted(words, room) if room else words
        title = _titled(words) if short != words else ""
        at = f'x="{_px(x)}" y="{_px(y)}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="{kind}" {at}>{escape(short)}{title}</text>')

    def open(self, x: float, y: float, width: float, height: float) -> None:
        """Begin a clipped region in the same coordinates, until `close`."""
        size = f"{_px(x)} {_px(y)} {_px(width)} {_px(height)}"
        at = f'x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(height)}"'
        self._parts.append(f'<svg {at} viewBox="{size}" overflow="hidden">')

    def close(self) -> None:
        self._parts.append("</svg>")


def _px(x: float) -> str:
    return f"{round(x, 1) + 0.0:g}"


def _titled(title: str) -> str:
    return f"<title>{escape(title)}</title>" if title else ""


def finite(values: Iterable[float]) -> list[float]:
    # Differences of larger numbers overflow, and an axis would have no scale.
    return [x for x in values if abs(x) < _DRAWABLE]


def fitted(words: str, room: float) -> str:
    """Shorten a text in the middle, where names differ least."""
    most = max(int(room / _LETTER), 3)
    if len(words) <= most:
        return words
    head = (most - 1) * 3 // 5
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"


def ticks(low: float, high: float, most: int = 6) -> Sequence[tuple[float, str]]:
    """Choose at most `most` round values from low to high, with labels."""
    if not (math.isfinite(low) and math.isfinite(high) and high > low):
        return ()
    raw = (high - low) / most
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(m * base for m in (1.0, 2.0, 5.0, 10.0) if m * base >= raw * (1 - 1e-9))
    digits = min(max(0, -math.floor(math.log10(step) + 1e-9)), 9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(k * step, f"{k * step:,.{digits}f}".replace("-", "−") if k else "0") for k in range(first, last + 1)]
