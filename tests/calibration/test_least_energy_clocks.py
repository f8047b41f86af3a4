"""The clocks at which work costs the fewest joules, found on a node whose sensors err, next to its truth."""

from __future__ import annotations

import math

from benchmarks.calibration_table import regulated
from benchmarks.least_energy_clocks import Case, judged
from calibration.table.least_energy import within
from twin.machine import load_machine


def test_clocks_within_a_hundredth_of_the_fewest_joules_are_the_set() -> None:
    assert within({1: 2.0, 2: 1.009, 3: 1.0, 4: 1.011, 5: math.nan}) == (2, 3)
    assert within({1: math.nan}) == ()


def test_the_sets_of_a_drawn_machine_are_found_and_rapl_alone_favours_lower_clocks() -> None:
    rows = {(row.kernel, row.meter): row for row in judged(Case("drawn", 1))}
    assert [key for key, row in rows.items() if not row.is_right] == []
    for kernel in ("fma", "stream"):
        node, rapl = (rows[kernel, meter] for meter in ("node", "rapl"))
        assert rapl.found[0] <= node.found[0] and rapl.found[-1] < node.found[-1]
    assert rows["fma", "node"].found[0] > rows["stream", "node"].found[-1]


def test_limits_are_kept_by_the_watts_that_counters_show() -> None:
    machine = load_machine("curie")
    limit_w = regulated(machine, 1.02).zones[0].constraints[0].limit_w
    assert limit_w * 1.02 == machine.zones[0].constraints[0].limit_w
