"""Renders a report as text tables of 80 columns without colour."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fitrouter_evaluators.replay.render._formatting import printable, utc_time, verdict, weight
from fitrouter_evaluators.replay.render._tables import Section, TableData, brief, header, sections
from fitrouter_evaluators.replay.report import Report, WeightHistogram

_BLOCKS = " ▁▂▃▄▅▆▇█"
_STYLES = {"head": "bold", "warning": "yellow", "bad": "red", "good": "green"}
_VERDICTS = {"promote": "bold green", "keep": "bold red"}


def text(report: Report, width: int = 80, *, full: bool = True) -> str:
    """The report without colour, in lines of at most `width` columns (60 or more)."""
    page = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    for part in renderables(report, full=full):
        page.print(part, markup=False, highlight=False, emoji=False)
    written = page.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in written.splitlines()) + "\n"


def renderables(report: Report, *, full: bool = True) -> Iterator[RenderableType]:
    """Parts of the report for a rich console, from the verdict to the warnings, or only those that matter first."""
    answer = report.gate.verdict if report.gate is not None else ""
    yield Text(verdict(report), style=_VERDICTS.get(answer, "bold"))
    for reason in report.gate.reasons if report.gate is not None else ():
        yield Padding(Text(printable(reason)), (0, 0, 0, 2))
    for line in report.advice:
        yield Padding(Text(f"→ {printable(line)}", style="yellow"), (0, 0, 0, 2))
    if not full:
        yield from _brief(report)
        return
    yield ""
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    for name, said in header(report):
        facts.add_row(Text(name), Text(said))
    yield facts
    for section in sections(report):
        yield ""
        yield _section(section, report)
    yield ""
    yield Text(f"fitrouter {printable(report.version)}, {utc_time(report.made)} UTC", style="dim")


def _brief(report: Report) -> Iterator[RenderableType]:
    """Summary, failed checks, and a hint at what `--full` adds."""
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    for name, said in brief(report):
        facts.add_row(Text(name), Text(said))
    yield facts
    failed = [check for check in report.checks if not check.ok]
    for check in failed:
        yield Text(f"✗ {printable(check.name)}: {printable(check.detail)}", style="red")
    said = f"{len(report.warnings)} warnings and all tables" if report.warnings else "all tables"
    yield Text(f"{said}: --full", style="dim")


def _section(section: Section, report: Report) -> Group:
    lines: list[RenderableType] = [Text(section.title.upper(), style="bold"), Text(section.summary, style="dim")]
    for grid in section.grids:
        if grid.caption:
            lines += ["", Text(grid.caption)]
        lines.append(_table(grid))
    if section.id == "overlap":
        lines += [_weights(histogram) for histogram in report.histograms]
    lines += [
        Padding(Text(note, style="yellow" if note.startswith("⚠") else ""), (0, 0, 0, 2)) for note in section.notes
    ]
    return Group(*lines)


def _table(grid: TableData) -> RenderableType:
    """A table; rows under a group's head are indented."""
    grouped = any(line.kind == "head" for line in grid.lines)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in grid.columns:
        table.add_column(Text(column.name), justify="right" if column.right else "left", overflow="fold")
    for line in grid.lines:
        indent = 2 if grouped and line.kind != "head" else 0
        first, *rest = (Text(cell, style=_STYLES.get(line.kind, "")) for cell in line.cells)
        table.add_row(Padding(first, (0, 0, 0, indent)), *rest)
    return table


def _weights(histogram: WeightHistogram) -> Text:
    """A policy's importance weights as a one-line histogram on a logarithmic scale."""
    top = max(histogram.counts, default=0)
    bars = "".join(_BLOCKS[math.ceil(8 * n / top)] if top else " " for n in histogram.counts)
    low, high = (weight(histogram.edges[i]) if histogram.edges else "" for i in (0, -1))
    return Text(f"weights of {printable(histogram.policy)}: {low} │{bars}│ {high}")
