"""What a process gives up for good: its user, its right to gain more, its life after its parent's end."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_NO_NEW_PRIVS: Final = 38
"""prctl(2)."""


def end_with_parent() -> None:
    """SIGKILL when the parent ends. Linux forgets this when a process changes its user."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Be this user, and gain no right by any program. ``OSError`` without the right to change the user."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
