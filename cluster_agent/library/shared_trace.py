"""A table of jobs that may share nodes, and the measured speeds of their applications next to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.unlike_nodes.shared_nodes import ALONE, SHARES, Shared, known_speeds
from cluster_agent.sharing.gpu_jobs import GpuJob, read_jobs
from cluster_agent.sharing.pair_table import PairTable, read_pairs
from cluster_agent.workloads.node_trace import NodeTrace, NodeTraceBuilder
from cluster_agent.workloads.text_tables import text_of


def shared_trace(path: str, pairs: str, is_strict: bool = False) -> tuple[NodeTrace, Shared]:
    """The jobs, in order of submission, and what they are to each other. ``pairs``: FILE, or FILE:GPU of a table with
    several; an application that is not in it is known next to nobody. ``WrongUseError`` names the row that is wrong."""
    table = _pairs(pairs)
    jobs = read_jobs(path)
    are_halves = table.free is not None
    builder = NodeTraceBuilder(path, text_of(path)[1], is_strict)
    for line, job in enumerate(jobs, 2):
        _check(path, job, are_halves)
        builder.add(line, lambda job=job: _row(job, are_halves))  # type: ignore[misc]
    trace = builder.finish()
    by_name = {job.job: job for job in jobs}
    in_order = [by_name[name] for name in trace.jobs.name]
    unknown = dict.fromkeys(job.variant for job in in_order if job.variant not in table.variants)
    variants = [*table.variants, *unknown]
    at = {variant: index for index, variant in enumerate(variants)}
    known = known_speeds(table, len(at))
    true = None if _have_run(path, jobs) else known.copy()
    if true is not None:
        true[len(table.variants) :, -1] = ALONE
    return trace, Shared(
        tuple(map(str, variants)),
        np.array([at[job.variant] for job in in_order], np.int32),
        true,
        known,
        np.array([job.floor for job in in_order]),
        are_halves,
        text_of(_path(pairs))[1],
    )


def _pairs(given: str) -> PairTable:
    path, gpu = _path(given), given.removeprefix(_path(given)).lstrip(":")
    return read_pairs(path, gpu or None)


def _path(given: str) -> str:
    """Of ``FILE.csv:GPU``."""
    head, colon, tail = given.rpartition(":")
    return head if colon and "/" not in tail and "." not in tail else given


def _have_run(path: str, jobs: Sequence[GpuJob]) -> bool:
    """Whether the jobs have run live, so that their hours are not those alone."""
    found = {job.has_run for job in jobs}
    if len(found) > 1:
        raise WrongUseError(f"{path}: hours_are is run for some jobs and not for others: make it one for all")
    return True in found


def _check(path: str, job: GpuJob, are_halves: bool) -> None:
    if not are_halves and job.nodes % 1:
        raise WrongUseError(f"{path}: job {job.job} wants {job.nodes:g} GPUs: give a whole number")


def _row(job: GpuJob, are_halves: bool) -> Mapping[str, Any]:
    units = round(job.nodes * SHARES) if are_halves else round(job.nodes)
    run_s = max(round(job.hours * 3600), 1)
    return {
        "name": job.job, "submit_s": job.submit_s, "wait_s": 0, "run_s": run_s, "units": units, "cores": units,
        "request_s": max(round(job.request_h * 3600), run_s), "queue": "", "watts": None, "text": str(job.variant),
    }  # fmt: skip
