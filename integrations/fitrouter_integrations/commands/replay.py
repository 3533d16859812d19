"""`fitrouter replay`: evaluate a candidate policy on logged traffic.

Exit codes: 0 promote (or a report without a gate), 1 keep, 2 not enough evidence, 3 error. A crash or an invalid option
must never look like one of the first three.
"""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import msgspec
import typer
from rich.console import Console

from fitrouter.errors import ConfigError, FitrouterError, MissingExtra, require
from fitrouter_integrations.commands._files import TOO_DEEP, write_private
from fitrouter_integrations.commands._options import DEFAULT, verbs

if TYPE_CHECKING:
    from fitrouter.config import Config, FeedbackConfig
    from fitrouter_evaluators.replay.candidates.load import Candidate
    from fitrouter_evaluators.replay.evaluation import ReplaySettings
    from fitrouter_evaluators.replay.gate_file import Gate
    from fitrouter_evaluators.replay.log.log import Log
    from fitrouter_evaluators.replay.report import PolicyEstimate, Report


METRICS = ("fit", "cost", "latency", "utility", "outcome", "score")
SLICES = ("role", "task", "user_group")
CODES = {"promote": 0, "keep": 1, "not enough evidence": 2}
NO_ANSWER = 3

_STDOUT = Path("-")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NARROWEST = 60

app = verbs(
    "Evaluate a candidate policy on logged traffic. Exit code: 0 promote, or a report without a gate; 1 keep; "
    "2 not enough evidence; 3 error."
)


def run(arguments: Sequence[str]) -> NoReturn:
    """Run the command and exit with its code."""
    sys.exit(_code(arguments))


def _code(arguments: Sequence[str]) -> int:
    """The exit code; 3 and a message on standard error for any error."""
    try:
        return int(app(_with_json_target(arguments), prog_name="fitrouter replay", standalone_mode=False) or 0)
    except SystemExit:
        _complain("the output was closed before the report was complete")
    except FitrouterError as error:
        _complain(str(error))
    except RecursionError:
        _complain(TOO_DEEP)
    except ModuleNotFoundError as error:
        _complain(str(MissingExtra.of(error.name, "replay")))
    except Exception as error:
        said = getattr(error, "format_message", None)  # a usage error's, of whichever click typer brings
        if said is not None:
            _complain(f"{said()} (fitrouter replay --help shows all options)")
        else:
            logging.getLogger(__name__).exception("fitrouter replay failed")
    return NO_ANSWER


def _complain(message: str) -> None:
    Console(stderr=True).print(f"fitrouter: {message}", style="red", markup=False, highlight=False, soft_wrap=True)


def _with_json_target(arguments: Sequence[str]) -> list[str]:
    """Insert `-` (standard output) after a `--json` that no file name follows."""
    found: list[str] = []
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "--"
        alone = argument == "--json" and following.startswith("-") and following != "-"
        found += [argument, "-"] if alone else [argument]
    return found


# --- options ---


def _moment(text: str) -> float:
    """Parse an ISO time (UTC if without an offset) or a number of seconds into seconds since the epoch."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and not re.fullmatch(r"(19|20)\d{6}", text):
        return seconds
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a time; give 2026-10-01, 2026-10-01T12:00+02:00, or seconds since the epoch"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _duration(text: str) -> float:
    """Parse a duration such as `7d`, `3600s` or `1.5h` into seconds; a bare number is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip())
    if found is None or found[2] not in _SECONDS:
        raise ConfigError(f"{text!r} is not a duration; give a number and s, m, h, d or w, such as 7d, 3600s or 1.5h")
    return float(found[1]) * _SECONDS[found[2]]


def _slices(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of slice names."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if wrong := [name for name in names if name not in SLICES]:
        raise ConfigError(f"--by: unknown slices {', '.join(wrong)}; choose from {', '.join(SLICES)}")
    return names


def _groups(path: Path | None) -> dict[str, str]:
    """User → group, from a CSV with the columns user and group."""
    if path is None:
        return {}
    groups: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if not {"user", "group"} <= set(rows.fieldnames or ()):
                raise ConfigError(f"--groups: {str(path)!r} has the columns {rows.fieldnames}; it needs user and group")
            for row in rows:
                user, group = row["user"], row["group"]
                if not user or not group or groups.get(user, group) != group:
                    pair = f"user {user!r} and group {group!r}"
                    raise ConfigError(
                        f"--groups: line {rows.line_num} of {str(path)!r} has {pair}; each user needs exactly one group"
                    )
                groups[user] = group
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"--groups: {str(path)!r} cannot be read: {error}") from None
    return groups


class _Options(NamedTuple):
    """Options of the command line, not validated yet."""

    metric: str | None
    unit: str | None
    by: str
    groups: Path | None
    since: str | None
    until: str | None
    horizon: str
    idle: str
    alpha: float | None
    sensitivity: float | None


def _settings(asked: _Options, gate: Gate | None) -> ReplaySettings:
    """Validate options into evaluation settings; the gate gives defaults."""
    from fitrouter_evaluators.replay.evaluation import ReplaySettings

    since, until = (None if each is None else _moment(each) for each in (asked.since, asked.until))
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"--since {asked.since} is not before --until {asked.until}")
    idle_s = _duration(asked.idle)
    if idle_s <= 0:
        raise ConfigError("--idle must be above 0; give the router's session timeout, such as 1h")
    if gate is not None and asked.metric not in {None, gate.metric}:
        raise ConfigError(f"--metric {asked.metric}: the gate uses {gate.metric}; leave one of the two out")
    metric, alpha, sensitivity = ("fit", 0.05, 2.0) if gate is None else (gate.metric, gate.alpha, gate.sensitivity)
    alpha = alpha if asked.alpha is None else asked.alpha
    sensitivity = sensitivity if asked.sensitivity is None else asked.sensitivity
    if not 0 < alpha < 0.5:
        raise ConfigError(f"--alpha {alpha:g}: give an error probability above 0 and below 0.5, such as 0.05")
    if not sensitivity >= 1:
        raise ConfigError(f"--gamma-sensitivity {sensitivity:g}: give 1 (non-response is random) or more, up to inf")
    return ReplaySettings(
        metric=asked.metric or metric,
        unit=_unit(asked.unit, asked.metric or metric),
        by=_slices(asked.by),
        since=since,
        until=until,
        horizon_s=_duration(asked.horizon),
        idle_s=idle_s,
        alpha=alpha,
        sensitivity=sensitivity,
        groups=_groups(asked.groups),
    )


def _unit(asked: str | None, metric: str) -> str:
    """Return the unit of an evaluation: that of the metric, if none is named."""
    unit = asked or ("run" if metric == "outcome" else "session")
    if unit not in {"session", "run"}:
        raise ConfigError(f"--unit {unit}: give session or run")
    if metric == "outcome" and unit != "run":
        raise ConfigError("--metric outcome: a run has one outcome, whatever its sessions: leave --unit out")
    return unit


def _gate(path: Path | None, metric: str | None) -> Gate | None:
    """Load the gate's rules, None without a file; the metric `score` cannot be gated on."""
    from fitrouter_evaluators.replay.gate_file import load_gate

    if metric is not None and metric not in METRICS:
        raise ConfigError(f"--metric: there is no metric {metric!r}; choose from {', '.join(METRICS)}")
    if path is None:
        return None
    if metric == "score":
        raise ConfigError(
            "--metric score is for inspection and cannot be gated on: a candidate can raise the score while "
            "users are worse "
            "off; leave out --gate, or use --metric fit"
        )
    return load_gate(path)


# --- command ---


@app.callback(invoke_without_command=True)
def replay(
    context: typer.Context,
    log: Annotated[
        Path | None,
        typer.Option(
            help="A warehouse (*.duckdb), a journal (*.db), a gateway's folder, a folder of Parquet files, or another "
            "program's table (CSV, JSONL, Parquet)."
        ),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(
            help="candidate.yaml, a model of the log, or one of: current, uniform, twin, "
            "personal, shadow. Default: every model against what ran."
        ),
    ] = None,
    against: Annotated[str, typer.Option(help="The policy it is compared with, in the same form.")] = "current",
    metric: Annotated[
        str | None, typer.Option(help="fit, cost, latency, utility, outcome or score. Default: the gate's, else fit.")
    ] = None,
    unit: Annotated[str | None, typer.Option(help="session; or run, of an agent: that of the metric outcome.")] = None,
    by: Annotated[str, typer.Option(help="Report slices by any of role,task,user_group.")] = "",
    groups: Annotated[
        Path | None, typer.Option(help="CSV with the columns user and group. Default: groups by declared values.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Start of the window: ISO time, or seconds since the epoch.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="End of the window (exclusive), in the same form.")] = None,
    horizon: Annotated[
        str, typer.Option(help="Exclude decisions younger than this, labelled or not: 7d, 3600s.")
    ] = "0s",
    idle: Annotated[str, typer.Option(help="Inactivity that closes a session.")] = "1h",
    gate: Annotated[Path | None, typer.Option(help="promote.yaml: the rules for promotion.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Error probability. Default: the gate's, else 0.05.")] = None,
    gamma_sensitivity: Annotated[
        float | None,
        typer.Option(
            help="Γ: largest odds ratio of responding between any two users asked. Default: the gate's, else 2."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--json", metavar="[FILE]", help="Write the report as JSON; print it if no file is given."),
    ] = None,
    page: Annotated[Path | None, typer.Option("--html", help="Write a self-contained HTML report with plots.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the result beside --json FILE and --html.")] = False,
    record: Annotated[
        bool, typer.Option(help="Record the estimates in the table ope_runs of the log's warehouse.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration that was in force during logging.")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="What the columns of a table mean, where it is not guessed: 'llm AS arm, stars AS reward', a SELECT "
            "of the table `log`, or a file of either (.sql)."
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip invalid rows of a table.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Print all tables, not only the lines that matter.")] = False,
) -> None:
    """Evaluate a candidate policy on logged traffic before deploying it.

    Exit code: 0 promote, or a report without a gate; 1 keep; 2 not enough evidence; 3 error.
    """
    if context.invoked_subcommand is not None:
        return
    if log is None:
        raise ConfigError(
            "--log is missing; give a data folder, a warehouse, a journal, or a CSV, JSONL or Parquet file"
        )
    if candidate is None and (gate is not None or out is not None or page is not None or record):
        raise ConfigError("--candidate is missing; --gate, --json, --html and --record are about one candidate")
    if out == _STDOUT and text:
        raise ConfigError("--json and --text both print to standard output; give --json a file")
    _check_places(out, page)
    if record:
        from fitrouter_evaluators.replay.recording import warehouse_of

        warehouse_of(log)
    rules = _gate(gate, metric)
    asked = _Options(metric, unit, by, groups, since, until, horizon, idle, alpha, gamma_sensitivity)
    with _log_at(log, select, config, skip_bad=skip_bad) as read:
        if candidate is None:
            _print_models(_compare(read, against, _settings(asked, None), config), log)
            raise typer.Exit(0)
        report = _evaluate(read, candidate, against, _settings(asked, rules), rules, config)
    _deliver(report, out, page, text=text, full=full)
    if record:
        from fitrouter_evaluators.replay.recording import record as keep

        typer.echo(f"recorded as run {keep(report, log)}", err=True)
    raise typer.Exit(_exit_code(report))


def _limits(log: Path, config: Path | None) -> FeedbackConfig | None:
    """Return the limits on votes of a configuration: the given one, or that of here if it names the log's folder."""
    from fitrouter.config import load_config

    if config is not None:
        return load_config(config).feedback
    if not DEFAULT.is_file():
        return None
    here, at = load_config(DEFAULT), log.resolve()
    return here.feedback if here.data.resolve() in (at, *at.parents) else None


@contextlib.contextmanager
def _log_at(log: Path, select: str | None, config: Path | None, *, skip_bad: bool) -> Iterator[Callable[[], Log]]:
    """Open a log for reading; a table of another program is imported for the duration of the context."""
    from fitrouter_evaluators.replay.importing.import_log import imported
    from fitrouter_evaluators.replay.importing.selection import quoted
    from fitrouter_evaluators.replay.importing.tables import is_table
    from fitrouter_evaluators.replay.log.sources import read_log

    if not is_table(log):
        if select is not None:
            raise ConfigError(f"--select: {str(log)!r} is no table of another program; leave it out")
        yield lambda: read_log(log, limits=_limits(log, config))
        return
    with imported(log, select, skip_bad=skip_bad) as found:
        if found.select != select:
            typer.echo(f"{log.name} was read with --select {quoted(found.select)}", err=True)
        yield lambda: read_log(found.folder)._replace(source=str(log))


def _candidate(text: str, live: Config | None) -> Candidate:
    """Load a candidate from a file or a short form; other text is the name of a fixed model."""
    from fitrouter_evaluators.replay.candidates.load import SHORT_FORMS, load_candidate

    path = Path(text)
    named = text not in SHORT_FORMS and not path.exists() and path.suffix.lower() not in {".yaml", ".yml", ".json"}
    return load_candidate({"fixed": text} if named else text, config=live)


def _compare(read: Callable[[], Log], against: str, settings: ReplaySettings, config: Path | None) -> _Comparison:
    """Compare every model with what ran."""
    from fitrouter.config import load_config
    from fitrouter_evaluators.replay.evaluation import compare_models

    other = _candidate(against, None if config is None else load_config(config))
    logged = read()
    rows = compare_models(logged, other, settings)
    return _Comparison(rows, other.description, settings.metric, logged.outcomes.left_out)


class _Comparison(NamedTuple):
    rows: list[PolicyEstimate]
    """Differences of the models; the value of what they are compared with comes last."""
    against: str
    metric: str
    left_out: int


def _print_models(found: _Comparison, log: Path) -> None:
    """Print a line for each model: whether it is better than what ran."""
    from fitrouter_evaluators.replay.log.heard import said_of_left_out

    *rows, last = found.rows
    less = found.metric in {"cost", "latency"}
    typer.echo(f"{found.against}: {found.metric} {last.value:.3f} ({last.low:.3f} … {last.high:.3f}, {last.n:,} units)")
    width = max(len(row.policy) for row in rows)
    for row in rows:
        word = "no difference is shown"
        if row.biased:
            word = "no verdict, ⚠"
        elif row.low > 0.0 or row.high < 0.0:
            word = "better" if (row.low > 0.0) is not less else "worse"
        typer.echo(f"  always {row.policy:<{width}}  {row.value:+.3f}  ({row.low:+.3f} … {row.high:+.3f})  {word}")
    if any(row.biased for row in rows):
        typer.echo(f"  ⚠ {next(row.biased for row in rows if row.biased)}")
    if found.left_out:
        typer.echo(f"  ⚠ {said_of_left_out(found.left_out)}")
    typer.echo(
        f"{100 * (1 - last.alpha):g}% intervals for one look, corrected for {len(rows)} models. "
        f"In detail: fitrouter replay --log {shlex.quote(str(log))} --candidate MODEL"
    )


def _evaluate(
    read: Callable[[], Log],
    candidate: str,
    against: str,
    settings: ReplaySettings,
    gate: Gate | None,
    config: Path | None,
) -> Report:
    """Evaluate a candidate; small files are read first, so that mistakes in them show early."""
    require("scipy", "replay")  # the extra that has it has all that replay needs
    from fitrouter.config import load_config
    from fitrouter_evaluators.replay.evaluation import evaluate

    live = None if config is None else load_config(config)
    one, other = (_candidate(each, live) for each in (candidate, against))
    return evaluate(read(), one, other, settings, gate)


def _exit_code(report: Report) -> int:
    """Return the exit code for the gate's verdict; 0 without a gate."""
    return 0 if report.gate is None else CODES[report.gate.verdict]


def _check_places(*files: Path | None) -> None:
    """Check before the evaluation that output files can be written."""
    for file in files:
        if file is not None and file != _STDOUT and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise ConfigError(f"{str(file)!r} cannot be written: its folder is missing, or it is a folder")


def _deliver(report: Report, out: Path | None, page: Path | None, *, text: bool, full: bool) -> None:
    """Write and print the report; without tables, print the verdict to standard error."""
    from fitrouter_evaluators.replay.render import verdict

    json = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    if page is not None:
        from fitrouter_evaluators.replay.render.render_html import html

        write_private(page, html(report).encode(), "--html")
    if out is not None and out != _STDOUT:
        write_private(out, json, "--json")
    if out == _STDOUT:
        typer.echo(json, nl=False)
    if text or full or (out is None and page is None):
        _print(report, full=full)
    else:
        typer.echo(verdict(report), err=True)


def _print(report: Report, *, full: bool) -> None:
    """Print the lines that matter, or all tables; in colour on a terminal."""
    from fitrouter_evaluators.replay.render.render_text import renderables, text

    width = max(Console().width, _NARROWEST)
    console = Console(width=width)
    if not console.is_terminal:
        typer.echo(text(report, width, full=full), nl=False)
        return
    for part in renderables(report, full=full):
        console.print(part, markup=False, highlight=False, emoji=False)


# --- logs to and from files ---


@app.command("import")
def import_(
    data: Annotated[Path, typer.Argument(help="CSV (.csv, .tsv, also .gz), JSON or Parquet, one row per decision.")],
    out: Annotated[Path, typer.Option(help="New folder for the Parquet tables.")],
    select: Annotated[str | None, typer.Option(help="What the columns mean; as in `fitrouter replay`.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip and count invalid rows.")] = False,
) -> None:
    """Import another system's log."""
    from fitrouter_evaluators.replay.importing.import_log import import_log

    made = import_log(data, select, out, skip_bad=skip_bad)
    typer.echo(f"wrote {made.rows} decisions among {len(made.arms)} arms to {made.folder}")
    if made.skipped:
        typer.echo(f"{made.skipped} invalid rows were skipped; see problems.jsonl there", err=True)


@app.command("export")
def export_(
    log: Annotated[Path, typer.Option(help="As in `fitrouter replay`.")],
    out: Annotated[Path, typer.Option(help="New folder for the Parquet tables.")],
) -> None:
    """Export a log as Parquet files, which `fitrouter replay` reads."""
    from fitrouter_evaluators.replay.log.sources import export

    for file in export(log, out):
        typer.echo(f"wrote {file}")
