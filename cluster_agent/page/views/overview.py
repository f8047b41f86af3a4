"""The first view: are we within the budget, who bound us, and what must somebody do."""

from __future__ import annotations

from collections import Counter

from cluster_agent.jobs.job import ACTIVE
from cluster_agent.page.views.alarm_view import alarm_list, unheard_nodes
from cluster_agent.page.views.budget_view import bound_table, last_change, parts_of_budget, sentence, sums
from cluster_agent.page.views.causes import STATES, kind_of_state
from cluster_agent.page.views.context import Content, Context
from cluster_agent.page.views.markup import Html, badge, facts, joined, paragraph, text
from cluster_agent.page.views.power_over_time import chart
from cluster_agent.page.views.quantities import clock, count, long, run_and_wait, watts
from cluster_agent.serve.people_protocol import BudgetView


def _remarks(context: Context, budget: BudgetView) -> Html:
    """What the sentence leaves open."""
    lines = []
    if budget.mode == "observe":
        lines.append(text("The cluster agent only observes: no node is capped (`mode` in its settings)."))
    if budget.over_w > 0:
        over = f"Nodes could draw {watts(budget.over_w)} more than the budget."
        until = ""
        if budget.lowering_s is not None:
            until = f" It is being lowered, within {long(budget.lowering_s)} at the latest."
        elif not budget.alarms:
            until = " No alarm is on, so that is within what is tolerated or will pass: nothing is to be done."
        lines.append(text(over + until))
    if budget.short_w > 0:
        lines.append(text(f"The budget lacks {watts(budget.short_w)} for every node at its minimal operating power."))
    unknown = sums(context.snapshot.nodes).unknown
    if unknown:
        lines.append(text(f"{count(unknown, 'node')} without a reading of power {'is' if unknown == 1 else 'are'}"
                          " not in this sum."))  # fmt: skip
    for after_s, budget_w in budget.steps[:2]:
        at = clock(context.now_s + after_s, context.now_s)
        lines.append(Html(f"Announced: {text(watts(budget_w))} from {at} (in {text(long(after_s))})."))
    return joined(map(paragraph, lines))


def _counts(context: Context) -> Html:
    snapshot, found = context.snapshot, sums(context.snapshot.nodes)
    nodes = [Html(f"{badge(kind_of_state(state), state)} {number:,}") for state, number in found.states.items()]
    states = Counter("runs" if job.state in ACTIVE else "waits" for job in snapshot.jobs if _is_alive(job.state))
    running = states["runs"] + len(snapshot.running)
    jobs = text(run_and_wait(running, states["waits"]))
    lines = [
        (f"{count(len(snapshot.nodes), 'node')}", joined(nodes, ", ") or text("none has joined")),
        ("jobs", Html(f"{jobs} {context.to('jobs', text('which, and why not now'))}")),
    ]
    return facts(lines)


def _is_alive(state: str) -> bool:
    return state == "queued" or state in ACTIVE


def _state_notes(context: Context) -> Html:
    states = sums(context.snapshot.nodes).states
    return joined(paragraph(text(f"{state}: {STATES[state]}."), "note") for state in states if state in STATES)


def overview(context: Context) -> Content:
    """``/``."""
    snapshot, budget = context.snapshot, context.snapshot.budget
    parts = {"answer": Html(f"<h1>Power of {_partition(context)} now</h1>{sentence(context)}")}
    if budget is None:
        return Content("Overview", parts)
    parts["answer"] = Html(parts["answer"] + last_change(context) + _remarks(context, budget))
    must_act = snapshot.alarms or unheard_nodes(context)
    parts["alarms"] = Html(f"<h2>What to do</h2>{alarm_list(context)}") if must_act else Html("")
    hours = 24 if context.query.get("hours") == "24" else 2
    other = context.to("", text("the last 24 hours" if hours == 2 else "the last 2 hours"),
                       hours="24" if hours == 2 else "2")  # fmt: skip
    parts["power"] = Html(f"<h2>Power against the budget</h2>{chart(snapshot.power, hours)}{paragraph(other)}")
    parts["bound"] = Html(f"<h2>Who bound us</h2>{bound_table(sums(snapshot.nodes).bounding)}{_where(context)}")
    parts["shares"] = Html(f"<h2>The budget</h2>{parts_of_budget(context, budget)}")
    parts["counts"] = Html(f"<h2>Nodes and jobs</h2>{_counts(context)}{_state_notes(context)}")
    return Content("Overview", parts)


def _where(context: Context) -> Html:
    return paragraph(context.to("nodes", text("Nodes by rack: which of them, and why")))


def _partition(context: Context) -> Html:
    return Html(f"partition {text(context.snapshot.partition, 60)}") if context.snapshot.partition else text(
        "the partition"
    )  # fmt: skip
