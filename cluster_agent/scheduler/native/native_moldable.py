"""The jobs, configurations and rule of a moldable policy as C takes them (``csrc/moldable.h``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.scheduler.configurations.moldable_scheduler import Rule, whole_uw
from cluster_agent.scheduler.configurations.table import Configuration, MoldableJobs, same_place
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_tables import pointer

RULES: Final = {
    "traditional": lib.CHOOSE_TRADITIONAL,
    "naive": lib.CHOOSE_NAIVE,
    "adaptive": lib.CHOOSE_ADAPTIVE,
    "stock": lib.CHOOSE_STOCK,
    "cores-endtime": lib.CHOOSE_CORES_ENDTIME,
    "energy": lib.CHOOSE_ENERGY,
}


class CMoldable:
    """``moldable_t``, with the columns that it points to. ``table``: turns a column of the jobs into the one that C
    reads; in a closed loop into one that is filled in as the jobs come."""

    def __init__(
        self,
        rule: Rule,
        jobs: MoldableJobs,
        watts: float,
        table: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda column: column,
    ) -> None:
        truth = jobs.truth or jobs.rows
        known_of, true_of = np.array(jobs.rows.table, np.int64), np.array(truth.table, np.int64)
        pairs, pair_of = np.unique(known_of * len(truth.tables) + true_of, return_inverse=True)
        self._true: list[Configuration] = []  # by row
        rows: list[list[Any]] = []
        first = [0]
        for known, true in (divmod(int(pair), len(truth.tables)) for pair in pairs):
            most = max((row.cores, row.cap_w) for row in jobs.rows.tables[known])
            for row in jobs.rows.tables[known]:
                is_full = (row.cores, row.cap_w) == most
                self._true.append(next(one for one in truth.tables[true] if same_place(one, row)))
                times = [row.time_s, row.watts, self._true[-1].time_s]
                rows.append([*times, row.uw, row.nodes, row.nodes * row.cores, is_full])
            first.append(len(rows))
        width = jobs.jobs.width
        _, kind = np.unique(pair_of * (int(width.max(initial=0)) + 1) + width, return_inverse=True)
        self._scale = table(np.array(jobs.rows.scale, np.float64))
        self.row = np.full(len(jobs), -1, np.int32)
        self.width = np.zeros(len(jobs), np.int32)
        self.run_s = np.zeros(len(jobs), np.int64)
        self._columns = [
            ffi.new("configuration_t[]", rows),
            pointer("int32_t", np.array(first, np.int32)),
            pointer("int32_t", table(pair_of.astype(np.int32))),
            pointer("int32_t", table(width)),
            pointer("double", self._scale),
            pointer("int32_t", table(kind.astype(np.int32))),
            pointer("int32_t", self.row),
            pointer("int32_t", self.width),
            pointer("int64_t", self.run_s),
        ]
        n_kinds = int(kind.max(initial=-1)) + 1
        numbers = [RULES[rule.name], rule.th, rule.near, rule.priority, rule.slowdown, watts, whole_uw(watts)]
        self.c = ffi.new("moldable_t *", [*numbers, *self._columns[:2], len(pairs), n_kinds, *self._columns[2:]])

    def jobs(self, jobs: Jobs) -> Jobs:
        """With the widths and run times that are filled in as jobs start."""
        return replace(jobs, width=self.width, run_s=self.run_s)

    def chosen(self) -> list[Configuration | None]:
        """The configuration in which each job was started, with true times and watts; None: it was not started."""
        found: list[Configuration | None] = []
        for row, scale in zip(self.row.tolist(), self._scale.tolist(), strict=True):
            true = self._true[row]
            found.append(
                Configuration(true.nodes, true.cores, true.cap_w, true.time_s * scale, true.watts) if row >= 0 else None
            )
        return found
