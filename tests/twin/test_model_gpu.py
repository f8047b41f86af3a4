"""GPUs: measured curves, published facts, sensors, locks, limits, faults."""

import numpy as np
import pytest
from twin._model import lib

from tests.recorded import RECORDED, needs_recorded
from twin.machine import load_machine
from twin.physics import families
from twin.physics.model import Report, Twin
from twin.programs.workload import load_workload, v100_names

SAMPLE = families.DATA / "v100-sample.csv"
FULL = RECORDED / "gpu-dvfs" / "v100-frequency.csv"
MEASURED_MHZ = (757, 825, 885, 952, 1012, 1080, 1140, 1207, 1275, 1335, 1402, 1462, 1530)


def _lock(twin: Twin, low_mhz: int, high_mhz: int) -> None:
    for index in range(twin.machine.gpus):
        twin.lock_gpu(index, low_mhz, high_mhz)


def _to_end(twin: Twin) -> Report:
    while not twin.finished:
        twin.advance(1.0)
    return twin.report()


def _gpu_j(report: Report) -> float:
    return sum(joules for part, joules in report.energy_j.items() if part.startswith("gpu"))


# --- measured curves ---


@pytest.mark.parametrize("name", v100_names(SAMPLE))
def test_the_v100_draws_and_performs_as_measured(name: str) -> None:
    """Every row of the sample: steady board power within 2 %, speed within 0.5 %."""
    machine = load_machine("v100")
    rows = {mhz: (speed, watts) for mhz, speed, watts in families._v100_rows(SAMPLE)[name]}
    twin = Twin(machine, load_workload(f"v100:{name}", machine, duration_s=5000.0, data=SAMPLE))
    for mhz in MEASURED_MHZ:
        _lock(twin, mhz, mhz)
        twin.advance(80.0)
        before, energy = twin.report(), twin.gpus.gpu[0].energy_uj
        twin.advance(15.0)
        speed, watts = rows[mhz]
        assert (twin.gpus.gpu[0].energy_uj - energy) * 1e-6 / 15.0 == pytest.approx(watts, rel=0.02)
        work = (twin.report().work_done - before.work_done) * 5000.0
        assert work / 15.0 == pytest.approx(speed, rel=0.005)


@needs_recorded("gpu-dvfs")
def test_all_measured_row_sets_run() -> None:
    machine = load_machine("v100")
    rows = families._v100_rows(FULL)
    assert len(rows) == 22
    for name, points in rows.items():
        workload = load_workload(f"v100:{name}", machine, duration_s=20.0)
        truth = workload.truth.groups[1].phases[0]
        ladder = [round(clock) for clock in truth.clocks_mhz]
        for mhz, speed, watts in points:
            level = np.argmin(np.abs(np.array(ladder) - mhz))
            assert truth.speed[level] == pytest.approx(speed, rel=0.002)
            assert truth.power_w[level] == pytest.approx(watts, rel=0.002)
        twin = Twin(machine, workload)
        twin.advance(5.0)
        card = twin.gpus.gpu[0]
        assert 5 <= card.gpu_pct <= 100
        assert 3 <= card.memory_pct <= 95


# --- published facts: REGALE D2.3, section 3.4, A100-80 ---


@pytest.fixture(scope="module")
def easywave() -> dict[str, tuple[float, float]]:
    """Energy and time of EasyWave relative to fixed 1410 MHz."""
    machine = load_machine("xh2415")
    workload = load_workload("easywave", machine, duration_s=70.0)
    results = {}
    for name, clocks in {
        "1410": 1410,
        "1200": 1200,
        "1110": 1110,
        "1095": 1095,
        "1080": 1080,
        "1005": 1005,
        "firmware": 0,
    }.items():
        twin = Twin(machine, workload)
        _lock(twin, clocks, clocks)
        report = _to_end(twin)
        results[name] = (_gpu_j(report), report.time_s)
    joules, seconds = results["1410"]
    return {name: (j / joules, s / seconds) for name, (j, s) in results.items()}


def test_easywave_saves_a_quarter_at_1095_mhz(easywave: dict[str, tuple[float, float]]) -> None:
    energy, time = easywave["1095"]
    assert energy == pytest.approx(0.74, abs=0.015)
    assert time == pytest.approx(1.01, abs=0.015)


def test_easywave_has_its_least_edp_at_1095_mhz(easywave: dict[str, tuple[float, float]]) -> None:
    edp = {name: energy * time for name, (energy, time) in easywave.items()}
    assert min(edp, key=edp.__getitem__) == "1095"
    assert edp["1095"] < edp["firmware"] < edp["1410"]


def test_firmware_saves_five_percent_on_easywave(easywave: dict[str, tuple[float, float]]) -> None:
    energy, time = easywave["firmware"]
    assert energy == pytest.approx(0.95, abs=0.015)
    assert time == pytest.approx(1.0, abs=0.005)


def test_qe_pw_time_is_linear_in_the_clock() -> None:
    machine = load_machine("xh2415")
    workload = load_workload("qe-pw", machine, duration_s=20.0)
    times = []
    for mhz in (1410, 1200, 1005):
        twin = Twin(machine, workload)
        _lock(twin, mhz, mhz)
        times.append(_to_end(twin).time_s * mhz / 1410)
    assert times == pytest.approx([20.0] * 3, rel=0.02)


def test_easywave_has_phases_of_low_occupancy() -> None:
    machine = load_machine("xh2415")
    twin = Twin(machine, load_workload("easywave", machine))
    _lock(twin, 1410, 1410)
    occupancy, last = [], 0.0
    for _ in range(140):
        twin.advance(0.1)
        now = twin.gpus.gpu[0].gpm_sm_occupancy_s
        occupancy.append((now - last) / 0.1)
        last = now
    low = np.array(occupancy) < 0.1
    assert 0.3 < low.mean() < 0.6
    assert np.count_nonzero(np.diff(low.astype(int))) <= 5  # long phases, not noise


# --- clocks ---


def test_ladders_are_those_of_the_cards() -> None:
    ladders = {name: load_machine(name).gpu.clocks_mhz for name in ("v100", "xh2415", "genoa-h100")}  # type: ignore[union-attr]
    assert len(ladders["v100"]) == 187
    assert set(MEASURED_MHZ) <= set(ladders["v100"])
    assert len(ladders["xh2415"]) == 81
    assert {1005, 1095, 1410} <= set(ladders["xh2415"])
    assert (ladders["genoa-h100"][0], ladders["genoa-h100"][-1]) == (345, 1980)


def test_a_lock_takes_effect_after_its_latency() -> None:
    machine = load_machine("xh2415")
    twin = Twin(machine, load_workload("easywave", machine))
    twin.advance(1.0)
    twin.lock_gpu(2, 0, 1005)
    twin.advance(0.005)
    assert twin.gpus.gpu[2].sm_clock_mhz == 1365  # the firmware's own choice still
    twin.advance(0.040)
    assert twin.gpus.gpu[2].sm_clock_mhz == 1005
    assert twin.gpus.gpu[1].sm_clock_mhz == 1365
    twin.lock_gpu(2, 0, 0)
    twin.advance(0.050)
    assert twin.gpus.gpu[2].sm_clock_mhz == 1365


def test_a_range_of_all_clocks_is_no_lock_and_any_smaller_one_is() -> None:
    machine = load_machine("xh2415")
    twin = Twin(machine, load_workload("easywave", machine))
    twin.advance(1.0)
    for low_mhz, high_mhz, runs_mhz in ((225, 1410, 1410), (210, 1410, 1365), (210, 1395, 1395), (0, 2000, 1365)):
        twin.lock_gpu(2, low_mhz, high_mhz)
        twin.advance(0.1)
        assert (twin.gpus.gpu[2].sm_clock_mhz, twin.gpus.gpu[2].throttle_reasons) == (runs_mhz, 0)


def test_applications_clocks_set_the_clock_and_are_its_reason_and_with_a_lock_the_lower_applies() -> None:
    machine = load_machine("xh2415")
    twin = Twin(machine, load_workload("easywave", machine))
    card = twin.gpus.gpu[2]
    free_mhz = 1365
    for applied_mhz, lock, runs_mhz, reasons in (
        (1005, (0, 0), 1005, 0x2),
        (1005, (1200, 1200), 1005, 0x2),
        (1005, (210, 900), 900, 0),
        (1410, (0, 0), free_mhz, 0),  # the highest clock leaves the choice to the firmware
        (0, (900, 900), 900, 0),
        (0, (0, 0), free_mhz, 0),
    ):
        card.applications_mhz = applied_mhz
        twin.lock_gpu(2, *lock)
        twin.advance(1.0)
        assert (card.sm_clock_mhz, card.throttle_reasons) == (runs_mhz, reasons)
        assert twin.gpus.gpu[1].sm_clock_mhz == free_mhz


def test_a_card_above_its_slowdown_temperature_halves_its_clock_and_says_why() -> None:
    """Bits of NVML: hardware slowdown, and hardware thermal slowdown."""
    machine = load_machine("v100")
    twin = Twin(machine, load_workload("v100:3MM", machine, duration_s=500.0, data=SAMPLE))
    twin.advance(100.0)
    card = twin.gpus.gpu[0]
    free_mhz = card.sm_clock_mhz
    assert (card.throttle_reasons, card.violation_thermal_us) == (0, 0)
    card.slowdown_c = card.temperature_c - 5
    twin.advance(0.1)
    assert card.throttle_reasons == 0x8 | 0x40
    assert card.sm_clock_mhz < 0.7 * free_mhz
    assert card.violation_thermal_us > 50_000


def test_an_unlocked_idle_card_falls_to_its_idle_clock() -> None:
    machine = load_machine("v100")
    twin = Twin(machine, load_workload("v100:ResN50", machine, duration_s=3.0, data=SAMPLE))
    twin.advance(2.0)
    assert twin.gpus.gpu[0].sm_clock_mhz == 1530
    twin.advance(3.0)
    card = twin.gpus.gpu[0]
    assert (card.sm_clock_mhz, card.performance_state, card.gpu_pct) == (135, 0, 0)  # data-centre cards know P0 alone
    assert card.throttle_reasons == 0x1  # idle
    assert 15_000 < card.power_mw < 40_000


def test_a_power_limit_throttles_and_says_so() -> None:
    machine = load_machine("v100")
    twin = Twin(machine, load_workload("v100:3MM", machine, duration_s=500.0, data=SAMPLE))
    twin.advance(100.0)
    card = twin.gpus.gpu[0]
    assert card.throttle_reasons == 0
    card.power_limit_mw = 150_000
    card.limit_seq += 1
    twin.advance(100.0)
    assert 140_000 < card.power_mw <= 150_500
    assert 1200 < card.sm_clock_mhz < 1300
    assert card.throttle_reasons & 0x4
    assert card.violation_power_us > 50_000_000
    assert card.enforced_limit_mw == 150_000


# --- sensors ---


def test_the_energy_counter_integrates_power() -> None:
    machine = load_machine("genoa-h100")
    twin = Twin(machine, load_workload("mixed-gpu:6", machine))
    twin.advance(2.0)
    for gpu in range(8):
        assert twin.gpus.gpu[gpu].energy_uj * 1e-6 == pytest.approx(twin.report().energy_j[f"gpu-{gpu}"], rel=1e-6)


def test_an_h100_averages_power_over_a_second_and_an_a100_does_not() -> None:
    shown = {}
    for name in ("genoa-h100", "xh2415"):
        machine = load_machine(name)
        twin = Twin(machine)
        twin.advance(3.0)
        idle = twin.gpus.gpu[0].power_mw
        twin.start_workload(load_workload("hpcg", machine))
        twin.advance(0.3)
        early = twin.gpus.gpu[0].power_mw - idle
        twin.advance(1.2)
        shown[name] = early / (twin.gpus.gpu[0].power_mw - idle)
    assert shown["genoa-h100"] < 0.5
    assert shown["xh2415"] > 0.8


def test_gpm_integrals_and_utilisation_tell_of_the_same_load() -> None:
    machine = load_machine("genoa-h100")
    twin = Twin(machine, load_workload("mixed-gpu:6", machine))
    card = twin.gpus.gpu[0]
    assert card.has_gpm
    twin.advance(1.5)
    graphics, clock = card.gpm_graphics_s, card.gpm_time_s
    twin.advance(0.167 * 5)
    share = (card.gpm_graphics_s - graphics) / (card.gpm_time_s - clock)
    assert card.gpu_pct == pytest.approx(100 * share, abs=6)
    assert 0 < card.gpm_sm_occupancy_s < card.gpm_sm_active_s < card.gpm_time_s
    assert not load_machine("xh2415").gpu.has_gpm  # type: ignore[union-attr]


def test_the_sample_ring_keeps_the_last_periods() -> None:
    machine = load_machine("v100")
    twin = Twin(machine, load_workload("v100:3MM", machine, data=SAMPLE))
    twin.advance(10.0)
    card = twin.gpus.gpu[0]
    times = [card.samples[(card.sample_head + i) % lib.TWIN_SAMPLES].time_us for i in range(lib.TWIN_SAMPLES)]
    assert set(np.diff(times)) == {20_000}
    assert times[-1] * 1000 == pytest.approx(twin.time_ns, abs=20_000_000)


def test_published_state_is_never_left_half_written() -> None:
    twin = Twin(load_machine("xh2415"))
    twin.advance(0.0123)
    assert all(twin.gpus.gpu[gpu].seq % 2 == 0 for gpu in range(4))


# --- faults ---


def test_a_stuck_card_stops_publishing() -> None:
    machine = load_machine("v100")
    twin = Twin(machine, load_workload("v100:3MM", machine, data=SAMPLE))
    twin.advance(1.0)
    card = twin.gpus.gpu[0]
    card.faults = lib.TWIN_GPU_STUCK
    frozen = (card.time_us, card.energy_uj, card.power_mw)
    twin.advance(1.0)
    assert (card.time_us, card.energy_uj, card.power_mw) == frozen
    card.faults = 0
    twin.advance(0.1)
    assert card.energy_uj > frozen[1]


def test_a_stuck_reading_keeps_its_last_value_and_the_others_go_on() -> None:
    machine = load_machine("v100")
    twin = Twin(machine, load_workload("v100:3MM", machine, data=SAMPLE))
    twin.advance(1.0)
    card = twin.gpus.gpu[0]
    card.stuck = lib.TWIN_READING_ENERGY | lib.TWIN_READING_SM_CLOCK
    energy_uj, power_mw, time_us = card.energy_uj, card.power_mw, card.time_us
    _lock(twin, 757, 757)
    twin.advance(1.0)
    assert (card.energy_uj, card.sm_clock_mhz) == (energy_uj, 1530)
    assert card.power_mw < 0.9 * power_mw and card.time_us > time_us
    card.stuck = lib.TWIN_READING_POWER
    power_mw = card.power_mw
    _lock(twin, 0, 0)
    twin.advance(1.0)
    assert (card.sm_clock_mhz, card.power_mw) == (1530, power_mw)
    assert {card.samples[i].power_mw for i in range(128)} >= {power_mw}
    assert card.energy_uj > energy_uj + 100e6


def test_a_stuck_gpm_share_goes_on_as_it_last_was_and_jumps_nowhere() -> None:
    machine = load_machine("genoa-h100")
    twin = Twin(machine, load_workload("mixed-gpu:1", machine, duration_s=3.0))
    twin.advance(1.0)
    card = twin.gpus.gpu[0]

    def shares() -> tuple[float, float]:
        before = card.gpm_time_s, card.gpm_graphics_s, card.gpm_sm_active_s
        twin.advance(0.5)
        s = card.gpm_time_s - before[0]
        return (card.gpm_graphics_s - before[1]) / s, (card.gpm_sm_active_s - before[2]) / s

    card.stuck = lib.TWIN_READING_GPM_GRAPHICS
    graphics, _ = shares()
    assert graphics > 0.2
    twin.advance(10.0)  # the work has ended
    assert shares() == (pytest.approx(graphics), 0.0)
    card.stuck = 0
    assert shares() == (pytest.approx(0.0, abs=1e-6), 0.0)


def test_a_card_may_ignore_what_it_accepts() -> None:
    machine = load_machine("v100")
    twin = Twin(machine, load_workload("v100:3MM", machine, data=SAMPLE))
    twin.gpus.gpu[0].faults = lib.TWIN_GPU_SET_NO_EFFECT
    _lock(twin, 757, 757)
    twin.gpus.gpu[0].power_limit_mw = 150_000
    twin.gpus.gpu[0].limit_seq += 1
    twin.advance(1.0)
    assert twin.gpus.gpu[0].sm_clock_mhz == 1530
    assert twin.gpus.gpu[0].enforced_limit_mw == 300_000


def test_gpu_state_can_live_in_a_buffer_of_others() -> None:
    machine = load_machine("v100")
    buffer = bytearray(Twin.GPU_BYTES)
    twin = Twin(machine, gpu_memory=buffer)
    assert bytes(buffer[:4]) == b"NGTN"
    assert b"Tesla V100-SXM2-16GB" in buffer
    twin.advance(0.1)
    assert twin.gpus.gpu[0].power_mw > 0
