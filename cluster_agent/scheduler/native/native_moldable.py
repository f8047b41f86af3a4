"""The jobs, configurations and rule of a moldable policy as C takes them (``csrc/resources/node_model.h``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cluster_agent._native import ffi, lib
from cluster_agent.cluster import UW
from cluster_agent.scheduler.configurations.choices import ChoiceInput, Rule
from cluster_agent.scheduler.configurations.table import Configuration, place_of
from cluster_agent.scheduler.job_columns import NEVER_S, Jobs
from cluster_agent.scheduler.native.native_tables import c_caps, checked, code, pointer
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.world import Ways


class CMoldable:
    """``node_model_t`` of one group with ``ways_t``, and the columns that it points to. ``table``: turns a column of
    the jobs into the one that C reads; in a closed loop into one that is filled in as the jobs come."""

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        ways: Ways,
        nodes: int,
        cap: PowerCap,
        table: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda column: column,
    ) -> None:
        """With ``ways.kinds`` the jobs are a table that grows; its first rows name each table once, and ``add`` fills
        them in."""
        truth = ways.truth or ways.rows
        known_of, true_of = np.array(ways.rows.table, np.int64), np.array(truth.table, np.int64)
        pairs, pair_of = np.unique(known_of * len(truth.tables) + true_of, return_inverse=True)
        rule = composition.choose if isinstance(composition.choose, Rule) else None
        self._choice = None if isinstance(composition.choose, Rule) else composition.choose
        self._nodes, self._rows = nodes, ways.rows
        self.cap, self.c_cap = cap, c_caps(cap)
        self._scheduler: Any = None
        self.error: BaseException | None = None  # of a choice in Python, which C cannot pass on
        self._true: list[Configuration] = []  # by row
        rows: list[list[Any]] = []
        first = [0]
        for known, true in (divmod(int(pair), len(truth.tables)) for pair in pairs):
            most = max((row.cores, row.cap_w) for row in ways.rows.tables[known])
            at = {place_of(row): row for row in reversed(truth.tables[true])}
            for row in ways.rows.tables[known]:
                is_full = (row.cores, row.cap_w) == most
                self._true.append(at[place_of(row)])
                times = [row.time_s, row.watts, self._true[-1].time_s]
                rows.append([*times, row.uw, row.nodes, row.nodes * row.cores, is_full])
            first.append(len(rows))
        self._first = first
        self._known = (pairs // len(truth.tables)).tolist()  # by table
        width = jobs.width
        _, kind = np.unique(pair_of * (int(width.max(initial=0)) + 1) + width, return_inverse=True)
        self._kind = table(kind.astype(np.int32))
        self._scale = table(np.array(ways.rows.scale, np.float64))
        self.row = np.full(len(jobs), -1, np.int32)
        self.width = np.zeros(len(jobs), np.int32)
        self.run_s = np.zeros(len(jobs), np.int64)
        self._table, self._requested = table(pair_of.astype(np.int32)), table(width)
        self._request_s = table(jobs.request_s)
        columns = {
            "first": ("int32_t", np.array(first, np.int32)),
            "table": ("int32_t", self._table),
            "requested": ("int32_t", self._requested),
            "scale": ("double", self._scale),
            "kind": ("int32_t", self._kind),
            "row": ("int32_t", self.row),
            "width": ("int32_t", self.width),
            "run_s": ("int64_t", self.run_s),
        }
        self._columns = {name: pointer(*one) for name, one in columns.items()}
        self._columns["rows"] = ffi.new("configuration_t[]", rows)
        if rule is None:
            signature = "int32_t(void *, int64_t, int32_t, int64_t, int64_t)"
            self._columns["choose_row"] = ffi.callback(signature, self._row_of, -1)
        given = rule or Rule("naive")
        c_ways = {
            "choose": lib.CHOOSE_BY_CALLER if rule is None else code("CHOOSE", rule.name),
            "n_tables": len(pairs),
            "n_kinds": int(kind.max(initial=-1)) + 1 if ways.kinds is None else ways.kinds,
            **{name: getattr(given, name) for name in ("th", "near", "priority", "slowdown")},
        }
        self._has = ffi.new("int64_t[]", [nodes, *[0] * (lib.NODE_KINDS - 1)])
        one_group = {"n_nodes": 1, "has": self._has, "caps": self.c_cap[0][0]}
        self.c = ffi.new("node_model_t *", {"ways": c_ways | self._columns} | one_group)

    def add(self, job: int, table: int, kind: int, scale: float) -> None:
        """Fill in a row of a table that grows."""
        self._table[job], self._kind[job], self._scale[job] = table, kind, scale

    def runs(self, job: int, table: int, place: int) -> None:
        """Before the job is adopted: it runs in this row of its table."""
        self.row[job] = self._first[table] + place

    def join(self, scheduler: Any) -> None:
        """The native scheduler chooses among these configurations; ``MemoryError`` if it cannot."""
        self._scheduler = scheduler
        checked(lib.scheduler_set_nodes(scheduler, self.c))

    def _row_of(self, context: Any, now_s: int, job: int, free_nodes: int, free_uw: int) -> int:
        """The row that a choice in Python takes; -1: none. Once it has failed, nothing starts any more."""
        assert self._choice is not None
        if self.error is not None:
            return -1
        table = int(self._table[job])
        first, rows = self._first[table], self._rows.at(self._known[table], float(self._scale[job]))

        def earliest_s(row: Configuration) -> int | None:
            start_s = int(lib.scheduler_earliest(self._scheduler, now_s, job, first + rows.index(row)))
            return None if start_s == NEVER_S else start_s

        job_asks = int(self._requested[job]), int(self._request_s[job]), self._nodes, self.cap.at(now_s)
        try:
            chosen = self._choice(ChoiceInput(now_s, rows, *job_asks, free_nodes, free_uw / UW, earliest_s))
            return -1 if chosen is None else first + rows.index(chosen)
        except BaseException as error:  # raised again by ``check``, outside the callback
            self.error = error
            return -1

    def check(self) -> None:
        """Raise what a choice in Python has raised."""
        if self.error is not None:
            raise self.error

    def jobs(self, jobs: Jobs) -> Jobs:
        """With the widths and run times that are filled in as jobs start."""
        return replace(jobs, width=self.width, run_s=self.run_s)

    def chosen_of(self, job: int) -> Configuration:
        """The row of the table in which a job was started; its time is that of a job with scale 1."""
        return self._true[int(self.row[job])]

    def chosen(self) -> list[Configuration | None]:
        """The configuration in which each job was started, with true times and watts; None: it was not started."""
        found: list[Configuration | None] = []
        for row, scale in zip(self.row.tolist(), self._scale.tolist(), strict=True):
            true = self._true[row]
            found.append(
                Configuration(true.nodes, true.cores, true.cap_w, true.time_s * scale, true.watts) if row >= 0 else None
            )
        return found
