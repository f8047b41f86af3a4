"""Every reader of a file that somebody else wrote, with files that are nearly right: a fast loop in one process.

Files come from ``foreign_files``. A reader takes one, or refuses it in one plain line that names the file. What it
takes is checked: watts, seconds and counts that a machine can have. A file that is only encoded in another way must
give the same as the plain one, and one of known meaning exactly that (``Reader.truth``).

    python -m tests.fuzzing.readers 1000000|60s [SEED] [NAME]...     # so many files of each reader, or for so long
"""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from calibration.gpu_table.clock_sweep import Row as GpuRow
from calibration.gpu_table.gpu_table import GpuTable, read_gpu_table, write_gpu_table
from calibration.table.table_exchange import table_from_csv
from calibration.table.table_file import read_table, write_table
from cluster_agent.cap_steps import FOREVER_S, read_caps
from cluster_agent.cluster import MOST_W, load_machine
from cluster_agent.commands.replays.campaign import read_campaign
from cluster_agent.errors import ClusterError
from cluster_agent.replay import plan_file
from cluster_agent.replay.event_log import EventLog, Setting
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.orders.priority import read_accounts
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.serve.budget_schedule import read_schedule
from cluster_agent.serve.config import read_settings
from cluster_agent.workloads import eurora, job_watts
from cluster_agent.workloads.job_log import LONGEST_S, machine_of, prepare
from cluster_agent.workloads.moldable_trace import read_tables
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.sacct import MOST_NODE_W, read_sacct
from cluster_agent.workloads.state_file import read_state
from cluster_agent.workloads.swf import read_swf
from cluster_agent.workloads.text_tables import has_nodes
from foundation.sealed_file import SEAL, sealed
from foundation.shell.errors import NodectlError
from foundation.shell.log import LONGEST_LINE, one_line
from foundation.shell.settings import read_toml
from nodectl.calibrated.node_calibration import read_head
from nodectl.calibrated.node_identity import Identity
from nodectl.config import build_config
from tests.fuzzing.foreign_files import broken, damaged, encoded, true_sacct, true_swf
from tests.fuzzing.goal import Goal
from tests.fuzzing.parsers import CLUSTER, NODE, is_finite
from twin.errors import TwinError
from twin.fit.sweep import read_sweep
from twin.machine import MACHINES
from twin.machine import load_machine as load_twin
from twin.physics.families import trace_table
from twin.programs.workload import WorkloadTable
from twin.toml_table import read_toml as read_twin_toml

A_PART: Final = 500
"""Ours: files between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Reader:
    """``seeds``: valid texts. ``read`` returns what it took, or raises one of ``refusals``. ``between``: what separates
    the cells of a table; "" for TOML and JSON. ``truth``: a text and what must be read from it. ``has_seal``: its last
    line is a digest of the text. ``cost``: how many times the time of the others a file takes."""

    seeds: tuple[str, ...]
    read: Callable[[Path], Any]
    refusals: tuple[type[BaseException], ...]
    between: str = ""
    truth: Callable[[random.Random], tuple[str, Any]] | None = None
    has_seal: bool = False
    cost: int = 1


def _sound(is_so: bool, what: str) -> None:
    """What was taken must be something that a machine can have."""
    if not is_so:
        raise AssertionError(what)


# --- job logs

NODES: Final = Nodes(np.array([[16, 2, 1, 64 << 20]] * 8, np.int64), 100.0, 50.0, 20.0)

SWF: Final = """\
; Version: 2.2
; MaxProcs: 64
; UnixStartTime: 1700000000
1 0 0 100 4 -1 -1 4 600 -1 1 1 1 -1 1 -1 -1 -1
2 10 20 300 8 -1 -1 8 600 -1 1 2 1 -1 1 -1 -1 -1
2 10 20 100 8 -1 -1 8 600 -1 2 2 1 -1 1 -1 -1 -1
3 15 5 60 1 -1 1024 1 -1 2048 5 2 1 -1 1 -1 2 10
"""


def _swf(path: Path) -> Any:
    log = read_swf(str(path))
    _sound(log.columns.shape[1] == len(log.lines) > 0, "a log without jobs")
    work = prepare(log, 64, needs_requests=False)
    jobs = work.jobs
    _sound(bool((jobs.run_s > 0).all() and (jobs.request_s >= jobs.run_s).all()), "a run beyond its request, or of 0 s")
    _sound(bool((jobs.submit_s >= 0).all() and (np.diff(jobs.submit_s) >= 0).all()), "submissions out of order")
    _sound(bool((jobs.width > 0).all() and (jobs.width <= 64).all()), "wider than the machine")
    _sound(int(max(jobs.submit_s.max(), jobs.request_s.max())) <= LONGEST_S, "too long")
    columns = ("number", "submit_s", "run_s", "request_s", "width", "user")
    return [machine_of(log), *(getattr(jobs, name).tolist() for name in columns)]


SACCT: Final = """\
JobID|JobName|User|Account|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|NNodes|NCPUS|ReqMem|AllocTRES|\
ConsumedEnergyRaw
700|cl|ana|p1|batch|2025-06-01T10:00:00|2025-06-01T10:00:10|2025-06-01T11:00:10|3600|120|COMPLETED|2|32|64G|\
cpu=32,mem=64G,node=2,gres/gpu:a100=4,gres/gpu=4|1460000
700.batch|batch||p1||2025-06-01T10:00:10|2025-06-01T10:00:10|2025-06-01T11:00:10|3600||COMPLETED|1|16||cpu=16|20000
700.extern|extern||p1||2025-06-01T10:00:10|2025-06-01T10:00:10|2025-06-01T11:00:10|3600||COMPLETED|2|32||cpu=32|720000
700.0|app||p1||2025-06-01T10:00:10|2025-06-01T10:00:10|2025-06-01T11:00:10|3600||COMPLETED|2|32||cpu=32|720000
400+1|a|ben|p1|gpu|2025-06-01T10:05:00|2025-06-01T10:30:00|2025-06-01T11:30:00|3600|120|CANCELLED by 7|1|16|4Gn||
7_2|a|ben|p1|gpu|2025-06-01T10:06:00|Unknown|Unknown|0|UNLIMITED|PENDING|1|16|1000Mc||0
"""


def _node_jobs(trace: NodeTrace) -> list[Any]:
    jobs = trace.jobs
    _sound(bool(np.isfinite(jobs.watts).all() and (jobs.watts >= 0).all()), "watts that are none")
    limit_w = MOST_NODE_W * jobs.units
    _sound(
        not trace.is_measured or bool((jobs.watts[jobs.knows_watts] <= limit_w[jobs.knows_watts]).all()), "too many W"
    )
    _sound(bool((jobs.need >= 0).all() and (jobs.units > 0).all()), "less than nothing")
    _sound(bool((jobs.need * jobs.units[:, None] < 1 << 62).all()), "more than 64 bits")
    _sound(bool((jobs.jobs.run_s > 0).all() and (trace.wait_s >= 0).all()), "a run or wait of less than nothing")
    _sound(bool((jobs.jobs.request_s >= jobs.jobs.run_s).all()), "a run beyond its request")
    _sound(bool((np.diff(jobs.jobs.submit_s) >= 0).all() and jobs.jobs.submit_s[0] >= 0), "submissions out of order")
    _sound(int(max(jobs.jobs.request_s.max(), trace.wait_s.max())) <= LONGEST_S, "too long")
    _sound(all(one.isprintable() for one in (*trace.text, *trace.user, *jobs.name, *jobs.queue)), "odd characters")
    known = [float(w) if k else None for w, k in zip(jobs.watts, jobs.knows_watts, strict=True)]
    return [
        list(one)
        for one in zip(
            jobs.name, jobs.jobs.submit_s.tolist(), trace.wait_s.tolist(), jobs.jobs.run_s.tolist(),
            jobs.units.tolist(), jobs.need.tolist(), known, strict=True,
        )
    ]  # fmt: skip


def _sacct(path: Path) -> Any:
    has_nodes(str(path))
    return _node_jobs(read_sacct(str(path)).on(NODES, UNCAPPED))


EURORA: Final = """\
job,queue,submit,start,end,req_nodes,req_cores,cores,gpus,mics,mem_kb,walltime_s,app,nodes,predicted_power_w
1,debug,2014-03-31 09:18:17,2014-03-31 13:18:02,2014-03-31 13:45:01,1,8,8,0,0,14680064,14400,0,7,
2,parallel,2014-03-31 12:41:32,2014-03-31 13:20:02,2014-03-31 17:18:30,1,8,8,1,0,6291456,14400,0,49 50,129.0
"""
PROFILE: Final = "profile,offset_s,cap_w\na,0,1500\na,600,1000\nb,0,2000\n"
SYSTEMS: Final = "system,cores,gpus,mics,mem_kb\nbig,16,2,0,33554432\nbig,16,0,2,33554432\n"
QUEUES: Final = "queue,max_wait_s\ndebug,3600\nparallel,21600\n"


def _jobs_of_eurora(path: Path) -> Any:
    return _node_jobs(eurora.read_jobs(str(path)).on(NODES, UNCAPPED))


def _profile(path: Path) -> Any:
    cap = eurora.read_cap_profile(str(path), "a")
    _sound(all(one > 0 for one in cap.watts) and list(cap.time_s) == sorted(set(cap.time_s)), "a cap that is none")
    return [list(cap.time_s), [one if math.isfinite(one) else None for one in cap.watts]]


def _systems(path: Path) -> Any:
    nodes = eurora.read_nodes(str(path), "big")
    _sound(bool((nodes.has >= 0).all()), "less than nothing")
    return nodes.has.tolist()


def _queues(path: Path) -> Any:
    found = eurora.read_queues(str(path))
    _sound(all(0 <= one <= LONGEST_S for one in found.values()), "a wait that is none")
    return found


STATE: Final = (
    '{"version":1,"source":"replay","policy":"easy","t0_s":100,"processors":8,"jobs":[\n'
    '{"job":1,"submit_s":0,"width":4,"request_s":600,"start_s":0,"run_s":500},\n'
    '{"job":2,"submit_s":10,"width":8,"request_s":600,"user":3}\n]}'
)


def _state(path: Path) -> Any:
    return read_state(str(path))[0]


# --- caps, budgets, machines


def _caps(path: Path) -> Any:
    caps = read_caps(str(path))
    _sound(all(0 <= one.from_s < one.to_s <= FOREVER_S and 0 <= one.watts < math.inf for one in caps), "no cap")
    _sound(all(one.to_s <= after.from_s for one, after in itertools.pairwise(caps)), "two caps at once")
    return [[one.from_s, one.to_s, one.watts, one.announced_s] for one in caps]


def _schedule(path: Path) -> Any:
    steps = read_schedule(path)
    _sound(all(before[0] < after[0] for before, after in itertools.pairwise(steps)), "steps out of order")
    _sound(all(mw > 0 for _, mw in steps), "no budget")
    return steps


def _shares(path: Path) -> Any:
    accounts = read_accounts(str(path))
    _sound(all(one.share > 0 and one.efficiency > 0 for one in accounts.values()), "a share of nothing")
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
    _sound(0 < machine.processors <= 2**31 - 1 and 0 <= machine.idle_w < MOST_W * machine.nodes * 4, "no machine")
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
    _sound(bool(listed.policies and listed.seeds), "an empty list")
    return [listed.policies, listed.traces, listed.machines, listed.seeds]


def _node_settings(path: Path) -> Any:
    return bool(build_config(read_toml(path)[1], lambda key: f"{path}: {'.'.join(key)}"))


def _cluster_settings(path: Path) -> Any:
    return bool(read_settings(path))


# --- tables


@cache
def _small_log() -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".swf") as file:
        file.write(SWF)
        file.flush()
        return prepare(read_swf(file.name), 64)


@cache
def _taurus() -> Watts:
    return Watts.of(load_machine("taurus"), None)


def _watts(path: Path) -> Any:
    uw = job_watts.read_job_watts(str(path), _small_log(), _taurus()).uw
    _sound(bool((uw > 0).all()), "fewer watts than idle")
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
    _sound(all(min(row.nodes, row.cores, row.cap_w, row.time_s, row.watts) > 0 for row in rows), "no configuration")
    _sound(all(max(row.cap_w, row.time_s, row.watts) <= MOST_W for row in rows), "more than any node")
    return [[row.nodes, row.cores, row.cap_w, row.time_s, row.watts] for row in rows]


IDENTITY: Final = Identity("cpu", "0x1", 1, 8, 16, "fw", "6.1", "intel_pstate", ("gpu",), "550", "n0")
SWEEP: Final = "kernel,level,cores,khz,units_per_s,package_w,node_w\n" + "".join(
    f"{kernel},all,8,{khz},{khz / 1e5:.1f},{40 + khz / 1e5:.1f},{90 + khz / 1e5:.1f}\n"
    for kernel in ("compute", "memory")
    for khz in (1_000_000, 2_000_000, 3_000_000)
)
CARD: Final = "workload,card,clock_mhz,power_w,time_s,suspect\n# measured\n" + "".join(
    f"gemm,a,{mhz},{100 + mhz / 10:.1f},{10_000 / mhz:.2f},\n" for mhz in (800, 1000, 1200, 1400)
)
TRACE: Final = "unit,phase,seconds,beta,activity\ncpu,one,1.0,0.5,0.5\ncpu,two,2.0,0.2,0.9\n"


def _external_sweep(path: Path) -> Any:
    table = table_from_csv(path, IDENTITY, "2026-01-01", "2026-06-01")
    _sound(all(point.khz > 0 and point.package_w >= 0 and point.units_per_s >= 0 for point in table.points), "no point")
    return [[point.kernel, point.level, point.khz, point.package_w] for point in table.points]


def _card_sweep(path: Path) -> Any:
    curves = read_sweep(path)
    _sound(all(list(one.clock_mhz) == sorted(set(one.clock_mhz)) for one in curves), "clocks out of order")
    _sound(all(min(one.power_w) > 0 for one in curves), "no watts")
    return [[one.workload, one.clock_mhz, one.power_w, one.speed] for one in curves]


def _trace(path: Path) -> Any:
    table = trace_table(path)
    phases = [phase for group in (*table.cpu, *table.gpu) for phase in group.phase]
    _sound(bool(phases) and all(0 < phase.seconds < math.inf for phase in phases), "no phase")
    return [[phase.name, phase.seconds] for phase in phases]


@cache
def _made(write: str) -> str:
    """A sealed table, without its seal."""
    with tempfile.TemporaryDirectory() as folder:
        path, sweep = Path(folder, "table"), Path(folder, "sweep.csv")
        sweep.write_text(SWEEP)
        if write == "cores":
            write_table(path, table_from_csv(sweep, IDENTITY, "2026-01-01", "2026-06-01"))
        else:
            rows = tuple(GpuRow(mhz, mhz, 3, 10.0, 5.0, 200.0, 1.0, mhz / 1400, 0.01, 1.1, 0.01) for mhz in (700, 1400))
            write_gpu_table(
                path,
                GpuTable(2, "./a", "A100", 4, True, True, 50.0, "2026-01-01", "2026-06-01", IDENTITY, rows),
            )
        return path.read_text().rpartition(SEAL)[0]


def _table(path: Path) -> Any:
    return [[point.kernel, point.khz] for point in read_table(path).points]


def _gpu_table(path: Path) -> Any:
    rows = read_gpu_table(path).gpu_rows
    _sound(all(row.mhz > 0 and 0 < row.watts < math.inf and row.speed > 0 for row in rows), "no row")
    return [[row.mhz, row.watts, row.speed] for row in rows]


def _head(path: Path) -> Any:
    head = read_head(path)
    return [head.identity, head.policies, [latency.knob for latency in head.latency]]


# --- records, and the twin's files

PLAN: Final = (
    '{"plan":1,"sha256":"ab","policy":"planned","machine":null,"cap":null,"instance":null}\n'
    '[0,"planner","",[[0,[[0,1],[1,1]]]]]\n[60,"list","late: 2 s",[]]\n'
)
EVENTS: Final = '{"event_log":%d,"setting":{"trace":"a.swf","policy":"easy"},"sha256":"ab"}\n["advance",0,true]\n'


def _plan(path: Path) -> Any:
    outcomes = plan_file.read(str(path), Setting("a.swf", "planned"), "ab")
    _sound(all(0 <= one.now_s <= LONGEST_S for one in outcomes), "no time")
    return [[one.now_s, one.decided_by, one.reason] for one in outcomes]


def _events(path: Path) -> Any:
    log = EventLog(str(path))
    return [log.setting, log.sha256]


def _twin_machine(path: Path) -> Any:
    machine = load_twin(str(path))
    _sound(machine.cores > 0, "a machine without cores")
    return [machine.name, machine.cores]


WORKLOAD: Final = """\
name = "triad"
summary = "x"
source = "ours"
[[cpu]]
cpus = "cores"
repeat = 6
wait = "spin"
imbalance = 0.02
[[cpu.phase]]
name = "triad"
seconds = 2.0
beta = 0.208
activity = 0.62
ipc = 0.55
iterations = 50
"""


def _twin_workload(path: Path) -> Any:
    table = read_twin_toml(path, WorkloadTable)
    return [table.name, [phase.seconds for group in table.cpu for phase in group.phase]]


def readers() -> dict[str, Reader]:
    """By name."""
    from cluster_agent.replay.event_log import VERSION

    trouble, twin = (ClusterError,), (TwinError,)
    node, cluster = NODE.decode(), CLUSTER.decode()
    machine = "\n".join(line for line in (MACHINES / "skylake-6146.toml").read_text().split("\n") if line[:1] != "#")
    cores, gpus = _made("cores"), _made("gpus")
    return {
        "swf": Reader((SWF,), _swf, trouble, " ", true_swf),
        "sacct": Reader((SACCT,), _sacct, trouble, "|", true_sacct),
        "eurora jobs": Reader((EURORA,), _jobs_of_eurora, trouble, ",", cost=10),
        "eurora caps": Reader((PROFILE,), _profile, trouble, ",", cost=4),
        "eurora nodes": Reader((SYSTEMS,), _systems, trouble, ",", cost=4),
        "eurora queues": Reader((QUEUES,), _queues, trouble, ","),
        "state": Reader((STATE,), _state, trouble),
        "caps": Reader(
            ("from_s,watts\n0,20000\n100,15000\n200,\n", "from_s,to_s,watts,announced_s\n7200,10800,1200,0\n"),
            _caps, trouble, ",",
        ),
        "budget": Reader(
            ("time,watts\n2030-01-31T08:00:00+01:00,12000\n2030-02-01T08:00:00+01:00,9000\n", "1e9,500\n2e9,600\n"),
            _schedule, trouble, ",",
        ),
        "shares": Reader(("user,share,efficiency\n1,2,1.5\n7,1,1\n", "user,share\n1,2\n"), _shares, trouble, ","),
        "job watts": Reader(("job,watts\n1,30.5\n2,70\n", "job_id,watts\n3,9\n"), _watts, trouble, ",", cost=4),
        "configurations": Reader((CONFIGURATIONS,), _configurations, trouble, ",", cost=10),
        "machine": Reader((MACHINE,), _machine, trouble, cost=20),
        "campaign": Reader((CAMPAIGN,), _campaign, trouble, cost=20),
        "plan": Reader((PLAN,), _plan, trouble),
        "event log": Reader((EVENTS % VERSION,), _events, trouble),
        "node settings": Reader((node,), _node_settings, (NodectlError,), cost=20),
        "cluster settings": Reader((cluster,), _cluster_settings, (NodectlError,), cost=20),
        "external sweep": Reader((SWEEP,), _external_sweep, (NodectlError,), ",", cost=4),
        "core table": Reader((cores,), _table, (NodectlError,), has_seal=True, cost=20),
        "gpu table": Reader((gpus,), _gpu_table, (NodectlError,), has_seal=True, cost=20),
        "node calibration": Reader((cores,), _head, (NodectlError,), has_seal=True, cost=20),
        "card sweep": Reader((CARD,), _card_sweep, twin, ",", cost=4),
        "phase trace": Reader((TRACE,), _trace, twin, ",", cost=10),
        "twin machine": Reader((machine,), _twin_machine, twin, cost=20),
        "twin workload": Reader((WORKLOAD,), _twin_workload, twin, cost=10),
    }  # fmt: skip


# --- the loop


@cache
def _place() -> tuple[Path, int]:
    """The file that readers read, in memory if there is such a place, and a descriptor of it."""
    shared = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)
    path = Path(folder.name, "input.toml")  # machines are named by this ending
    _KEPT.append(folder)
    return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)


_KEPT: Final[list[tempfile.TemporaryDirectory[str]]] = []
"""It goes when the process ends."""


class Fuzzer:
    """Feeds files to one reader."""

    def __init__(self, name: str, reader: Reader, seed: int) -> None:
        self.went: Counter[str] = Counter()
        self.found: dict[str, str] = {}
        self._name, self._reader, self._rng = name, reader, random.Random(f"{name} {seed}")
        self._path, self._file = _place()
        self.seeds = [(text, self.plain(self.judged(self.sealed(text).encode())[1])) for text in reader.seeds]

    def feed(self, files: int, stops: bool = False) -> bool:
        """So many; whether anything was found. ``stops``: at the first finding."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of NumPy: a number that does not fit
            return self._feed(files, stops)

    def _feed(self, files: int, stops: bool) -> bool:
        for _ in range(files):
            problem, raw = self._one()
            kind = "taken" if problem == "taken" else "FOUND" if problem else "refused"
            self.went[f"{self._name}: {kind}"] += 1
            if kind == "FOUND":
                self.found.setdefault(f"{self._name}: {problem}", f"{self._name}: {problem}: {raw[:1500]!r}")
                if stops:
                    return True
        return bool(self.found)

    def _one(self) -> tuple[str, bytes]:
        rng, reader = self._rng, self._reader
        draw = rng.random()
        if reader.truth and draw < 0.3:
            text, must = reader.truth(rng)
        elif draw < 0.45:
            text, must = rng.choice(self.seeds)
        else:
            return self._damaged()
        raw = encoded(rng, self.sealed(text))[1] if rng.random() < 0.5 else self.sealed(text).encode()
        problem, taken = self.judged(raw)
        if problem != "taken":
            return problem or "refuses a valid file", raw
        if self.plain(taken) != (must if isinstance(must, bytes) else self.plain(must)):
            return "reads another meaning", raw
        return problem, raw

    def _damaged(self) -> tuple[str, bytes]:
        rng = self._rng
        text, _ = rng.choice(self.seeds)
        text = damaged(rng, text, self._reader.between)
        if rng.random() < 0.9:
            text = self.sealed(text)
        raw = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.1:
            raw = encoded(rng, text)[1]
        if rng.random() < 0.1:
            raw = broken(rng, raw)
        return self.judged(raw)[0], raw

    def sealed(self, text: str) -> str:
        return sealed(text) if self._reader.has_seal else text

    def judged(self, raw: bytes) -> tuple[str, Any]:
        """What is wrong with what the reader does ("taken" or "": nothing), and what it took."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, raw, 0)
        try:
            taken = self._reader.read(self._path)
            self.plain(taken)
        except self._reader.refusals as error:
            line = one_line(str(error))  # as it is printed
            if len(line) > LONGEST_LINE or not line.isprintable():
                return f"refused in other than one line: {line[:200]!r}", None
            return "" if str(self._path) in line else f"does not name the file: {line[:200]}", None
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200], None
        if not is_finite(msgspec.to_builtins(taken)):
            return "takes a number that is none", None
        return "taken", taken

    @staticmethod
    def plain(taken: Any) -> bytes:
        return msgspec.json.encode(taken)


def main() -> int:
    """Print what went where; exit status 1 if anything was found."""
    arguments, given = sys.argv[1:3], readers()
    chosen = sys.argv[3:] or list(given)
    _, seed = Goal.of_command(arguments)
    print(f"seed {seed}", flush=True)
    is_found = False
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for went, found in pool.map(_fed, chosen, repeat(arguments[0]), repeat(seed)):
            print(*found, *(f"{times:10d}  {what}" for what, times in went), sep="\n", flush=True)
            is_found |= bool(found)
    return 1 if is_found else 0


def _fed(name: str, given: str, seed: int) -> tuple[list[tuple[str, int]], list[str]]:
    """How many files of one reader went where, and what was found."""
    goal, fuzzer, done = Goal(given), Fuzzer(name, readers()[name], seed), 0
    while not goal.is_reached(done):
        part = goal.part(A_PART, done)
        fuzzer.feed(part)
        done += part
    return sorted(fuzzer.went.items()), list(fuzzer.found.values())


if __name__ == "__main__":
    sys.exit(main())
