"""`fitrouter replay`: prove a change on the log before it goes live.

The exit code is the answer: 0 promote (or a report, where no gate was asked), 1 keep, 2 not enough evidence, and 3 for
whatever prevented an answer. A crash or a wrong option must never look like one of the first three.
"""

from __future__ import annotations

import csv
import logging
import math
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import msgspec
import typer
from rich.console import Console

from fitrouter.errors import ConfigError, FitrouterError

if TYPE_CHECKING:
    from fitrouter_evaluators.replay.gate_file import Gate
    from fitrouter_evaluators.replay.replay import ReplaySettings
    from fitrouter_evaluators.replay.results import Report


METRICS = ("fit", "cost", "latency", "utility", "score")
SLICES = ("role", "task", "user_group")
CODES = {"promote": 0, "keep": 1, "not enough evidence": 2}
NO_ANSWER = 3

_STDOUT = Path("-")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NARROWEST = 60

app = typer.Typer(
    help="Prove a change on the log before it goes live. Exit code: 0 promote, or a report without a gate; 1 keep; "
    "2 not enough evidence; 3 no answer, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def run(arguments: Sequence[str]) -> NoReturn:
    """Run the verb, and end the process with the code of its answer."""
    sys.exit(_code(arguments))


def _code(arguments: Sequence[str]) -> int:
    """The exit code of an answer; for whatever prevents one, 3 and a message on standard error."""
    try:
        return int(app(_completed(arguments), prog_name="fitrouter replay", standalone_mode=False) or 0)
    except SystemExit:
        _complain("nobody read the report to its end")
    except FitrouterError as error:
        _complain(str(error))
    except ModuleNotFoundError as error:
        _complain(f"this needs {error.name!r}, which is not installed; install 'fitrouter[all]'")
    except Exception as error:
        said = getattr(error, "format_message", None)  # a usage error's, of whichever click typer brings
        if said is not None:
            _complain(f"{said()} (fitrouter replay --help shows all options)")
        else:
            logging.getLogger(__name__).exception("fitrouter replay failed; nothing was decided")
    return NO_ANSWER


def _complain(message: str) -> None:
    Console(stderr=True).print(f"fitrouter: {message}", style="red", markup=False, highlight=False, soft_wrap=True)


def _completed(arguments: Sequence[str]) -> list[str]:
    """`--json` without a file means standard output."""
    found: list[str] = []
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else "--"
        alone = argument == "--json" and following.startswith("-") and following != "-"
        found += [argument, "-"] if alone else [argument]
    return found


# --- options ---


def _moment(text: str) -> float:
    """Seconds since the epoch of an ISO time (in UTC where it says nothing else), or of such a number."""
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
            f"{text!r} is no time; give 2026-10-01, 2026-10-01T12:00+02:00, or seconds since the epoch"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _duration(text: str) -> float:
    """Seconds of `7d`, `3600s`, `1.5h`; a number alone is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip())
    if found is None or found[2] not in _SECONDS:
        raise ConfigError(f"{text!r} is no duration; give a number and s, m, h, d or w, such as 7d, 3600s or 1.5h")
    return float(found[1]) * _SECONDS[found[2]]


def _slices(text: str) -> tuple[str, ...]:
    """What to slice by."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if wrong := [name for name in names if name not in SLICES]:
        raise ConfigError(
            f"--by: there is nothing to slice by called {', '.join(wrong)}; allowed are {', '.join(SLICES)}"
        )
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
                raise ConfigError(
                    f"--groups: {str(path)!r} has the columns {rows.fieldnames}; needed are user and group"
                )
            for row in rows:
                user, group = row["user"], row["group"]
                if not user or not group or groups.get(user, group) != group:
                    said = f"user {user!r} and group {group!r}"
                    raise ConfigError(
                        f"--groups: line {rows.line_num} of {str(path)!r} says {said}; each user needs one group"
                    )
                groups[user] = group
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"--groups: {str(path)!r} cannot be read: {error}") from None
    return groups


class _Asked(NamedTuple):
    """Options as they were given."""

    metric: str | None
    by: str
    groups: Path | None
    since: str | None
    until: str | None
    horizon: str
    idle: str
    alpha: float | None
    sensitivity: float | None


def _settings(asked: _Asked, gate: Gate | None) -> ReplaySettings:
    """What is to be estimated. What is not said is as the gate has it."""
    from fitrouter_evaluators.replay.replay import ReplaySettings

    since, until = (None if each is None else _moment(each) for each in (asked.since, asked.until))
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"--since {asked.since} is not before --until {asked.until}: nothing is in between")
    idle_s = _duration(asked.idle)
    if idle_s <= 0:
        raise ConfigError("--idle: silence of no length closes every session; give what the router has, such as 1h")
    if gate is not None and asked.metric not in {None, gate.metric}:
        raise ConfigError(f"--metric {asked.metric}: the gate decides by {gate.metric}; leave one of the two out")
    metric, alpha, sensitivity = ("fit", 0.05, 2.0) if gate is None else (gate.metric, gate.alpha, gate.sensitivity)
    alpha = alpha if asked.alpha is None else asked.alpha
    sensitivity = sensitivity if asked.sensitivity is None else asked.sensitivity
    if not 0 < alpha < 0.5:
        raise ConfigError(f"--alpha {alpha:g}: give a probability of error above 0 and below 0.5, such as 0.05")
    if not sensitivity >= 1:
        raise ConfigError(f"--gamma-sensitivity {sensitivity:g}: give 1 (silence says nothing) or more, up to inf")
    return ReplaySettings(
        metric=asked.metric or metric,
        by=_slices(asked.by),
        since=since,
        until=until,
        horizon_s=_duration(asked.horizon),
        idle_s=idle_s,
        alpha=alpha,
        sensitivity=sensitivity,
        groups=_groups(asked.groups),
    )


def _gate(path: Path | None, metric: str | None) -> Gate | None:
    """The rules; a score cannot be gated on."""
    from fitrouter_evaluators.replay.gate_file import load_gate

    if metric is not None and metric not in METRICS:
        raise ConfigError(f"--metric: there is no metric {metric!r}; allowed are {', '.join(METRICS)}")
    if path is None:
        return None
    if metric == "score":
        raise ConfigError(
            "--metric score is for looking, and decides nothing: scores are features and labels are rewards, so a "
            "candidate may raise the score while people are worse off; leave out --gate, or take --metric fit"
        )
    return load_gate(path)


# --- the verb ---


LogPath = Annotated[
    Path | None,
    typer.Option(help="A warehouse (*.duckdb), a journal (*.db), a gateway's folder, or a folder of Parquet files."),
]
Policy = Annotated[str | None, typer.Option(help="candidate.yaml, or one of: current, uniform, twin, personal.")]
Against = Annotated[str, typer.Option(help="What it is compared with: likewise.")]
Metric = Annotated[
    str | None, typer.Option(help="fit, cost, latency, utility or score; without it the gate's, else fit.")
]
By = Annotated[str, typer.Option(help="Slices: any of role,task,user_group.")]
Groups = Annotated[
    Path | None, typer.Option(help="CSV with the columns user and group; without it by what users declared.")
]
Since = Annotated[str | None, typer.Option(help="ISO time, or seconds since the epoch.")]
Until = Annotated[str | None, typer.Option(help="Likewise; this moment and later is out.")]
Horizon = Annotated[str, typer.Option(help="Younger decisions are out, labelled or not: 7d, 3600s.")]
Idle = Annotated[str, typer.Option(help="Silence that closes a session.")]
Rules = Annotated[Path | None, typer.Option(help="promote.yaml: what must be shown before it goes live.")]
Alpha = Annotated[float | None, typer.Option(help="Probability of error; without it the gate's, else 0.05.")]
Gamma = Annotated[
    float | None,
    typer.Option(help="Γ: how far silence may speak, among those who were asked; without it the gate's, else 2."),
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="[FILE]", help="Everything as JSON; printed where no file is named.")
]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page with pictures that needs nothing else.")]
AsText = Annotated[bool, typer.Option("--text", help="Print tables: the default where no other form is asked for.")]
Record = Annotated[bool, typer.Option(help="Keep the numbers in the table ope_runs of the log's warehouse.")]
ConfigPath = Annotated[
    Path | None, typer.Option("--config", "-c", help="The configuration that was in force while it was logged.")
]


@app.callback(invoke_without_command=True)
def replay(
    context: typer.Context,
    log: LogPath = None,
    candidate: Policy = None,
    against: Against = "current",
    metric: Metric = None,
    by: By = "",
    groups: Groups = None,
    since: Since = None,
    until: Until = None,
    horizon: Horizon = "0s",
    idle: Idle = "1h",
    gate: Rules = None,
    alpha: Alpha = None,
    gamma_sensitivity: Gamma = None,
    out: Json = None,
    page: Page = None,
    text: AsText = False,
    record: Record = False,
    config: ConfigPath = None,
) -> None:
    """Prove a change on the log before it goes live.

    Exit code: 0 promote, or a report without a gate; 1 keep; 2 not enough evidence; 3 no answer, and why.
    """
    if context.invoked_subcommand is not None:
        return
    if log is None or candidate is None:
        raise ConfigError(f"--{'log' if log is None else 'candidate'} is missing: what is to be replayed on what?")
    if out == _STDOUT and text:
        raise ConfigError("--json and --text would both be printed; give --json a file")
    _check_places(out, page)
    rules = _gate(gate, metric)
    asked = _Asked(metric, by, groups, since, until, horizon, idle, alpha, gamma_sensitivity)
    report = _replayed(log, candidate, against, _settings(asked, rules), rules, config)
    _deliver(report, out, page, text=text)
    if record:
        from fitrouter_evaluators.replay.recording import record as keep

        typer.echo(f"kept as run {keep(report, log)}", err=True)
    raise typer.Exit(_answer(report))


def _replayed(
    log: Path, candidate: str, against: str, settings: ReplaySettings, gate: Gate | None, config: Path | None
) -> Report:
    """Read what is to be replayed, mistakes in small files first, and replay it."""
    from fitrouter.config import load_config
    from fitrouter_evaluators.replay.candidates.candidates import load_candidate
    from fitrouter_evaluators.replay.log.sources import read_log
    from fitrouter_evaluators.replay.replay import replay as replayed

    live = None if config is None else load_config(config)
    one, other = (load_candidate(each, config=live) for each in (candidate, against))
    return replayed(read_log(log), one, other, settings, gate)


def _answer(report: Report) -> int:
    """The exit code of the gate's verdict; 0 without a gate."""
    return 0 if report.gate is None else CODES[report.gate.verdict]


def _check_places(*files: Path | None) -> None:
    """Files that cannot be written are better known before an hour of work than after it."""
    for file in files:
        if file is not None and file != _STDOUT and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise ConfigError(f"{str(file)!r} cannot be written: its folder is missing, or it is one itself")


def _deliver(report: Report, out: Path | None, page: Path | None, *, text: bool) -> None:
    """Write and print what was asked for; where tables were not, the verdict goes to standard error."""
    from fitrouter_evaluators.replay.render import verdict

    json = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    if page is not None:
        from fitrouter_evaluators.replay.render.render_html import html

        _write(page, html(report).encode())
    if out is not None and out != _STDOUT:
        _write(out, json)
    if out == _STDOUT:
        typer.echo(json, nl=False)
    if text or (out is None and page is None):
        _print(report)
    else:
        typer.echo(verdict(report), err=True)


def _print(report: Report) -> None:
    """Tables, in colour where somebody watches."""
    from fitrouter_evaluators.replay.render.render_text import parts, text

    width = max(Console().width, _NARROWEST)
    console = Console(width=width)
    if not console.is_terminal:
        typer.echo(text(report, width), nl=False)
        return
    for part in parts(report):
        console.print(part, markup=False, highlight=False, emoji=False)


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{str(file)!r} cannot be written: {error.strerror}") from None


# --- logs to and from files ---


@app.command("import")
def import_(
    data: Annotated[Path, typer.Argument(help="CSV (.csv, .tsv, also .gz) or Parquet, a row a decision.")],
    columns: Annotated[
        str, typer.Option("--map", help="Which column is what: a YAML file, or one that ships by name.")
    ],
    out: Annotated[Path, typer.Option(help="A new folder for the tables as Parquet.")],
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows that cannot be used, and count them.")
    ] = False,
) -> None:
    """Write somebody else's log as one that replay reads."""
    from fitrouter_evaluators.replay.importing.importing import import_log

    made = import_log(data, columns, out, skip_bad=skip_bad)
    typer.echo(f"wrote {made.rows} decisions among {len(made.arms)} arms to {made.folder}")
    if made.skipped:
        typer.echo(f"{made.skipped} rows cannot be used and were left out; problems.jsonl there names them", err=True)


@app.command("export")
def export_(
    log: Annotated[Path, typer.Option(help="As in `fitrouter replay`.")],
    out: Annotated[Path, typer.Option(help="A new folder for the tables as Parquet.")],
) -> None:
    """Write a log as Parquet files, which replay reads as well."""
    from fitrouter_evaluators.replay.log.sources import export

    for file in export(log, out):
        typer.echo(f"wrote {file}")
