"""The files of one run of a job, by which agent and job step know of each other. docs: ``nodectl.jobs.job_step``.

They belong to the agent's user, in a directory that others may pass through and not list. A job that runs as another
user can write two of them, ``progress`` and ``hints``, and replace none.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from foundation.boot import boot_id, boottime_s
from foundation.directories import sync_directory
from foundation.wire.job_messages import JobStart
from nodectl.jobs.cgroups import Cgroup
from nodectl.jobs.job_files import open_new, read_plain
from nodectl.jobs.job_group import JobGroup
from nodectl.jobs.job_half import Half
from nodectl.jobs.job_user import JobUser

REQUEST, GROUP, LOCK, STEP = "request.json", "group.json", "lock", "step.json"
SESSION, STAGE, ENDING, ENDED = "session", "stage", "ending", "ended.json"
PROGRESS, HINTS, SCRIPT, STRAYED = "progress", "hints", "script", "strayed"

ROOM: Final = 4096
"""Bytes that are allocated for the record of the end when the run is accepted: a full disk must not lose it."""

Stage: TypeAlias = Literal["prolog", "job", "epilog"]

DAMAGED: Final = (OSError, ValueError, LookupError, TypeError, msgspec.DecodeError)
"""What reading a record raises that a job of the agent's own user has damaged or replaced."""


def write_durably(path: Path, record: dict[str, Any]) -> None:
    """Write the whole file or nothing; on return it is on the disk. Uses the room of ``reserve``, if there is any."""
    part = path.with_name(path.name + ".part")
    with open(_reserved(part), "r+") as file:
        json.dump(record, file)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)
    sync_directory(path.parent)


def reserve(path: Path) -> None:
    """Allocate the room that ``write_durably`` will need for this file. ``OSError`` where there is none."""
    descriptor = open_new(path.with_name(path.name + ".part"))
    try:
        os.posix_fallocate(descriptor, 0, ROOM)
    finally:
        os.close(descriptor)


def write_note(path: Path, text: str) -> None:
    """Write a line that survives this process; it need not survive the machine."""
    part = path.with_name(path.name + ".part")
    with open(open_new(part), "w") as file:
        file.write(text)
    os.rename(part, path)


def read_request(directory: Path) -> JobStart | None:
    """What was to be run; None: the record is damaged."""
    try:
        return msgspec.convert(json.loads(read_plain(directory / REQUEST)), JobStart)
    except DAMAGED:
        return None


def write_group(directory: Path, group: JobGroup, user: JobUser) -> None:
    """Record which processes are the run's, before the first of them begins."""
    place = [str(group.cgroup.path), group.cgroup.version] if group.cgroup else None
    half = [sorted(group.half.cpus), str(group.half.cpuset or "")] if group.half else None
    write_durably(directory / GROUP, {"cgroup": place, "mark": group.mark, "user": asdict(user), "half": half})


def read_group(directory: Path) -> JobGroup:
    """The run's processes, as far as they are on record. Sessions that 0.2.0 noted are not taken: nothing says of which
    boot they are."""
    group = JobGroup(None, "")
    with contextlib.suppress(*DAMAGED):
        record = json.loads(read_plain(directory / GROUP))
        cgroup = Cgroup(Path(record["cgroup"][0]), int(record["cgroup"][1])) if record["cgroup"] else None
        half = None
        if found := record.get("half"):
            half = Half(frozenset(map(int, found[0])), Path(found[1]) if found[1] else None)
        group = JobGroup(cgroup, str(record["mark"]), may_leave=record["user"]["uid"] == os.geteuid(), half=half)
    with contextlib.suppress(*DAMAGED):
        boot, *words = read_plain(directory / SESSION).split()
        if boot == boot_id():  # numbers of another boot are other processes now
            group.sessions.update((int(leader), int(start)) for leader, start in (word.split(":") for word in words))
    return group


def write_sessions(directory: Path, group: JobGroup) -> None:
    """Record the sessions of the run's first processes."""
    write_note(directory / SESSION, " ".join([boot_id(), *(f"{pid}:{start}" for pid, start in group.sessions.items())]))


def read_user(directory: Path) -> JobUser:
    """The user as whom the run was accepted."""
    found = json.loads(read_plain(directory / GROUP))["user"]
    return JobUser(**found | {"groups": tuple(found["groups"])})


def read_stage(directory: Path) -> tuple[Stage, float] | None:
    """What the job step does, and since when (``boottime_s``); None before it has begun the job's first program."""
    with contextlib.suppress(*DAMAGED):
        stage, since_s = read_plain(directory / STAGE).split()
        if stage in ("prolog", "job", "epilog") and 0.0 <= float(since_s) <= boottime_s():
            return stage, float(since_s)  # type: ignore[return-value]
    return None


def write_ending(directory: Path, cause: str) -> None:
    """Note that the run has to end from now on, and why; the first reason stays."""
    if not (directory / ENDING).exists():
        write_note(directory / ENDING, f"{cause} {boottime_s()}")


def read_ending(directory: Path) -> tuple[str, float] | None:
    """Why the run has to end, and since when (``boottime_s``); None: it has not."""
    with contextlib.suppress(*DAMAGED):
        cause, since_s = read_plain(directory / ENDING).split()
        if cause in ("told", "walltime") and 0.0 <= float(since_s) <= boottime_s():
            return cause, float(since_s)
    return None


def _reserved(part: Path) -> int:
    """The reserved file, if it is one; else a new one."""
    with contextlib.suppress(OSError):
        found = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if os.fstat(found).st_size == ROOM and os.fstat(found).st_nlink == 1:
            return found
        os.close(found)
    return open_new(part)
