"""Bring our pages into Flower, where this process is Flower, and stay out of the way everywhere else."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger(__name__)


def mount_in_flower() -> None:
    """Add our pages if this process runs `celery flower`; never fail for it.

    That Flower is imported says nothing: it is a plug-in of Celery's command line, so every worker imports it. What
    says it is the command that is being run while `-A` imports the app.

    Weakness: a commander that is made later, by a module in `include` or `imports`, comes after Flower has read its
    list of pages. Make it where the app is made.
    """
    if not _runs_flower():
        return
    try:
        from .flower import mount

        mount()
    except Exception:  # another Flower than we know; it must start all the same
        logger.exception("Flower runs without the pages of celery-commander.")


def _runs_flower() -> bool:
    click = sys.modules.get("click")  # not imported: then no command is being run
    context = click.get_current_context(silent=True) if click is not None else None
    while context is not None:
        if "flower" in (context.invoked_subcommand, context.info_name):
            return True
        context = context.parent
    return False
