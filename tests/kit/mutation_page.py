"""Tell what became of the mutants, and why some may go unnoticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
PAGE = """\
# What a test notices

`make mutants` deletes each sync, lock and check of the log, and each condition of ownership, one at a time, and runs
the tests on what is left. The first test that fails, twice, has noticed; its path is below `tests/`. A *check* is a
condition under which something is raised, a *clause* one part of it, an *answer* what a function returns by comparing.
This page is made from the results: `make mutants ARGS="--table results.json"`.

{}.
"""
EXPLAINED: dict[tuple[str, str, str], str] = {}
"""Why a statement may go unnoticed, by its file, its function and its text."""


def reason_of(row: Row) -> str | None:
    """Return why a mutant may survive, None when it may not."""
    return EXPLAINED.get((row["path"], row["where"], row["text"]))


def totals(rows: Sequence[Row]) -> str:
    """Return how many mutants there are, of each kind, and what became of them."""
    kinds = Counter(row["kind"] for row in rows)
    left = [row for row in rows if not row["noticed"]]
    explained = sum(reason_of(row) is not None for row in left)
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    return (
        f"{len(rows)} mutants ({told}): {len(rows) - len(left)} noticed, {explained} explained,"
        f" {len(left) - explained} survived"
    )


def table(rows: Sequence[Row]) -> str:
    """Return the results as a page: by file, what was deleted, and which test noticed."""
    told = [
        PAGE.format(totals(rows)),
        "| file | in | kind | deleted | noticed by |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["path"], row["span"])):
        test = row["noticed"].removeprefix("tests/").split("[")[0]
        who = f"`{test}`" if test else f"nobody: {reason_of(row) or 'A TEST IS MISSING'}"
        text = row["text"].replace("|", "\\|")
        told.append(f"| `{row['path']}` | `{row['where']}` | {row['kind']} | `{text}` | {who} |")
    return "\n".join(told)
