"""Draw the tables that stand beside the log. None of them is the truth about a run; the log is."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    literal_column,
)

LEASES = MetaData()
"""The tables of the leases database."""

leases = Table(
    "leases",
    LEASES,
    Column("run_id", Text, primary_key=True),
    Column("token", Integer, nullable=False),  # only grows, so a row is never deleted
    Column("holder", Text),  # null: released
    Column("boot_id", Text, nullable=False),
    Column("expires_at", Float, nullable=False),  # BootClock seconds of that boot
    Column("took_over", Integer, nullable=False),  # 1: the holder before this one had not released
    Column("liveness_name", Text),
    Column("liveness_device", Integer),
    Column("liveness_inode", Integer),
    sqlite_with_rowid=False,
)
# Millions of released rows may lie here; who is asked about the living must not wade through them.
Index(
    "leases_held", leases.c.liveness_name, leases.c.holder, sqlite_where=leases.c.holder.isnot(None)
)

CHECKPOINTS = MetaData()
"""The tables of the checkpoints database: contents only; which of them count is said by the log."""

checkpoints = Table(
    "checkpoints",
    CHECKPOINTS,
    Column("id", Text, primary_key=True),
    Column("run_id", Text, nullable=False, index=True),
    Column("token", Integer, nullable=False),  # of the owner who saved it
    Column("content", LargeBinary, nullable=False),
)

HEALTH = MetaData()
"""The tables of the health database; nothing is lost with it."""

reports = Table(
    "reports",
    HEALTH,
    Column("source", Text, primary_key=True),
    Column("boot_id", Text, nullable=False),
    Column("at", Float, nullable=False),  # BootClock seconds of that boot
    Column("facts", Text, nullable=False),  # a JSON object
)

health = Table(
    "health",
    HEALTH,
    Column("namespace", Text, primary_key=True),
    Column("status", Text, nullable=False),  # as it was last told
)

rounds = Table(
    "rounds",
    HEALTH,
    Column("name", Text, primary_key=True),
    Column(
        "began_at", Integer, nullable=False
    ),  # microseconds since 1970, UTC; of the last that was done
)

LEDGER = MetaData()
"""The tables of the ledger database: the log folded, disposable, rebuilt on doubt."""

# A column for each field of RunState; moments are microseconds since 1970, UTC.
runs = Table(
    "runs",
    LEDGER,
    Column("run_id", Text, primary_key=True),
    Column("task", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("queue", Text),
    Column("key", Text),
    Column("created_at", Integer, nullable=False),
    Column("changed_at", Integer, nullable=False),
    Column("last_seq", Integer, nullable=False),  # compared by every update
    Column("state", Text, nullable=False),
    Column("token", Integer, nullable=False),
    Column("fenced", Boolean, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("delivered", Boolean, nullable=False),
    Column("degraded", Boolean, nullable=False),
    Column("cancel_requested", Text),
    Column("paused_kind", Text),
    Column("due_at", Integer),
    Column("deaths", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("open_steps", Text, nullable=False),  # a JSON list
    Column("owed", Text, nullable=False),  # a JSON list
    Column("letter", Integer),  # seq of the event that made its open dead letter
    Column("released", Boolean, nullable=False),
    Column("checkpoint", Text),
    Column("raised", Integer),
    Column("conflict", Boolean, nullable=False),
    Column("settled", Boolean, nullable=False),  # nothing is left for recovery to look at
    Column("uncovered", Integer, nullable=False),  # events that no snapshot covers
    sqlite_with_rowid=False,
)
Index("runs_by_state", runs.c.state, runs.c.created_at)
Index("runs_by_age", runs.c.created_at)
# Nearly all runs are settled; recovery pages through the others only.
Index(
    "runs_unsettled",
    runs.c.namespace,
    runs.c.run_id,
    sqlite_where=runs.c.settled == literal_column("0"),
)
Index(
    "runs_claimed",
    runs.c.namespace,
    runs.c.queue,
    runs.c.created_at,
    sqlite_where=runs.c.attempt > literal_column("0"),
)
Index("runs_unrecorded", runs.c.changed_at, sqlite_where=runs.c.degraded == literal_column("1"))

# One row for each event that made a dead letter; resolved when a later event of its run says so.
dead_letters = Table(
    "dead_letters",
    LEDGER,
    Column("seq", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("resolved_at", Integer),
    Column("resolution", Text),
    Column("resolved_by", Text),  # the person; null: the run's own events ended it
    Column("retried_as", Text),  # the run that goes in its place
)
Index("letters_by_run", dead_letters.c.run_id)
Index("letters_by_age", dead_letters.c.created_at)
# Health counts the open ones at every look; the resolved ones are many more.
Index(
    "letters_open",
    dead_letters.c.category,
    dead_letters.c.created_at,
    dead_letters.c.resolved_at,  # so that counting reads nothing but this index
    sqlite_where=dead_letters.c.resolved_at.is_(None),
)
Index(
    "letters_retried",
    dead_letters.c.retried_as,
    sqlite_where=dead_letters.c.retried_as.isnot(None),
)

folded = Table(
    "folded",
    LEDGER,
    Column("id", Integer, primary_key=True),  # one row, 1
    Column("log_id", Text, nullable=False),
    Column("fold_version", Integer, nullable=False),
    Column("position", Text, nullable=False),  # of the last event that was folded
    Column("hash", Text, nullable=False),  # of that event: another history has another
    Column(
        "before", Text
    ),  # position of the event before it; null: it is the first; its own: a snapshot's
    Column("backlog", Integer, nullable=False),  # the sum of `uncovered` over unsettled runs
    Column("gaps", Integer, nullable=False),  # observed events that were dropped, as far as told
    Column("gap_at", Integer),  # when that was last told
)
