"""The user that a node's jobs run as: ``[jobs] user`` of its settings.

A job that ran as its agent's user could stop and kill what supervises it, and write its records. So an agent that is
root runs jobs as another user, and jobs of root only where the site has set ``root``. An agent that is not root cannot
change its user: its jobs run as that user, which is for trials.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
from dataclasses import dataclass
from typing import Final

from foundation import process_rights
from foundation.shell.errors import NodectlError

KEYCTL: Final = {"x86_64": 250, "aarch64": 219}
"""The number of keyctl(2), by machine."""
JOIN_SESSION_KEYRING: Final = 1

OWN_USERS: Final = ("nodectl", "nodectl-dispatch", "clusterctl")
"""Users of the product's services; one of them may speak to the writer of knobs."""


class NoUserError(NodectlError):
    """The settings name no user that this agent can run jobs as."""


@dataclass(frozen=True, slots=True)
class JobUser:
    """A user as jobs need it: numbers that can be set in a child without another look into the user database."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def is_agents(self) -> bool:
        """Whether it is the user of this process: then a job may signal its supervisor and write its records."""
        return self.uid == os.geteuid()

    def become(self) -> None:
        """In a child: be this user, for good, and gain no right by any program, nor by keys: who has a process's
        session keyring may read what is in it, so the job gets an empty one. Source: session-keyring(7)."""
        if self.is_agents:
            return
        if number := KEYCTL.get(os.uname().machine):  # it fails where a kernel has no keys
            ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(JOIN_SESSION_KEYRING), None)
        process_rights.become(self.uid, self.gid, self.groups)


def check_may_become(user: JobUser) -> None:
    """``NoUserError`` where this process has no right to start a process of that user."""
    try:
        subprocess.run(["/bin/true"], preexec_fn=user.become, check=False, cwd="/")
    except (OSError, subprocess.SubprocessError):
        raise NoUserError(
            f"this agent has no right to become {user.name}: install this version's drop-in jobs.conf"
            " (`nodectl install-service --jobs`)"
        ) from None


def user_of(uid: int) -> JobUser:
    """The user with this number, who may be missing in the user database."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return JobUser(str(uid), uid, os.getegid(), tuple(os.getgroups()), "/")
    return _from(found)


def job_user(name: str, agent: int | None = None) -> JobUser:
    """The user of the settings, "" for none. ``NoUserError`` where an agent of this uid (by default ours) can run no
    job as it."""
    own = os.geteuid() if agent is None else agent
    if not name:
        if own == 0:
            raise NoUserError("[jobs] user is not set: name the user that jobs run as, who is not root")
        return user_of(own)
    if name in OWN_USERS:
        raise NoUserError(f"[jobs] user = {name!r} is a user of nodectl's own services: name another one")
    try:
        found = _from(pwd.getpwnam(name))
    except KeyError:
        raise NoUserError(f"[jobs] user = {name!r}: there is no such user on this node") from None
    if found.uid == 0 and name != "root":
        raise NoUserError(f'[jobs] user = {name!r} is root by another name: set "root" if jobs are to be root')
    if own not in (0, found.uid):
        raise NoUserError(
            f"[jobs] user = {name!r}: this agent is {user_of(own).name}; only root can run jobs of others"
        )
    return found


def _from(found: pwd.struct_passwd) -> JobUser:
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return JobUser(found.pw_name, found.pw_uid, found.pw_gid, groups, found.pw_dir or "/")
