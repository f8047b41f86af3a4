"""Kernels under limits of the uncore: near the truth in few stays, put back, in the file, and what policies take."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest

from benchmarks.calibrated_uncore import truths
from calibration.kernels.port import CHASE, FMA, STREAM
from calibration.measure.node_session import label, open_session
from calibration.table import uncore_series
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.finished_table import finished_table, package_limits_w
from calibration.table.pstate_table import Table
from calibration.table.table_exchange import csv_of, machine_part
from calibration.table.table_figure import draw
from calibration.table.table_file import read_table, text_of, write_table
from calibration.table.table_report import diff_lines, show_lines
from calibration.table.uncore_series import LEVEL, measure_uncore, uncore_points
from calibration.table.uncore_values import LEAST_W, uncore_values
from foundation.sealed_file import sealed
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.calibrated.node_identity import identity
from nodectl.policies import registry
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

MACHINE = load_machine("spr-h100")
KERNELS = (FMA, STREAM, CHASE)
LIMITS = [f"/sys/devices/system/cpu/intel_uncore_frequency/package_{at:02d}_die_00/max_freq_khz" for at in (0, 1)]
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Table, tuple[int, ...], list[int]]:
    """A sweep of the machine that has an uncore, its table, the CPUs of all cores, and the limits afterwards."""
    twin = Twin(MACHINE)
    with InProcess(twin) as node:
        with open_session(node.ports, emulated_kernels(twin), str(tmp_path_factory.mktemp("state"))) as session:
            sweep = Sweep(session, KERNELS, Aim(0.05), limits_w=package_limits_w(node.ports.files, session.packages))
            sweep.run()
            measure_uncore(sweep)
            table = finished_table(sweep, identity(node.ports, session.found.layout), NOW)
            cpus = session.cpus_of(LEVEL)
        return sweep, table, cpus, [int(node.ports.files.read(path)) for path in LIMITS]


def test_few_stays_are_near_a_node_that_has_settled_and_the_limits_are_put_back(swept) -> None:
    sweep, table, cpus, after = swept
    assert after == [MACHINE.uncore.max_khz] * 2
    clocks = sweep.session.uncore.clocks
    assert len(table.uncore) == len(KERNELS) * len(clocks)
    assert sum(bool(dwell.setting.uncore_khz) for dwell in sweep.dwells) <= 3 * len(KERNELS)
    truth = truths(MACHINE, 0, (clocks[0], clocks[9], clocks[-1]), cpus, KERNELS)
    for kernel in KERNELS:
        own = {point.khz: point for point in table.uncore if point.kernel == label(kernel)}
        for khz in (clocks[0], clocks[9]):
            watts, units = truth[label(kernel), khz]
            assert own[khz].package_w == pytest.approx(watts, rel=0.02)
            assert own[khz].speed == pytest.approx(units / truth[label(kernel), clocks[-1]][1], rel=0.02)


def test_rows_of_the_core_clock_know_no_limit_of_the_uncore(swept) -> None:
    sweep, table, *_ = swept
    top_khz = sweep.session.clocks[-1]
    found = next(one for one in table.points if (one.kernel, one.level, one.khz) == ("chase", LEVEL, top_khz))
    assert found.units_per_s == pytest.approx(table.uncore[-1].units_per_s, rel=1e-3)  # chase is the last
    before = len(sweep.dwells)
    measure_uncore(sweep, budget_s=sweep.spent_s)
    assert len(sweep.dwells) == before, "nothing is measured twice, nor beyond the budget"
    assert {setting.uncore_khz for setting in sweep.measured() if setting.khz < top_khz} == {0}


def test_what_the_policy_takes_is_the_machines_own(swept) -> None:
    table, uncore = swept[1], MACHINE.uncore
    values = table.policies["uncore-bounded"]
    assert values["share"] == pytest.approx(uncore.wait_share, rel=0.1)
    assert values["clock_w"] == pytest.approx(2 * uncore.clock_w, rel=0.1)
    assert values["floor"] * uncore.max_khz == pytest.approx(uncore.min_khz, rel=0.01)
    assert values["rest_w"] == table.policies["bdpo-cpu-bounded"]["rest_w"]
    registry.check("uncore-bounded", "uncore", values)
    assert "share" not in uncore_values(table.points, [one for one in table.uncore if one.kernel == "fma"])
    alike = [msgspec.structs.replace(one, package_w=100.0) for one in table.uncore]
    assert uncore_values(table.points, alike)["clock_w"] == LEAST_W, "known to save nothing is not unknown"


def test_rows_that_say_nothing_of_the_uncore_leave_the_bound_where_it_was(swept) -> None:
    """Speeds that may as well be 0, and no row below the top: all of waiting may follow."""
    _, table, *_ = swept
    highest = max(one.khz for one in table.uncore)
    unsure = [msgspec.structs.replace(one, speed_half=2.0) for one in table.uncore]
    assert uncore_values(table.points, unsure)["share"] == 1.0
    guessed = [msgspec.structs.replace(one, is_measured=one.khz == highest) for one in table.uncore]
    assert uncore_values(table.points, guessed)["share"] == 1.0


def test_a_table_with_an_uncore_comes_back_and_one_of_before_is_still_read(swept, tmp_path: Path) -> None:
    table, path = swept[1], tmp_path / "t.toml"
    write_table(path, table)
    again = read_table(path)
    assert len(again.uncore) == len(table.uncore) and again.uncore[0].khz == table.uncore[0].khz
    assert text_of(again) == text_of(table)
    head, _, rest = text_of(table).partition("uncore_rows = [")
    path.write_text(sealed(head.replace("schema = 3", "schema = 2") + rest.partition("\n]\n")[2]))
    assert not read_table(path).uncore and len(read_table(path).points) == len(table.points)


def test_show_diff_plot_and_export_know_the_uncore(swept, tmp_path: Path) -> None:
    table = swept[1]
    shown = "\n".join(show_lines(table))
    assert f"Under limits of the uncore, all cores at {MACHINE.max_khz / 1e6:g} GHz:" in shown
    assert shown.count("chase") < "\n".join(show_lines(table, is_all=True)).count("chase")
    doubled = tuple(msgspec.structs.replace(one, package_w=2 * one.package_w) for one in table.uncore)
    lines, is_different = diff_lines(table, msgspec.structs.replace(table, uncore=doubled))
    assert is_different and "uncore 0.8" in "\n".join(lines)
    assert diff_lines(table, table)[1] is False
    assert csv_of(table).count(",uncore\n") == len(table.uncore)
    part = msgspec.toml.decode(machine_part(table))["uncore"]
    assert (part["min_khz"], part["max_khz"]) == (MACHINE.uncore.min_khz, MACHINE.uncore.max_khz)
    assert part["wait_share"] == pytest.approx(MACHINE.uncore.wait_share, rel=0.1)
    assert part["clock_w"] == pytest.approx(MACHINE.uncore.clock_w, rel=0.1)
    draw(table, LEVEL, tmp_path / "with.svg")
    draw(msgspec.structs.replace(table, uncore=()), LEVEL, tmp_path / "without.svg")
    assert "limit of the uncore" in (tmp_path / "with.svg").read_text()
    assert "limit of the uncore" not in (tmp_path / "without.svg").read_text()


@pytest.mark.parametrize(("name", "moves_uncore"), [("taurus", True), ("spr-h100", False)])
def test_a_node_without_an_uncore_or_whose_agent_moves_clocks_measures_none(
    tmp_path: Path, name: str, moves_uncore: bool
) -> None:
    twin = Twin(load_machine(name))
    with (
        InProcess(twin) as node,
        open_session(node.ports, emulated_kernels(twin), str(tmp_path), moves_uncore=moves_uncore) as session,
    ):
        sweep = Sweep(session, (FMA,), Aim(0.5))
        measure_uncore(sweep)
        assert session.uncore.names == () and not sweep.dwells and uncore_points(sweep) == ()


@pytest.mark.parametrize(("budget_s", "kept_s"), [(0.0, 0.0), (60.0, 0.0), (90.0, 0.0), (150.0, 20.0), (600.0, 20.0)])
def test_a_long_budget_keeps_two_stays_of_each_kernel_for_the_uncore(budget_s: float, kept_s: float) -> None:
    assert uncore_series.reserved_s(budget_s, 4) == kept_s
