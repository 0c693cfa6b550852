"""What tests share: clocks to step, a log in memory, crashes on demand, real workers and services.

Grown for this project's own tests; it is meant to become a public pytest plugin, so it is typed and
documented as strictly as the product.
"""

from .clock import ManualClock
from .crash import CrashPoint, arm
from .line import Line
from .memory import MemoryLog
from .processes import alive, children, descendants, kill, wait_gone
from .services import SERVICES, ServiceMissing, running_service
from .waiting import PATIENCE_SECONDS, DeadlinePassed, wait_until
from .workers import Worker, celery_worker

__all__ = [
    # time
    "DeadlinePassed",
    "ManualClock",
    "PATIENCE_SECONDS",
    "wait_until",
    # a log in memory
    "MemoryLog",
    # crashes
    "CrashPoint",
    "arm",
    # processes
    "Worker",
    "alive",
    "celery_worker",
    "children",
    "descendants",
    "kill",
    "wait_gone",
    # a network to cut
    "Line",
    # services
    "SERVICES",
    "ServiceMissing",
    "running_service",
]
