"""Policies that know watts, around reservations and in windows of queues: the engine against a plain machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policy_phases import Backfill, Composition
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.switches.limits import CLimits
from cluster_agent.scheduler.switches.queue_windows import OpenQueues, Span
from cluster_agent.scheduler.switches.reservations import Reserved
from tests.cluster_agent.power_traces import any_composition, cap_lists, machine, power, watts_of
from tests.cluster_agent.replay_by_command import replayed
from tests.cluster_agent.test_power_engines_agree import crowd
from tests.cluster_agent.test_queue_windows import opened
from tests.cluster_agent.test_reservations import COLUMNS, limits_of, reservations, starts
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, traces
from tests.oracle.reserved_watts import ReservedWithWatts

COMPOSITIONS = any_composition(
    backfill=st.sampled_from(["none", "list", "easy", "easy", "conservative"]),
    power=st.one_of(
        st.none(),
        *[
            st.builds(
                power,
                floor_mhz=st.sampled_from([None, 1500, 1000]),
                starts_slowed=st.sampled_from([True, True, False]),
                looks_ahead=st.sampled_from([True, True, False]),
            )
        ]
        * 4,
    ),
).map(lambda composition: replace(composition, guard=None))
MACHINES = st.builds(machine, st.just(0.0), st.booleans())


@settings(max_examples=40, deadline=None)
@given(
    jobs=traces(14),
    composition=COMPOSITIONS,
    caps=cap_lists(),
    on=MACHINES,
    has_predictions=st.booleans(),
    reserved=reservations(),
    data=st.data(),
)
def test_the_engine_and_the_plain_machine_start_the_same_jobs_at_the_same_frequencies(
    jobs: Jobs,
    composition: Composition,
    caps: list[Cap],
    on: Machine,
    has_predictions: bool,
    reserved: list[Reserved],
    data: st.DataObject,
) -> None:
    drawn = [data.draw(st.integers(0, 2 * len(reserved))) for _ in range(len(jobs))]
    pool = [at if at <= len(reserved) else 0 for at in drawn]
    queues, queue_of = data.draw(opened(jobs)) if data.draw(st.booleans()) else ([], [0] * len(jobs))
    check_agreement(
        composition, jobs, watts_of(composition, on, jobs, has_predictions), caps, reserved, pool, queues, queue_of
    )


def check_agreement(
    composition: Composition,
    jobs: Jobs,
    watts: Watts,
    caps: list[Cap],
    reserved: list[Reserved],
    pool: list[int],
    queues: list[list[Span]],
    queue_of: list[int],
) -> None:
    windows = [queues[at - 1] if at else None for at in queue_of]
    reference = ReservedWithWatts(composition, jobs, watts, caps, reserved, pool, windows, queue_of)
    simulated = SimulatedMachine(jobs, composition.ties, watts.slowdown, watts.requeues)
    run(reference, JumpingClock(), simulated)

    limits = limits_of(jobs, reserved, pool)
    if queues:
        opens = np.cumsum([0, *map(len, queues)]).astype(np.int32)
        queues_of = OpenQueues(opens, [one for each in queues for one in each])
        limits = replace(limits, switches=("reservations", "windows"), queues=queues_of,
                         open=np.array(queue_of, np.int32))  # fmt: skip
    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps, limits=CLimits(limits))
    replay.run(EVERYTHING_ENDED)
    n = range(len(jobs))
    assert replay.start_s.tolist() == [simulated.start_s.get(job, -1) for job in n]
    assert replay.end_s.tolist() == [simulated.end_s.get(job, -1) for job in n]
    assert replay.level.tolist() == [reference.levels.get(job, 0) for job in n]
    for job, at_s in enumerate(replay.start_s.tolist()):  # whatever the policy is
        if at_s >= 0 and pool[job]:
            one, limit_s = reserved[pool[job] - 1], int(jobs.request_s[job] * watts.slowdown[replay.level[job]])
            from_s = one.next_from_s(at_s)
            assert from_s is not None and from_s <= at_s and at_s + limit_s <= from_s + one.length_s


@pytest.mark.parametrize("part", range(4))
def test_the_engines_agree_on_a_crowded_machine_whose_cap_reservations_share(part: int) -> None:
    for seed in range(part * 15, part * 15 + 15):
        check_crowded(seed)


def check_crowded(seed: int) -> None:
    """A cap that always binds; half of the jobs have one of two reservations, which come again and again."""
    rng = np.random.default_rng(seed)
    jobs, on = crowd(rng, 12), machine(0.0, bool(seed % 2))
    caps = [Cap(0, 4000, float(rng.integers(220, 430)))]
    if seed % 3 == 0:
        caps = [Cap(at_s, at_s + 45, float(rng.integers(220, 480)), seed % 4 * 10) for at_s in (30, 90, 150, 300)]
    backfill: Backfill = ("none", "list", "easy", "easy", "conservative")[seed % 5]
    power = Power(floor_mhz=(None, 1500, 1000)[seed // 2 % 3], starts_slowed=seed % 7 > 0)
    composition = Composition(backfill=backfill, scan="shortest" if seed % 4 == 0 else "queue", power=power)
    reserved = []
    for _ in range(2):
        from_s, length_s, made_s = (int(rng.integers(*each)) for each in ((0, 60), (20, 70), (0, 30)))
        every_s = length_s + int(rng.integers(5, 40))
        reserved.append(Reserved(from_s, from_s + length_s, every_s, made_s, 300, int(rng.integers(1, 6))))
    watts = watts_of(composition, on, jobs, seed % 6 == 0)
    fits = [[at for at, one in enumerate(reserved, 1) if width <= one.width] for width in jobs.width.tolist()]
    pool = [int(rng.choice([0, *each, *each])) for each in fits]
    check_agreement(composition, jobs, watts, caps, reserved, pool, [], [0] * len(jobs))


# --- the option


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Of ten processors: jobs of 200 and 400 s, of three each, and later one of 60 s, of four."""
    path, text = tmp_path / "site.swf", "; MaxProcs: 10\n"
    for number, (submit_s, run_s, width) in enumerate([(0, 200, 3), (0, 400, 3), (95, 60, 4)], 1):
        text += f"{number} {submit_s} -1 {run_s} {width} -1 -1 {width} {run_s} -1 1 1 1 -1 1 1 -1 -1\n"
    path.write_text(text)
    return path


MACHINE = """
name = "small"
summary = "ten nodes of a core"
[[nodes]]
count = 10
cores = 1
off_w = 4
idle_w = 30
frequency_mhz = [2000, 1000]
busy_w = [100, 65]
boot_s = 0
boot_j = 0
switch_off_s = 0
switch_off_j = 0
[degradation]
default = 1.5
"""


def test_a_reservation_keeps_watts_for_its_processors_at_the_lowest_frequency(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """650 W are 350 above idle; three processors take 210 of them, or 105. Four that are reserved keep 140 until 300 s.
    So job 2 waits for job 1, which has 210, and job 3 starts in its reservation, at the lowest frequency."""
    table, on = tmp_path / "reserved.csv", tmp_path / "small.toml"
    table.write_text(COLUMNS + "90,300,,,,4,3\n")
    on.write_text(MACHINE)
    options = log, "--machine", on, "--cap", "650", "--policy", "powercap:mode=dvfs"
    found = []
    for more in ((), ("--reservations", table)):
        assert replayed(capsys, *options, *more, "--out", tmp_path / "out")[0] == 0
        found.append(starts(tmp_path / "out"))
    assert found == [{"1": "0", "2": "0", "3": "200"}, {"1": "0", "2": "200", "3": "95"}]


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("powercap", "a mode that switches nodes off"),
        ("fcfs-killer", "a reaction to caps"),
        ("powercap:mode=dvfs,metered=true", "metered=true"),
        ("energy-budget:joules=1e6,from_s=0,to_s=100", "a budget of joules"),
    ],
)
def test_what_a_reservation_cannot_be_kept_with_is_one_line(
    policy: str, problem: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "reserved.csv"
    table.write_text(COLUMNS + "90,300,,,,4,3\n")
    status, _, err = replayed(capsys, log, "--machine", "curie", "--reservations", table, "--policy", policy)
    assert status == 2 and f"{problem} does not go with reservations" in err and len(err.splitlines()) == 1
