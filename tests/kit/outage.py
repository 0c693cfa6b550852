"""A broker that a test can stop and start again, with what it had stored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import servers
from .services import SERVICES, Service, ServiceMissing, _run


@dataclass(slots=True)
class StoppableService:
    """A Redis or RabbitMQ of a test's own, on one port and one directory through all its lives."""

    service: Service
    plan: servers.Plan
    directory: Path
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        """Return where it answers."""
        return self.plan.url

    def start(self) -> None:
        """Start it, and return when it answers."""
        with ExitStack() as started:
            _run(self.plan, self.directory, self.service.start_seconds, started)
            self._running = started.pop_all()

    def stop(self) -> None:
        """Stop it politely, and return when it is gone."""
        self._running.close()


@contextmanager
def stoppable_service(name: str) -> Iterator[StoppableService]:
    """Yield a running Redis (which keeps every write on disk) or RabbitMQ that can be stopped and started.

    Raises:
        ServiceMissing: it is not installed; a server that runs elsewhere is not ours to stop.
    """
    service = SERVICES[name]
    programs = service.find()
    if programs is None:
        raise ServiceMissing(service)
    with tempfile.TemporaryDirectory(prefix=f"commander-{name}-", ignore_cleanup_errors=True) as at:
        plan = service.plan(servers.Site(Path(at), programs))
        if name == "redis":
            keep = ["--appendonly", "yes", "--appendfsync", "always"]
            plan = replace(plan, command=[*plan.command, *keep])
        broker = StoppableService(service, plan, Path(at))
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()
