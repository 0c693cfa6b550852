"""Run the commands that need no app: `python -m celery_commander.tasks.cli verify PATH`."""

from .group import main

main()
