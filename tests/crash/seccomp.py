"""Have the kernel refuse system calls to this process from now on, its threads and later children included.

A filter of seccomp(2): nothing of ours stands between the log and the kernel, and no tracer changes the
order of things. It cannot be taken off again, so only a process that is about to end may ask for it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence

# linux/audit.h, asm/unistd_64.h, asm-generic/unistd.h
_MACHINES = {
    "x86_64": (0xC000003E, 317, {"fsync": 74, "fdatasync": 75, "ftruncate": 77, "rename": 82}),
    "aarch64": (0xC00000B7, 277, {"fsync": 82, "fdatasync": 83, "ftruncate": 46}),
}
_NO_NEW_PRIVILEGES = 38  # prctl(2)
_MODE_FILTER, _ALL_THREADS = 1, 1  # linux/seccomp.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_NUMBER_AT, _MACHINE_AT = 0, 4  # struct seccomp_data


def is_known() -> bool:
    """Tell whether this machine's numbers are known, and its kernel filters."""
    with open("/proc/self/status", encoding="ascii") as status:
        return platform.machine() in _MACHINES and "Seccomp:" in status.read()


def refuse(names: Sequence[str], errno: int) -> None:
    """Let the named system calls fail with `errno` from now on.

    Raises:
        OSError: the kernel takes no filter.
    """
    machine, seccomp, numbers = _MACHINES[platform.machine()]
    chosen = [numbers[name] for name in names]
    steps = [
        (_LOAD_WORD, 0, 0, _MACHINE_AT),
        (_JUMP_IF_EQUAL, 0, len(chosen) + 1, machine),  # of another machine: allow
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
        *((_JUMP_IF_EQUAL, len(chosen) - at, 0, number) for at, number in enumerate(chosen)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno),
    ]
    program = b"".join(struct.pack("HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(program, len(program))
    told = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(
        seccomp, _MODE_FILTER, _ALL_THREADS, told
    ):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
