"""The real daemon, in real time, on a served node: a process without access to the model behind its instruments.

Where root, FUSE or a mount namespace is missing, the same agent runs in virtual time instead, and the output says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from foundation.shell.errors import NodectlError
from lab.node_demo.comparison import Case
from lab.node_demo.experiment import Experiment, run, workload_of
from nodectl.config import Budget, Config, GpuSettings, JournalSettings
from nodectl.loop.agent import Agent
from nodectl.loop.summary import Summary
from twin.errors import TwinError
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Report, Twin


class LiveRun(msgspec.Struct, frozen=True):
    """One run of the daemon: what it saw and estimated, and the model's truth."""

    case: Case
    served: bool
    why_virtual: str
    summary: Summary
    truth: Report
    reference_gpu_j: float  # the same work at the highest clock, virtual time
    reference_node_j: float
    reference_time_s: float

    @property
    def gpu_saving(self) -> float:
        """Share of the boards' energy saved, by the model's truth."""
        joules = sum(value for name, value in self.truth.energy_j.items() if name.startswith("gpu-"))
        return 1.0 - joules / self.reference_gpu_j

    @property
    def node_saving(self) -> float:
        """Share of the whole node's energy saved, by the model's truth."""
        return 1.0 - self.truth.energy_j["node"] / self.reference_node_j

    @property
    def slowdown(self) -> float:
        """Extra time, as a share of the run at the highest clock."""
        return self.truth.time_s / self.reference_time_s - 1.0


def live_run(case: Case, journal: Path, report: Path, virtual: bool) -> LiveRun:
    """Run the daemon on ``case``; served if possible (that writes the twin's own ``report``), unless ``virtual``."""
    why = "requested" if virtual else why_not_served()
    summary, truth = _virtual(case, journal) if why else _served(case, journal, report)
    reference = run(Experiment(case.machine, case.workload, case.seed, case.bias, case.duration_s, gpu_policy="fixed"))
    return LiveRun(
        case=case,
        served=not why,
        why_virtual=why,
        summary=summary,
        truth=truth,
        reference_gpu_j=reference.joules("gpu"),
        reference_node_j=reference.joules("node"),
        reference_time_s=reference.time_s,
    )


def why_not_served() -> str:
    """What is missing here for a served node; empty: nothing."""
    try:
        from twin.serve.host_needs import require

        require()
    except TwinError as error:
        return str(error)
    except ImportError as error:
        return f"{error}: install the extra `twin`"
    return ""


def _served(case: Case, journal: Path, report: Path) -> tuple[Summary, Report]:
    """`nodectl twin run ... -- nodectl run ... -- nodectl twin wait`, as a user would type it."""
    nodectl = [sys.executable, "-m", "nodectl.cli"]
    with tempfile.TemporaryDirectory(prefix="nodectl-demo-") as state:
        command = [
            *nodectl, "twin", "run", "--machine", case.machine, "--workload", case.workload,
            "--seed", str(case.seed), "--bias", str(case.bias), "--duration", str(case.duration_s),
            "--report", str(report), "--",
            *nodectl, "run", "--mode", "optimize", "--gpu-locked-mhz", "0",
            "--journal", str(journal), "--state-dir", state, "--json", "--",
            *nodectl, "twin", "wait",
        ]  # fmt: skip
        done = subprocess.run(command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}, check=False)
    lines = done.stderr.decode(errors="replace").splitlines()
    summaries = [line for line in lines if line.startswith("{")]
    if done.returncode or not summaries or not report.exists():
        why = next((line for line in reversed(lines) if line.strip()), "no message")
        raise NodectlError(f"the served run failed with status {done.returncode}: {why}")
    return msgspec.json.decode(summaries[-1], type=Summary), msgspec.json.decode(report.read_bytes(), type=Report)


def _virtual(case: Case, journal: Path) -> tuple[Summary, Report]:
    workload = workload_of(Experiment(case.machine, case.workload, case.seed, case.bias, case.duration_s))
    twin = Twin(load_machine(case.machine), workload, seed=case.seed)
    with tempfile.TemporaryDirectory(prefix="nodectl-demo-") as state:
        config = Config(
            mode="optimize",
            state_dir=state,
            journal=JournalSettings(dir=str(journal)),
            gpu=GpuSettings(0),
            budget=Budget(core_share=0.0),  # a budget of real CPU time says nothing in virtual time
        )
        with InProcess(twin) as node, Agent.open(node.ports, config) as agent:
            agent.run(is_over=lambda: twin.finished)
    return agent.summary(), twin.report()
