"""The queue: what runs until when, what waits, why not now, and when it is expected to start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cluster_agent.page.predicted_starts import basis, filled_in, in_short, start_s
from cluster_agent.page.snapshot import OTHERS, ends_s
from cluster_agent.page.views.context import Content, Context, for_all_viewers, page_of, pages_of
from cluster_agent.page.views.job_gantt import MOST_ROWS, gantt
from cluster_agent.page.views.markup import Html, joined, name, paragraph, table, text, title_of
from cluster_agent.page.views.node_views import draws_by_name, running_link
from cluster_agent.page.views.quantities import NONE, ago, clock, count, long, moment, run_and_wait, shown_j, shown_w
from cluster_agent.serve.people_protocol import JobRow, NodeRow, RunningJob

FIRST: Final = 25
"""Ours: rows of each part on the page of all parts."""

PARTS: Final = {
    "yours": "Your jobs", "runs": "Jobs that run", "waits": "Jobs that wait", "others": "Other managers' jobs",
}  # fmt: skip
TITLES: Final = {
    "yours": ("job", "name", "state", "nodes", "power", "energy", "starts", "ends by", "why not now"),
    "runs": ("job", "name", "user", "nodes", "power", "energy", "runs since", "ends by", "bound by"),
    "waits": ("job", "name", "user", "nodes", "walltime", "submitted", "starts", "why not now"),
}
WORDS: Final = {"yours": (1, 2, 6, 8), "runs": (1, 2, 8), "waits": (1, 2, 6, 7)}
"""Headings of each part, and which columns are words."""


def nodes_of(row: JobRow) -> list[str]:
    """Their names; none of a job that waits."""
    return row.node_names.split(",") if row.node_names else []


def draws_w(context: Context, nodes: Sequence[str]) -> float | None:
    """What these draw together; None if that is not known of all."""
    by_name = draws_by_name(context.snapshot.nodes)
    known = [value for node in nodes if (value := by_name.get(node)) is not None]
    return sum(known) if known and len(known) == len(nodes) else None


def job_link(context: Context, row: JobRow) -> Html:
    """Its number; of another user's job it leads nowhere."""
    return text(str(row.job)) if row.user == OTHERS else context.to("jobs", text(str(row.job)), str(row.job))


def why_not_now(context: Context, row: JobRow) -> str:
    """In the cluster agent's words; of a job that is planned it says only when, so by the nodes that are idle."""
    if row.planned_s is None:
        return row.waits_for or row.reason or "it has just joined the queue"
    idle = idle_nodes(context.snapshot.nodes)
    if row.nodes > idle:
        return f"needs {count(row.nodes, 'node')}, and {idle} {'is' if idle == 1 else 'are'} idle"
    return "nodes are idle, but the policy keeps them, or watts, for jobs that are to start before it"


@for_all_viewers
def idle_nodes(rows: tuple[NodeRow, ...]) -> int:
    """How many could get a job."""
    return sum(row.jobs == "idle" for row in rows)


def starts(context: Context, row: JobRow) -> Html:
    """When it is expected to start, as far as the policy plans that or it was predicted."""
    if row.planned_s is None:
        return in_short(context, row)
    if row.planned_s <= context.now_s:
        return text("now")
    return Html(f"by {moment(row.planned_s, context.now_s)}")


def job_list(context: Context) -> Content:
    """``/jobs``; ``?part=`` shows all rows of one part."""
    snapshot, user = context.snapshot, context.viewer.user
    jobs, order = snapshot.jobs, snapshot.in_order
    runs, waits = [jobs[at] for at in order.runs], [jobs[at] for at in order.waits]
    own = [job for job in (*runs, *waits) if user and job.user == user]
    rows: dict[str, Sequence[JobRow]] = {"yours": own, "runs": runs, "waits": waits}
    part = context.query.get("part", "")
    if part in rows:
        return Content(PARTS[part], {"answer": Html(f"<h1>{PARTS[part]}</h1>{_back(context)}"),
                                     part: _part(context, part, rows[part], True)})  # fmt: skip
    if part == "others":
        return Content(PARTS[part], {"answer": Html(f"<h1>{PARTS[part]}</h1>{_back(context)}"),
                                     part: _others(context, snapshot.running, True)})  # fmt: skip
    parts = {"answer": Html(f"<h1>Jobs</h1>{_said(context, own, len(runs), waits)}")}
    if own:
        parts["yours"] = _part(context, "yours", own, False)
    if runs or waits:
        parts["plan"] = _plan(context, runs, len(runs) + len(waits))
    if waits:
        parts["waits"] = _part(context, "waits", waits, False)
    if runs:
        parts["runs"] = _part(context, "runs", runs, False)
    if snapshot.running:
        parts["others"] = _others(context, snapshot.running, False)
    return Content("Jobs", parts)


def _plan(context: Context, runs: Sequence[JobRow], number: int) -> Html:
    """Until when jobs run, and which come next; one's own in the same order."""
    jobs, order, user = context.snapshot.jobs, context.snapshot.in_order, context.viewer.user
    mine = [job for at in (*order.expected, *order.runs) if user and (job := jobs[at]).user == user]
    next_ones = [jobs[at] for at in order.expected[:MOST_ROWS]]
    chart = gantt(context.now_s, filled_in(context, mine), runs, filled_in(context, next_ones), number)
    return Html(chart + basis(context))


def _back(context: Context) -> Html:
    return paragraph(context.to("jobs", text("← all jobs")))


def _said(context: Context, own: Sequence[JobRow], running: int, waits: Sequence[JobRow]) -> Html:
    snapshot = context.snapshot
    if not (running or waits or snapshot.running):
        why = "No job runs or waits." if snapshot.has_jobs else "The cluster agent runs no jobs itself."
        return paragraph(text(why), "said")
    words = f"{run_and_wait(running, len(waits))}."
    if snapshot.running:
        words += f" Other job managers run {len(snapshot.running):,}."
    next_own = next((job for job in own if job.state == "queued"), None)
    lines = [paragraph(text(words), "said")]
    if next_own is not None:
        starts_at = f"; it starts {starts(context, next_own)}" if _is_expected(context, next_own) else ""
        why = text(why_not_now(context, next_own))
        lines.append(paragraph(Html(f"Your next job, {job_link(context, next_own)}, waits: {why}{starts_at}.")))
    return joined(lines)


def _is_expected(context: Context, row: JobRow) -> bool:
    return row.planned_s is not None or start_s(context, row) is not None


def _part(context: Context, part: str, rows: Sequence[JobRow], is_whole: bool) -> Html:
    shown = rows[page_of(context, len(rows))] if is_whole else rows[:FIRST]
    cells = {"yours": _own, "runs": _running, "waits": _waiting}[part]
    made = table(PARTS[part], TITLES[part], [cells(context, row) for row in shown], WORDS[part])
    return Html(made + _more(context, part, len(rows), is_whole))


def _more(context: Context, part: str, number: int, is_whole: bool) -> Html:
    if is_whole:
        return pages_of(context, "jobs", number, part=part)
    more = f"All {number:,} of them"
    return paragraph(context.to("jobs", text(more), part=part)) if number > FIRST else Html("")


def _waiting(context: Context, row: JobRow) -> list[Html]:
    return [
        job_link(context, row),
        title_of(row.title, row.user),
        name(row.user),
        text(f"{row.nodes:,}"),
        text(long(row.walltime_s)),
        text(ago(row.submitted_s, context.now_s)),
        starts(context, row),
        text(why_not_now(context, row), 300),
    ]


def _running(context: Context, row: JobRow) -> list[Html]:
    return [
        job_link(context, row),
        title_of(row.title, row.user),
        name(row.user),
        text(f"{row.nodes:,}"),
        shown_w(draws_w(context, nodes_of(row))),
        shown_j(row.energy_j),
        clock(row.started_s, context.now_s),
        clock(ends_s(row), context.now_s),
        text(row.bound_by, 80) if row.bound_by else NONE,
    ]


def _own(context: Context, row: JobRow) -> list[Html]:
    is_queued = row.state == "queued"
    return [
        job_link(context, row),
        title_of(row.title, row.user),
        text(row.state),
        text(f"{row.nodes:,}"),
        NONE if is_queued else shown_w(draws_w(context, nodes_of(row))),
        NONE if is_queued and row.energy_j is None else shown_j(row.energy_j),
        starts(context, row) if is_queued else moment(row.started_s, context.now_s),
        NONE if is_queued else clock(ends_s(row), context.now_s),
        text(why_not_now(context, row), 300) if is_queued else NONE,
    ]


def _others(context: Context, running: Sequence[RunningJob], is_whole: bool) -> Html:
    shown = running[page_of(context, len(running))] if is_whole else running[:FIRST]
    rows = [
        [running_link(context, job), text(f"{len(job.nodes):,}"), shown_w(draws_w(context, job.nodes)),
         shown_j(job.energy_j), text("shares a node" if job.is_shared else "alone")]
        for job in shown
    ]  # fmt: skip
    made = table(PARTS["others"], ("job", "nodes", "power of its nodes", "energy so far", "its nodes"), rows, (4,))
    return Html(made + _more(context, "others", len(running), is_whole))
