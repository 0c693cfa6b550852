"""Run `celery -A tests.celery.durable_app commander …` where the plug-in need not be installed."""

from types import SimpleNamespace

from celery_commander.tasks.cli import commander
from tests.celery.durable_app import app

if __name__ == "__main__":
    commander(prog_name="celery -A APP commander", obj=SimpleNamespace(app=app))
