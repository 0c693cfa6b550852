"""Run the canvas and task tests of Celery's own source distribution with Commander installed and every task durable.

    python -m tests.kit.celery_suite [--without] [-- pytest arguments, by default both files]

The source distribution of the Celery that is installed here is downloaded and unpacked in a temporary
directory; its tests then use the installed package. --without runs them with Celery alone, for comparison.
It takes about twenty minutes: many of those tests wait.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from tests.kit.services import running_service
from tests.source_tree import ROOT

TESTS = ("t/integration/test_canvas.py", "t/integration/test_tasks.py")
PLUGIN = "tests.kit.celery_durable"
WAIT_SECONDS = 15  # instead of the minute that a result is waited for there


def unpacked(directory: Path) -> Path:
    """Download and unpack the source distribution; its package is put aside, so that the installed one is used."""
    version = importlib.metadata.version("celery")
    command = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps"]
    subprocess.run(
        [*command, "--no-binary", "celery", "--dest", str(directory), f"celery=={version}"],
        check=True,
    )
    with tarfile.open(next(directory.glob("celery-*.tar.gz"))) as archive:
        archive.extractall(directory, filter="data")
    tree = directory / f"celery-{version}"
    (tree / "celery").rename(directory / "put-aside")
    for name in TESTS:
        path = tree / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("TIMEOUT = 60", f"TIMEOUT = {WAIT_SECONDS}"), "utf-8")
    return tree


def run(tree: Path, redis: str, arguments: list[str], *, durable: bool) -> int:
    """Run the tests; return pytest's exit status."""
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "celery.contrib.pytest", "-q"]
    if durable:
        options += ["-p", PLUGIN]
    environment = os.environ | {
        "REDIS_PORT": str(urlsplit(redis).port),
        "TEST_BROKER": f"{redis}/0",
        "TEST_BACKEND": f"{redis}/1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    command = [sys.executable, "-m", "pytest", *options, *(arguments or TESTS)]
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", action="store_true", help="Celery alone")
    parser.add_argument("arguments", nargs="*", help="for pytest")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="celery-suite-") as directory:
        tree = unpacked(Path(directory))
        with running_service("redis") as url:
            redis = url.rstrip("/").removesuffix("/0")
            return run(tree, redis, chosen.arguments, durable=not chosen.without)


if __name__ == "__main__":
    sys.exit(main())
