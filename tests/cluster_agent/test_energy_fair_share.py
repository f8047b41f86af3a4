"""A part of the published experiment on energy fair-share: one user of SDSC-SP2 takes fewer joules, or more."""

from __future__ import annotations

from benchmarks.energy_fair_share import figures, rows_of
from benchmarks.sc15_learned import workload_of
from tests.recorded import needs_recorded

pytestmark = needs_recorded("sc15-backfilling")


def test_fair_share_sees_no_joules_and_energy_fair_share_does() -> None:
    workload = workload_of("SDSC-SP2")
    assert [row.per_job for row in rows_of("SDSC-SP2", workload, "FS", 1)] == [(1.0,), (1.0,)]
    green, gluttonous = rows_of("SDSC-SP2", workload, "EFS", 6)
    assert figures(green.per_user)[2] < 1 < figures(gluttonous.per_user)[1]
