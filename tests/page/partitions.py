"""Made-up partitions for tests of the page: one that tells a story, and one as large as any."""

from __future__ import annotations

import math
from typing import Final

from cluster_agent.budget.kept_counts import Change
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.page.snapshot import Alarm, PowerPoint, Snapshot, UserEnergy
from cluster_agent.serve.people_protocol import BudgetView, JobRow, NodeRow, RunningJob
from cluster_agent.serve.why import Why

NOW_S: Final = 1_790_000_000.0
USERS: Final = ("ada", "grace", "edsger", "barbara")
SLOWED: Final = "even: slowed"
STORY_BUDGET_W: Final = 21_000.0


def node(name: str, at: int = 0, **given: object) -> NodeRow:
    """A node that is in order, or with ``given`` fields."""
    draws_w = 180.0 + 7 * (at % 13)
    fields: dict[str, object] = {
        "name": name, "state": "capped", "wanted_w": 310.0, "granted_w": 310.0, "in_force_w": 310.0, "counts_w": 310.0,
        "draws_w": draws_w, "tag": ("MEMORY", "MIXED", "COMPUTE")[at % 3], "quality": "measured", "lease_class": "os",
        "heard_s_ago": 0.6, "jobs": "allocated", "job": "", "tag_source": "node agent", "energy_j": 3.1e8,
    }  # fmt: skip
    return NodeRow(**{**fields, **given})  # type: ignore[arg-type]


def job(number: int, **given: object) -> JobRow:
    """One that waits, or with ``given`` fields."""
    fields: dict[str, object] = {
        "job": number, "user": USERS[number % 4], "uid": 1000 + number % 4, "title": f"run{number % 7}",
        "state": "queued", "status": None, "reason": "", "nodes": 2, "node_names": "", "walltime_s": 14_400,
        "submitted_s": NOW_S - 60 * (number % 90) - 30, "started_s": None, "ended_s": None, "attempts": 0, "tag": "",
        "tag_source": "", "energy_j": None, "measured": None, "method": "", "node_s": 0.0, "covered": None,
        "cap_w": None, "capped": None, "bound_by": "", "bound": None, "slowdown": None, "slowdown_from": "",
        "requested": given.get("nodes", 2),
    }  # fmt: skip
    return JobRow(**{**fields, **given})  # type: ignore[arg-type]


def running(number: int, nodes: list[str], began_s: float, **given: object) -> JobRow:
    """A job that runs on these."""
    node_s = len(nodes) * (NOW_S - began_s)
    fields: dict[str, object] = {
        "state": "running", "nodes": len(nodes), "requested": len(nodes), "node_names": ",".join(nodes),
        "submitted_s": began_s - 900, "started_s": began_s, "attempts": 1, "energy_j": 230.0 * node_s, "measured": 1.0,
        "node_s": node_s, "covered": 1.0, "cap_w": 310.0, "capped": 1.0, "took_s": NOW_S - began_s, "tag": "COMPUTE",
        "tag_source": "node agent",
    }  # fmt: skip
    return job(number, **{**fields, **given})


def budget(**given: object) -> BudgetView:
    """A budget that is kept, or with ``given`` fields."""
    fields: dict[str, object] = {
        "budget_w": STORY_BUDGET_W, "fixed_w": 1500.0, "counts_w": 18_200.0, "reserve_w": 500.0, "free_w": 800.0,
        "over_w": 0.0, "mop_w": 9000.0, "short_w": 0.0, "nodes": 64, "silent": 1, "is_young": False, "mode": "cap",
        "sharer": "even", "epoch": 7, "steps": [], "alarms": [],
    }  # fmt: skip
    return BudgetView(**{**fields, **given})  # type: ignore[arg-type]


def why(name: str) -> Why:
    """As the cluster agent says it of a node that is slowed."""
    return Why(
        node=name, state="capped", budget_w=STORY_BUDGET_W, fixed_w=1500, reserve_w=500, failing_together=1,
        shared_w=19_000, shared_among=63, short_w=0, job="4711", tag="COMPUTE", tag_source="node agent",
        agent_tag="COMPUTE", agent_tag_source="counters", wanted_w=262, sharer="even", reason="slowed", slowdown=0.08,
        words="262.0 W by even: slowed with all nodes of its job: the budget has no more watts, or other jobs gain more"
        " by them; job 4711, COMPUTE (node agent), predicted to take 8.0 % longer", granted_w=262, in_force_w=262,
        counts_w=262, tdp_w=500, mop_w=150, safe_w=200, boot_w=300, lease_class="os", heard_s_ago=0.6, is_silent=False,
        waits_for="", free_w=800, freeing_w={}, next_plan_s=None, gap_s=5, alarms=[],
    )  # fmt: skip


def story() -> Snapshot:
    """Four racks of sixteen: job 4711 is slowed, one node is silent, one is drained, and three jobs wait."""
    nodes = []
    for rack in range(1, 5):
        for place in range(1, 17):
            at = 16 * (rack - 1) + place
            nodes.append(node(f"r{rack}n{place:02}", at, job=str(4700 + rack) if at > 12 else ""))
    for at in range(12):
        nodes[at] = node(nodes[at].name, at, draws_w=258.0 + at % 4, in_force_w=262.0, wanted_w=262.0, granted_w=262.0,
                         counts_w=262.0, bound_by=SLOWED, tag="COMPUTE", job="4711")  # fmt: skip
    nodes[20] = node("r2n05", 20, state="silent", draws_w=None, heard_s_ago=312.0, quality="missing", jobs="down",
                     counts_w=500.0, in_force_w=500.0)  # fmt: skip
    nodes[40] = node("r3n09", 40, jobs="draining", jobs_why="fan, says root", job="4703")
    nodes[50] = node("r4n03", 50, wanted_w=400.0, waits_for="watts", job="4704")
    by_job: dict[str, list[str]] = {}
    for row in nodes:
        if row.job:
            by_job.setdefault(row.job, []).append(row.name)
    jobs = [
        running(4711, by_job["4711"], NOW_S - 5_400, title="turbulence", user="ada", bound_by=SLOWED, bound=0.71,
                slowdown=0.08, slowdown_from="predicted by the sharer", walltime_s=4 * 3600),
        *(running(4700 + at, by_job[f"{4700 + at}"], NOW_S - 3000 * at, title=f"mesh-{at}") for at in (1, 2, 3, 4)),
        job(4712, title="turbulence", user="ada", nodes=16, planned_s=NOW_S + 2_700,
            waits_for="planned to start by 14:58:20"),
        job(4713, title="weather", user="grace", nodes=24, planned_s=NOW_S + 9_000,
            waits_for="planned to start by 16:43:20"),
        job(4714, title="post", user="ada", nodes=1, waits_for="after job 4711 (running)"),
    ]  # fmt: skip
    alarms = (
        Alarm("raised", "1 node was set above the cap by a program that runs there, and set back; until that is"
              " confirmed the limit that was set counts (r1n07: tuned)",
              "End the program that is named: it sets power limits. `systemctl status tuned` there.", NOW_S - 240),
    )  # fmt: skip
    changes = [
        Change(NOW_S - 2_400, "feed", "21000 W, 1 steps to come"),
        Change(NOW_S - 30_000, "root", "set 24000 W by hand"),
        Change(NOW_S - 90_000, "root", "forgot node r9n01, which counted 500 W: it has no power, says root"),
        Change(NOW_S - 200_000, "root", "set 20000 W by hand"),
    ]
    return Snapshot(
        taken_s=NOW_S, partition="main", budget=budget(steps=[(5_400.0, 24_000.0)]), changes=tuple(changes),
        nodes=tuple(nodes), jobs=tuple(jobs), has_jobs=True,
        running=(RunningJob("88123", "tier2", "barbara", ["r4n15", "r4n16"], 2.2e7, False),), ended=history(),
        alarms=alarms, power=power(), energy=energy(), median_per_node_h_j=760_000.0, why={"r1n03": why("r1n03")},
        bound_since_s={row.name: NOW_S - 2_400 for row in nodes if row.bound_by},
    )  # fmt: skip


def power() -> tuple[PowerPoint, ...]:
    """A day in minutes and two hours in tens of seconds, with a gap, and a lower budget at last."""
    times_s = [*range(-86_400, -7_200, 60), *range(-7_200, 1, 10)]
    points = []
    for at_s in times_s:
        if -5_000 < at_s < -4_400:
            continue
        draws_w = 15_500 + 1_800 * math.sin(at_s / 3_000) + 700 * math.sin(at_s / 170) + (900 if at_s > -1_500 else 0)
        is_low = at_s > -2_400
        points.append(PowerPoint(NOW_S + at_s, draws_w, STORY_BUDGET_W if is_low else 24_000.0, 19_000.0,
                                 SLOWED if is_low else "", 12 if is_low else 0))  # fmt: skip
    return tuple(points)


def history() -> tuple[HistoryRow, ...]:
    """Sixty jobs of the last week."""
    rows = []
    for at in range(60):
        run_s, nodes, user = 1800.0 + 900 * (at % 9), 1 + at % 8, USERS[at % 4]
        name = "turbulence" if user == "ada" else f"mesh-{at % 5}"
        energy_j = None if at % 17 == 5 else nodes * run_s * (190.0 + 9 * (at % 11))
        ended_s = NOW_S - 9_000 * at - 600
        rows.append(HistoryRow(str(4600 - at), user, name, nodes, ended_s - run_s - 600, ended_s - run_s, ended_s,
                               run_s, state="done", energy_j=energy_j))  # fmt: skip
    return tuple(rows)


def energy() -> tuple[UserEnergy, ...]:
    """Of the same jobs."""
    found = []
    for user in USERS:
        rows = [row for row in history() if row.user == user]
        known = [row for row in rows if row.energy_j is not None]
        joules, node_h = sum(row.energy_j or 0.0 for row in known), sum(row.nodes * row.run_s / 3600 for row in known)
        found.append(UserEnergy(user, joules, joules / 3.6e6, len(rows), len(rows) - len(known), node_h,
                                joules / node_h))  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.energy_j))


def large(nodes: int = 10_000, jobs: int = 5_000) -> Snapshot:
    """Nodes of one sequence of names, each with a job of four nodes or of none, the rest of the jobs waiting."""
    names = [f"node{at:05}" for at in range(nodes)]
    has = 4 * (jobs // 3)
    rows = [
        node(name, at, job=str(1 + at // 4) if at < has else "", bound_by=SLOWED if at % 3 == 0 else "")
        for at, name in enumerate(names)
    ]
    queue = [running(1 + at, names[4 * at : 4 * at + 4], NOW_S - at) for at in range(min(has, nodes) // 4)]
    queue += [
        job(at, planned_s=NOW_S + at if at % 2 else None, waits_for=f"number {at} in the queue, behind job {at - 1}:"
            " needs 2 nodes, and 0 are idle")
        for at in range(len(queue) + 1, jobs + 1)
    ]  # fmt: skip
    view = budget(budget_w=2.6e6, fixed_w=50_000.0, counts_w=2.5e6, nodes=nodes)
    return Snapshot(taken_s=NOW_S, partition="large", budget=view, nodes=tuple(rows), jobs=tuple(queue), has_jobs=True,
                    power=power(), ended=history(), energy=energy(), median_per_node_h_j=760_000.0)  # fmt: skip


def job_record(row: JobRow) -> tuple[JobRow, Job]:
    """The row and its job, as the cluster agent stores it."""
    spec = JobSpec(command=["./solve", "--steps", "400"], walltime_s=row.walltime_s, workdir="/home/ada")
    return row, Job(id=row.job, uid=row.uid, user=row.user, spec=spec, submitted_s=row.submitted_s)
