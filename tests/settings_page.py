"""Write docs/settings.md from the settings themselves: `python -m tests.settings_page > docs/settings.md`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator
from typing import Any

from celery_commander.engine import Settings
from celery_commander.tasks import TaskSettings

HEAD = """\
# Settings

Given to `Commander(app, lease_seconds=10)`, or in the environment (`COMMANDER_LEASE_SECONDS`), or on the app
(`app.conf.commander_lease_seconds`; `CELERY_COMMANDER_LEASE_SECONDS` under `namespace="CELERY"`), in this order of
precedence. All are checked at the start; an unknown name is refused with a suggestion. Seconds may be fractions.

This page is made from the code (`python -m tests.settings_page`), and a test compares the two.
"""

PARTS: dict[str, type] = {"The store": Settings, "Tasks and workers": TaskSettings}


def page() -> str:
    """Return the whole page."""
    lines = [HEAD]
    for title, kind in PARTS.items():
        lines += [
            f"## {title}",
            "",
            "| name | default | meaning |",
            "|---|---|---|",
            *rows(kind),
            "",
        ]
    return "\n".join(lines)


def rows(kind: type) -> Iterator[str]:
    """Yield a row for each setting, from its default and the text below it."""
    told = dict(texts(kind))
    for field in dataclasses.fields(kind):
        yield f"| `{field.name}` | {shown(field.default)} | {told[field.name].replace('``', '`')} |"


def texts(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the text that stands below each field in the source."""
    (found,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(found, ast.ClassDef)
    for field, text in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            yield field.target.id, str(text.value.value)


def shown(default: Any) -> str:
    """Return a default as people write it."""
    if default is None:
        return "–"
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, float):
        return f"{default:,g}"
    return f"{default:,}" if isinstance(default, int) else f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(page())
