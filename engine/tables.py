"""Draw the tables that stand beside the log. None of them is the truth about a run; the log is."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
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
    Column("settled", Boolean, nullable=False),  # nothing is left for recovery to look at
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

folded = Table(
    "folded",
    LEDGER,
    Column("id", Integer, primary_key=True),  # one row, 1
    Column("log_id", Text, nullable=False),
    Column("fold_version", Integer, nullable=False),
    Column("position", Text, nullable=False),  # of the last event that was folded
    Column("hash", Text, nullable=False),  # of that event: another history has another
    Column("before", Text),  # position of the event before it; null: it is the first
)
