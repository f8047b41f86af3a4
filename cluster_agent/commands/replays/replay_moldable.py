"""``clusterctl replay`` of policies that choose among configurations of each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from cluster_agent.cluster import Machine, load_machine
from cluster_agent.commands.replays import replay_warm
from cluster_agent.commands.replays.known_caps import cap_of
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.closed_loop import closed_loop
from cluster_agent.replay.event_log import Setting
from cluster_agent.replay.moldable_run import (
    MoldableResult,
    impossible,
    measure_moldable,
    power_of,
    replay_possible,
    stepped,
)
from cluster_agent.replay.outputs import MadeFrom, workload_name, write_swf
from cluster_agent.replay.row_outputs import Ran, columns_of, write_rows
from cluster_agent.replay.simulated import SimulatedMachine
from cluster_agent.replay.state_at import with_ways
from cluster_agent.scheduler.configurations.table import MoldableJobs
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.workloads.job_log import Workload, not_modelled, prepare
from cluster_agent.workloads.moldable_trace import GENERATED, Tables, moldable, read_tables
from cluster_agent.workloads.state_file import StateJob
from cluster_agent.workloads.swf import Finding, read_swf
from foundation.shell.plain_text import echo
from foundation.shell.progress_bar import progress

if TYPE_CHECKING:
    from cluster_agent.commands.replays.replay import Options, Stepped


class Ways(msgspec.Struct, frozen=True):
    """The inputs of a replay."""

    workload: Workload
    jobs: MoldableJobs  # those of the workload that can run
    row: list[int]  # of each job, in the workload
    findings: list[Finding]
    tables: Tables
    nodes: int
    cores: int  # of a node
    cap: PowerCap

    def workload_of_jobs(self) -> Workload:
        """The workload, of these jobs only."""
        rows = self.workload.row[self.row]
        return replace(self.workload, jobs=self.jobs.jobs, row=rows, is_cut=self.workload.is_cut[self.row])

    def scheduler(self, composition: Composition) -> tuple[NativeScheduler, SimulatedMachine]:
        """For the loop in Python."""
        return stepped(composition, self.jobs, self.nodes, self.cap)


class WithConfigurations:
    """The world and the result of a replay (``replay.World``)."""

    state_sha256 = ""
    unstarted = 0  # who could not start is left out

    def __init__(self, options: Options, choice: Choice) -> None:
        self._setting, self._composition = options.setting, choice.composed
        self._states = replay_warm.states(
            self._setting, choice, options.state_out, options.state_at, needs="configurations"
        )
        self._of = world(self._setting, self._composition, options.strict)

    def run(self) -> None:
        """Replay from the start."""
        for finding in self._of.findings:
            echo(f"{self._setting.trace}: {finding}", to_stderr=True)
        tables = self._of.tables
        if tables.is_generated:
            echo(f"--configurations {tables.text}: times and watts are generated, like Cab's", to_stderr=True)
        if errors := tables.errors:
            echo(
                f"--configurations {tables.text}: the model's times are wrong by {100 * errors.time_mean:.1f} % on"
                f" average, {100 * errors.time_max:.0f} % at most, its watts by {100 * errors.watts_mean:.1f} and"
                f" {100 * errors.watts_max:.0f} %",
                to_stderr=True,
            )
        with progress(len(self._of.jobs)) as advance:
            replayed = _replayed(self._setting, self._composition, self._of, advance, self._states.at_s)
        self._of, self.result = replayed

    def stepped(self) -> Stepped:
        """For the loop in Python."""
        scheduler, simulated = self._of.scheduler(self._composition)
        return self._of.workload.log.sha256, scheduler, simulated, self.result.start_s, None

    def follow(self) -> None:
        """Write the state, and leave out what was before the one that it starts from."""
        states, result = self._states, self.result

        def past_at(at_s: int) -> list[StateJob]:
            return with_ways(result, result.moments[at_s])

        if states.from_s is not None and (departure := states.departure(past_at(states.from_s))):
            raise replay_warm.other_past(states.setting, departure)
        states.follow(past_at, self._of.nodes)
        if states.from_s is not None:
            self.result, kept = result.since(states.from_s)
            row = [self._of.row[job] for job in kept]
            self._of = msgspec.structs.replace(self._of, jobs=self.result.jobs, row=row)

    def measured(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        return measure_moldable(self.result, self._of.nodes)

    def timed(self) -> dict[str, float]:
        """How long deciding took is not measured."""
        return {}

    def write_swf(self, path: str) -> None:
        """The schedule as a job log."""
        result, workload = self.result, self._of.workload_of_jobs()
        processors = np.array([one.nodes for one in result.chosen if one is not None], np.int32) * self._of.cores
        workload = replace(workload, jobs=replace(workload.jobs, width=processors))
        write_swf(path, workload, result.start_s, result.end_s - result.start_s, self._setting.policy)

    def made_from(self) -> MadeFrom:
        """What the manifest has."""
        of, setting = self._of, self._setting
        of_trace = setting.trace, of.workload.log.sha256, len(of.jobs), of.findings
        machine = {"nodes": of.nodes, "given_by": setting.machine}
        cap = setting.cap if len(of.cap.watts) > 1 else f"{of.cap.watts[0]:g}"
        more = {"configurations": of.tables.manifest(), **self._states.manifest}
        return MadeFrom(of_trace, machine, cap, not_modelled(of.workload), more)

    def write(self, directory: str, measured: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
        """All files; returns lines about those that need a package that is missing."""
        times_s, watts, caps_w = power_of(self.result)
        power = times_s.tolist(), watts.tolist(), caps_w.tolist()
        columns = _columns(self._of, self.result), _more(self._of, self.result)
        return write_rows(directory, *columns, power, measured, manifest)

    def lines(self, measured: Mapping[str, Any]) -> str:
        """The results in words."""
        return _lines(measured)


def as_submitted(setting: Setting, composition: Composition) -> Ways:
    """The inputs of a scheduler; with a closed loop, the submissions that it led to."""
    of = world(setting, composition)
    return _replayed(setting, composition, of, lambda ended: None)[0] if setting.closed_loop else of


def _replayed(
    setting: Setting,
    composition: Composition,
    of: Ways,
    advance: Callable[[int], None],
    at_s: Sequence[int] = (),
) -> tuple[Ways, MoldableResult]:
    """The results, and the jobs as they were submitted."""
    loop = None
    if setting.closed_loop:
        loop = of.workload_of_jobs(), closed_loop(setting.closed_loop, setting.seed)
    result = replay_possible(composition, of.jobs, of.nodes, of.cap, advance, loop, at_s)
    if result.order is not None:
        of = msgspec.structs.replace(of, jobs=result.jobs, row=[of.row[job] for job in result.order])
    return of, result


def world(setting: Setting, composition: Composition, is_strict: bool = False) -> Ways:
    """The jobs, their configurations and the machine; jobs that fit in none of their configurations are dropped and
    counted."""
    if setting.machine is None or setting.machine.isdecimal():
        raise WrongUseError(
            f"--policy {setting.policy}: nodes are needed; give a machine that has them, such as --machine cab64"
        )
    machine = load_machine(setting.machine)
    cap = _cap(setting.cap, machine)
    tables = read_tables(setting.configurations or GENERATED)
    workload = prepare(read_swf(setting.trace), machine.processors, is_strict=is_strict)
    jobs, row, findings = moldable(workload, tables, machine.node.cores, is_strict)
    never = set(impossible(composition, jobs, machine.nodes, cap))
    if never:
        lines = [int(workload.log.lines[workload.row[row[job]]]) for job in never]
        what, fix = "jobs whose share of the watts is too small for any configuration", "give a higher --cap"
        if is_strict or len(never) == len(jobs):
            raise WrongUseError(f"{setting.trace}:{min(lines)}: {what} (first of {len(never)}): {fix}")
        findings.append(Finding(what, "dropped", len(never), min(lines), fix))
        stay = [job for job in range(len(jobs)) if job not in never]
        jobs, row = jobs.only(stay), [row[job] for job in stay]
    found = [*workload.findings, *findings]
    return Ways(workload, jobs, row, found, tables, machine.nodes, machine.node.cores, cap)


def _cap(text: str | None, machine: Machine) -> PowerCap:
    """Watts of all sockets together; where there is no cap the most that all nodes draw."""
    if len(machine.groups) > 1:
        raise WrongUseError(f"{machine.name}: configurations are for machines of one kind of nodes, not several")
    cap, node = cap_of(text), machine.node
    if max(cap.watts) < float("inf"):
        return cap
    if not machine.has_watts:
        raise WrongUseError(f"{machine.name}: the machine has no watts; give --cap WATTS")
    most_w = machine.nodes * max(node.busy_max_w or node.busy_w)
    return PowerCap(cap.time_s, tuple(most_w if watts == float("inf") else watts for watts in cap.watts))


def _columns(of: Ways, result: MoldableResult) -> dict[str, list[Any]]:
    """Those of Batsim."""
    jobs, run_s = of.jobs.jobs, result.end_s - result.start_s
    energy_j = np.array([one.watts for one in result.chosen if one is not None], np.float64) * run_s
    submitted = jobs.submit_s.tolist(), jobs.width.tolist(), jobs.request_s.tolist()
    names, start_s, unknown = list(map(str, jobs.number.tolist())), result.start_s.tolist(), [None] * len(jobs)
    is_cut = [False] * len(jobs)
    ran = zip(names, *submitted, is_cut, start_s, run_s.tolist(), unknown, energy_j.tolist(), strict=True)
    return columns_of(workload_name(of.workload), starmap(Ran, ran))


def _more(of: Ways, result: MoldableResult) -> dict[str, list[Any]]:
    """Our columns: the configuration."""
    chosen, users = [one for one in result.chosen if one is not None], of.workload.users
    return {
        "user": [users[user] for user in of.jobs.jobs.user.tolist()],
        "nodes": [one.nodes for one in chosen],
        "cores_per_node": [one.cores for one in chosen],
        "cap_w": [float(one.cap_w) for one in chosen],
        "drawn_w": [float(one.watts) for one in chosen],
        "asked_s": [float(one) for one in of.workload.jobs.run_s[of.row]],
    }


def _lines(measured: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            f"{measured['ended']} of {measured['jobs']} jobs ended, makespan {measured['makespan_s']} s",
            "turnaround        mean {mean:.0f} s  median {median:.0f} s  max {max:.0f} s".format(
                **measured["turnaround_s"]
            ),
            "wait              mean {mean:.0f} s  median {median:.0f} s  max {max:.0f} s".format(**measured["wait_s"]),
            f"bounded slowdown  mean {measured['AVEbsld']:.3f}  max {measured['max_bsld']:.1f}  (tau = 10 s)",
            f"utilisation       {100 * measured['utilisation']:.1f} % of the nodes,"
            f" {measured['nodes_over_asked']:.2f} times the nodes that were requested",
            f"power             mean {measured['mean_w']:.0f} W  highest {measured['peak_w']:.0f} W"
            f"  above the bound {measured['over_cap_ws']:.0f} W s",
            f"energy            {measured['energy_j'] / 3.6e6:.1f} kWh",
        ]
    )
