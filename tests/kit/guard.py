"""Run a server that ends when the test run that started it ends, even by SIGKILL.

It is started as ``python guard.py [--user NAME] SIGNAL COMMAND...``: the kernel is asked to send SIGNAL
to this process when the *thread* that started it is gone, and then it becomes COMMAND. So start servers
from the main thread. For a group of processes see watch.py.

Executed as a file: it must not import anything of the project.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the command, as the user that was named, tied to the parent's life."""
    if arguments[0] == "--user":
        _become(arguments[1])
        arguments = arguments[2:]
    parent = os.getppid()
    # After the change of user: the kernel forgets the wish when credentials change.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.Signals[arguments[0]])
    if os.getppid() != parent:
        raise SystemExit("the process that asked for this one is gone already")
    os.execvp(arguments[1], arguments[1:])


def _become(name: str) -> None:
    user = pwd.getpwnam(name)
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


if __name__ == "__main__":
    main(sys.argv[1:])
