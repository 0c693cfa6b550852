"""Install the servers and the browser that tests need, where that is nobody's own machine.

``python -m tests.kit.provision`` does nothing unless CI=true. There, as root and with apt-get, it
installs what is missing, and forbids the packages to start what they install (policy-rc.d answers
101), because tests start their own. At home it touches nothing: tests that miss a server are
skipped and say how to install it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .programs import PACKAGES, missing_programs
from .services import SERVICES

POLICY = Path("/usr/sbin/policy-rc.d")


def in_ci() -> bool:
    """Tell whether this is a CI run."""
    return os.environ.get("CI", "").lower() in ("true", "1")


def missing_packages() -> list[str]:
    """Return the packages of services that can neither be started nor are named, and of the browser."""
    services = [
        service.package
        for service in SERVICES.values()
        if not os.environ.get(service.variable) and service.find() is None
    ]
    return services + [PACKAGES[program] for program in missing_programs()]


def main() -> int:
    """Install what is missing if this is CI; return an exit status."""
    missing = missing_packages()
    if not missing:
        return 0
    names = ", ".join(missing)
    if not in_ci():
        print(f"Not installed: {names}. Tests that need them will be skipped.")
        return 0
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"Not installed, and only root with apt-get can do it here: {names}")
        return 1
    print(f"Installing {names}")
    with autostart_forbidden(POLICY):
        install(missing)
    still = missing_packages()
    if still:
        print(f"Still not found after the installation: {', '.join(still)}")
    return 1 if still else 0


def install(packages: list[str]) -> None:
    """Install Debian packages without asking and without what they merely recommend."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        subprocess.run(
            ["apt-get", "--quiet=2", *arguments],
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
        )


@contextmanager
def autostart_forbidden(policy: Path) -> Iterator[None]:
    """Let packages install their services without starting them; afterwards *policy* is as it was."""
    kept = policy.with_name(policy.name + ".kept-by-tests")
    if policy.exists():
        policy.rename(kept)
    try:
        policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        policy.chmod(0o755)
        yield
    finally:
        policy.unlink(missing_ok=True)
        if kept.exists():
            kept.rename(policy)


if __name__ == "__main__":
    sys.exit(main())
