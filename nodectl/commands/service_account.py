"""Who the node agent's service runs as, and what that user cannot do: for `nodectl config check` and `nodectl doctor`.

As shipped it is a user of its own, ``nodectl``, for whom a writer service moves knobs and opens what only root reads.
A drop-in may make it root (``systemd/controller.conf``, ``jobs.conf``); it then has no right to read files of others,
since the units leave root no such capability.
"""

from __future__ import annotations

import pwd
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from nodectl.config import Config
from nodectl.jobs import cgroups
from nodectl.jobs.job_user import NoUserError, job_user
from nodectl.writer_process.root_files import find_root_files

UNIT = "nodectl-agent"


def service_user() -> str:
    """The user of the installed unit; empty where there is no unit, or no systemd to say so."""
    try:
        command = ["systemctl", "show", UNIT, "--property=LoadState,User"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    shown = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return (shown.get("User") or "root") if shown.get("LoadState") == "loaded" else ""


def problems(config: Config, user: str, settings: Path | None = None) -> Iterator[tuple[tuple[str, ...], str]]:
    """What the agent cannot do as this user: the key of the setting, and a line that says what to do."""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        yield (), f"{UNIT}.service runs as {user}, and there is no such user: run `systemd-sysusers`"
        return
    if settings and not _may_read(settings, uid):
        yield (), f"{UNIT}.service runs as {user}, who may not read {settings}: run `chmod a+r` on it"
    if config.scmi.url and uid != 0:
        yield (
            ("scmi", "url"),
            (
                f"{UNIT}.service runs as {user}, and a controller needs root: install its drop-in controller.conf"
                " (`nodectl install-service --controller`)"
            ),
        )
    if config.cluster.url and config.cluster.jobs:
        yield from _problems_of_jobs(config, user, uid)
    key = Path(config.cluster.key)
    if config.cluster.url and config.cluster.key and not _may_read(key, uid):
        yield (
            ("cluster", "key"),
            (
                f"{UNIT}.service runs as {user}, who may not read {key}: run `chown {user}:` on it and"
                " on a folder that is closed to others"
            ),
        )


def remarks(config: Config, user: str) -> list[str]:
    """Lines for ``nodectl doctor``; none without an installed unit."""
    if not user:
        return []
    lines = [f"service: {problem}" for _, problem in problems(config, user)]
    if user == "root":
        who = "moves knobs itself" if config.scmi.url else "starts a writer of its own, which moves knobs for it"
        return [f"service: {UNIT} runs as root and {who}", *_of_jobs(config), *lines]
    opened = find_root_files()
    reads = f", and opens {len(opened)} sensor file{'s' if len(opened) != 1 else ''} that only root may read"
    return [f"service: {UNIT} runs as {user}; nodectl-writer moves knobs for it{reads if opened else ''}", *lines]


def _problems_of_jobs(config: Config, user: str, uid: int) -> Iterator[tuple[tuple[str, ...], str]]:
    if uid != 0:
        yield (
            ("cluster", "jobs"),
            (
                f"{UNIT}.service runs as {user}, whose jobs could move knobs: install its drop-in jobs.conf"
                " (`nodectl install-service --jobs`)"
            ),
        )
    elif problem := _no_job_user(config):
        yield ("jobs", "user"), problem


def _of_jobs(config: Config) -> list[str]:
    """As whom jobs run here."""
    if not config.cluster.jobs or _no_job_user(config):
        return []
    user = job_user(config.jobs.user, 0)
    may = ": they can end every agent and write its records (docs/security.md)" if user.uid == 0 else ""
    kept = cgroups.usable()
    how = f"each in a cgroup of version {kept}" if kept else "without cgroups, which is weaker (docs/security.md)"
    return [f"jobs: run as {user.name}, {how}{may}"]


def _no_job_user(config: Config) -> str:
    """Why an agent that is root would start no job; empty: it starts them."""
    try:
        job_user(config.jobs.user, 0)
    except NoUserError as error:
        return str(error)
    return ""


def _may_read(path: Path, uid: int) -> bool:
    """Whether a user without capabilities and without other groups may; True where that cannot be seen."""
    try:
        folders = [folder.stat() for folder in path.absolute().parents]
        file = path.stat()
    except OSError:
        return True  # others say what is wrong with it
    is_passable = all(one.st_mode & (stat.S_IXUSR if one.st_uid == uid else stat.S_IXOTH) for one in folders)
    return is_passable and bool(file.st_mode & (stat.S_IRUSR if file.st_uid == uid else stat.S_IROTH))
