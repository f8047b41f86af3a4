"""From a log of processors and a table of configurations to jobs that can run in several ways.

``--configurations`` is ``cab`` (generated like LLNL's Cab, ``scheduler/cab_table``) or a CSV file with the columns

    application,nodes,cores,cap_w,time_s,watts

one line per configuration: nodes, cores per node, cap per socket, seconds, and watts of all nodes together.

A log gives how long a job ran on how many processors. That is taken as the time on the nodes that these processors
fill, with all cores at the highest cap; the times of other configurations are in proportion to the table's. The
application is the log's number of it (column 14). With the generated table, number n is its n-th application, counted
round; jobs without a number use the number of their user.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.choosing import read_params
from cluster_agent.cluster import MOST_PROCESSORS, MOST_W, NodeGroup
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.configurations.cab_table import cab_table
from cluster_agent.scheduler.configurations.configuration_model import Errors, predicted
from cluster_agent.scheduler.configurations.table import (
    COLUMNS,
    Configuration,
    Rows,
    ScaledRows,
    above_idle,
    full_row,
)
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.world import Ways
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.swf import EXECUTABLE, USER, Finding, TraceError
from cluster_agent.workloads.text_tables import rows_of
from foundation.shell.errors import nearest

GENERATED: Final = "cab"


class TableParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``model=regression``: the policy knows the predictions of a model that was fitted to a ``share`` of the rows, and
    the jobs run as the table says. ``seed``: of the generated table, and of the choice of rows."""

    model: Literal["exact", "regression"] = "exact"
    share: float = 0.1
    seed: int = 1


class Tables(msgspec.Struct, frozen=True):
    """Configurations by application: as they are, and as the policy knows them."""

    text: str
    params: TableParams
    sha256: str | None  # of a file
    true: Mapping[str, Rows]
    known: Mapping[str, Rows]
    errors: Errors | None  # of the model

    @property
    def is_generated(self) -> bool:
        """Whether the rows are generated, not measured."""
        return self.sha256 is None

    def above_idle(self, node: NodeGroup) -> Tables:
        """With the watts that nodes draw above idle ones, as a partition's budget counts them."""
        true, known = (
            {name: tuple(above_idle(row, node) for row in rows) for name, rows in one.items()}
            for one in (self.true, self.known)
        )
        return replace(self, true=true, known=known)

    def manifest(self) -> dict[str, Any]:
        """Its entry in manifest.json."""
        errors = msgspec.structs.asdict(self.errors) if self.errors else None
        return {
            "given": self.text,
            "sha256": self.sha256,
            **msgspec.structs.asdict(self.params),
            "model_errors": errors,
        }


def read_tables(text: str) -> Tables:
    """``cab[:key=value,...]`` or ``FILE[:key=value,...]``; ``WrongUseError`` or ``TraceError`` in one line."""
    name = text.partition(":")[0]
    params = read_params("--configurations", text, name, TableParams)
    if not 0 < params.share < 1 or params.seed < 0:
        raise WrongUseError(f"--configurations {text}: share must be above 0 and below 1, seed 0 or more")
    sha256 = None
    if name == GENERATED:
        true = cab_table(params.seed)
    else:
        if not Path(name).exists():
            raise WrongUseError(f"--configurations {text}: there is no such file{nearest(name, [GENERATED])}")
        sha256, true = _read(name)
    if params.model == "exact":
        return Tables(text, params, sha256, true, true, None)
    try:
        known, errors = predicted(true, params.share, params.seed)
    except ValueError as error:
        raise WrongUseError(f"--configurations {text}: {error}") from None
    return Tables(text, params, sha256, true, known, errors)


LEAST_S: Final = 1e-3
"""Ours: a job's times are in proportion to its table's, and whole seconds of them have to fit 64 bits."""


def _is_possible(one: Configuration) -> bool:
    is_small = max(one.cap_w, one.watts, one.time_s) <= MOST_W and one.nodes * one.cores <= MOST_PROCESSORS
    return is_small and one.time_s >= LEAST_S


def _read(path: str) -> tuple[str, dict[str, Rows]]:
    rows, sha256 = rows_of(path)
    found: dict[str, dict[tuple[int, int, float], Configuration]] = {}
    for line, row in rows:
        where = f"{path}:{line}"
        if missing := [name for name in COLUMNS if name not in row]:
            raise TraceError(f"{path}:1: no column {', '.join(missing)}; the first line must be {','.join(COLUMNS)}")
        try:
            nodes, cores = int(row["nodes"]), int(row["cores"])
            cap_w, time_s, watts = (float(row[name]) for name in COLUMNS[3:])
            one = Configuration(nodes, cores, cap_w, time_s, watts)
        except (TypeError, ValueError):
            raise TraceError(f"{where}: every value must be a number; nodes and cores whole ones") from None
        if not all(0 < value < float("inf") for value in (nodes, cores, cap_w, time_s, watts)):
            raise TraceError(f"{where}: every number must be above 0")
        if not _is_possible(one):
            raise TraceError(
                f"{where}: no job is like that: watts and seconds are at most {MOST_W:g}, seconds at least {LEAST_S:g},"
                f" cores together at most {MOST_PROCESSORS}"
            )
        of_application = found.setdefault((row["application"] or "").strip(), {})
        if (nodes, cores, cap_w) in of_application:
            raise TraceError(f"{where}: {nodes} nodes, {cores} cores, {cap_w:g} W occur twice; delete one line")
        of_application[nodes, cores, cap_w] = one
    if not found:
        raise TraceError(f"{path}: no configuration in it; add lines below {','.join(COLUMNS)}")
    return sha256, {name: tuple(of_application.values()) for name, of_application in found.items()}


def moldable(
    workload: Workload, tables: Tables, cores: int, is_strict: bool = False
) -> tuple[Jobs, Ways, list[int], list[Finding]]:
    """The jobs on nodes of so many cores, their ways to run, their indices in the workload, and findings about
    jobs that are left out."""
    jobs, names = workload.jobs, list(tables.true)
    table = _table_of_jobs(workload, tables)
    nodes = -(-jobs.width.astype(np.int64) // cores)

    @cache
    def full_of(at: int, wanted: int) -> Configuration | None:
        return full_row(tables.true[names[at]], wanted)

    kept: list[int] = []
    scale: list[float] = []
    left_out: dict[tuple[str, str], list[int]] = {}
    for job, (at, wanted, run_s) in enumerate(zip(table, nodes.tolist(), jobs.run_s.tolist(), strict=True)):
        full = full_of(at, wanted) if at >= 0 else None
        if full is not None:
            kept.append(job)
            scale.append(run_s / full.time_s)
            continue
        if at < 0:
            reason = "jobs of an application without configurations", "add its number (column 14) to the table"
        else:
            reason = "jobs that ask for fewer nodes than any configuration has", "add such a row to the table"
        left_out.setdefault(reason, []).append(int(workload.log.lines[workload.row[job]]))
    findings = [Finding(what, "dropped", len(at), min(at), how) for (what, how), at in left_out.items()]
    if findings and (is_strict or not kept):
        raise TraceError(_why_unusable(workload.log.path, findings[0], bool(kept)))
    of_jobs = [table[job] for job in kept]
    known = ScaledRows(list(tables.known.values()), of_jobs, scale)
    truth = None if tables.errors is None else ScaledRows(list(tables.true.values()), of_jobs, scale)
    left = replace(jobs.each(lambda column: column[kept].copy()), width=nodes[kept].astype(np.int32))
    return left, Ways(known, truth, cores, tables), kept, findings


def _table_of_jobs(workload: Workload, tables: Tables) -> list[int]:
    """For each job the position of its application's table; -1: there is none."""
    number = workload.log.columns[EXECUTABLE, workload.row]
    if tables.is_generated:
        number = np.where(number > 0, number, np.maximum(workload.log.columns[USER, workload.row], 1))
        generated: list[int] = ((number - 1) % len(tables.true)).tolist()
        return generated
    place = {name: at for at, name in enumerate(tables.true)}
    return [place.get(str(one), -1) for one in number.tolist()]


def _why_unusable(path: str, first: Finding, may_drop: bool) -> str:
    more = ", or leave out --strict" if may_drop else ""
    return f"{path}:{first.first_line}: {first.what} (first of {first.count}): {first.fix}{more}"
