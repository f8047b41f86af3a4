"""A P-state table of an emulated node in virtual time: near the truth, restored, sealed, resumable."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.calibration_table import measured, truths
from calibration.kernels.port import FMA, STREAM
from calibration.measure import refusals
from calibration.measure.node_session import (
    LEVELS,
    Dwell,
    NodeSession,
    SessionError,
    Setting,
    Window,
    clocks_khz,
    label,
    open_session,
)
from calibration.measure.partial_file import VERSION, PartialFile, Plan
from calibration.measure.pooled_means import means_of
from calibration.measure.steady_power import fit
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.clock_curve import Given, predict
from calibration.table.finished_table import finished_table, package_limits_w
from calibration.table.least_energy import least_energy
from calibration.table.pstate_table import Table, shown_limits_w
from calibration.table.table_exchange import csv_of, machine_part, table_from_csv
from calibration.table.table_file import read_table, text_of, write_table
from calibration.table.table_report import diff_lines, show_lines
from foundation.sealed_file import SealedFileError
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.calibrated.node_calibration import is_expired
from nodectl.calibrated.node_identity import differences, identity
from nodectl.write.lock import LockError
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

LIMIT = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def session_of(node: InProcess, directory: Path) -> NodeSession:
    return open_session(node.ports, emulated_kernels(node.twin), str(directory))


def plan_of(session: NodeSession) -> Plan:
    who = identity(session.ports, session.found.layout)
    return Plan(VERSION, who, (label(FMA), label(STREAM)), session.clocks, True)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    with InProcess(Twin(load_machine("taurus"))) as node, session_of(node, tmp_path_factory.mktemp("state")) as session:
        limits_w = package_limits_w(node.ports.files, session.packages)
        sweep = Sweep(session, (FMA, STREAM), Aim(), limits_w=limits_w)
        sweep.run()
        return finished_table(sweep, identity(session.ports, session.found.layout), NOW)


def test_watts_and_speed_are_near_those_of_a_node_that_has_settled(table: Table) -> None:
    twin = Twin(load_machine("taurus"))
    port = emulated_kernels(twin)
    port.start(FMA, range(12))
    settled: dict[int, tuple[float, float]] = {}
    for khz in (2301000, 1700000, 1200000):
        for domain in range(2):
            twin.set_domain(domain, max_khz=khz)
        twin.advance(600.0)
        joules, units = twin.report().energy_j, port.units_done()
        twin.advance(1.0)
        watts = {name: value - joules[name] for name, value in twin.report().energy_j.items()}
        settled[khz] = watts["package-0"] + watts["package-1"], port.units_done() - units
    points = {point.khz: point for point in table.of("fma", "all")}
    for khz, (watts_w, speed) in settled.items():
        assert points[khz].package_w == pytest.approx(watts_w, rel=0.02)
        assert points[khz].speed == pytest.approx(speed / settled[2301000][1], rel=0.01)
    assert points[2301000].clock_khz == pytest.approx(2_600_000, rel=0.01)  # turbo, as found
    assert table.conditions.is_emulated and not points[1700000].is_measured


def test_every_clock_limit_is_back_after_a_session_and_after_an_error_in_it(tmp_path: Path) -> None:
    with InProcess(Twin(load_machine("taurus"))) as node:
        before = node.ports.files.read(LIMIT)
        with session_of(node, tmp_path) as session:
            session.dwell(FMA, "one", session.clocks[0], 0.25, 4)
            assert node.ports.files.read(LIMIT) != before
        assert node.ports.files.read(LIMIT) == before
        with pytest.raises(KeyboardInterrupt), session_of(node, tmp_path) as session:
            session.set_clock(session.clocks[0])
            session.is_over = lambda: True
            session.rest(1.0)
        assert node.ports.files.read(LIMIT) == before


def test_a_hot_node_ends_the_measurement_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcess(Twin(load_machine("taurus"))) as node:
        before = node.ports.files.read(LIMIT)
        with session_of(node, tmp_path) as session:
            session.dwell(FMA, "one", session.clocks[0], 0.25, 1)
            monkeypatch.setattr(NodeSession, "celsius", lambda session: (40.0, 96.0))
            with pytest.raises(SessionError, match="the node is hot: a package has 96 C, 95 C is the most"):
                session.dwell(FMA, "one", session.clocks[0], 0.25, 1)
        assert node.ports.files.read(LIMIT) == before


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_a_machine_whose_reference_cycles_do_not_count_at_its_nominal_clock_is_refused(
    tmp_path: Path, factor: float
) -> None:
    """Each clock would be wrong by the same factor, and a table would mix them with those of the limits."""
    taurus = load_machine("taurus")
    other = msgspec.structs.replace(taurus, tsc_khz=round(taurus.tsc_khz * factor))
    with InProcess(Twin(other)) as node, session_of(node, tmp_path) as session:
        if factor == 1.0:
            assert session.dwell(FMA, "one", session.clocks[0], 0.25, 2).windows[0].khz == pytest.approx(
                1.2e6, rel=0.01
            )
            return
        shown = 1200 / factor
        line = rf"busy CPUs show {shown:.0f} MHz at the lowest limit, 1200 MHz: .* do not count at 2300 MHz, or"
        with pytest.raises(SessionError, match=line):
            session.dwell(FMA, "one", session.clocks[0], 0.25, 2)


def test_another_program_that_moves_a_clock_ends_the_measurement(tmp_path: Path) -> None:
    with InProcess(Twin(load_machine("taurus"))) as node, session_of(node, tmp_path) as session:
        session.set_clock(session.clocks[3])
        node.ports.files.write(LIMIT, str(session.clocks[5]))
        with pytest.raises(SessionError, match="somebody else set it"):
            session.rest(5.0)


def test_a_second_session_on_one_node_is_refused(tmp_path: Path) -> None:
    with (
        InProcess(Twin(load_machine("taurus"))) as node,
        session_of(node, tmp_path),
        pytest.raises(LockError, match="already runs this node"),
    ):
        session_of(node, tmp_path)


def test_a_node_without_energy_is_refused(tmp_path: Path) -> None:
    machine = msgspec.structs.replace(load_machine("taurus"), zones=())
    with InProcess(Twin(machine)) as node, pytest.raises(SessionError, match="no energy of the packages"):
        session_of(node, tmp_path)


def test_a_run_that_was_stopped_measures_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "t.toml.partial"
    with InProcess(Twin(load_machine("taurus"))) as node, session_of(node, tmp_path) as session:
        kept = PartialFile(path, plan_of(session))
        sweep = Sweep(session, (FMA, STREAM), Aim(), kept)
        stays = 0

        def stop(progress: object) -> None:
            nonlocal stays
            stays += 1
            if stays == 10:
                raise KeyboardInterrupt

        sweep.report = stop
        with pytest.raises(KeyboardInterrupt):
            sweep.run()
        kept.close()
        with path.open("ab") as file:
            file.write(b'{"type":"stay","dwell":{"set')  # cut off by a kill
        again = PartialFile(path, plan_of(session))
        assert len(again.dwells) == 10 and again.idle
        other = Sweep(session, (FMA, STREAM), Aim(), again)
        assert other.run()
        assert other.dwells[:10] == again.dwells[:10] == sweep.dwells
        first = [dwell.setting for dwell in other.dwells[:18]]
        assert len(set(first)) == 18
        again.close()
        with pytest.raises(SessionError, match="of another machine or plan"):
            PartialFile(path, msgspec.structs.replace(plan_of(session), kernels=("chase",)))


def test_a_budget_is_kept_and_one_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with InProcess(Twin(load_machine("taurus"))) as node, session_of(node, tmp_path) as session:
        sweep = Sweep(session, (FMA, STREAM), Aim(budget_s=60.0))
        begin_s = session.now_s
        assert sweep.run()
        assert 45.0 < session.now_s - begin_s <= 61.0
        with pytest.raises(SessionError, match="give more time or fewer kernels"):
            Sweep(session, (FMA, STREAM), Aim(budget_s=10.0)).run()


def test_a_table_is_read_back_as_it_was_written(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    write_table(path, table)
    again = read_table(path)
    assert text_of(again) == text_of(table)
    assert again.identity == table.identity and len(again.points) == len(table.points) == 78
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[: len(text) // 2], "its end is missing"),
        (lambda text: text.replace("fma", "fmb", 1), "its sha256 differs"),
        (lambda text: "", "its end is missing"),
        (lambda text: text[:-70] + "0" * 64 + "\n", "its sha256 differs|its end is missing"),
    ],
)
def test_a_damaged_table_is_refused_in_one_line(table: Table, tmp_path: Path, damage: object, reason: str) -> None:
    path = tmp_path / "t.toml"
    write_table(path, table)
    assert callable(damage)
    path.write_text(damage(path.read_text()))
    with pytest.raises(SealedFileError, match=reason) as error:
        read_table(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_table_of_another_processor_does_not_apply_and_another_kernel_is_a_remark(table: Table) -> None:
    other = msgspec.structs.replace(table.identity, cpu_model="Z80", kernel="2.6")
    wrong, remarks = differences(table.identity, other)
    assert [line.partition(":")[0] for line in wrong] == ["cpu_model"]
    assert [line.partition(":")[0] for line in remarks] == ["kernel"]
    assert not is_expired(table.expires_at, NOW)
    assert is_expired(table.expires_at, NOW + datetime.timedelta(days=200)) and is_expired("soon", NOW)


def test_rapl_alone_favours_slower_clocks_and_its_lack_of_a_meter_is_said(table: Table) -> None:
    assert any(min(one.by_rapl) < min(one.by_node) for one in least_energy(table))
    assert all(min(one.by_rapl) <= min(one.by_node) for one in least_energy(table))
    conditions = msgspec.structs.replace(table.conditions, has_meter=False)
    assert all(not one.by_node for one in least_energy(msgspec.structs.replace(table, conditions=conditions)))
    assert "EMULATED" in show_lines(table)[0]


def test_two_tables_differ_where_their_intervals_do_not_meet(table: Table) -> None:
    assert diff_lines(table, table)[1] is False
    changed = [msgspec.structs.replace(point, package_w=2 * point.package_w) for point in table.points]
    lines, is_different = diff_lines(table, msgspec.structs.replace(table, points=tuple(changed)))
    assert is_different and "+100.0 %" in lines[0]


def test_an_export_is_a_machine_file_part_and_csv_comes_back(table: Table, tmp_path: Path) -> None:
    part = msgspec.toml.decode(machine_part(table))
    machine = load_machine("taurus")
    assert part["cpu"]["cores_per_socket"] == 6 and tuple(part["frequency"]["steps_khz"]) == machine.steps_khz
    assert part["power"]["rest_w"] == pytest.approx(machine.power.rest_w, rel=0.02)
    assert part["power"]["dram_w_per_gbs"] == pytest.approx(machine.power.dram_w_per_gbs, rel=0.05)
    assert csv_of(table).count("\n") == 79
    sweep = tmp_path / "sweep.csv"
    sweep.write_text(
        "kernel,level,cores,khz,units_per_s,package_w\nhpl,all,12,1200000,1e9,60\nhpl,all,12,2300000,2e9,90\n"
    )
    found = table_from_csv(sweep, table.identity, NOW.isoformat(), NOW.isoformat())
    assert [point.speed for point in found.points] == [0.5, 1.0]
    assert all(math.isinf(point.package_half) for point in found.points)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kernel,level\n", "column cores is missing"),
        (
            "kernel,level,cores,khz,units_per_s,package_w\nhpl,all,12,1200000,x,60\n",
            ":2: units_per_s: 'x' is no number",
        ),
        (
            "kernel,level,cores,khz,units_per_s,package_w\nhpl,all,12,1200000,1,nan\n",
            ":2: package_w: nan is not above 0",
        ),
        ("kernel,level,cores,khz,units_per_s,package_w\nhpl,most,12,1200000,1,6\n", ":2: level 'most' is none of"),
        ("kernel,level,cores,khz,units_per_s,package_w\n", "has no rows"),
        ("", "column kernel is missing"),
    ],
)
def test_a_wrong_line_of_csv_is_named(table: Table, tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text(text)
    with pytest.raises(SealedFileError, match=reason):
        table_from_csv(path, table.identity, NOW.isoformat(), NOW.isoformat())


def test_an_interval_of_correlated_windows_covers_their_mean_at_its_rate() -> None:
    """Stays are as short as the error lasts, so no stay alone shows how its mean errs."""
    random = np.random.default_rng(1)
    covered, widths = 0, []
    for _ in range(40):
        stays = {number: [[10.0 + one for one in fading_error(random, 8)]] for number in range(24)}
        means = means_of(stays, dict.fromkeys(stays, "all"))
        covered += sum(abs(mean.value - 10.0) <= mean.half for mean in means.values())
        widths.append(means[0].half)
    assert 0.9 < covered / (40 * 24) < 0.99
    assert np.median(widths) == pytest.approx(0.149, rel=0.25)  # 1.96 deviations of the mean of eight


def fading_error(random: np.random.Generator, windows: int) -> list[float]:
    error, found = float(random.standard_normal()), []
    for _ in range(windows):
        error = 0.78 * error + math.sqrt(1 - 0.78**2) * float(random.standard_normal())
        found.append(0.1 * error)
    return found


def test_a_long_stay_says_how_windows_err_and_its_last_ones_are_its_mean() -> None:
    random = np.random.default_rng(1)
    long = [10.0 + one for one in fading_error(random, 160)]
    mean = means_of({"long": [[*long[:-16], *[11.0] * 16]]}, {"long": "all"}, last=16)["long"]
    assert mean.value == 11.0 and mean.n == 16
    widths = []
    for _ in range(40):
        stays = {number: [[10.0 + one for one in fading_error(random, 8)]] for number in range(12)}
        stays |= {"long": [[10.0 + one for one in fading_error(random, 160)]]}
        widths.append(means_of(stays, dict.fromkeys(stays, "all"), last=16)[0].half)
    assert np.quantile(widths, 0.1) > 0.7 * 0.149, "without it a tenth have less than 0.6 of the interval"


def window(begin_s: float, package_w: float, celsius: float, khz: float | None = None) -> Window:
    return Window(begin_s, 0.25, (package_w,), (), None, 1.0, khz, None, (celsius,))


def test_an_idle_node_at_another_clock_limit_says_nothing_about_leakage() -> None:
    """The limit of the stay before is in force, so a node is hotter and yet draws less: no sleeping core leaks less."""
    hot = [window(10.0 + n / 4, 200.0, 60.0, 2e6) for n in range(120)]
    dwells = [Dwell(Setting("fma", "all", 2_000_000), 8, tuple(hot), 30.0)]

    def asleep(second_w: float) -> float:
        idle = [window(n / 4, 80.0, 30.0) for n in range(8)] + [window(41 + n / 4, second_w, 44.0) for n in range(8)]
        steady = fit(idle, dwells, {"all": (1.0,)})
        assert steady
        return float(sum(one.weight * one.per_k[1] for one in steady.leakages))

    assert asleep(78.0) == pytest.approx(asleep(80.0), rel=0.05) and asleep(78.0) > 0.05


@pytest.mark.parametrize("e_fold_k", [33.0, 70.0])
def test_the_e_fold_of_leakage_is_the_silicons_and_what_is_not_known_of_it_is_in_the_interval(e_fold_k: float) -> None:
    """A die of 0.1 K/W and a sink of 0.2, 20 W of leakage at 60 C, air of 25 C. The windows are 15 K from settled."""
    random = np.random.default_rng(1)
    die_w = sink_w = 12.0

    def stay(begin_s: float, seconds: float, dynamic_w: float) -> list[Window]:
        nonlocal die_w, sink_w
        found, watts = [], dynamic_w + 15.0
        for step in range(round(seconds / 0.25)):
            for _ in range(5):
                core_c = 0.04 * (watts - 20.0) if dynamic_w > 20.0 else 0.0
                celsius = 25.0 + 0.1 * die_w + 0.2 * sink_w + core_c
                watts = dynamic_w + 20.0 * math.exp((celsius - 60.0) / e_fold_k)
                die_w, sink_w = die_w + (watts - die_w) / 160.0, sink_w + (watts - sink_w) / 1540.0
            found.append(window(begin_s + step / 4, watts + 0.1 * float(random.standard_normal()), celsius, 2e6))
        return found

    before, hot, low, idle = (
        stay(0.0, 2.0, 10.0),
        stay(2.0, 60.0, 130.0),
        stay(62.0, 40.0, 40.0),
        stay(102.0, 12.0, 10.0),
    )
    dwells = [Dwell(Setting("fma", "all", 2_000_000), 8, tuple(own), 30.0) for own in (hot, low)]
    steady = fit([*before, *idle], dwells, {"all": (1.0,)})
    assert steady
    settled = stay(200.0, 1000.0, 130.0)[-1].package_w[0]
    first = hot[60:76]
    change_w, deviation_w = steady.corrections_w("all", first)
    found = float(np.mean([one.package_w[0] for one in first]) + change_w.mean())
    assert abs(settled - found) < 1.96 * float(deviation_w[0]) < 0.05 * settled
    best = sum(one.weight * one.e_fold_k for one in steady.leakages)
    assert (best < 55.0) == (e_fold_k < 55.0)


def test_the_truth_that_a_table_is_judged_by_has_no_noise() -> None:
    clocks = (1_200_000, 1_700_000, 2_300_000)
    found = truths(load_machine("taurus"), 5, clocks, {"one": (0,)}, (FMA,))
    speeds = [found[Setting("fma", "one", khz)].units_per_s / khz for khz in clocks]
    assert speeds == pytest.approx([speeds[0]] * 3, rel=5e-4)


def test_a_mean_without_enough_windows_has_no_interval() -> None:
    means = means_of({"few": [[1.0, 1.1]], "none": []}, {"few": 1, "none": 2})
    assert math.isinf(means["few"].half) and math.isnan(means["none"].value)


def test_a_curve_passes_through_what_is_certain_and_is_less_certain_between() -> None:
    clocks = [1.2, 2.0, 3.2]
    watts = [20 + 10 * f + 2 * f**3 for f in clocks]
    curve = predict("watts", {"fma": Given(clocks, watts, [0.01] * 3, [1.2, 1.6, 2.0, 2.6, 3.2])})["fma"]
    assert curve.value[[0, 2, 4]] == pytest.approx(watts, rel=1e-3)
    assert curve.value[1] == pytest.approx(20 + 16 + 2 * 1.6**3, rel=0.01)
    assert curve.half[1] > 5 * curve.half[0] and curve.half[3] > 5 * curve.half[4]


def test_what_one_kernel_shows_of_the_voltage_holds_for_the_others() -> None:
    clocks = [1.2, 1.4, 1.6, 1.8, 2.0, 2.4, 2.7]
    volts = np.array([0.76, 0.83, 0.89, 0.90, 0.93, 1.0, 1.05])
    fma, stream = (idle + dynamic * np.array(clocks) * volts**2 for idle, dynamic in ((30, 40), (50, 25)))
    three = Given([1.2, 2.0, 2.7], stream[[0, 4, 6]].tolist(), [0.1] * 3, clocks)
    alone = predict("watts", {"stream": three})["stream"]
    both = predict("watts", {"fma": Given(clocks, fma.tolist(), [0.1] * 7, clocks), "stream": three})["stream"]
    assert abs(alone.value[2] - stream[2]) > alone.half[2] > 0.01 * stream[2]
    assert both.value == pytest.approx(stream, rel=0.006)
    assert (np.abs(both.value - stream) <= both.half).all()  # and knows that deviations are large


def test_a_node_that_was_measured_cold_below_its_power_limit_is_near_the_truth() -> None:
    machine = load_machine("skylake-6146")
    sweep, points = measured(machine, 12, 0, (1.0, 1.0), (FMA,))
    session = sweep.session
    truth = truths(machine, 12, session.clocks, {level: session.cpus_of(level) for level in LEVELS}, (FMA,))
    for point in points:
        own = truth[Setting(point.kernel, point.level, point.khz)]
        top = truth[Setting(point.kernel, point.level, session.clocks[-1])]
        assert point.package_w == pytest.approx(own.package_w, rel=0.02)
        assert point.speed == pytest.approx(own.units_per_s / top.units_per_s, rel=0.02)


def test_a_limit_that_no_file_names_is_seen_where_the_clock_falls_and_not_where_it_is_as_requested() -> None:
    def stay(requested: int, clocks: Sequence[float]) -> Dwell:
        windows = tuple(
            Window(0.25 * n, 0.25, (360.0, 355.0), (), None, 1e9, khz, 1.0, (50.0, 50.0))
            for n, khz in enumerate(clocks)
        )
        return Dwell(Setting("fma", "all", requested), 96, windows, 2.5)

    falling = [3.66e6, 3.65e6, 3.63e6, 3.62e6]
    assert shown_limits_w([stay(3_700_000, falling)]) == (360.0, 360.0)
    assert shown_limits_w([stay(3_000_000, falling), stay(3_700_000, [3.6e6] * 4)]) == ()


def test_clocks_of_a_node_are_those_that_all_its_domains_have() -> None:
    with InProcess(Twin(load_machine("taurus"))) as node, InProcess(Twin(load_machine("skylake-6146"))) as other:
        from pmu.node import discover

        assert clocks_khz(discover(node.ports)[0].domains) == load_machine("taurus").steps_khz
        assert len(clocks_khz(discover(other.ports)[0].domains)) == 21


def test_other_work_a_full_disk_and_a_job_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(_: float, percpu: bool) -> Sequence[float]:
        return [100.0, 80.0]

    monkeypatch.setattr("calibration.measure.refusals.psutil.cpu_percent", busy)
    with pytest.raises(SessionError, match=r"other work keeps 1\.8 CPUs busy"):
        refusals.refuse_other_work(0.01)
    with pytest.raises(SessionError, match="there is no directory"):
        refusals.refuse_unfit_place(tmp_path / "none" / "t.toml")
    monkeypatch.setattr(refusals, "LEAST_FREE", 2**60)
    with pytest.raises(SessionError, match="MiB are needed"):
        refusals.refuse_unfit_place(tmp_path / "t.toml")

    class Slurm:
        def listdir(self, path: str) -> list[str]:
            return ["job_7", "system"]

    with InProcess(Twin(load_machine("taurus"))) as node:
        files = replace(node.ports, files=Slurm()).files  # type: ignore[arg-type]
        with pytest.raises(SessionError, match="job 7 of Slurm"):
            refusals.refuse_job(files, "")
        refusals.refuse_job(files, "7")


def test_disturbed_windows_do_not_count(table: Table, tmp_path: Path) -> None:
    from calibration.table.pstate_table import measured_points

    with InProcess(Twin(load_machine("taurus"))) as node, session_of(node, tmp_path) as session:
        stay = session.dwell(FMA, "one", session.clocks[0], 0.25, 8)
    wrong = [msgspec.structs.replace(one, package_w=(1e3, 1e3), is_disturbed=True) for one in stay.windows[:4]]
    mixed = Dwell(stay.setting, stay.cores, (*wrong, *stay.windows[4:]), stay.seconds)
    found = measured_points([mixed], None)[Setting("fma", "one", session.clocks[0])]
    assert found.package.n == 4 and found.package.value < 100.0
