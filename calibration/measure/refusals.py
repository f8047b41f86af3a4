"""Why a node is not measured now: one line each, before anything is moved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from calibration.measure.node_session import SessionError
from foundation.shell.settings import cannot_keep_files
from nodectl.knobs import known_tools
from pmu.ports import Files

LEAST_FREE: Final = 32 << 20
"""Ours: bytes; windows of a long run and its table have some MiB."""

BUSY_CPUS: Final = 0.5
"""Ours: CPUs' worth of other work that is too much; daemons take less."""

LOOK_S: Final = 1.0

SLURM_JOBS: Final = ("/sys/fs/cgroup/system.slice/slurmstepd.scope", "/sys/fs/cgroup/cpuset/slurm")
"""Where Slurm keeps the control groups of running jobs, versions 2 and 1 (cgroup.conf(5))."""


def refuse_unfit_place(result: Path) -> None:
    """``SessionError`` if the result cannot be kept there."""
    directory = result.absolute().parent
    if problem := cannot_keep_files(str(directory)):
        raise SessionError(f"{result}: {problem}")
    if not directory.is_dir():
        raise SessionError(f"{result}: there is no directory {directory}")
    if not os.access(directory, os.W_OK):
        raise SessionError(f"{result}: no right to write in {directory}")
    free = shutil.disk_usage(directory).free
    if free < LEAST_FREE:
        raise SessionError(f"{directory}: {free >> 20} MiB are free, {LEAST_FREE >> 20} MiB are needed")


def refuse_other_use(files: Files) -> None:
    """``SessionError`` if a job, a program that moves clocks, or other work is on this node."""
    refuse_other_writer(files)
    refuse_job(files, os.environ.get("SLURM_JOB_ID", ""))
    refuse_other_work()


def refuse_other_writer(files: Files) -> None:
    """``SessionError`` if a program is running that is known to move clocks."""
    if tools := [tool.name for tool in known_tools.running(files) if "cpu" in tool.writes]:
        raise SessionError(f"{tools[0]} is running and moves clocks: stop it first (`systemctl stop {tools[0]}`)")


def refuse_job(files: Files, own: str) -> None:
    """``SessionError`` if a job of Slurm other than ``own`` runs here."""
    for folder in SLURM_JOBS:
        jobs = [name.removeprefix("job_") for name in _names(files, folder) if name.startswith("job_")]
        if others := [job for job in jobs if job != own]:
            raise SessionError(f"job {others[0]} of Slurm runs on this node: drain it first, or measure inside a job")


def refuse_other_work(look_s: float = LOOK_S, most_cpus: float = BUSY_CPUS) -> None:
    """``SessionError`` if other processes keep CPUs busy; names the busiest."""
    processes = {process.pid: process for process in psutil.process_iter()}
    for process in processes.values():
        _share(process)
    busy = sum(psutil.cpu_percent(look_s, percpu=True)) / 100
    if busy <= most_cpus:
        return
    mine = {os.getpid(), os.getppid()}
    shares = [(_share(process), process) for pid, process in processes.items() if pid not in mine]
    share, busiest = max(shares, key=lambda pair: pair[0])
    who = f", most of it pid {busiest.pid} ({_name(busiest)})" if share > 0.1 else ""
    raise SessionError(f"other work keeps {busy:.1f} CPUs busy{who}: wait for its end")


def _share(process: psutil.Process) -> float:
    try:
        return float(process.cpu_percent()) / 100
    except psutil.Error:
        return 0.0


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return "gone"


def _names(files: Files, folder: str) -> Sequence[str]:
    try:
        return files.listdir(folder)
    except OSError:
        return ()
