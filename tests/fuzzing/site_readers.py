"""Readers of what a site writes: caps, budgets, shares, machines, campaigns, settings, watts, plans and event logs."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster_agent.campaigns.campaign_grid import read_campaign
from cluster_agent.cap_steps import FOREVER_S, MOST_CORES, cores_of, read_caps
from cluster_agent.cluster import MOST_W, load_machine
from cluster_agent.errors import ClusterError
from cluster_agent.replay import plan_file
from cluster_agent.replay.event_log import VERSION, EventLog, Header, Setting, write_log
from cluster_agent.replay.simulated import SimulatedMachine
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.orders.priority import read_accounts
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.serve.config import read_settings
from cluster_agent.serve.live_budget.budget_schedule import read_schedule
from cluster_agent.workloads import job_watts
from cluster_agent.workloads.job_log import LONGEST_S, prepare
from cluster_agent.workloads.moldable_trace import read_tables
from cluster_agent.workloads.swf import read_swf
from foundation.shell.errors import NodectlError
from foundation.shell.settings import read_toml
from nodectl.config import build_config
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, jobs_of
from tests.fuzzing.fuzzer import REFUSED, Reader, sound
from tests.fuzzing.job_readers import SWF
from tests.fuzzing.parsers import CLUSTER, NODE


def _caps(path: Path) -> Any:
    caps = read_caps(str(path))
    sound(all(0 <= one.from_s < one.to_s <= FOREVER_S and 0 <= one.watts < math.inf for one in caps), "no cap")
    sound(all(one.to_s <= after.from_s for one, after in itertools.pairwise(caps)), "two caps at once")
    return [[one.from_s, one.to_s, one.watts, one.announced_s] for one in caps]


def _cores(path: Path) -> Any:
    steps = cores_of(str(path), path.read_bytes())
    sound(all(before[0] < after[0] for before, after in itertools.pairwise(steps)), "steps out of order")
    sound(all(0 <= at_s <= FOREVER_S and 0 <= cores < MOST_CORES for at_s, cores in steps), "no cores")
    return steps


def _schedule(path: Path) -> Any:
    steps = read_schedule(path)
    sound(all(before[0] < after[0] for before, after in itertools.pairwise(steps)), "steps out of order")
    sound(all(mw > 0 for _, mw in steps), "no budget")
    return steps


def _shares(path: Path) -> Any:
    accounts = read_accounts(str(path))
    sound(all(one.share > 0 and one.efficiency > 0 for one in accounts.values()), "a share of nothing")
    return [[user, list(one)] for user, one in accounts.items()]


MACHINE: Final = """\
name = "site"
summary = "8 nodes, 4 with GPUs"
[[nodes]]
name = "cpu"
count = 4
cores = 16
memory_gb = 64
off_w = 10.0
idle_w = 60.0
frequency_mhz = [2400, 1200]
busy_w = [200.0, 120.0]
boot_s = 100
[[nodes]]
name = "gpu"
count = 4
cores = 16
gpus = 2
idle_w = 60.0
gpu_w = 100.0
[topology]
nodes_per_chassis = 4
chassis_w = 100.0
[degradation]
default = 1.5
"""


def _machine(path: Path) -> Any:
    machine = load_machine(str(path))
    sound(0 < machine.processors <= 2**31 - 1 and 0 <= machine.idle_w < MOST_W * machine.nodes * 4, "no machine")
    return [machine.name, machine.processors, machine.idle_w, machine.slowdowns()]


CAMPAIGN: Final = """\
policies = ["easy", "easy-sjbf:estimate=mean2,correct=incremental"]
traces = ["log.swf"]
machines = ["", "512"]
caps = ["", 1000.0]
seeds = [1, 2]
[[published]]
trace = "log"
policy = "easy"
AVEbsld = 92.6
jobs = 28481
"""


def _campaign(path: Path) -> Any:
    listed = read_campaign(path)
    sound(bool(listed.policies and listed.seeds), "an empty list")
    return [listed.policies, listed.traces, listed.machines, listed.seeds]


def _node_settings(path: Path) -> Any:
    return bool(build_config(read_toml(path)[1], lambda key: f"{path}: {'.'.join(key)}"))


def _cluster_settings(path: Path) -> Any:
    return bool(read_settings(path))


@cache
def _small_log() -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".swf") as file:
        file.write(SWF)
        file.flush()
        return prepare(read_swf(file.name), 64)


@cache
def _taurus() -> Watts:
    return Watts.of(load_machine("taurus"), None)


def watts_of(path: Path) -> Any:
    """Microwatts of each job of a small log."""
    uw = job_watts.read_job_watts(str(path), _small_log(), _taurus()).uw
    sound(bool((uw > 0).all()), "fewer watts than idle")
    return uw.tolist()


CONFIGURATIONS: Final = """\
application,nodes,cores,cap_w,time_s,watts
1,1,8,80,100.5,160
1,2,8,80,60,300
2,1,16,100,300,200
"""


def _configurations(path: Path) -> Any:
    tables = read_tables(str(path))
    rows = [row for of_application in tables.true.values() for row in of_application]
    sound(all(min(row.nodes, row.cores, row.cap_w, row.time_s, row.watts) > 0 for row in rows), "no configuration")
    sound(all(max(row.cap_w, row.time_s, row.watts) <= MOST_W for row in rows), "more than any node")
    return [[row.nodes, row.cores, row.cap_w, row.time_s, row.watts] for row in rows]


PLAN: Final = (
    '{"plan":1,"sha256":"ab","policy":"planned","machine":null,"cap":null,"instance":null}\n'
    '[0,"planner","",[[0,[[0,1],[1,1]]]]]\n[60,"list","late: 2 s",[]]\n'
)
EVENTS: Final = '{"event_log":%d,"setting":{"trace":"a.swf","policy":"easy"},"sha256":"ab"}\n["advance",0,true]\n'


def _plan(path: Path) -> Any:
    outcomes = plan_file.read(str(path), Setting("a.swf", "planned"), "ab")
    sound(all(0 <= one.now_s <= LONGEST_S for one in outcomes), "no time")
    return [[one.now_s, one.decided_by, one.reason] for one in outcomes]


def _events(path: Path) -> Any:
    log = EventLog(str(path))
    return [log.setting, log.sha256]


EASY: Final = Composition(backfill="easy")
THREE: Final = jobs_of([(0, 9, 9, 6, 0), (1, 9, 9, 6, 0), (2, 3, 3, 2, 0)])


@cache
def _decisions() -> str:
    """An event log of three jobs under EASY."""
    whole = NativeReplay(EASY, THREE, PROCESSORS)
    whole.run(EVERYTHING_ENDED)
    with tempfile.TemporaryDirectory() as folder:
        path, scheduler = str(Path(folder, "log")), NativeScheduler(EASY, THREE, PROCESSORS)
        machine = SimulatedMachine(THREE, EASY.ties)
        write_log(path, Header(VERSION, Setting("a.swf", "easy"), "ab"), scheduler, machine, whole.start_s)
        return Path(path).read_text().strip()


def _checked(path: Path) -> Any:
    return EventLog(str(path)).check(NativeScheduler(EASY, THREE, PROCESSORS), len(THREE))


def _true_decisions(rng: random.Random) -> tuple[str, Any]:
    """The log as it is, or with one decision or event that is another: which must be seen."""
    lines = _decisions().split("\n")
    if rng.random() < 0.3:
        return "\n".join(lines), len(lines) - 1
    at = rng.choice([at for at, line in enumerate(lines) if at and line[:7] in ('["pass"', '["subm', '["end",')])
    line = msgspec.json.decode(lines[at])
    if line[0] == "pass":
        line[2] = [] if line[2] else [[rng.randrange(3), 0, line[1] + 9]]
        if rng.random() < 0.3 and lines[at] != msgspec.json.encode(["pass", line[1], []]).decode():
            line[2] = [[0, 0, 10**6]]
    else:
        line[2] = rng.choice((line[2] + 3, -1, 10**9))
    lines[at] = msgspec.json.encode(line).decode()
    return "\n".join(lines), REFUSED


def of_sites() -> dict[str, Reader]:
    """By name."""
    from cluster_agent.replay.event_log import VERSION

    trouble = (ClusterError,)
    node, cluster = NODE.decode(), CLUSTER.decode()
    return {
        "caps": Reader(
            ("from_s,watts\n0,20000\n100,15000\n200,\n", "from_s,to_s,watts,announced_s\n7200,10800,1200,0\n"),
            _caps, trouble, ",",
        ),
        "profile of cores": Reader(
            ("from_s,watts,cores\n0,20000,960\n3600,,1.5\n# night\n7200,0,0\n",), _cores, trouble, ",",
        ),
        "budget": Reader(
            ("time,watts\n2030-01-31T08:00:00+01:00,12000\n2030-02-01T08:00:00+01:00,9000\n", "1e9,500\n2e9,600\n"),
            _schedule, trouble, ",",
        ),
        "shares": Reader(("user,share,efficiency\n1,2,1.5\n7,1,1\n", "user,share\n1,2\n"), _shares, trouble, ","),
        "job watts": Reader(("job,watts\n1,30.5\n2,70\n", "job_id,watts\n3,9\n"), watts_of, trouble, ","),
        "configurations": Reader((CONFIGURATIONS,), _configurations, trouble, ","),
        "machine": Reader((MACHINE,), _machine, trouble),
        "campaign": Reader((CAMPAIGN,), _campaign, trouble),
        "plan": Reader((PLAN,), _plan, trouble),
        "event log": Reader((EVENTS % VERSION,), _events, trouble),
        "decisions of an event log": Reader((_decisions(),), _checked, trouble, truth=_true_decisions),
        "node settings": Reader((node,), _node_settings, (NodectlError,)),
        "cluster settings": Reader((cluster,), _cluster_settings, (NodectlError,)),
    }  # fmt: skip
