"""Schema migrations of the warehouse. A published migration is never edited: a change is a new one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from fitrouter.errors import StoreError
from fitrouter.stores.warehouse._words import describe

if TYPE_CHECKING:
    import duckdb


Migration: TypeAlias = "Callable[[duckdb.DuckDBPyConnection], None]"
MIGRATIONS: dict[str, Migration] = {}
"""All migrations by name, in order."""


def _migration(step: Migration) -> Migration:
    MIGRATIONS[step.__name__] = step
    return step


def migrate(connection: duckdb.DuckDBPyConnection) -> None:
    """Apply the missing migrations, each in its own transaction.

    Raises:
        StoreError: a later version of fitrouter migrated the file.
    """
    connection.execute("CREATE TABLE IF NOT EXISTS migrations (name VARCHAR NOT NULL)")
    applied = {name for (name,) in connection.execute("SELECT name FROM migrations").fetchall()}
    if unknown := sorted(applied - MIGRATIONS.keys()):
        raise StoreError(
            f"the warehouse has the unknown migrations {unknown} of a later fitrouter; upgrade fitrouter, or delete "
            "the file: it is rebuilt from the journal"
        )
    missing = [name for name in MIGRATIONS if name not in applied]
    for name in missing:
        connection.begin()
        MIGRATIONS[name](connection)
        connection.execute("INSERT INTO migrations VALUES (?)", [name])
        if name == missing[-1]:  # a migration that replaces a view drops its comments
            describe(connection)
        connection.commit()


@functools.cache
def tables_sql() -> str:
    """Return the statements that create the tables as after all migrations, without views and comments."""
    import duckdb

    with duckdb.connect() as connection:
        for step in MIGRATIONS.values():
            step(connection)
        return "".join(sql for (sql,) in connection.execute("SELECT sql FROM duckdb_tables()").fetchall())


@_migration
def m001_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create one table per kind of event; `ts` is in seconds since the epoch, arrays are in the order of `eligible`."""
    connection.execute("""
        CREATE TABLE position (seq BIGINT NOT NULL, event_id VARCHAR NOT NULL);
        INSERT INTO position VALUES (0, '');
        CREATE TABLE decisions (
            seq BIGINT, decision_id VARCHAR, ts DOUBLE, draw_id VARCHAR,
            tenant VARCHAR, "user" VARCHAR, role VARCHAR, task VARCHAR, session VARCHAR,
            mode VARCHAR, eligible VARCHAR[], excluded STRUCT(model VARCHAR, reason VARCHAR)[],
            probs DOUBLE[], chosen VARCHAR, propensity DOUBLE, features FLOAT[],
            mean DOUBLE[], sd DOUBLE[], cost DOUBLE[], latency DOUBLE[], availability DOUBLE[],
            cost_weight DOUBLE, latency_weight DOUBLE, floor DOUBLE, share DOUBLE, twin DOUBLE[],
            asked BOOLEAN, asked_probability DOUBLE,
            policy_algorithm VARCHAR, policy_config_hash VARCHAR, policy_seq BIGINT,
            registry VARCHAR, encoder VARCHAR, seed BIGINT
        );
        CREATE TABLE executions (
            seq BIGINT, execution_id VARCHAR, ts DOUBLE, decision_id VARCHAR,
            tenant VARCHAR, "user" VARCHAR, role VARCHAR, task VARCHAR, session VARCHAR,
            chosen VARCHAR, served_by VARCHAR, status VARCHAR,
            attempts STRUCT(model VARCHAR, probability DOUBLE, error VARCHAR, ms DOUBLE)[],
            features FLOAT[], prompt_tokens BIGINT, completion_tokens BIGINT, cost_usd DOUBLE,
            ttft_ms DOUBLE, latency_ms DOUBLE, finish_reason VARCHAR, overhead_ms DOUBLE
        );
        CREATE TABLE scores (
            seq BIGINT, score_id VARCHAR, ts DOUBLE, decision_id VARCHAR,
            tenant VARCHAR, "user" VARCHAR, role VARCHAR, task VARCHAR, session VARCHAR,
            served_by VARCHAR, features FLOAT[], h FLOAT[], schema VARCHAR, encoder VARCHAR,
            mean DOUBLE, sd DOUBLE, status VARCHAR
        );
        CREATE TABLE feedback (
            seq BIGINT, feedback_id VARCHAR, ts DOUBLE, decision_id VARCHAR,
            tenant VARCHAR, "user" VARCHAR, role VARCHAR, task VARCHAR, session VARCHAR,
            kind VARCHAR, value DOUBLE, scale_low DOUBLE, scale_high DOUBLE, y DOUBLE,
            dimension VARCHAR, asked BOOLEAN, source VARCHAR
        );
        CREATE TABLE profiles (
            seq BIGINT, profile_id VARCHAR, ts DOUBLE,
            tenant VARCHAR, "user" VARCHAR, role VARCHAR, task VARCHAR, session VARCHAR,
            declared MAP(VARCHAR, DOUBLE)
        );
        CREATE TABLE models (
            seq BIGINT, change_id VARCHAR, ts DOUBLE, registry VARCHAR,
            arm VARCHAR, name VARCHAR, provider VARCHAR, target VARCHAR,
            input_usd_per_million DOUBLE, output_usd_per_million DOUBLE,
            context_window BIGINT, capabilities VARCHAR[], revision VARCHAR
        );
        CREATE TABLE ope_runs (
            run_id VARCHAR, ts DOUBLE, candidate VARCHAR, baseline VARCHAR, estimator VARCHAR, metric VARCHAR,
            slice VARCHAR, estimate DOUBLE, low DOUBLE, high DOUBLE, n BIGINT, ess DOUBLE,
            max_weight DOUBLE, mean_weight DOUBLE, unsupported DOUBLE, verdict VARCHAR
        );
    """)


@_migration
def m002_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Create views of the latest feedback, and of decisions joined with their execution, score and votes."""
    _views(connection, "execution.cost_usd")


def _views(connection: duckdb.DuckDBPyConnection, columns: str) -> None:
    connection.execute(f"""
        CREATE VIEW latest_feedback AS
            SELECT * FROM feedback
            QUALIFY row_number() OVER (PARTITION BY decision_id, kind, dimension ORDER BY seq DESC) = 1;
        CREATE VIEW outcomes AS
            WITH execution AS (
                SELECT * FROM executions QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq DESC) = 1
            ), score AS (
                SELECT * FROM scores QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq DESC) = 1
            ), vote AS (
                SELECT
                    decision_id,
                    max(y) FILTER (kind = 'thumb') AS thumb,
                    max(y) FILTER (kind = 'rating') AS rating,
                    arg_max(asked, seq) AS vote_asked,
                    arg_max(source, seq) AS vote_source
                FROM latest_feedback WHERE dimension = 'overall' GROUP BY decision_id
            )
            SELECT
                decision.decision_id, decision.seq, decision.ts,
                make_timestamp(CAST(decision.ts * 1000000 AS BIGINT)) AS at_utc, decision.draw_id,
                decision.tenant, decision."user", decision.role, decision.task, decision.session, decision.mode,
                decision.chosen, decision.propensity, decision.eligible, decision.probs, decision.twin,
                decision.asked, decision.asked_probability, decision.policy_algorithm, decision.registry,
                execution.served_by, execution.status, execution.prompt_tokens, execution.completion_tokens,
                {columns}, execution.ttft_ms, execution.latency_ms, execution.overhead_ms,
                execution.finish_reason, len(execution.attempts) AS attempts,
                score.mean AS score_mean, score.sd AS score_sd, score.status AS score_status,
                vote.thumb, vote.rating, vote.vote_asked, vote.vote_source
            FROM decisions AS decision
            LEFT JOIN execution USING (decision_id)
            LEFT JOIN score USING (decision_id)
            LEFT JOIN vote USING (decision_id);
    """)  # noqa: S608 - constants


@_migration
def m003_heads(connection: duckdb.DuckDBPyConnection) -> None:
    """Add scores of further reward dimensions, and the other answer of a pair."""
    connection.execute("""
        DROP VIEW outcomes;
        DROP VIEW latest_feedback;
        ALTER TABLE scores ADD COLUMN dimensions MAP(VARCHAR, STRUCT(mean DOUBLE, sd DOUBLE));
        ALTER TABLE feedback ADD COLUMN other VARCHAR;
    """)
    m002_views(connection)


@_migration
def m004_policies(connection: duckdb.DuckDBPyConnection) -> None:
    """Add budget, session and candidate columns of decisions, model variants, and policy changes."""
    connection.execute("""
        DROP VIEW outcomes;
        DROP VIEW latest_feedback;
        ALTER TABLE decisions ADD COLUMN cost_unit_usd DOUBLE;
        ALTER TABLE decisions ADD COLUMN latency_unit_s DOUBLE;
        ALTER TABLE decisions ADD COLUMN budget_weight DOUBLE;
        ALTER TABLE decisions ADD COLUMN budget_unit_usd DOUBLE;
        ALTER TABLE decisions ADD COLUMN switch DOUBLE[];
        ALTER TABLE decisions ADD COLUMN personal DOUBLE[];
        ALTER TABLE decisions ADD COLUMN candidates MAP(VARCHAR, DOUBLE[]);
        ALTER TABLE decisions ADD COLUMN new VARCHAR[];
        ALTER TABLE decisions ADD COLUMN user_turn BOOLEAN;
        ALTER TABLE decisions ADD COLUMN redraw VARCHAR;
        ALTER TABLE models ADD COLUMN variant VARCHAR;
        ALTER TABLE models ADD COLUMN max_output_tokens BIGINT;
        CREATE TABLE policies (
            seq BIGINT, change_id VARCHAR, ts DOUBLE,
            action VARCHAR, name VARCHAR, settings VARCHAR, config_hash VARCHAR
        );
    """)
    m002_views(connection)


@_migration
def m005_replay(connection: duckdb.DuckDBPyConnection) -> None:
    """Add inputs of replay: probability mass set by exploration rules (`rest`), and labels so far (`steps`)."""
    connection.execute("""
        DROP VIEW outcomes;
        DROP VIEW latest_feedback;
        ALTER TABLE decisions ADD COLUMN rest DOUBLE[];
        ALTER TABLE decisions ADD COLUMN steps DOUBLE;
    """)
    m002_views(connection)


@_migration
def m006_deadline(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the request's own deadline to decisions."""
    connection.execute("""
        DROP VIEW outcomes;
        DROP VIEW latest_feedback;
        ALTER TABLE decisions ADD COLUMN deadline_s DOUBLE;
    """)
    m002_views(connection)


@_migration
def m007_sampled(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the probabilities with which reward models were drawn for an answer."""
    connection.execute("""
        DROP VIEW outcomes;
        DROP VIEW latest_feedback;
        ALTER TABLE scores ADD COLUMN sampled MAP(VARCHAR, DOUBLE);
    """)
    m002_views(connection)


@_migration
def m008_remarks(connection: duckdb.DuckDBPyConnection) -> None:
    """Add remarks on answers, and the number of user messages in a request."""
    connection.execute("""
        DROP VIEW outcomes;
        DROP VIEW latest_feedback;
        ALTER TABLE decisions ADD COLUMN turn BIGINT;
        CREATE TABLE remarks (
            seq BIGINT, remark_id VARCHAR, ts DOUBLE, decision_id VARCHAR,
            tenant VARCHAR, "user" VARCHAR, role VARCHAR, task VARCHAR, session VARCHAR,
            kind VARCHAR, moved MAP(VARCHAR, DOUBLE), y DOUBLE
        );
    """)
    m002_views(connection)


@_migration
def m009_unpriced(connection: duckdb.DuckDBPyConnection) -> None:
    """Add costs at assumed prices, and marks of estimated tokens and of executions that teach nothing shared."""
    connection.execute("""
        DROP VIEW outcomes;
        DROP VIEW latest_feedback;
        ALTER TABLE decisions ADD COLUMN unpriced VARCHAR[];
        ALTER TABLE executions ADD COLUMN cost_assumed BOOLEAN;
        ALTER TABLE executions ADD COLUMN believed BOOLEAN;
        ALTER TABLE executions ADD COLUMN estimated BOOLEAN;
        ALTER TABLE models ADD COLUMN price_known BOOLEAN;
    """)
    m002_views(connection)


@_migration
def m010_answers(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the readable view `answers`; from here on, every table and column gets a comment."""
    connection.execute("""
        CREATE VIEW answers AS
            WITH votes AS (
                SELECT decision_id, string_agg(
                    kind
                    || CASE
                        WHEN kind = 'thumb' THEN CASE WHEN value >= 0.5 THEN ' up' ELSE ' down' END
                        WHEN kind = 'rating' THEN format(' {:g} of {:g} to {:g}', value, scale_low, scale_high)
                        WHEN kind = 'dwell' THEN format(' {:g} s', value)
                        ELSE format(' {:g}', value)
                    END
                    || CASE WHEN dimension = 'overall' THEN '' ELSE ' for ' || dimension END,
                    ', ' ORDER BY seq
                ) AS votes
                FROM latest_feedback GROUP BY decision_id
            )
            SELECT
                at_utc, "user" AS who, role, task, coalesce(served_by, chosen) AS model, propensity AS probability,
                cost_usd, latency_ms / 1000 AS seconds, score_mean AS score, votes, mode, status, tenant, session,
                decision_id
            FROM outcomes LEFT JOIN votes USING (decision_id)
            ORDER BY at_utc DESC;
    """)


@_migration
def m011_contexts(connection: duckdb.DuckDBPyConnection) -> None:
    """Keep the context of a request in `decisions` only: copies of it were a quarter of all bytes."""
    connection.execute("""
        DROP VIEW answers;
        DROP VIEW outcomes;
        DROP VIEW latest_feedback;
        ALTER TABLE executions DROP COLUMN features;
        ALTER TABLE scores DROP COLUMN features;
    """)
    m002_views(connection)
    m010_answers(connection)


@_migration
def m012_known_costs(connection: duckdb.DuckDBPyConnection) -> None:
    """Show no cost in the views where the price is not known."""
    connection.execute("DROP VIEW answers; DROP VIEW outcomes; DROP VIEW latest_feedback;")
    known = "CASE WHEN execution.cost_assumed IS NOT TRUE THEN execution.cost_usd END AS cost_usd"
    _views(connection, f"{known}, NOT execution.cost_assumed AS price_known")
    m010_answers(connection)


@_migration
def m013_requests(connection: duckdb.DuckDBPyConnection) -> None:
    """Add requests that were refused before a decision, and the view that counts all requests by outcome."""
    connection.execute("""
        CREATE TABLE refusals (
            seq BIGINT, refusal_id VARCHAR, ts DOUBLE,
            tenant VARCHAR, "user" VARCHAR, role VARCHAR, task VARCHAR, session VARCHAR,
            model VARCHAR, reason VARCHAR, n BIGINT
        );
        CREATE VIEW requests AS
            SELECT
                seq, ts, tenant, "user", role, decision_id, chosen, served_by, status,
                CASE status WHEN 'ok' THEN 'answered' WHEN 'partial' THEN 'failed' WHEN 'lost' THEN 'unknown'
                    ELSE status END AS outcome,
                1 AS n, prompt_tokens, completion_tokens, cost_usd, cost_assumed, latency_ms
            FROM executions WHERE status <> 'recorded'
            UNION ALL
            SELECT
                seq, ts, tenant, "user", role, NULL, model, NULL, 'refused', 'refused', n, 0, 0, 0.0, false, NULL
            FROM refusals;
    """)
