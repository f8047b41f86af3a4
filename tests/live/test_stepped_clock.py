"""The wall clock is set while a job runs, an agent is down, or a budget is to change: no span moves by it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster_agent.commands.jobs import cells
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.serve.job_requests import row
from cluster_agent.serve.live_budget.budget_schedule import read_schedule
from cluster_agent.serve.people_protocol import SetSchedule
from cluster_agent.serve.server import Server
from foundation.steady_clock import NAME, as_shown, kept_clock, read_clock
from foundation.wire.job_messages import JobPart, JobSignal
from nodectl.commands.metrics import PageCollector
from nodectl.jobs.processes import JobRunner
from nodectl.loop.metrics_page import STALE_S, WRITTEN
from nodectl.member.energy_meter import EnergyMeter, Interval
from tests.fabric.test_forgetting import Site
from tests.live.test_job_runner import ended, start, until

HOUR_S = 3600.0


class SetClock:
    """The wall clock of this process and of those that it starts: ``by(s)`` sets it, from then on."""

    def __init__(self, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file, self._real = at / "set-by", time.time
        self.by(0.0)
        modules = at / "modules"
        modules.mkdir()
        (modules / "sitecustomize.py").write_text(
            f"import time\nreal = time.time\ntime.time = lambda: real() + float(open({str(self._file)!r}).read())\n"
        )
        monkeypatch.syspath_prepend(modules)
        monkeypatch.setattr(time, "time", lambda: self._real() + self._set_by_s)

    def by(self, seconds: float) -> None:
        self._set_by_s = seconds
        made = self._file.with_suffix(".new")
        made.write_text(str(seconds))
        made.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return SetClock(tmp_path, monkeypatch)


@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
def test_a_job_takes_as_long_as_it_takes_whatever_the_clock_is_set_to(
    tmp_path: Path, clock: SetClock, seconds: float
) -> None:
    """The job step is a real process, and so is the agent that comes after the one that started it."""
    runner = JobRunner(tmp_path / "jobs", "n0")
    began_s = time.monotonic()
    runner.start(start(tmp_path, "touch begun; while [ ! -e go ]; do sleep 0.02; done"))
    until(lambda: (tmp_path / "begun").exists() and runner.parts()[0].started_s > 0)
    clock.by(seconds)
    again = JobRunner(tmp_path / "jobs", "n0")
    (tmp_path / "go").touch()
    part = ended(again)
    assert 0.0 < part.ended_s - part.started_s <= time.monotonic() - began_s, "node_s of the head's account"


def test_the_clock_of_jobs_is_kept_while_there_are_some_and_made_again_after(tmp_path: Path, clock: SetClock) -> None:
    path = tmp_path / NAME
    first = kept_clock(path, is_free=True)
    clock.by(HOUR_S)
    assert abs(kept_clock(path, is_free=False)() - first()) < 1.0
    assert abs(read_clock(path)() - first()) < 1.0
    assert abs(kept_clock(path, is_free=True)() - first() - HOUR_S) < 1.0
    path.write_bytes(path.read_bytes().replace(b'"boot_id":"', b'"boot_id":"other-'))
    clock.by(2 * HOUR_S)
    assert abs(kept_clock(path, is_free=False)() - first() - 2 * HOUR_S) < 1.0, "of another boot"
    path.write_text("{")
    assert abs(read_clock(path)() - time.time()) < 1.0
    assert abs(kept_clock(tmp_path / "nowhere" / NAME, is_free=True)() - time.time()) < 1.0, "nothing can be kept"


def test_a_part_has_all_that_was_drawn_since_its_start_although_the_clock_was_set(clock: SetClock) -> None:
    meter = EnergyMeter("boot-1")
    started_s, now_ns = time.time(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    clock.by(-HOUR_S)
    for second in range(1, 6):
        meter.add(Interval(now_ns + second * 1_000_000_000, 1.0, 100.0, "measured"))
    (part,) = meter.metered([JobPart(1, 1, "running", started_s=started_s)])
    assert part.energy is not None
    assert part.energy.measured_mj == pytest.approx(500_000, abs=1000) and part.energy.metered_ms > 4900


def test_a_running_job_took_what_it_took_and_its_start_is_shown_by_the_clock_of_now(clock: SetClock) -> None:
    boottime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    offset_s = time.time() - boottime_s

    def now() -> float:
        return offset_s + time.clock_gettime(time.CLOCK_BOOTTIME)

    job = Job(1, 1000, "alice", JobSpec(command=["true"], walltime_s=120, workdir="/"), now() - 20.0)
    job.state, job.started_s, job.nodes = "running", now() - 10.0, ["n0"]
    clock.by(HOUR_S)
    found = row(job, now(), lambda unix_s: as_shown(unix_s, now))
    assert cells(found)[5:7] == ("00:00:10", "00:02:00")
    assert found.started_s == pytest.approx(time.time() - 10.0, abs=1.0)
    assert found.submitted_s == pytest.approx(time.time() - 20.0, abs=1.0)
    assert as_shown(now() - boottime_s - 10.0, now) == pytest.approx(now() - boottime_s - 10.0, abs=1.0), "a boot ago"


@pytest.mark.parametrize("seconds", [0.0, HOUR_S, -HOUR_S])
def test_the_page_of_a_dead_agent_is_old_and_that_of_a_live_one_is_not_whatever_the_files_time_says(
    tmp_path: Path, seconds: float
) -> None:
    page = tmp_path / "metrics.prom"

    def up(age_s: float) -> float:
        boottime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        page.write_text(f"# TYPE nodectl_x gauge\nnodectl_x 1\n{WRITTEN}{boottime_s - age_s}\n")
        stamp_s = time.time() - age_s + seconds
        os.utime(page, (stamp_s, stamp_s))
        (first, *_) = PageCollector(str(page)).collect()
        return float(first.samples[0].value)

    assert up(1.0) == 1.0 and up(STALE_S + 5.0) == 0.0


def test_a_schedule_follows_the_wall_clock_when_that_is_set(tmp_path: Path) -> None:
    site = Site(tmp_path)
    wall_s = [1e9]
    site.server.close()
    site.server = Server(site.settings, site.said.append, lambda: site.now_s, lambda: wall_s[0] + site.now_s)
    try:
        at_s = wall_s[0] + site.now_s
        steps = [(at_s + 3600.0, 900_000), (at_s + 7200.0, 800_000)]
        site.request(SetSchedule(source="s.csv", steps=steps))
        line = site.server.partition.ledger.budget

        def in_force() -> int:
            site.server.step(0.01)
            line.advance(site.now_s)
            return line.budget_mw

        assert in_force() == 1_000_000
        wall_s[0] += 3700.0  # it was an hour late
        assert in_force() == 900_000 and [round(one - site.now_s) for one, _ in line.steps] == [3500]
        assert any("the clock was set by +3700 s: the schedule follows, 900 W now" in one for one in site.said)
        wall_s[0] += 3700.0
        assert in_force() == 800_000 and not line.steps
        wall_s[0] -= 7400.0  # and it was not
        assert in_force() == 1_000_000 and [mw for _, mw in line.steps] == [900_000, 800_000]
        n_said = len(site.said)
        site.now_s += 1800.0
        wall_s[0] += 0.5
        assert in_force() == 1_000_000
        assert not any("the clock was set" in one for one in site.said[n_said:]), "no step of the clock"
    finally:
        site.server.close()


@pytest.fixture
def local_zone(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def put(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3"])
def test_local_times_over_a_change_of_clock_are_read_by_the_time_zone_or_refused_by_name(
    tmp_path: Path, local_zone: Callable[[str], None], zone: str
) -> None:
    local_zone(zone)
    path = tmp_path / "s.csv"

    def hours(*lines: str) -> list[float]:
        path.write_text("time,watts\n" + "".join(f"{line},1000\n" for line in lines))
        times = [one for one, _ in read_schedule(path)]
        return [(later - before) / 3600 for before, later in itertools.pairwise(times)]

    assert hours("2027-03-28T01:00:00", "2027-03-28T03:00:00") == [1.0], "an hour is missing"
    assert hours("2027-10-31T01:00:00", "2027-10-31T04:00:00") == [4.0], "an hour comes twice"
    for line, why in (
        ("2027-03-28T02:00:00", r"does not exist in this machine's time zone \(CET and CEST\): clocks are put forward"),
        ("2027-03-28T02:59:59", "does not exist"),
        (
            "2027-10-31T02:30:00",
            r"comes twice in this machine's time zone \(CEST and CET\): clocks are put back",
        ),
    ):
        with pytest.raises(WrongUseError, match=rf"s\.csv:3: {line} {why}.*; write the offset, {line}\+0"):
            hours("2027-01-01T00:00:00", line)
    twice = ("2027-10-31T02:30:00+02:00", "2027-10-31T02:30:00+01:00")
    assert hours(*twice) == [1.0]
    assert hours("2027-03-28T01:59:59", "2027-03-28T03:00:00") == [1 / 3600]


def test_a_zone_without_changes_has_every_local_time(tmp_path: Path, local_zone: Callable[[str], None]) -> None:
    local_zone("UTC")
    path = tmp_path / "s.csv"
    path.write_text("2027-03-28T02:00:00,1\n2027-10-31T02:30:00,2\n")
    assert [one for one, _ in read_schedule(path)] == [1806199200.0, 1824949800.0]


def test_a_job_that_is_ended_after_the_clock_was_set_is_still_ended(tmp_path: Path, clock: SetClock) -> None:
    """Walltime and grace are spans, too."""
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(start(tmp_path, "touch begun; sleep 600", walltime_s=3))
    until(lambda: (tmp_path / "begun").exists())
    clock.by(-HOUR_S)
    try:
        assert ended(runner).cause == "walltime"
    finally:
        runner.signal(JobSignal(1, 1, 9))
