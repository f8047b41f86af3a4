"""The energy counters of a node and its job parts: exact over every gap, and never lower than they were."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.wire.job_messages import JobPart, NodeJobs, PartEnergy
from nodectl.config import Caps, Cluster, Config
from nodectl.decide.shares import NodeShares
from nodectl.jobs.job_runner import JobThread
from nodectl.jobs.processes import JobRunner
from nodectl.member.energy_meter import WAIT_S, EnergyMeter, Interval
from nodectl.member.job_exchange import JobExchange
from pmu.decode import decode
from pmu.instruments.rapl import POWERCAP
from pmu.node import Instruments, discover
from tests.nodectl.test_agent import node
from tests.waiting import PATIENCE_S, within

REST_W, EPOCH_S = 60.0, 1_000_000.0


@dataclass
class Clocks:
    """CLOCK_BOOTTIME, and the wall clock with it."""

    now_s: float = 100.0

    def meter(self, kept: bytes = b"", boot_id: str = "boot-1") -> EnergyMeter:
        return EnergyMeter(boot_id, kept, lambda: EPOCH_S + self.now_s, lambda: round(1e9 * self.now_s))

    def draw(self, meter: EnergyMeter, watts: float, seconds: float = 0.1, quality: str = "measured") -> None:
        self.now_s += seconds
        meter.add(Interval(round(1e9 * self.now_s), seconds, watts * seconds, quality))


def running(started_s: float, job: int = 1) -> JobPart:
    return JobPart(job, 1, "running", started_s=EPOCH_S + started_s)


def ended(started_s: float, ended_s: float, job: int = 1) -> JobPart:
    return JobPart(job, 1, "ended", started_s=EPOCH_S + started_s, ended_s=EPOCH_S + ended_s)


def energy(meter: EnergyMeter, part: JobPart) -> PartEnergy:
    (found,) = meter.metered([part])
    assert found.energy is not None
    return found.energy


def test_a_part_has_what_was_drawn_between_its_start_and_its_end():
    clocks = Clocks()
    meter = clocks.meter()
    for watts in (100.0, 200.0, 300.0, 400.0):
        clocks.draw(meter, watts, 1.0)
    assert energy(meter, running(101.5)) == PartEnergy(measured_mj=800_000, metered_ms=2500)
    assert energy(meter, ended(101.5, 103.25)) == PartEnergy(measured_mj=500_000, metered_ms=1750)
    clocks.draw(meter, 400.0, 60.0)
    assert energy(meter, ended(101.5, 103.25)).measured_mj == 500_000, "what comes later is not the part's"


def test_energy_is_counted_by_its_quality_and_time_without_power_is_not_metered():
    clocks = Clocks()
    meter = clocks.meter()
    energy(meter, running(clocks.now_s))
    for watts, quality in ((100.0, "measured"), (50.0, "estimated"), (math.nan, "missing"), (10.0, "wrapped")):
        clocks.draw(meter, watts, 1.0, quality)
    expected = PartEnergy(measured_mj=100_000, estimated_mj=50_000, wrapped_mj=10_000, metered_ms=3000)
    assert energy(meter, running(100.0)) == expected
    assert meter.joules == pytest.approx(160.0)


def test_two_parts_on_halves_divide_what_is_drawn_while_both_run_and_no_joule_is_twice_or_lost():
    clocks = Clocks()
    meter = clocks.meter()
    alone, both = running(100.0), [running(100.0), running(102.0, 2)]
    energy(meter, alone)

    def drawn(watts: float, parts: dict[str, float], seconds: float = 1.0) -> None:
        clocks.now_s += seconds
        meter.add(Interval(round(1e9 * clocks.now_s), seconds, watts * seconds, "measured"), parts=parts)

    drawn(100.0, {}, 2.0)
    meter.metered(both)
    drawn(200.0, {"1.1": 0.75, "2.1": 0.25})
    drawn(300.0, {"1.1": 0.5, "2.1": 0.5})
    first, second = meter.metered(both)
    assert (first.energy, second.energy) == (
        PartEnergy(measured_mj=500_000, metered_ms=4000), PartEnergy(measured_mj=200_000, metered_ms=2000),
    )  # fmt: skip
    clocks.now_s += 4.0  # the agent is killed; the last way to divide counts for the gap
    later = clocks.meter(meter.keep())
    before = later._before
    assert before is not None
    later.add(Interval(round(1e9 * clocks.now_s), 4.0, 400.0, "estimated"), parts=before.parts)
    over = later.metered([ended(100.0, 108.0), running(102.0, 2)])
    joules = [one.energy.measured_mj + one.energy.estimated_mj for one in over if one.energy]
    assert joules == [700_000, 400_000]
    assert later.joules == pytest.approx(sum(joules) / 1000)


def test_a_part_that_ends_while_no_agent_runs_keeps_its_joules_whatever_the_other_one_draws_then():
    clocks = Clocks()
    meter = clocks.meter()
    both, halved = [running(100.0), running(100.0, 2)], {"1.1": 0.5, "2.1": 0.5}
    meter.metered(both)
    clocks.now_s += 10.0
    meter.add(Interval(round(1e9 * clocks.now_s), 10.0, 1000.0, "measured"), parts=halved)
    assert [one.energy.measured_mj for one in meter.metered(both) if one.energy] == [500_000, 500_000]
    clocks.now_s += 100.0
    later = clocks.meter(meter.keep())
    later.add(Interval(round(1e9 * clocks.now_s), 100.0, 10_000.0, "measured"), parts=halved)
    over = later.metered([ended(100.0, 112.0), running(100.0, 2)])
    first, second = (one.energy.measured_mj for one in over if one.energy)
    assert (first, second) == (600_000, 10_400_000), "half each until the end of one, then all is the other's"


def test_two_parts_add_up_where_one_is_seen_to_end_a_moment_late():
    clocks = Clocks()
    meter = clocks.meter()
    meter.metered([running(100.0), running(100.0, 2)])
    for parts in ({"1.1": 0.25, "2.1": 0.75}, {"1.1": 0.25, "2.1": 0.75}, {}, {}):
        clocks.now_s += 1.0
        meter.add(Interval(round(1e9 * clocks.now_s), 1.0, 100.0, "measured"), parts=parts)
    over = meter.metered([ended(100.0, 101.5), running(100.0, 2)])
    assert [one.energy.measured_mj for one in over if one.energy] == [37_500, 362_500]


@given(
    watts=st.lists(st.floats(0, 2000), min_size=2, max_size=40),
    begin=st.floats(0, 1), length=st.floats(0, 1), kills=st.sets(st.integers(0, 39)),
)  # fmt: skip
def test_counters_are_the_integral_of_power_and_never_fall_however_often_agents_are_killed(watts, begin, length, kills):
    clocks = Clocks()
    meter = clocks.meter()
    begin_s = 100 + begin * 0.1 * len(watts)
    end_s = begin_s + length * (100 + 0.1 * len(watts) - begin_s)
    seen = [0]
    for at, one in enumerate(watts):
        clocks.draw(meter, one)
        if clocks.now_s >= begin_s:
            part = ended(begin_s, end_s) if clocks.now_s >= end_s else running(begin_s)
            seen.append(energy(meter, part).measured_mj)
        if at in kills:
            meter = clocks.meter(meter.keep())
    clocks.draw(meter, 50.0)
    seen.append(energy(meter, ended(begin_s, end_s)).measured_mj)
    assert seen == sorted(seen)
    begins_s = [100 + 0.1 * at for at in range(len(watts))]
    true_j = sum(
        one * max(min(end_s, tick_s + 0.1) - max(begin_s, tick_s), 0.0)
        for one, tick_s in zip(watts, begins_s, strict=True)
    )
    assert seen[-1] / 1e3 == pytest.approx(true_j, abs=0.1)


def test_the_end_of_a_part_is_held_back_until_its_energy_is_known_but_not_for_long():
    clocks = Clocks()
    meter = clocks.meter()
    clocks.draw(meter, 100.0, 1.0)
    energy(meter, running(100.0))
    clocks.now_s += 0.3
    over = ended(100.0, 101.2)
    (shown,) = meter.metered([over])
    assert (shown.phase, shown.energy.measured_mj) == ("running", 100_000)
    meter.add(Interval(round(1e9 * clocks.now_s), 0.3, 30.0, "measured"))
    (shown,) = meter.metered([over])
    assert (shown.phase, shown.energy.measured_mj) == ("ended", 120_000)
    late = ended(100.0, clocks.now_s + 0.1, job=2)
    clocks.now_s += WAIT_S + 0.2
    assert meter.metered([late])[0].phase == "ended", "a loop that stands still holds no end back for ever"


def test_a_part_that_begins_during_a_long_tick_does_not_have_what_was_drawn_before():
    clocks = Clocks()
    meter = clocks.meter()
    clocks.draw(meter, 100.0, 1.0)
    clocks.now_s += 4.0  # the loop moves many knobs, say
    assert energy(meter, running(104.5)) == PartEnergy()
    meter.add(Interval(round(1e9 * clocks.now_s), 4.0, 400.0, "measured"))
    assert energy(meter, running(104.5)) == PartEnergy(measured_mj=50_000, metered_ms=500)


def test_a_part_whose_process_has_not_begun_draws_nothing_yet():
    clocks = Clocks()
    meter = clocks.meter()
    clocks.draw(meter, 100.0, 3.0)
    assert energy(meter, JobPart(1, 1, "running")) == PartEnergy()
    clocks.draw(meter, 100.0, 1.0)
    assert energy(meter, running(103.5)) == PartEnergy(measured_mj=50_000, metered_ms=500)


def test_a_part_that_was_refused_has_no_energy():
    clocks = Clocks()
    refused = JobPart(1, 1, "refused", detail="no")
    assert clocks.meter().metered([refused]) == [refused]


def test_after_a_power_cut_parts_keep_what_they_had_and_the_node_begins_at_zero():
    clocks = Clocks()
    meter = clocks.meter()
    clocks.draw(meter, 100.0, 5.0)
    energy(meter, running(100.0))
    again = clocks.meter(meter.keep(), "boot-2")
    assert again.joules == 0
    clocks.draw(again, 70.0, 5.0)
    assert energy(again, ended(100.0, 104.0)).measured_mj == 500_000


@pytest.mark.parametrize(
    "kept", [b"", b"{", b'{"boot_id": "boot-1", "at_ns": 1, "totals": [1]}', b"\xff" * 9,
             b'{"boot_id": "boot-1", "at_ns": 1, "totals": [-1, 0, 0, 0, 0, 0]}'],
)  # fmt: skip
def test_a_damaged_record_begins_at_zero_and_stops_nothing(kept):
    clocks = Clocks()
    meter = clocks.meter(kept)
    clocks.draw(meter, 100.0, 1.0)
    assert meter.joules == pytest.approx(100.0)


@pytest.mark.parametrize("away_s", [0.5, 18.0, 120.0])
def test_what_the_node_draws_while_its_agent_is_dead_is_counted_by_the_hardware(away_s):
    with node("curie", "hpl") as inside:
        layout, _ = discover(inside.ports)
        clock = inside.ports.clock
        shares = NodeShares(layout, Config(caps=Caps(rest_w=REST_W), cluster=Cluster(mop_w=200.0, safe_w=220.0)))
        begin_ns, begin_j = clock.now_ns(), packages_j(inside.ports.files, layout)

        def opened(kept: bytes) -> tuple[EnergyMeter, Instruments]:
            meter = EnergyMeter("boot-1", kept, lambda: EPOCH_S + clock.now_ns() / 1e9, clock.now_ns)
            instruments = Instruments(inside.ports, layout)
            return meter, instruments

        def ticks(meter: EnergyMeter, instruments: Instruments, n: int) -> None:
            before = instruments.sweep()
            clock.sleep_until_ns(clock.now_ns() + 300_000_000)  # an agent has more to do at its start
            meter.resume(layout, shares, before)
            for _ in range(n):
                clock.sleep_until_ns(clock.now_ns() + 100_000_000)
                sweep = instruments.sweep()
                sample = decode(layout, before, sweep)
                joules, quality = shares.node_energy(sample)
                meter.add(Interval(sweep.time_ns, sample.elapsed_s, joules, quality), sweep)
                before = sweep

        part = JobPart(1, 1, "running", started_s=EPOCH_S + begin_ns / 1e9)
        meter, instruments = opened(b"")
        ticks(meter, instruments, 30)
        ticks_seen = energy(meter, part).measured_mj
        kept = meter.keep()
        instruments.close()
        clock.sleep_until_ns(clock.now_ns() + round(away_s * 1e9))
        meter, instruments = opened(kept)
        ticks(meter, instruments, 10)
        found = energy(meter, part)
        instruments.close()
        took_s = (clock.now_ns() - begin_ns) / 1e9
        true_j = packages_j(inside.ports.files, layout) - begin_j + REST_W * took_s
        assert (found.measured_mj + found.stale_mj) / 1e3 == pytest.approx(true_j, rel=0.001)
        assert (found.stale_mj > 0) == (away_s > 100), "the package's counter could have wrapped meanwhile"
        assert found.measured_mj > ticks_seen
        assert found.metered_ms == pytest.approx(1000 * took_s, abs=2)


def packages_j(files, layout) -> float:
    zones = [zone for zone in layout.zones if zone.kind == "package"]
    return sum(int(files.read(f"{POWERCAP}/{zone.path}/energy_uj")) for zone in zones) / 1e6


def test_a_gap_without_counters_is_estimated_by_the_last_power():
    clocks = Clocks()
    meter = clocks.meter()
    clocks.draw(meter, 100.0, 1.0)
    kept = msgspec.json.decode(meter.keep())
    clocks.now_s += 10.0
    with node("curie", "hpl") as inside:
        layout, _ = discover(inside.ports)
        shares = NodeShares(layout, Config(cluster=Cluster(mop_w=200.0)))
        instruments = Instruments(inside.ports, layout)
        again = clocks.meter(msgspec.json.encode(kept))
        again.resume(layout, shares, instruments.sweep())
        instruments.close()
    assert again.totals[:2] == (100.0, pytest.approx(1000.0))


def test_the_counters_are_kept_on_the_disk_by_the_thread_and_found_by_the_next_agent(tmp_path):
    clocks = Clocks()
    meter = clocks.meter()
    clocks.draw(meter, 100.0, 3.0)

    class NoLink:
        wants_jobs, job_queries = False, 0

        def job_messages(self) -> list[object]:
            return []

        def send_jobs(self, news: NodeJobs) -> None: ...

    thread = JobThread(JobRunner(tmp_path / "jobs", "n0"), "n0", "boot-1")
    try:
        JobExchange(NoLink(), thread, meter).exchange(round(1e9 * clocks.now_s))  # type: ignore[arg-type]
        assert within(PATIENCE_S, lambda: bool(thread.kept()))
    finally:
        thread.close()
    again = JobThread(JobRunner(tmp_path / "jobs", "n0"), "n0", "boot-1")
    again.close()
    assert clocks.meter(again.kept()).joules == pytest.approx(300.0)
