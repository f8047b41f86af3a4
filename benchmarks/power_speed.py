"""What power-aware policies cost: each against EASY that is only metered, on the same log, machine and path.

CEA-Curie (295 k jobs) on ``curie``. Budgets of 70 % of the full machine's joules for 30 days, by the day on which they
begin; caps of 62 % of its watts that never end, under which thousands of jobs wait; and three windows of one hour,
announced from the start. Each replay of a policy stands between two of EASY, and its processor seconds are divided by
their mean, so that a machine that is slower for a while is so for both. Reading the log and writing files are not in
it; ``scheduler_speed`` has them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf

ROOT = Path(__file__).parent.parent
TRACE = ROOT.parent / "shared" / "data" / "sc15-backfilling" / "CEA-Curie.swf.gz"
OUT = ROOT / "out" / "bench" / "power_speed.json"

MOST_TIMES_EASY: Final = 3.0
BUDGET, ALWAYS, WINDOWS = 0.7, 0.62, (0.4, 0.6, 0.8)
DAYS: Final = 30
DAY_S: Final = 86400
IDLE_OFF: Final = "idle_off_s=300"


class Row(msgspec.Struct, frozen=True):
    """Medians of processor seconds, and of the ratios."""

    what: str
    easy_s: float
    policy_s: float
    times: float

    @property
    def is_met(self) -> bool:
        return self.times <= MOST_TIMES_EASY


class Case(msgspec.Struct, frozen=True):
    """A policy under caps, and the metered policy that it is compared with."""

    what: str
    policy: str
    caps: Sequence[Cap] = ()
    against: str = "easy"


def cases(machine: Machine, first_s: int) -> list[Case]:
    """All of them, by what is stated above."""
    always = [Cap(first_s, FOREVER_S, ALWAYS * machine.full_w)]
    windows = [
        Cap(first_s + day * DAY_S, first_s + day * DAY_S + 3600, share * machine.full_w)
        for day, share in zip((60, 120, 180), WINDOWS, strict=True)
    ]
    joules = BUDGET * machine.full_w * DAYS * DAY_S

    def budget(rule: str, day: int, more: str = "") -> str:
        from_s = first_s + day * DAY_S
        window = f"joules={joules:.0f},from_s={from_s},to_s={from_s + DAYS * DAY_S}"
        return f"energy-budget:rule={rule},{window}{more}"

    found = [Case(f"energybud, day {day}", budget("energybud", day)) for day in (0, 120, 180, 210)]
    found += [Case(f"{rule}, day 120", budget(rule, 120)) for rule in ("reducepc", "powercap")]
    found.append(
        Case("energybud, day 120, idle off", budget("energybud", 120, f",{IDLE_OFF}"), against=f"easy:{IDLE_OFF}")
    )
    for mode in ("idle", "shut", "dvfs", "mix"):
        found += [Case(f"{mode}, always", f"powercap:mode={mode}", always)]
        found += [Case(f"{mode}, windows", f"powercap:mode={mode}", windows)]
    for name in ("eco", "fcfs-killer"):
        found.append(Case(f"{name}, windows", f"{name}:queue=easy", windows))
    return found


def measured(case: Case, jobs: Jobs, machine: Machine, repeats: int) -> Row:
    """EASY, the policy, EASY, the policy, ..., EASY."""
    easy_s, policy_s = [seconds(case.against, (), jobs, machine)], []
    for _ in range(repeats):
        policy_s.append(seconds(case.policy, case.caps, jobs, machine))
        easy_s.append(seconds(case.against, (), jobs, machine))
    times = [2 * policy_s[i] / (easy_s[i] + easy_s[i + 1]) for i in range(repeats)]
    return Row(case.what, statistics.median(easy_s), statistics.median(policy_s), statistics.median(times))


def seconds(policy: str, caps: Sequence[Cap], jobs: Jobs, machine: Machine) -> float:
    """Processor seconds of the replay alone."""
    composition = choose(policy).composition
    watts = Watts.of(machine, composition.power)
    begin_s = time.process_time()
    NativeReplay(composition, jobs, machine.processors, watts, caps).run(len(jobs) + 1)
    return time.process_time() - begin_s


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("only", nargs="*", help="cases whose name contains one of these")
    options = parser.parse_args(arguments)
    if not TRACE.exists():
        print("power_speed: skipped, ../shared/data/sc15-backfilling is not here", file=sys.stderr)
        return 0
    machine = load_machine("curie")
    jobs = prepare(read_swf(str(TRACE)), machine.processors).jobs
    found = []
    print(f"{'policy':32} {'EASY':>7} {'policy':>7} {'times EASY':>11}   at most {MOST_TIMES_EASY:g}")
    for case in cases(machine, int(jobs.submit_s[0])):
        if options.only and not any(word in case.what for word in options.only):
            continue
        row = measured(case, jobs, machine, options.repeats)
        found.append(row)
        mark = "" if row.is_met else "   NOT MET"
        print(f"{row.what:32} {row.easy_s:6.2f}s {row.policy_s:6.2f}s {row.times:11.2f}{mark}", flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    return 0 if all(row.is_met for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
