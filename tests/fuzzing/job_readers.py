"""Readers of jobs: logs, exports of Slurm, tables of Eurora and states of machines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.workloads import eurora
from cluster_agent.workloads.job_log import LONGEST_S, machine_of, prepare
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.sacct import MOST_NODE_W, read_sacct
from cluster_agent.workloads.state_file import read_state
from cluster_agent.workloads.swf import read_swf
from cluster_agent.workloads.text_tables import has_nodes
from tests.fuzzing.foreign_files import true_sacct, true_swf
from tests.fuzzing.fuzzer import Reader, sound

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
    sound(log.columns.shape[1] == len(log.lines) > 0, "a log without jobs")
    work = prepare(log, 64, needs_requests=False)
    jobs = work.jobs
    sound(bool((jobs.run_s > 0).all() and (jobs.request_s >= jobs.run_s).all()), "a run beyond its request, or of 0 s")
    sound(bool((jobs.submit_s >= 0).all() and (np.diff(jobs.submit_s) >= 0).all()), "submissions out of order")
    sound(bool((jobs.width > 0).all() and (jobs.width <= 64).all()), "wider than the machine")
    sound(int(max(jobs.submit_s.max(), jobs.request_s.max())) <= LONGEST_S, "too long")
    columns = ("number", "submit_s", "run_s", "request_s", "width", "user")
    lines = log.lines[work.row].tolist()
    return [machine_of(log), lines, *(getattr(jobs, name).tolist() for name in columns)]


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


def node_jobs(trace: NodeTrace) -> list[Any]:
    """What was read of each job, which a node can have run."""
    jobs = trace.jobs
    sound(bool(np.isfinite(jobs.watts).all() and (jobs.watts >= 0).all()), "watts that are none")
    limit_w = MOST_NODE_W * jobs.units
    sound(
        not trace.is_measured or bool((jobs.watts[jobs.knows_watts] <= limit_w[jobs.knows_watts]).all()), "too many W"
    )
    sound(bool((jobs.need >= 0).all() and (jobs.units > 0).all()), "less than nothing")
    sound(bool((jobs.need * jobs.units[:, None] < 1 << 62).all()), "more than 64 bits")
    sound(bool((jobs.run_s > 0).all() and (trace.wait_s >= 0).all()), "a run or wait of less than nothing")
    sound(bool((jobs.request_s >= jobs.run_s).all()), "a run beyond its request")
    sound(bool((np.diff(jobs.submit_s) >= 0).all() and jobs.submit_s[0] >= 0), "submissions out of order")
    sound(int(max(jobs.request_s.max(), trace.wait_s.max())) <= LONGEST_S, "too long")
    sound(all(one.isprintable() for one in (*trace.text, *trace.user, *jobs.name, *jobs.queue)), "odd characters")
    known = [float(w) if k else None for w, k in zip(jobs.watts, jobs.knows_watts, strict=True)]
    return [
        list(one)
        for one in zip(
            jobs.name, jobs.submit_s.tolist(), trace.wait_s.tolist(), jobs.run_s.tolist(),
            jobs.units.tolist(), jobs.need.tolist(), known, strict=True,
        )
    ]  # fmt: skip


def _sacct(path: Path) -> Any:
    has_nodes(str(path))
    return node_jobs(read_sacct(str(path)).on(NODES, UNCAPPED))


EURORA: Final = """\
job,queue,submit,start,end,req_nodes,req_cores,cores,gpus,mics,mem_kb,walltime_s,app,nodes,predicted_power_w
1,debug,2014-03-31 09:18:17,2014-03-31 13:18:02,2014-03-31 13:45:01,1,8,8,0,0,14680064,14400,0,7,
2,parallel,2014-03-31 12:41:32,2014-03-31 13:20:02,2014-03-31 17:18:30,1,8,8,1,0,6291456,14400,0,49 50,129.0
"""
PROFILE: Final = "profile,offset_s,cap_w\na,0,1500\na,600,1000\nb,0,2000\n"
SYSTEMS: Final = "system,cores,gpus,mics,mem_kb\nbig,16,2,0,33554432\nbig,16,0,2,33554432\n"
QUEUES: Final = "queue,max_wait_s\ndebug,3600\nparallel,21600\n"


def _jobs_of_eurora(path: Path) -> Any:
    return node_jobs(eurora.read_jobs(str(path)).on(NODES, UNCAPPED))


def _profile(path: Path) -> Any:
    cap = eurora.read_cap_profile(str(path), "a")
    sound(all(one.watts > 0 and one.from_s < one.to_s for one in cap), "a cap that is none")
    return [list(cap.time_s), [one if math.isfinite(one) else None for one in cap.watts]]


def _systems(path: Path) -> Any:
    nodes = eurora.read_nodes(str(path), "big")
    sound(bool((nodes.has >= 0).all()), "less than nothing")
    return nodes.has.tolist()


def _queues(path: Path) -> Any:
    found = eurora.read_queues(str(path))
    sound(all(0 <= one <= LONGEST_S for one in found.values()), "a wait that is none")
    return found


STATE: Final = (
    '{"version":1,"source":"replay","policy":"easy","t0_s":100,"processors":8,"jobs":[\n'
    '{"job":1,"submit_s":0,"width":4,"request_s":600,"start_s":0,"run_s":500},\n'
    '{"job":2,"submit_s":10,"width":8,"request_s":600,"user":3}\n]}'
)


def _state(path: Path) -> Any:
    return read_state(str(path))[0]


def of_jobs() -> dict[str, Reader]:
    """By name."""
    trouble = (ClusterError,)
    return {
        "swf": Reader((SWF,), _swf, trouble, " ", true_swf),
        "sacct": Reader((SACCT,), _sacct, trouble, "|", true_sacct),
        "eurora jobs": Reader((EURORA,), _jobs_of_eurora, trouble, ","),
        "eurora caps": Reader((PROFILE,), _profile, trouble, ","),
        "eurora nodes": Reader((SYSTEMS,), _systems, trouble, ","),
        "eurora queues": Reader((QUEUES,), _queues, trouble, ","),
        "state": Reader((STATE,), _state, trouble),
    }
