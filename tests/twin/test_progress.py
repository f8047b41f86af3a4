"""What emulated programs tell of themselves: whole units of work truly done, no kinder than real iterations are."""

from __future__ import annotations

import numpy as np
import pytest

from twin.errors import TwinError
from twin.machine import load_machine
from twin.physics.emulated_progress import UNLIKE, progress_count
from twin.physics.model import Twin
from twin.programs.workload import load_workload

CURIE = load_machine("curie")


def ticked(workload: str, khz: int, progress_s: float | None, seconds: float = 40.0) -> tuple[Twin, list[int]]:
    twin = Twin(CURIE, load_workload(workload, CURIE, duration_s=seconds, progress_s=progress_s))
    for domain in range(len(CURIE.domains)):
        twin.set_domain(domain, max_khz=khz, governor="performance")
    units = []
    while not twin.finished:
        twin.advance(0.1)
        units.append(twin.progress_units() or 0)
    return twin, units


def test_shipped_programs_report_no_progress_unless_it_is_switched_on() -> None:
    for name in ("nas", "hpl", "stream", "mixed-cpu:3"):
        twin = Twin(CURIE, load_workload(name, CURIE, duration_s=10))
        twin.advance(1.0)
        assert twin.progress_units() is None


@pytest.mark.parametrize("name", ["nas", "mixed-cpu:3"])
def test_the_same_work_is_the_same_units_at_any_clock(name: str) -> None:
    (_, fast), (_, slow) = (ticked(name, khz, 0.05) for khz in (2_700_000, 1_800_000))
    assert fast[-1] == slow[-1] > 300
    assert len(slow) > 1.1 * len(fast)
    for units in (fast, slow):
        assert (np.diff(units) >= 0).all()


def test_units_count_work_and_not_time() -> None:
    """NAS has beta 0.4 (its file): at 1.35 of 2.7 GHz it takes 1.4 times as long."""
    (_, fast), (_, slow) = (ticked("nas", khz, 0.02) for khz in (2_700_000, 1_300_000))
    at_s = 10.0
    lost = fast[round(at_s * 10) - 1] / slow[round(at_s * 10) - 1]
    assert lost == pytest.approx(1 + 0.4 * (2.7 / 1.3 - 1), rel=0.03)


def test_a_phases_units_are_unlike_anothers_and_single_ones_scatter() -> None:
    told = load_workload("mixed-cpu:3", CURIE, progress_s=0.05).groups[0].progress
    assert told is not None
    lengths = np.array(told.unit_s)
    assert len(set(lengths)) == len(lengths) > 2
    assert (lengths >= 0.05 / UNLIKE).all() and (lengths <= 0.05 * UNLIKE).all()
    assert 0.05 < np.std(np.diff(told.ends)) < 0.2


def test_units_do_not_touch_what_else_is_drawn() -> None:
    with_it, without = (load_workload("mixed-cpu:3", CURIE, progress_s=told) for told in (0.05, None))
    assert [phase.counter_error for phase in with_it.truth.groups[0].phases] == [
        phase.counter_error for phase in without.truth.groups[0].phases
    ]


def test_a_unit_that_is_under_way_when_a_phase_ends_is_finished_in_the_next() -> None:
    told = progress_count(10.0, 2, [(0, 5.0), (1, 5.0)], 50, np.random.default_rng(1))
    mean_s = 10.0 / float(told.units[-1])
    assert told.finished(500.0) == pytest.approx(500.0 / mean_s, rel=0.1)
    counts = [told.finished(done_s) for done_s in np.linspace(0, 500, 5001)]
    assert counts[0] == 0 and (np.diff(counts) >= 0).all()


def test_a_workload_file_says_what_its_program_reports(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = """
name = "loop"
summary = "one loop"
source = "this test"
[[cpu]]
progress = 0.5
[[cpu.phase]]
name = "step"
seconds = 10.0
"""
    (tmp_path / "loop.toml").write_text(text)
    workload = load_workload(str(tmp_path / "loop.toml"), CURIE)
    assert workload.truth.groups[0].unit_s and 0.25 <= workload.truth.groups[0].unit_s[0] <= 1.0
    (tmp_path / "loop.toml").write_text(text.replace("progress", "progres"))
    with pytest.raises(TwinError, match="progres"):
        load_workload(str(tmp_path / "loop.toml"), CURIE)
