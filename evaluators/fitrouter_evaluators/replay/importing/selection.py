"""The SELECT that says what the columns of a foreign table mean, and what is guessed of it from their names.

A selection is SQL over the relation `log`: a whole SELECT, or only its expressions, such as `llm AS arm, stars AS
reward`. To expressions the columns that are not among them are added where their names tell what they are.
"""

# ruff: noqa: S608 - the statements are the user's own, and made of quoted names

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.importing.tables import Table, identifier, literal

COLUMNS: Mapping[str, str] = {
    "arm": "model arm action chosen model_name model_id chosen_model selected_model llm variant route treatment",
    "reward": (
        "reward rating thumb thumbs stars feedback label liked satisfaction outcome click clicked success score y"
    ),
    "propensity": (
        "propensity propensity_score pscore prob probability action_prob chosen_prob prob_chosen action_probability p"
    ),
    "pmf": "",
    "eligible": "",
    "mode": "",
    "worst": "",
    "best": "",
    "id": "",
    "time": "time timestamp ts datetime created_at created date when",
    "tenant": "",
    "user": "user user_id userid uid customer customer_id person who",
    "role": "role",
    "task": "task task_type topic category intent",
    "session": "",
    "cost_usd": "cost cost_usd usd price",
    "latency_s": "latency_s latency seconds duration_s",
    "features": "",
    "policy": "",
}
"""Column of a selection → names from which it is guessed, the likeliest first, in lower case without punctuation."""
WORDS = (
    "CASE WHEN lower(trim({0})) IN ('up', 'yes', 'true', 'like', 'liked', 'positive', 'thumbs_up', '👍') "
    "THEN 1.0 WHEN lower(trim({0})) IN ('down', 'no', 'false', 'dislike', 'disliked', 'negative', "
    "'thumbs_down', '👎') THEN 0.0 END"
)
"""SQL of a reward in a word, for a text."""
_PMF = ("p_", "prob_", "probability_", "propensity_", "pmf_", "pi_")
"""What the columns of all arms' probabilities begin with, before the arm."""
_SCALES = ((0.0, 1.0), (-1.0, 1.0), (1.0, 5.0), (0.0, 5.0), (1.0, 10.0), (0.0, 10.0), (0.0, 100.0))
_WHOLE = re.compile(r"\s*(--[^\n]*\n\s*)*(select|with|from)\b", re.IGNORECASE)
_MOST_ARMS = 1000


class Selection(NamedTuple):
    """A complete SELECT."""

    sql: str
    """It has at least the columns `arm` and `reward`, and those that probabilities are known from."""
    expressions: str
    """Those of a selection that was completed; empty for a whole SELECT."""

    @property
    def keeps_rows(self) -> bool:
        """Whether its rows are those of the table."""
        return bool(self.expressions)


def complete(table: Table, given: str | None) -> Selection:
    """Complete a selection.

    Args:
        table: it is the relation `log`.
        given: a whole SELECT, expressions, a file that has one of the two, or None.

    Raises:
        ConfigError: it cannot be run, or lacks a column that cannot be guessed; the message has the text to type.
        InvalidLog: the table has no rows.
    """
    text = _content(given)
    if _WHOLE.match(text):
        _check_names(names := _described(table, text))
        for needed in (("arm",), ("reward",), ("propensity", "pmf", "mode")):
            if not set(needed) & set(names):
                raise ConfigError(f"--select: the column {' or '.join(f'`{name}`' for name in needed)} is missing")
        return Selection(text, "")
    found = dict.fromkeys(_described(table, _from_log(text)), "") if text else {}
    _check_names(tuple(found))
    guessed = _guess(table, found, text)
    expressions = ", ".join([*filter(None, [text]), *(f"{sql} AS {_name(name)}" for name, sql in guessed.items())])
    return Selection(_from_log(expressions), expressions)


def _from_log(expressions: str) -> str:
    return f"SELECT {expressions} FROM log"


def _content(given: str | None) -> str:
    if given is None:
        return ""
    text = given
    if given.endswith(".sql"):
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--select: {given!r} cannot be read: {error}; give a file with one SELECT") from None
    text = text.strip().removesuffix(";").strip()
    return f"{text}\n" if "--" in text else text  # what follows a comment stands on a line of its own


def _described(table: Table, reader: str) -> tuple[str, ...]:
    """Names of the columns of one SELECT."""
    import duckdb

    try:
        statements = table.connection.extract_statements(reader)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ConfigError("--select: give one SELECT of the table `log`, or its expressions")
        described = table.connection.execute(f"DESCRIBE {reader}").fetchall()
    except duckdb.Error as error:
        known = ", ".join(repr(name) for name in table.names[:40]) + (" …" if len(table.names) > 40 else "")
        raise ConfigError(f"--select: {error}\nThe columns of {table.path.name!r} are {known}") from None
    return tuple(str(name) for name, *_ in described)


def _check_names(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in COLUMNS]:
        raise ConfigError(
            f"--select: {', '.join(map(repr, unknown))} cannot be used; columns of a selection are "
            f"{', '.join(COLUMNS)}: write `… AS arm`"
        )


def _name(name: str) -> str:
    return '"user"' if name == "user" else name


def _guess(table: Table, given: Mapping[str, Any], text: str) -> dict[str, str]:
    """SQL of the columns that are not given."""
    taken = {name for name in table.names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)}
    found = dict[str, str]()
    for part, names in COLUMNS.items():
        if part not in given and (column := _column(table, names.split(), taken)) is not None:
            found[part] = _written(table, column)
            taken.add(column)
    known = {**given, **found}
    _check_required(table, known, text)
    if not {"pmf", "mode"} & known.keys() and (pmf := _pmf(table, found.get("arm"), text)):
        found["pmf"] = pmf
    elif "mode" in given:
        found.pop("propensity", None)
    if not {"propensity", "pmf", "mode"} & {*given, *found}:
        raise ConfigError(_no_probabilities(table, found, text))
    if not {"worst", "best"} & known.keys():
        low, high = _scale(table, found, text)
        found |= {"worst": f"{low:g}", "best": f"{high:g}"}
    return found


def _column(table: Table, names: Sequence[str], taken: set[str]) -> str | None:
    """Find the first of these names that is a free column; None if there is none."""
    plain = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in table.header]
    for name in names:
        same = [i for i, each in enumerate(plain) if each == name and table.names[i] not in taken]
        if len(same) > 1:
            shown = ", ".join(repr(table.header[i]) for i in same)
            raise ConfigError(f"{table.path.name!r} has several columns {shown}; rename all but one")
        if same:
            return table.names[same[0]]
    return None


def _typed(text: str, found: Mapping[str, str], **more: str) -> str:
    """The option to type: what was given, what was found of the main columns, and more."""
    main = {name: found[name] for name in ("arm", "reward", "propensity") if name in found} | more
    return f"--select {quoted(', '.join([*filter(None, [text]), *(f'{sql} AS {name}' for name, sql in main.items())]))}"


def quoted(text: str) -> str:
    """A text as an argument of a shell's command line, in double quotes where it has single ones."""
    return f'"{text}"' if "'" in text and not set('"$`\\!') & set(text) else shlex.quote(text)


def _written(table: Table, name: str) -> str:
    """A column's name in SQL, in quotes if they are needed."""
    words = "SELECT count(*) FROM duckdb_keywords() WHERE keyword_name = ? AND keyword_category <> 'unreserved'"
    (is_word,) = table.connection.execute(words, [name.lower()]).fetchone() or (1,)
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and not is_word else identifier(name)


def _check_required(table: Table, known: Mapping[str, str], text: str) -> None:
    """Raise ConfigError where the arm or the reward is not known, with the text to type."""
    what = {"arm": "the model that was chosen", "reward": "the rating or reward"}
    if missing := [part for part in what if part not in known]:
        columns = ", ".join(repr(name) for name in table.names[:40])
        guessed = {name: sql for name, sql in known.items() if sql}
        raise ConfigError(
            f"{table.path.name!r}: which column has {' and '.join(what[part] for part in missing)}? Columns are "
            f"{columns}. Type: {_typed(text, guessed, **dict.fromkeys(missing, 'COLUMN'))}"
        )


def _no_probabilities(table: Table, found: Mapping[str, str], text: str) -> str:
    return (
        f"{table.path.name!r} has no column of probabilities, and without them nothing can be said about another "
        "policy. If a column has the probability with which the model was chosen, type: "
        f"{_typed(text, found, propensity='COLUMN')}. If all models were equally likely: "
        f"{_typed(text, found, mode=literal('uniform'))}. If a rule chose them, nothing can be estimated: log the "
        "probabilities of a random choice first"
    )


def _one(table: Table, sql: str) -> tuple[Any, ...]:
    """The only row of a query."""
    import duckdb

    try:
        return table.connection.execute(sql).fetchone() or ()
    except duckdb.Error as error:
        raise InvalidLog(f"{table.path.name!r} cannot be read: {error}; write it again") from None


def _pmf(table: Table, arm: str | None, text: str) -> str | None:
    """Find the columns with every arm's probability."""
    for start in _PMF:
        if sum(name.startswith(start) for name in table.names) > 1:
            of = _from_log(f"{arm} AS arm") if arm else f"SELECT arm FROM ({_from_log(text)})"
            arms = sorted(filter(None, _one(table, f"SELECT list(DISTINCT CAST(arm AS VARCHAR)) FROM ({of})")[0] or ()))
            columns = [start + each for each in arms[:_MOST_ARMS]]
            if columns and set(columns) <= set(table.names):
                pairs = (f"{literal(each)}: {_written(table, start + each)}" for each in arms)
                return f"MAP {{{', '.join(pairs)}}}"
    return None


def _scale(table: Table, found: Mapping[str, str], text: str) -> tuple[float, float]:
    """The usual scale that the rewards are on."""
    reward = found.get("reward")
    of = _from_log(f"{reward} AS reward") if reward else f"SELECT reward FROM ({_from_log(text)})"
    number = f"coalesce({WORDS.format('said')}, TRY_CAST(said AS DOUBLE))"
    finite = f"FILTER (isfinite({number}))"
    n, least, most = _one(
        table,
        f"SELECT count(*), min({number}) {finite}, max({number}) {finite} FROM "
        f"(SELECT CAST(reward AS VARCHAR) AS said FROM ({of}))",
    )
    shown = reward or "the reward"
    if not n and table.broken:
        return _SCALES[0]  # no row can be read, which is told later
    if not n:
        raise InvalidLog(f"{table.path.name!r} has a header but no rows that can be read")
    if least is None or most is None:
        raise ConfigError(
            f"{table.path.name!r}: {shown} has no numbers, and no words such as up, down, true, false; name another "
            "column with --select 'COLUMN AS reward'"
        )
    for low, high in _SCALES:
        if low <= least and most <= high:
            return low, high
    raise ConfigError(
        f"{table.path.name!r}: {shown} goes from {least:g} to {most:g}, and what are its worst and its best value? "
        f"Type: {_typed(text, {}, worst=f'{least:g}', best=f'{most:g}')} if these are they"
    )
