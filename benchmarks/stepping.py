"""Stepped worlds: decisions per second, what a fork costs, and whether a searched and a trained order beat SAF.

Decisions: CTC-SP2 under ``easy``, all of the queue and of what runs observed at each, as views, and as tables of
floats; processor seconds, the median of three runs. An episode: the environment, which observes the first 64 jobs, on
windows of 1,000. A fork: 10,000 jobs wait that came at once, in a log of 20,000 jobs and of a million, or with others
between them that have ended; the fork and the first step of both worlds, processor time, the median of 51.

Baselines: weights are trained on windows of CTC-SP2 with several seeds, the seed is chosen on windows of SDSC-SP2, and
all is judged on windows of KTH-SP2 and SDSC-BLUE, which trained and chose nothing. A window is 1,000 jobs on an empty
machine. Figures: the mean bounded slowdown, and the geometric mean of its ratio to SAF's in the same window, with the
number of windows in which it is lower, and equal. The trained order and SAF are judged on the whole logs, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.experiment import save
from benchmarks.replay_exact import DATA
from benchmarks.sc15_learned import workload_of
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import run
from cluster_agent.scheduler.job_columns import Float64s, Int64s, Jobs
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.stepping import learned
from cluster_agent.stepping.environment import Backfilling
from cluster_agent.stepping.searched import search
from cluster_agent.stepping.steps import Steps
from tests.cluster_agent.worlds import workload_of as made_workload

LEAST_PER_S, MOST_FORK_MS, WAITING = 50_000, 1.0, 10_000
FORKED = ("easy", "easy-sjbf", "score:lowest=saf", "wfp3", "conservative")
TRAINED_ON, CHOSEN_ON, JUDGED_ON = "CTC-SP2", "SDSC-SP2", ("KTH-SP2", "SDSC-BLUE")
WINDOW, JUDGED_WINDOWS, JUDGED_SEED = 1000, 16, 2026
ORDERS = ("score:lowest=saf", "easy", "score:lowest=sjf", "wfp3", "score:lowest=unicep")
"""Those that the search tries; among equals the first decides."""
EVERY_S = 3600
SAF, TRAINED, SEARCHED = "saf", "trained: ", "searched"
"""Names of rows; the others are policies."""


class Row(msgspec.Struct, frozen=True):
    """One figure."""

    what: str
    value: float
    unit: str
    bound: float | None = None


def policy(text: str) -> Composition:
    return choose(text).composition


def nobody(_steps: Steps, _start_s: Int64s) -> None:
    """The agent that never starts a job."""


def what_easy_starts(steps: Steps, start_s: Int64s) -> None:
    job = steps.queue["job"]
    if len(now := job[start_s[job] == steps.now_s]):
        steps.start(now)


def the_head(steps: Steps, _start_s: Int64s) -> None:
    steps.order([0])


def as_floats(steps: Steps) -> tuple[Float64s, Float64s]:
    """All of the queue and of what runs as tables of floats: waits, estimates and widths; times left and widths."""
    return steps.tables()


def as_views(steps: Steps) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    return steps.queue, steps.running


def decisions(world: World, repeats: int) -> list[Row]:
    easy, rows = policy("easy"), []
    start_s = run(world, easy).start_s
    for agent in (nobody, what_easy_starts, the_head):
        for observe in (as_views, as_floats):
            if (agent, observe) == (nobody, as_floats):
                continue  # 77,199 jobs wait at the end: that would time NumPy
            rows.append(_decisions(world, easy, start_s, agent, observe, repeats))
    return rows


def _decisions(
    world: World,
    easy: Composition,
    start_s: Int64s,
    agent: Callable[[Steps, Int64s], None],
    observe: Callable[[Steps], object],
    repeats: int,
) -> Row:
    rates = []
    for _ in range(repeats):
        begun_s, count = time.process_time(), 0
        steps = Steps(world, easy)
        while not steps.is_over:
            observe(steps)
            agent(steps, start_s)
            steps.advance()
            count += 1
        rates.append(count / (time.process_time() - begun_s))
        if agent is not nobody:
            assert (steps.wait_s == (start_s - world.jobs.submit_s)[steps.started]).all()
    what = f"{agent.__name__}, queue {observe.__name__}, {count} decisions"
    return Row(what, statistics.median(rates), "decisions/s", LEAST_PER_S)


def episodes(world: World, repeats: int) -> Row:
    """The gymnasium environment, the head chosen at each decision."""
    environment, rates = Backfilling(world, window=1000), []
    for seed in range(repeats):
        environment.reset(seed=seed)
        begun_s, count, ended = time.process_time(), 0, False
        while not ended:
            _, _, ended, _, _ = environment.step(np.int64(0))
            count += 1
        rates.append(count / (time.process_time() - begun_s))
    return Row(f"an episode of gymnasium, {count} decisions", statistics.median(rates), "decisions/s")


def crowded(n: int) -> World:
    """Jobs of which 10,000 come at once."""
    random = np.random.default_rng(1)
    submit_s = np.cumsum(random.exponential(60, n)).astype(np.int64)
    submit_s[100 : 100 + WAITING + 200] = submit_s[100]
    run_s, width = random.integers(60, 40_000, n), 2 ** random.integers(0, 7, n)
    user = random.integers(0, 500, n).astype(np.int32)
    jobs = Jobs(np.arange(n), np.sort(submit_s), run_s, 3 * run_s, width.astype(np.int32), user)
    return World(made_workload(jobs, 1024))


def scattered(n: int) -> World:
    """Of four jobs that come one after the other three are short and narrow, and soon over; the fourth waits."""
    random = np.random.default_rng(1)
    waits = np.arange(n) % 4 == 0
    width = np.where(waits, random.integers(600, 1025, n), 1).astype(np.int32)
    run_s = np.where(waits, random.integers(50_000, 90_000, n), 1)
    request_s = run_s * np.where(waits, random.integers(1, 4, n), 1)
    jobs = Jobs(np.arange(n), np.arange(n), run_s, request_s, width, np.zeros(n, np.int32))
    return World(made_workload(jobs, 1024))


def forks(n: int, text: str, made: Callable[[int], World] = crowded) -> Row:
    steps = Steps(made(n), policy(text))
    while len(steps.queue) < WAITING:
        steps.decide()
        steps.advance()
    times_ms = []
    for _ in range(51):
        begun_s = time.thread_time()
        fork = steps.fork()
        for one in (fork, steps):
            one.decide()
            one.advance()
        times_ms.append(1000 * (time.thread_time() - begun_s))
    return Row(
        f"{text}, {made.__name__}, {len(steps.queue)} of {n} jobs wait", statistics.median(times_ms), "ms", MOST_FORK_MS
    )


class Judged(msgspec.Struct, frozen=True):
    """Mean bounded slowdowns; of windows, against SAF in the same ones."""

    log: str
    policy: str
    ave_bsld: float
    ratio: float
    lower_in: int
    equal_in: int
    windows: int
    longest_wait_h: float


def slowdowns(world: World, start_s: Int64s) -> float:
    return float(bounded_slowdown(start_s - world.jobs.submit_s, world.jobs.run_s).mean())


def judged(log: str, count: int, rules: dict[str, Callable[[World], Int64s]]) -> list[Judged]:
    """The first rule is SAF."""
    world = World(workload_of(log))
    firsts = np.random.default_rng(JUDGED_SEED).integers(0, len(world.jobs) - WINDOW + 1, count).tolist()
    windows = [world.only(np.arange(first, first + WINDOW)) for first in firsts]
    rows, base = [], np.empty(0)
    for name, rule in rules.items():
        starts = [rule(one) for one in windows]
        each = np.array([slowdowns(one, start_s) for one, start_s in zip(windows, starts, strict=True)])
        base = each if not len(base) else base
        longest_s = max(int((s - one.jobs.submit_s).max()) for one, s in zip(windows, starts, strict=True))
        ratio = float(np.exp(np.log(each / base).mean()))
        rows.append(
            Judged(
                log,
                name,
                float(each.mean()),
                ratio,
                int((each < base).sum()),
                int((each == base).sum()),
                count,
                longest_s / 3600,
            )
        )
    return rows


def replayed(text: str) -> Callable[[World], Int64s]:
    return lambda world: run(world, policy(text)).start_s


def rule_of(name: str) -> Callable[[World], Int64s]:
    """What a row's name stands for: SAF, the search, a formula that was trained, or a policy."""
    if name == SEARCHED:
        orders = [policy(text) for text in ORDERS]
        return lambda world: search(world, orders, EVERY_S)[0]
    return replayed(f"score:lowest={name.removeprefix(TRAINED)}" if name == SAF or name.startswith(TRAINED) else name)


def trained(seeds: int, windows: int, generations: int) -> tuple[str, list[Judged]]:
    """The formula of the seed that is best on the log that chooses, and what was found there."""
    at = learned.windows(World(workload_of(TRAINED_ON)), 512, windows, seed=1)
    found = [list(learned.train(at, seed, generations, 16))[-1][0] for seed in range(1, seeds + 1)]
    rules = {"saf": replayed("score:lowest=saf"), **{one: replayed(f"score:lowest={one}") for one in found}}
    rows = judged(CHOSEN_ON, JUDGED_WINDOWS // 2, rules)
    return min(rows[1:], key=lambda row: row.ratio).policy, rows


def show(rows: Sequence[Judged]) -> None:
    for row in rows:
        print(
            f"  {row.log:10} {row.policy:78} {row.ave_bsld:8.2f} {row.ratio:6.3f} {row.lower_in:3} lower,"
            f" {row.equal_in} equal of {row.windows} {row.longest_wait_h:7.1f} h",
            flush=True,
        )


def baselines(is_quick: bool) -> list[Judged]:
    print(f"\ntrained on {TRAINED_ON}, chosen on {CHOSEN_ON}: slowdown, its ratio to SAF's, lower in, longest wait")
    formula, chosen = trained(1 if is_quick else 2, 4 if is_quick else 12, 2 if is_quick else 8)
    show(chosen)
    rules = {name: rule_of(name) for name in (SAF, *ORDERS[1:], f"{TRAINED}{formula}", SEARCHED)}
    print("judged, windows")
    rows = []
    for log in JUDGED_ON[: 1 if is_quick else None]:
        rows += judged(log, 2 if is_quick else JUDGED_WINDOWS, rules)
        show(rows[-len(rules) :])
    print("judged, whole logs: slowdown, longest wait")
    for log in JUDGED_ON[: 1 if is_quick else None]:
        world = World(workload_of(log))
        for text in (*ORDERS, f"score:lowest={formula}"):
            start_s = run(world, policy(text)).start_s
            longest_h = (start_s - world.jobs.submit_s).max() / 3600
            print(f"  {log:10} {text:78} {slowdowns(world, start_s):8.2f} {longest_h:7.1f} h", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each, few windows")
    parser.add_argument("--only", choices=("speed", "baselines"), help="one half")
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print("stepping: no logs, ../shared/data/sc15-backfilling is not here", file=sys.stderr)
        return 2
    speed: list[Row] = []
    if options.only != "baselines":
        print(f"load {os.getloadavg()[0]:.0f}")
        speed = decisions(World(workload_of("CTC-SP2")), 1 if options.quick else 3)
        sizes = (20_000,) if options.quick else (20_000, 1_000_000)
        speed.append(episodes(World(workload_of("CTC-SP2")), 1 if options.quick else 9))
        speed += [forks(n, text) for n in sizes for text in FORKED]
        speed += [forks(44_000, text, scattered) for text in FORKED]
    for row in speed:
        is_met = row.bound is None or (row.value <= row.bound if row.unit == "ms" else row.value >= row.bound)
        bound = "" if row.bound is None else f", bound {row.bound:,g}{'' if is_met else '   NOT MET'}"
        print(f"  {row.what:60} {row.value:12,.2f} {row.unit}{bound}")
    rows = [] if options.only == "speed" else baselines(options.quick)
    save("stepping", {"speed": speed, "baselines": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
