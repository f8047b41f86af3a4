"""``clusterctl replay`` of policies that choose among configurations of each job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from cluster_agent.cluster import Machine, load_machine
from cluster_agent.commands.replays import replay_warm
from cluster_agent.commands.replays.known_caps import cap_of
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.closed_loop import closed_loop
from cluster_agent.replay.event_log import Setting, write_log
from cluster_agent.replay.moldable_run import (
    MoldableResult,
    impossible,
    measure_moldable,
    power_of,
    replay_possible,
    stepped,
)
from cluster_agent.replay.outputs import add_loop, manifest_of, workload_name, write_swf
from cluster_agent.replay.row_outputs import write_rows
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
from nodectl import __version__
from nodectl.shell.plain_text import echo, echo_block, json_text
from nodectl.shell.progress_bar import progress


class World(msgspec.Struct, frozen=True):
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


def replay_with_configurations(
    setting: Setting,
    choice: Choice,
    out: str | None,
    swf_file: str | None,
    log_file: str | None,
    is_strict: bool,
    as_json: bool,
    state_out: str | None = None,
    state_at: int | None = None,
) -> int:
    """Replay the trace and print the results; returns the exit status."""
    composition = choice.composed
    states = replay_warm.states(setting, choice, state_out, state_at, needs="configurations")
    of = world(setting, composition, is_strict)
    for finding in of.findings:
        echo(f"{setting.trace}: {finding}", to_stderr=True)
    if of.tables.is_generated:
        echo(f"--configurations {of.tables.text}: times and watts are generated, like Cab's", to_stderr=True)
    if of.tables.errors:
        errors = of.tables.errors
        echo(
            f"--configurations {of.tables.text}: the model's times are wrong by {100 * errors.time_mean:.1f} % on"
            f" average, {100 * errors.time_max:.0f} % at most, its watts by {100 * errors.watts_mean:.1f} and"
            f" {100 * errors.watts_max:.0f} %",
            to_stderr=True,
        )
    with progress(len(of.jobs)) as advance:
        of, result = _replayed(setting, composition, of, advance, states.at_s)
    if log_file:
        scheduler, simulated = of.scheduler(composition)
        sha256, origin = of.workload.log.sha256, choice.origin
        write_log(log_file, setting, sha256, scheduler, simulated, result.start_s, origin=origin)
    of, result = _since(states, of, result)
    if swf_file:
        processors = np.array([one.nodes for one in result.chosen if one is not None], np.int32) * of.cores
        workload = of.workload_of_jobs()
        workload = replace(workload, jobs=replace(workload.jobs, width=processors))
        write_swf(swf_file, workload, result.start_s, result.end_s - result.start_s, setting.policy)
    measured = measure_moldable(result, of.nodes)
    if out:
        of_trace = setting.trace, of.workload.log.sha256, len(of.jobs), of.findings
        machine = {"nodes": of.nodes, "given_by": setting.machine}
        command = ["clusterctl", *sys.argv[1:]]
        cap = setting.cap if len(of.cap.watts) > 1 else f"{of.cap.watts[0]:g}"
        made_from = manifest_of(command, of_trace, machine, cap, choice, __version__)
        made_from["trace"]["not_modelled"] = not_modelled(of.workload)
        made_from["configurations"] = of.tables.manifest()
        made_from |= states.manifest
        add_loop(made_from, setting.closed_loop, setting.seed)
        times_s, watts, caps_w = power_of(result)
        power = times_s.tolist(), watts.tolist(), caps_w.tolist()
        for note in write_rows(out, _columns(of, result), _more(of, result), power, measured, made_from):
            echo(note, to_stderr=True)
    echo_block(json_text(measured, indent=2) if as_json else _lines(measured))
    return 0


def _since(states: replay_warm.States, of: World, result: MoldableResult) -> tuple[World, MoldableResult]:
    """The inputs and the results from the state on, if it starts from one; writes the other."""

    def past_at(at_s: int) -> list[StateJob]:
        return with_ways(result, result.moments[at_s])

    if states.from_s is not None and (departure := states.departure(past_at(states.from_s))):
        raise replay_warm.other_past(states.setting, departure)
    states.follow(past_at, of.nodes)
    if states.from_s is None:
        return of, result
    later, kept = result.since(states.from_s)
    return msgspec.structs.replace(of, jobs=later.jobs, row=[of.row[job] for job in kept]), later


def as_submitted(setting: Setting, composition: Composition) -> World:
    """The inputs of a scheduler; with a closed loop, the submissions that it led to."""
    of = world(setting, composition)
    return _replayed(setting, composition, of, lambda ended: None)[0] if setting.closed_loop else of


def _replayed(
    setting: Setting,
    composition: Composition,
    of: World,
    advance: Callable[[int], None],
    at_s: Sequence[int] = (),
) -> tuple[World, MoldableResult]:
    """The results, and the jobs as they were submitted."""
    loop = None
    if setting.closed_loop:
        loop = of.workload_of_jobs(), closed_loop(setting.closed_loop, setting.seed)
    result = replay_possible(composition, of.jobs, of.nodes, of.cap, advance, loop, at_s)
    if result.order is not None:
        of = msgspec.structs.replace(of, jobs=result.jobs, row=[of.row[job] for job in result.order])
    return of, result


def world(setting: Setting, composition: Composition, is_strict: bool = False) -> World:
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
    return World(workload, jobs, row, found, tables, machine.nodes, machine.node.cores, cap)


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


def _columns(of: World, result: MoldableResult) -> dict[str, list[Any]]:
    """Those of Batsim."""
    jobs, n = of.jobs.jobs, len(of.jobs)
    run_s, turnaround_s = (result.end_s - since_s for since_s in (result.start_s, jobs.submit_s))
    energy_j = np.array([one.watts for one in result.chosen if one is not None], np.float64) * run_s
    return {
        "job_id": list(map(str, jobs.number.tolist())),
        "workload_name": [workload_name(of.workload)] * n,
        "submission_time": jobs.submit_s.tolist(),
        "requested_number_of_resources": jobs.width.tolist(),
        "requested_time": jobs.request_s.tolist(),
        "success": [1] * n,
        "final_state": ["COMPLETED_SUCCESSFULLY"] * n,
        "starting_time": result.start_s.tolist(),
        "execution_time": run_s.tolist(),
        "finish_time": result.end_s.tolist(),
        "waiting_time": (result.start_s - jobs.submit_s).tolist(),
        "turnaround_time": turnaround_s.tolist(),
        "stretch": [f"{one:.6f}" for one in (turnaround_s / run_s).tolist()],
        "consumed_energy": [f"{one:.1f}" for one in energy_j.tolist()],
    }


def _more(of: World, result: MoldableResult) -> dict[str, list[Any]]:
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


def _lines(measured: dict[str, Any]) -> str:
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
