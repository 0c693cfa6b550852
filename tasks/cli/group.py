"""The group of commands, as Celery's plug-in and as a script of its own."""

from __future__ import annotations

from typing import Any

import click

from celery_commander.engine import CommanderError

from .compact import compact
from .dead import dead
from .doctor import doctor
from .health import health
from .history import history
from .output import UNREADABLE, exit_code_of, fail, no_right
from .recover import recover
from .repair import repair
from .replay import replay
from .runs import runs
from .show import show
from .snapshot import snapshot
from .verify import verify


class CommanderGroup(click.Group):
    """A group whose commands say one line when something of ours goes wrong, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours ends it with its own exit code."""
        try:
            return super().invoke(ctx)
        except CommanderError as error:
            fail(str(error), exit_code_of(error))
        except PermissionError as error:
            fail(no_right(error), UNREADABLE)


@click.group(cls=CommanderGroup, short_help="Look after durable runs and their log.")
def commander() -> None:
    """Verify the log, look at runs, recover what a dead worker left, answer what needs a person.

    Every command takes --json. verify also works on a bare file, without an app:
    celery-commander verify PATH.
    """


commander.add_command(dead)
commander.add_command(verify)
commander.add_command(runs)
commander.add_command(show)
commander.add_command(history)
commander.add_command(replay)
commander.add_command(recover)
commander.add_command(health)
commander.add_command(doctor)
commander.add_command(snapshot)
commander.add_command(compact)
commander.add_command(repair)


def main() -> None:
    """Run as `celery-commander`: no app, so only what works on a bare file."""
    commander(prog_name="celery-commander")
