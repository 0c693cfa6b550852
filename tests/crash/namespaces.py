"""Run a script on a small file system of its own, which a user namespace lets anybody mount."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.provision import in_ci

from .logs import ROOT


def on_small_disk(script: str, disk: Path, options: str, *arguments: str) -> str:
    """Run a Python script with a fresh tmpfs mounted at `disk`, its first argument; return what it printed.

    Where the host gives no user namespaces the test is skipped.
    """
    disk.mkdir()
    if shutil.which("unshare") is None:
        if in_ci():
            pytest.fail("unshare is missing; it is in util-linux")
        pytest.skip("needs unshare")
    asked = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", str(disk)]
    allowed = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    if allowed.returncode != 0:
        pytest.skip(f"this host gives no user namespaces: {allowed.stderr.strip()}")
    inside = f'mount -t tmpfs -o {options} none "$1" && shift && exec "$@"'
    command = ["unshare", "-Urm", "sh", "-c", inside, "sh", str(disk)]
    done = subprocess.run(
        [*command, sys.executable, "-c", script, str(disk), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout
