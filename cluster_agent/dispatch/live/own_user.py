"""The user that a node manager becomes once it has read the node's key: it hears whoever reaches its port, so it should
be able to do no more than its work.

An agent that is root starts it as root. As its own user it can write its journal and nothing else of the node's, and
what it says to the agent starts jobs as the user of ``[jobs]`` alone.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

from cluster_agent.errors import ClusterError
from foundation import process_rights


def become(name: str, journal: Path, allowed: Path, say: Callable[[str], None]) -> None:
    """Be this user for good, if this process is root and there is such a user; the journal becomes that user's.
    ``ClusterError`` where the user cannot write there, or read the list ``allowed``. "": stay who it is."""
    if os.geteuid() != 0 or not name:
        return
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        say(f"there is no user {name} ([dispatch] user): the node manager runs as root")
        return
    if user.pw_uid == 0:
        return
    _give(journal, user.pw_uid, user.pw_gid)
    is_there = allowed.exists()
    process_rights.become(user.pw_uid, user.pw_gid, [])
    process_rights.end_with_parent()
    if not os.access(journal, os.R_OK | os.W_OK | os.X_OK):
        raise ClusterError(f"{journal}: {name} ([dispatch] user) may not write there: others need x on its folders")
    if is_there and not os.access(allowed, os.R_OK):
        raise ClusterError(f"{allowed}: {name} ([dispatch] user) may not read it: `chmod a+rX` it and its folder")


def _give(journal: Path, uid: int, gid: int) -> None:
    """What an earlier node manager wrote, as root or as another user. Nothing is followed: whoever owned the folder may
    have put links there. Root owns the folder meanwhile, since an agent for jobs may read nobody else's
    (systemd/jobs.conf leaves it no CAP_DAC_OVERRIDE)."""
    place = os.open(journal, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        owner = os.fstat(place).st_uid
        os.chown(f"/proc/self/fd/{place}", 0, 0)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
    finally:
        os.close(place)
    try:
        for name in os.listdir(folder):
            file = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
            try:
                found = os.fstat(file)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid in {0, owner} - {uid}:
                    os.chown(f"/proc/self/fd/{file}", uid, gid)
            finally:
                os.close(file)
        os.fchown(folder, uid, gid)
    finally:
        os.close(folder)
