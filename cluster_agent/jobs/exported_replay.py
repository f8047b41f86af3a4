"""What a replay needs to decide as a live partition did, as files: its jobs as a log, its machine, its budget.

A replay repeats the starts, frequencies and kills of a partition whose policy owns the watts if it counts with the same
watts. So the machine file has what the partition knows and a site's own file has not: nodes that are counted whole, the
minimal operating power of those without a job, no chassis, walltimes that are the same at every frequency, and how the
ledger keeps the budget (``[kept]``).

Seconds are whole, and those of the log begin with its first submission.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import floor
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from cluster_agent.cluster import Kept, Machine, MachineFile, NodeGroup
from cluster_agent.jobs.job import ACTIVE, Job, in_queue
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.owned_watts.live_halves import application
from cluster_agent.jobs.owned_watts.live_levels import CAPPED, submission
from cluster_agent.replay.replay_files import (
    CAPS,
    FAILURES,
    JOB_WATTS,
    LOG,
    MACHINE,
    PAIRS,
    RESERVATIONS,
    SHARED_TABLE,
    SWITCHES,
    TABLE,
    WAYS,
)
from cluster_agent.scheduler.configurations.table import Rows
from cluster_agent.scheduler.switches.limit_rules import Rule
from cluster_agent.scheduler.switches.live_limits import LiveSwitches
from cluster_agent.scheduler.switches.live_reservations import Reservations
from cluster_agent.scheduler.switches.queue_windows import as_shown
from cluster_agent.scheduler.switches.reservations import FOREVER_S

if TYPE_CHECKING:
    from cluster_agent.jobs.owned_watts.live_owner import Owner
    from cluster_agent.store.job_store import JobStore

PAST: Final = 1000
"""Ours: how many of the jobs that ended last it has, as a state has them."""

ECO_QUEUE: Final = 1
"""The log's queue of jobs whose users let them be slowed: ``eco:volunteers=1``."""

COMPLETED, FAILED, NOT_ENDED = 1, 0, -1
"""Of the log's status."""

COLUMNS: Final = "JobID|JobName|User|Submit|Start|End|ElapsedRaw|Timelimit|State|NNodes|NCPUS|ReqMem|AllocTRES"


def files_of(
    partition: Partition, store: JobStore, kept: Kept, budget: Sequence[tuple[float, float]], now_s: float
) -> dict[str, str]:
    """By name, the text of each file. ``budget``: the steps of the budget that was set last, (Unix seconds, W).

    All jobs that have started, and those that wait in the queue: not for other jobs, or for a time. A job that has not
    ended, or was killed for a cap and does not wait again, counts its requested time: for how long it would have run is
    not known. Machine and budget only where they are the policy's.
    """
    jobs = _jobs(partition, store)
    zero_s = floor(jobs[0].queued_s) if jobs else floor(now_s)
    found, owner = dict[str, str](), partition.watts
    if owner.pairs is not None:
        table = _shared_table(jobs, owner, zero_s)
        return {SHARED_TABLE: table, PAIRS: owner.pairs.text, SWITCHES: f"--machine {len(partition.nodes)}\n"}
    machine, cores = owner.as_planned(len(partition.nodes)), 1
    if machine is not None:
        found = {MACHINE: machine_text(machine, kept), CAPS: _caps(budget, zero_s)}
        cores = machine.node.cores
    if owner.places_jobs:
        cores_of = {node.name: node.has[0] for node in partition.nodes.values() if node.has is not None}
        return {TABLE: _table(jobs, cores, cores_of)} | found
    titles = _numbers(job.title for job in jobs)
    if owner.configurations:
        found[WAYS] = _ways(owner.configurations, titles)
    elif machine is not None and (job_watts := _job_watts(jobs, owner.predicts)):
        found[JOB_WATTS] = job_watts
    queues = {name: at for at, name in enumerate(owner.switches.queues)}
    numbered = Numbered(titles, _numbers(job.group for job in jobs), queues)
    found |= _site(partition, jobs, numbered, cores, zero_s, now_s)
    return {LOG: _log(jobs, len(partition.nodes) * cores, cores, zero_s, numbered)} | found


def _jobs(partition: Partition, store: JobStore) -> list[Job]:
    """In the order in which they joined the queue."""
    ended = [job for job in store.ended(PAST, in_a_moment=True) if job.started_s is not None]
    postponed = partition.postponed
    alive = [job for job in partition.jobs.values() if job.id not in postponed and job.state in ("queued", *ACTIVE)]
    return sorted([*ended, *alive], key=in_queue)


def machine_text(machine: Machine, kept: Kept) -> str:
    """A machine file (``cluster.MachineFile``)."""
    summary = "as a live partition counts it, written by `clusterctl state export --replay`"
    made = MachineFile(machine.name, summary, machine.groups, machine.topology, machine.degradation, kept)
    out = io.StringIO()
    out.write(f"name = {_toml(made.name)}\nsummary = {_toml(made.summary)}\n")
    for group in made.nodes:
        _put(out, "[[nodes]]", group, NodeGroup(group.count, group.cores))
    if made.degradation:
        out.write(
            "\n[degradation]\n" + "".join(f"{_toml(name)} = {value}\n" for name, value in made.degradation.items())
        )
    _put(out, "[kept]", kept, Kept())
    return out.getvalue()


def _put(out: io.StringIO, head: str, found: msgspec.Struct, default: msgspec.Struct) -> None:
    out.write(f"\n{head}\n")
    for name in found.__struct_fields__:
        value = getattr(found, name)
        if value != getattr(default, name) or name in ("count", "cores", "settle_s"):
            out.write(f"{name} = {_toml(value)}\n")


def _toml(value: Any) -> str:
    """Booleans, numbers, text and lists of these, as JSON and TOML both write them."""
    return msgspec.json.encode(value).decode()


def _run_s(job: Job) -> int:
    """For how long it runs where nobody cuts it short: of a job in a configuration, in the one that it requested."""
    request_s = job.spec.walltime_s
    if job.started_s is None or job.ended_s is None or job.reason == CAPPED:
        return request_s
    ran_s = max(floor(job.ended_s) - floor(job.started_s), 1)
    if job.configured is not None:
        ran_s = max(round(ran_s * request_s / job.configured.length_s), 1)
    return ran_s


def _job_watts(jobs: Sequence[Job], predicts: bool) -> str:
    """What all nodes of a job drew together while it ran, where it was measured; for a policy that predicts watts, what
    it knew of each job, too. Empty: of no job."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("job", "watts", "user", "title", "text", "model") if predicts else ("job", "watts"))
    rows = 0
    for job in jobs:
        joules, covered_s = job.account.joules, job.account.covered_s
        watts = repr(joules / covered_s * len(job.nodes)) if joules and covered_s > 0 else ""
        if predicts:
            known = submission(job)
            table.writerow((job.id, watts, known.login, known.title, known.text, "failed" if job.without_model else ""))
        elif watts:
            table.writerow((job.id, watts))
        rows += predicts or watts != ""
    return out.getvalue() if rows else ""


def _site(
    partition: Partition, jobs: Sequence[Job], numbered: Numbered, cores: int, zero_s: int, now_s: float
) -> dict[str, str]:
    """Limits, queues, reservations and nodes that were away, as far as there are any, and a replay has them."""
    owner = partition.watts
    found = {SWITCHES: _switches(owner.switches, jobs, numbered, partition)}
    if any(job.spec.best_effort for job in jobs):
        found[SWITCHES] += f"--best-effort queue={numbered.best_effort_queue}\n"
    found[RESERVATIONS] = _reservations(partition.reservations, jobs, cores, zero_s)
    if owner.can_have_failures and not owner.switches.has_partitions:
        found[FAILURES] = _failures(partition, cores, zero_s, now_s)
    return {name: text for name, text in found.items() if text}


def _failures(partition: Partition, cores: int, zero_s: int, now_s: float) -> str:
    """When nodes were away (``--failures``), one that still is until now; jobs have the first nodes, by their names, as
    in a replay. Empty: none was."""
    place = {name: at for at, name in enumerate(partition.nodes)}
    lines = ["at_s,back_s,first,last"]
    for one in partition.outages:
        at_s, back_s = (second - zero_s for second in (one.at_s, floor(now_s) if one.back_s is None else one.back_s))
        if back_s >= 0 and (back_s > 0 or one.at_s == one.back_s):
            first = place[one.node] * cores
            lines.append(f"{max(at_s, 0)},{max(back_s, at_s)},{first},{first + cores - 1}")
    return "\n".join(lines) + "\n" if lines[1:] else ""


def _reservations(book: Reservations, jobs: Sequence[Job], cores: int, zero_s: int) -> str:
    """As ``--reservations`` takes them, with those that were over or deleted since the agent began, as far as they were
    not before the log. Empty: there are none."""
    lines = ["from_s,to_s,every_s,made_s,gone_s,processors,jobs"]
    known = [*book.past, *((one, FOREVER_S) for one in book.by_name.values())]
    for one, gone_s in known:
        mine = one.reserved(gone_s)
        if gone_s <= zero_s or mine.next_from_s(zero_s) is None:
            continue
        times_s = mine.from_s - zero_s, mine.to_s - zero_s, one.every_s, max(one.made_s - zero_s, 0)
        gone = "" if gone_s == FOREVER_S else gone_s - zero_s
        of_it = (job.id for job in jobs if job.spec.reservation == one.name and one.made_s <= job.submitted_s < gone_s)
        lines.append(",".join(map(str, (*times_s, gone, one.nodes * cores, " ".join(map(str, of_it))))))
    return "\n".join(lines) + "\n" if lines[1:] else ""


class Numbered(NamedTuple):
    """The log's numbers of applications, groups and queues, by their names."""

    titles: Mapping[str, int]
    groups: Mapping[str, int]
    queues: Mapping[str, int]

    @property
    def notes(self) -> list[str]:
        """Which they are, for the log's header."""
        found = {"application": self.titles, "group": self.groups, "queue": self.queues}
        return [f"; Note: {what} {number} is {name!r}" for what, of in found.items() for name, number in of.items()]

    @property
    def best_effort_queue(self) -> int:
        """The log's queue of jobs that run on what others cannot use: the next number, since no rule is for them."""
        return max(self.queues.values(), default=ECO_QUEUE) + 1

    def queue(self, job: Job) -> int:
        """The log's queue of a job; where the partition has none, whether it may be slowed."""
        if job.spec.best_effort:
            return self.best_effort_queue
        return self.queues[job.spec.queue] if self.queues else ECO_QUEUE if job.spec.eco else 0


def _numbers(names: Iterable[str]) -> dict[str, int]:
    """Numbers from 1, in the order of the names; none for ""."""
    return {name: number for number, name in enumerate(sorted({*names} - {""}), 1)}


def _switches(switches: LiveSwitches, jobs: Sequence[Job], numbered: Numbered, partition: Partition) -> str:
    """Limits and queues as options of a replay (``SWITCHES``); those that are of no job of the log are left out, since
    a replay refuses them."""
    there = {
        "user": {job.user: job.uid for job in jobs},
        "group": numbered.groups,
        "queue": {job.spec.queue: numbered.queue(job) for job in jobs if not job.spec.best_effort},
    }
    lines = [f"--limit {text}" for rule in switches.rules for text in _rule(rule, there[rule.key])]
    if switches.has_partitions:
        size = Counter(node.queue for node in partition.nodes.values())
        sizes = (f"{number}={size[name]}" for name, number in numbered.queues.items() if size[name])
        lines.append(f"--partitions queue:{','.join(sizes)}")
    numbers, windows = there["queue"], switches.windows.by_queue
    if open_ := {str(numbers[queue]): each for queue, each in windows.items() if queue in numbers}:
        lines.append(f"--windows {as_shown(open_)}")
    return "".join(f"{line}\n" for line in lines)


def _rule(rule: Rule, numbers: Mapping[str, int]) -> list[str]:
    """The rule by the log's numbers of those that have jobs in it."""
    amount = f"{'jobs' if rule.what == 'jobs' else 'processors'}={rule.most}"
    if rule.value is None:
        return [f"{rule.key}:{amount}"] if numbers else []
    return [f"{rule.key}={numbers[rule.value]}:{amount}"] if rule.value in numbers else []


def _log(jobs: Sequence[Job], processors: int, cores: int, zero_s: int, numbered: Numbered) -> str:
    """In the Standard Workload Format."""
    lines = ["; Version: 2.2", f"; UnixStartTime: {zero_s}", _zone(zero_s), f"; MaxProcs: {processors}"]
    lines += numbered.notes
    if not numbered.queues:
        lines.append(f"; Note: jobs of queue {ECO_QUEUE} may be slowed (submit --eco)")
    if any(job.spec.best_effort for job in jobs):
        lines.append(f"; Note: jobs of queue {numbered.best_effort_queue} are best-effort (submit --best-effort)")
    for job in jobs:
        submit_s, width = floor(job.queued_s) - zero_s, job.spec.nodes * cores
        wait_s = -1 if job.started_s is None else max(floor(job.started_s) - floor(job.queued_s), 0)
        status = NOT_ENDED if job.ended_s is None else COMPLETED if job.state == "done" else FAILED
        columns = (
            *(job.id, submit_s, wait_s, _run_s(job), width, -1, -1, width, job.spec.walltime_s, -1, status),
            *(job.uid, numbered.groups.get(job.group, -1), numbered.titles[job.title], numbered.queue(job), -1, -1, -1),
        )
        lines.append(" ".join(map(str, columns)))
    return "\n".join(lines) + "\n"


def _zone(zero_s: int) -> str:
    """The header's line with the time zone of this machine, which windows of queues are in."""
    name = os.environ.get("TZ", "").removeprefix(":") or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    try:
        return f"; TimeZoneString: {ZoneInfo(name).key}"
    except (KeyError, ValueError, OSError):  # it has no such name, or one of no zone, such as UTC0
        return f"; TimeZone: {time.localtime(zero_s).tm_gmtoff}"


def _table(jobs: Sequence[Job], cores: int, cores_of: Mapping[str, int]) -> str:
    """As ``sacct --parsable2`` writes it: a job has all cores of its nodes, of one that waits ``cores``.

    It has no joules, since the partition counts with the most that its nodes may draw, as a replay does where no joules
    are known.
    """
    lines = [COLUMNS]
    for job in jobs:
        spec = job.spec
        submit_s = floor(job.queued_s)
        start_s = submit_s if job.started_s is None else max(floor(job.started_s), submit_s)
        days, rest_s = divmod(spec.walltime_s, 86400)
        limit = f"{days}-{rest_s // 3600:02}:{rest_s // 60 % 60:02}:{rest_s % 60:02}"
        state = "COMPLETED" if job.state == "done" else "FAILED"
        times = (_iso(submit_s), _iso(start_s), _iso(start_s + _run_s(job)), _run_s(job), limit)
        name = "".join(one if one.isprintable() and one != "|" else " " for one in job.title)
        for number, one in enumerate(spec.requests):
            tres = f"node={one.nodes}" + (f",gres/gpu={one.gpus * one.nodes}" if one.gpus else "")
            memory = f"{round(one.memory_gb * 1024)}Mn" if one.memory_gb else ""
            nodes = [node for rank, node in enumerate(job.nodes) if spec.on_rank(rank) == number]
            allocated = sum(cores_of.get(node, cores) for node in nodes) or one.nodes * max(one.cores, cores)
            mark = f"{job.id}+{number}" if spec.components else job.id
            row = (mark, name, job.uid, *times, state, one.nodes, allocated, memory, tres)
            lines.append("|".join(map(str, row)))
    return "\n".join(lines) + "\n"


def _shared_table(jobs: Sequence[Job], owner: Owner, zero_s: int) -> str:
    """Of jobs that may share nodes. Applications that were never measured have no name of their own."""
    assert owner.pairs is not None
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(
        ("job", "application", "batch_size", "hours", "hours_are", "share", "nodes", "submit_s", "request_h")
    )
    for job in jobs:
        request_s = owner.counts.request_s(job)
        shares = sum(1 if name in job.halves else 2 for name in job.nodes) or job.spec.shares
        run_s = min(_run_s(job), request_s) if job.started_s is not None else request_s
        of = job.id, *application(owner.pairs, job), run_s / 3600, "run", owner.pairs.share(job.spec.share), shares / 2
        table.writerow((*of, floor(job.queued_s) - zero_s, request_s / 3600))
    return out.getvalue()


def _iso(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S+0000")


def _caps(budget: Sequence[tuple[float, float]], zero_s: int) -> str:
    """The steps, in seconds of the log; of those before its first submission the last one."""
    steps: dict[int, float] = {}
    for at_s, watts in budget:
        steps[max(round(at_s) - zero_s, 0)] = watts
    if steps and 0 not in steps:
        steps[0] = budget[0][1]
    return "from_s,watts\n" + "".join(f"{at_s},{steps[at_s]:.3f}\n" for at_s in sorted(steps))


def _ways(ways: Mapping[str, Rows], titles: Mapping[str, int]) -> str:
    """The table of configurations, with the log's numbers of applications."""
    lines = ["application,nodes,cores,cap_w,time_s,watts"]
    for title, rows in ways.items():
        if title in titles:
            lines += [f"{titles[title]},{r.nodes},{r.cores},{r.cap_w},{r.time_s},{r.watts}" for r in rows]
    return "\n".join(lines) + "\n"
