"""One emulated node of a cluster: the real agent on a twin in real time, in this process.

    twin (model, sysfs, counters, NVML) ── the four ports ──► nodectl.loop.agent ── CURVE ──► clusterctl serve
      ▲ workloads                                               │ jobs
      └──────────────────────── TwinJobs ◄──────────────────────┘

The ports are those of ``twin.in_process_node``, not a mounted tree: the agent sees no difference, and sixteen nodes fit
on one core. To run other programs on the node, such as ``perf``, serve one instead (``nodectl twin run -- nodectl
run``); that node runs no jobs. The node ends with its process, as by a power cut: nothing of it is kept, and the next
node of that name has another boot id.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from cluster_agent.dispatch.live.partition_file import read_nodes
from foundation.shell.errors import UsageError
from foundation.shell.settings import line_of, read_toml
from lab.emulated.emulated_calibration import EmulatedCalibration
from lab.emulated.emulated_cgroups import EmulatedCgroups, OwnJoules
from lab.emulated.emulated_jobs import TwinJobs
from lab.emulated.emulated_kernels import emulated_kernels
from lab.emulated.watts import NodeWatts
from nodectl.config import Config, build_config
from nodectl.jobs.job_runner import JobThread
from nodectl.loop.agent import Agent
from nodectl.loop.interruptions import Interruptions
from nodectl.loop.summary import Summary
from nodectl.member.cluster_cap import ClusterCap, open_cluster_cap
from nodectl.member.dispatch_thread import open_dispatch
from nodectl.write.saves import node_id
from twin.in_process_node import InProcess
from twin.machine import Machine
from twin.physics.model import Twin
from twin.programs.workload_socket import WorkloadSocket

SETTLE_S: Final = 1.0
"""Ours: clocks keep a cap within a tick or two, before the RAPL limit does."""

WATCHDOG_S: Final = 1.0
"""Ours: a process that hangs is not replaced here; when the process ends, so does the node."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What to emulate. ``file``: the agent's settings; what this plan sets comes first. ``trace``: where the truth is
    written, line by line (``Truth``). ``workload_sockets``: the folder where programs outside put workloads on it.
    ``run``: the folder whose part of the node's name is what /run/nodectl is on a real one; None: nobody reaches it.
    ``dispatch``: the directory of ``nodes.toml``, by which the node dispatches its jobs; its disk, with the journal, is
    below it and outlives the node."""

    name: str
    machine: Machine
    watts: NodeWatts
    url: str
    keys: Path
    file: Path | None = None
    seed: int = 1
    trace: Path | None = None
    workload_sockets: Path | None = None
    run: Path | None = None
    dispatch: Path | None = None


class Truth(msgspec.Struct, frozen=True):
    """One line of a trace: the node's true power and work, which neither agent nor cluster sees.

    ``at_s``: CLOCK_MONOTONIC; ``node_j`` since the node began; ``cap_w``: the cap that should be in force, and
    ``limit_w``: the highest that may still be, None before the first; ``work``: by tag of the jobs, seconds that they
    ran and seconds that their work takes at the highest clock; ``packages_j``, ``dram_j``, ``gpus_j``: of ``node_j``;
    ``jobs``: of those that share the node.
    """

    at_s: float
    node_j: float
    cap_w: float | None
    limit_w: float | None
    work: dict[str, tuple[float, float]]
    packages_j: float = 0.0
    dram_j: float = 0.0
    gpus_j: float = 0.0
    jobs: dict[str, OwnJoules] = {}


def run_node(plan: NodePlan, say: Callable[[str], None]) -> Summary:
    """Run that node until SIGTERM or SIGINT. ``NodectlError`` if that is impossible."""
    with tempfile.TemporaryDirectory(prefix=f"nodectl-{plan.name}-") as state:
        config = node_config(plan, state)
        twin = Twin(plan.machine, seed=plan.seed)
        with InProcess(twin, is_realtime=True) as inside, Interruptions(inside.ports.clock) as interruptions:
            # each lock stands for one boot: the knob settings of the node before are gone
            run = plan.run / plan.name if plan.run else Path(state)
            run.mkdir(mode=0o755, parents=True, exist_ok=True)
            cgroups = EmulatedCgroups(inside.ports.files, twin)
            trace = _Trace(plan.trace, twin, cgroups)
            ports = replace(inside.ports, files=cgroups, lock_path=f"{run}/lock-{uuid.uuid4().hex}")
            boot_id = node_id(ports.lock_path)

            def calibrate(words: list[str], workdir: str) -> EmulatedCalibration:
                return EmulatedCalibration(ports, emulated_kernels(twin, plan.seed), words, workdir)

            jobs = TwinJobs(twin, plan.name, calibrate=calibrate)
            sockets = plan.workload_sockets
            entry = WorkloadSocket(sockets, plan.name, twin, cgroups) if sockets else None

            def each_tick() -> None:
                if entry:
                    entry.look()
                trace.add(cluster, jobs)

            thread = JobThread(jobs, plan.name, boot_id, say)
            with (
                contextlib.closing(trace),
                contextlib.closing(entry) if entry else contextlib.nullcontext(),
                open_cluster_cap(
                    config.cluster, boot_id, say, thread, dispatch=open_dispatch(config, thread, say)
                ) as cluster,
                Agent.open(ports, config, log=say, wait=interruptions.wait, cluster=cluster) as agent,
            ):
                agent.run(is_over=interruptions.is_over, each_tick=each_tick)
        summary = agent.summary()
        if plan.trace:  # the agent's own account, next to the truth
            plan.trace.with_suffix(".json").write_bytes(msgspec.json.encode(summary))
        return summary


def node_config(plan: NodePlan, state_dir: str) -> Config:
    """The agent's settings: those of the file, overridden by what makes it this node."""
    text, settings = read_toml(plan.file) if plan.file else ("", {})
    watts, server_key = plan.watts, plan.keys / "cluster.pub"
    own: dict[str, Any] = {
        "mode": "optimize",
        "state_dir": state_dir,
        "caps": {"rest_w": watts.rest_w},
        "cluster": {
            "url": plan.url, "key": f"{plan.keys}/{plan.name}.key",
            "server_key": str(server_key if server_key.exists() else plan.keys / "cluster.key"),
            "name": plan.name, "tdp_w": watts.tdp_w, "mop_w": watts.mop_w, "safe_w": watts.safe_w,
            "boot_w": watts.tdp_w, "lease_class": "os", "settle_s": SETTLE_S, "watchdog_s": WATCHDOG_S, "jobs": True,
        },
    }  # fmt: skip
    if plan.dispatch:
        listen = {one.name: one.url for one in read_nodes(plan.dispatch).nodes}
        if plan.name not in listen:
            raise UsageError(f"{plan.dispatch / 'nodes.toml'}: {plan.name} is not in it")
        own["dispatch"] = {"listen": listen[plan.name], "keys": str(plan.dispatch), "user": ""}
        own["state_dir"] = f"{plan.dispatch}/disks/{plan.name}"
    if not plan.machine.gpus:
        own["gpu_policy"] = {"name": "none"}
    journal = settings.get("journal", {}).get("dir")
    own["gpu"] = {"locked_clock_mhz": 0}  # nobody has locked an emulated GPU
    own["journal"] = {"dir": f"{journal}/{plan.name}"} if journal else {"max_bytes": 0}
    for table, values in own.items():
        settings[table] = {**settings.get(table, {}), **values} if isinstance(values, dict) else values
    return build_config(settings, lambda path: f"{plan.file}:{line_of(text, path)}" if plan.file else plan.name)


class _Trace:
    """Writes the truth to the disk, a line at each tick."""

    def __init__(self, path: Path | None, twin: Twin, cgroups: EmulatedCgroups) -> None:
        self._twin, self._cgroups = twin, cgroups
        self._origin_s = time.monotonic() - twin.age_ns / 1e9
        self._file: BinaryIO | None = None
        if path:
            try:
                self._file = open(path, "wb", buffering=0)  # noqa: SIM115  (for as long as the node is there)
            except OSError as error:
                raise UsageError(f"{path}: cannot write the trace: {error.strerror}") from None

    def add(self, cluster: ClusterCap, jobs: TwinJobs) -> None:
        """Write a line with the present state."""
        if self._file is None:
            return
        work = {tag: (one.ran_s, one.done_s) for tag, one in jobs.work().items()}
        at_s = self._origin_s + self._twin.age_ns / 1e9
        parts = self._twin.parts_j()
        packages_j, dram_j, gpus_j = (
            sum(joules for name, joules in parts.items() if name.startswith(of)) for of in ("package-", "dram-", "gpu-")
        )
        truth = Truth(
            at_s, parts["node"], cluster.cap_w, cluster.limit_w, work, packages_j, dram_j, gpus_j, self._cgroups.truth()
        )
        self._file.write(msgspec.json.encode(truth) + b"\n")

    def close(self) -> None:
        """Close the file; every line is on it already."""
        if self._file:
            self._file.close()
