"""Nodes by rack, the nodes of a rack, and one node: what bounds it, by whom, and what it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cluster_agent.budget.tag_sources import in_words
from cluster_agent.page.power_ring import UNHEARD, draws_now_w
from cluster_agent.page.views.budget_view import bound_table, last_change
from cluster_agent.page.views.causes import STATES, WAITS, bounding, cause, kind_of, what_helps
from cluster_agent.page.views.context import Content, Context, for_all_viewers, page_of, pages_of
from cluster_agent.page.views.markup import (
    Html,
    Kind,
    badge,
    bar,
    facts,
    joined,
    name,
    paragraph,
    prose,
    table,
    text,
    title_of,
)
from cluster_agent.page.views.quantities import NONE, count, long, moment, shown_j, shown_w, watts
from cluster_agent.page.views.racks import Rack, racks
from cluster_agent.serve.people_protocol import NodeRow, RunningJob
from cluster_agent.serve.why import Why

UNUSABLE = ("draining", "drained", "down")
"""States of a node for jobs in which it gets none."""

MOST_NAMED = 20
"""Ours: nodes that the page of all racks names because somebody must look after them."""


def state_of(row: NodeRow) -> Html:
    """Its state, and what it does for jobs if that is not the usual."""
    words = row.state + (f", {row.jobs}" if row.jobs in UNUSABLE else "")
    return badge(kind_of(row), words)


def node_link(context: Context, node: str) -> Html:
    """To the node's own view."""
    return context.to("nodes", name(node), node) if node else name(node)


def bound_of(row: NodeRow) -> Html:
    """Whether a cap bounds it, and in a word what decided that cap."""
    return Html(f"{badge('wait', 'yes')}: {text(row.bound_by, 80)}") if row.bound_by else NONE


def node_list(context: Context) -> Content:
    """``/nodes``: all racks, or those of one (``?rack=``)."""
    rows = context.snapshot.nodes
    found = racks(rows)
    if not rows:
        none = "No node has joined: `clusterctl keys new NAME --role node` allows one, then start its agent."
        return Content("Nodes", {"answer": Html(f"<h1>Nodes</h1>{paragraph(text(none), 'said')}")})
    if "rack" in context.query or len(found) == 1:
        key = context.query.get("rack", found[0].key)
        rack = next((one for one in found if one.key == key), None)
        if rack is None:
            return _none_such(context, "rack", key)
        return _rack(context, rack, len(found) > 1)
    bad = [row for row in rows if kind_of(row) == "bad"]
    bound = sum(number for _, number in bounding(rows))
    said = f"{count(len(rows), 'node')}: caps bind {bound:,}, {len(bad):,} to look after."
    titles = ("rack", "nodes", "state", "draw of cap", "power", "caps in force", "cap-bound", "tags")
    parts = {
        "answer": Html(f"<h1>Nodes by rack</h1>{paragraph(text(said), 'said')}"),
        "bad": _to_look_after(context, bad),
        "racks": table("Racks: by the names of nodes", titles, [_rack_row(context, one) for one in found], (2, 3, 7)),
        "bound": bound_table(bounding(rows)),
    }
    return Content("Nodes", parts)


def _none_such(context: Context, what: str, key: str) -> Content:
    words = Html(f"There is no {what} {name(key)}. {context.to('nodes', text('All nodes'))}")
    return Content(f"No such {what}", {"answer": Html(f"<h1>No such {what}</h1>{paragraph(words)}")}, 404)


def _to_look_after(context: Context, bad: Sequence[NodeRow]) -> Html:
    if not bad:
        return Html("")
    lines = [Html(f"<li>{node_link(context, row.name)}: {_trouble(row)}</li>") for row in bad[:MOST_NAMED]]
    more = paragraph(text(f"and {len(bad) - MOST_NAMED:,} more"), "note") if len(bad) > MOST_NAMED else ""
    return Html(f"<h2>To look after</h2><ul>{joined(lines)}</ul>{more}")


def _trouble(row: NodeRow) -> Html:
    if row.jobs == "down" and row.state not in STATES:
        return Html(f"{state_of(row)}: {text(row.jobs_why or 'it gets no jobs', 200)}")
    return Html(f"{state_of(row)}: {text(STATES.get(row.state, row.state))}")


def rack_title(rack: Rack) -> Html:
    """Its only node, or the first and the last."""
    return name(rack.first) if len(rack.rows) == 1 else Html(f"{name(rack.first)} to {name(rack.last)}")


class _Sums:
    """Of a rack."""

    def __init__(self, rows: Sequence[NodeRow]) -> None:
        known = [value for row in rows if (value := draws_now_w(row)) is not None]
        self.draws_w = sum(known) if known else None
        self.caps_w = sum(row.in_force_w for row in rows)
        self.bound = sum(bool(row.bound_by) for row in rows)
        self.kinds = Counter(map(kind_of, rows))
        self.tags = Counter(row.tag for row in rows if row.tag)


def _rack_row(context: Context, rack: Rack) -> list[Html]:
    sums = _Sums(rack.rows)
    return [
        context.to("nodes", rack_title(rack), rack=rack.key) if rack.key else rack_title(rack),
        text(f"{len(rack.rows):,}"),
        _kinds(sums.kinds),
        _of_cap(sums.draws_w, sums.caps_w),
        shown_w(sums.draws_w),
        shown_w(sums.caps_w),
        text(f"{sums.bound:,}") if sums.bound else NONE,
        text(", ".join(f"{number} {tag}" for tag, number in sums.tags.most_common())) if sums.tags else NONE,
    ]


def _kinds(kinds: Counter[Kind]) -> Html:
    words: dict[Kind, str] = {"ok": "capped", "wait": "changing", "bad": "to look after", "off": "off"}
    if set(kinds) == {"ok"}:
        return badge("ok", "all capped")
    return joined((badge(kind, f"{kinds[kind]} {word}") for kind, word in words.items() if kinds[kind]), " ")


def _of_cap(draws_w: float | None, cap_w: float) -> Html:
    if draws_w is None or cap_w <= 0:
        return NONE
    share = draws_w / cap_w
    return bar(f"{100 * share:.0f} % of the caps in force", [("over" if share > 1.02 else "drawn", min(share, 1.0))])


def _rack(context: Context, rack: Rack, is_part: bool) -> Content:
    titles = ("node", "state", "draw of cap", "power", "cap in force", "cap wanted", "tag", "cap-bound", "job")
    rows = [_node_row(context, row) for row in rack.rows[page_of(context, len(rack.rows))]]
    head = Html(f"Nodes {rack_title(rack)}") if is_part else text("Nodes")
    up = paragraph(context.to("nodes", text("← all racks"))) if is_part else Html("")
    sums = _Sums(rack.rows)
    said = f"{count(len(rack.rows), 'node')} draw {watts(sums.draws_w)} under caps of {watts(sums.caps_w)}; caps bind"
    parts = {
        "answer": Html(f"<h1>{head}</h1>{up}{paragraph(text(f'{said} {sums.bound:,}.'), 'said')}"),
        "nodes": Html(
            table("A node's name leads to why it has its cap", titles, rows, (1, 2, 6, 7, 8))
            + pages_of(context, "nodes", len(rack.rows), rack=rack.key)
        ),
        "bound": bound_table(bounding(rack.rows)),
    }
    return Content("Nodes", parts)


def _node_row(context: Context, row: NodeRow) -> list[Html]:
    return [
        node_link(context, row.name),
        state_of(row),
        _of_cap(draws_now_w(row), row.in_force_w),
        shown_w(draws_now_w(row)),
        shown_w(row.in_force_w),
        NONE if row.wanted_w is None else shown_w(row.wanted_w),
        text(row.tag, 60) if row.tag else NONE,
        bound_of(row),
        _own_job(context, row) or NONE,
    ]


def _own_job(context: Context, row: NodeRow) -> Html:
    return context.to("jobs", text(row.job, 60), row.job) if row.job else Html("")


# --- one node


@for_all_viewers
def _by_name(rows: tuple[NodeRow, ...]) -> dict[str, NodeRow]:
    return {row.name: row for row in rows}


@for_all_viewers
def draws_by_name(rows: tuple[NodeRow, ...]) -> dict[str, float | None]:
    """The power of each node."""
    return {row.name: draws_now_w(row) for row in rows}


def row_of(context: Context, node: str) -> NodeRow | None:
    """The row of a node by its name."""
    return _by_name(context.snapshot.nodes).get(node)


def node_detail(context: Context) -> Content:
    """``/nodes/NAME``: why is it slow?"""
    row = row_of(context, context.about)
    if row is None:
        return _none_such(context, "node", context.about)
    why = context.snapshot.why.get(row.name)
    lines = [paragraph(_answer(row, why), "said"), *map(paragraph, _sentences(row, why))]
    if row.bound_by:
        since_s = context.snapshot.bound_since_s.get(row.name)
        if since_s is not None:
            seen = moment(since_s, context.now_s)
            lines.append(paragraph(Html(f"A cap has bound it since {seen} at least, as this page has seen it.")))
        lines.append(last_change(context))
    up = next((one for one in racks(context.snapshot.nodes) if row in one.rows), None)
    parts = {
        "answer": Html(f"<h1>Why is node {name(row.name)} slow?</h1>{joined(lines)}"),
        "facts": Html(f"<h2>Its watts</h2>{_bar(row, why)}{_facts(context, row, why)}"),
        "jobs": Html(f"<h2>Its jobs</h2>{_jobs(context, row)}"),
        "why": _in_full(row, why),
    }
    if up is not None and up.key:
        parts["up"] = paragraph(context.to("nodes", Html(f"← nodes {rack_title(up)}"), rack=up.key))
    return Content(f"Node {row.name[:60]}", parts)


def _answer(row: NodeRow, why: Why | None) -> Html:
    """In one sentence."""
    if row.state in STATES and row.state not in ("young", "joining"):
        since = "" if row.heard_s_ago is None else f" Its last report is {long(row.heard_s_ago)} old."
        return Html(f"{state_of(row)}: {text(STATES[row.state])}.{text(since)}")
    slowdown = _slowdown(why)
    slower = f" Its job is expected to take {100 * slowdown:.0f} % longer." if slowdown else ""
    if row.bound_by:
        return Html(
            f"{badge('wait', 'Its cap slows it:')} it draws {text(watts(row.draws_w))} and may draw"
            f" {text(watts(row.in_force_w))}: {text(cause(row.bound_by))}.{text(slower)}"
        )
    if row.draws_w is None:
        return Html(f"{badge('wait', 'Its power is not known:')} its last report has none ({text(row.quality)}).")
    draws = f"it draws {watts(row.draws_w)} and may draw {watts(row.in_force_w)}."
    if why is not None and slower:
        decided = f" What decided its cap: {cause(f'{why.sharer}: {why.reason}')}." if why.sharer else ""
        return Html(f"{badge('wait', 'Its cap binds it now and then, and not at this moment:')}"
                    f" {text(draws + slower + decided)}")  # fmt: skip
    return Html(f"{badge('ok', 'No cap slows it:')} {text(draws)}")


def _slowdown(why: Why | None) -> float:
    """What its cap costs its job, as its sharer expects; a cap that binds now and then does so, too. 0: nothing."""
    slowdown = 0.0 if why is None else why.slowdown or 0.0
    return slowdown if slowdown >= 0.005 else 0.0


def _sentences(row: NodeRow, why: Why | None) -> list[Html]:
    """What it waits for, what its job is like, and whether it gets jobs."""
    lines = [prose(helps)] if (helps := what_helps(row)) else []
    if row.waits_for:
        wanted = "" if row.wanted_w is None else f" for {watts(row.wanted_w)}"
        lines.append(text(f"It waits{wanted}: {WAITS.get(row.waits_for, row.waits_for)}."))
    if why is not None and why.freeing_w and row.waits_for == "watts":
        freeing = ", ".join(f"{node[:60]} ({watts(much_w)})" for node, much_w in why.freeing_w.items())
        lines.append(text(f"About to free watts: {freeing}."))
    if not row.bound_by and row.tag == "MEMORY" and not _slowdown(why):
        lines.append(text("Its job waits for memory most of the time (tag MEMORY), which no cap changes."))
    if row.jobs in UNUSABLE:
        lines.append(text(f"It gets no new jobs ({row.jobs}){f': {row.jobs_why}' if row.jobs_why else ''}.", 400))
    return lines


def _bar(row: NodeRow, why: Why | None) -> Html:
    """Power, cap in force and TDP."""
    if why is None or why.tdp_w <= 0 or row.draws_w is None or row.state in UNHEARD:
        return Html("")
    label = f"draws {watts(row.draws_w)} of a cap of {watts(row.in_force_w)}; at most {watts(why.tdp_w)}"
    over = "over" if row.draws_w > 1.02 * row.in_force_w else "drawn"
    rest = max(row.in_force_w - row.draws_w, 0.0) / why.tdp_w
    picture = bar(label, [(over, row.draws_w / why.tdp_w), ("counted", rest)], row.in_force_w / why.tdp_w)
    return Html(f"{picture}{paragraph(text(f'{label}.'), 'note')}")


def _facts(context: Context, row: NodeRow, why: Why | None) -> Html:
    heard = "never" if row.heard_s_ago is None else f"{long(row.heard_s_ago)} ago"
    is_old = row.state in UNHEARD
    quality = "by its last report" if is_old else row.quality
    rows = [
        ("drew" if is_old else "draws", Html(f"{shown_w(row.draws_w)} <span class=soft>({text(quality)})</span>")),
        ("cap in force", shown_w(row.in_force_w)),
        ("cap granted", NONE if row.granted_w is None else shown_w(row.granted_w)),
        ("cap wanted", NONE if row.wanted_w is None else shown_w(row.wanted_w)),
        ("counts in the budget", shown_w(row.counts_w)),
        ("tag of its work", text(in_words(row.tag, row.tag_source), 200)),
        ("last report", text(heard)),
        ("energy since the cluster agent started", shown_j(row.energy_j)),
    ]
    if why is not None:
        rows[5:5] = [
            ("highest and lowest cap (TDP, MOP)", text(f"{watts(why.tdp_w)}, {watts(why.mop_w)}")),
            ("cap without a cluster agent (safe cap)", shown_w(why.safe_w)),
        ]
    return facts(rows)


def _jobs(context: Context, row: NodeRow) -> Html:
    lines = []
    if row.job:
        own = next((job for job in context.snapshot.jobs if str(job.job) == row.job), None)
        title = Html(f": {title_of(own.title, own.user)} of {name(own.user)}") if own is not None else ""
        lines.append(Html(f"job {_own_job(context, row)}{title}"))
    lines += [running_link(context, job) for job in context.snapshot.running if row.name in job.nodes]
    if not lines:
        return paragraph(text("No job is known to run on it."))
    return Html(f"<ul>{joined(Html(f'<li>{line}</li>') for line in lines)}</ul>")


def running_link(context: Context, job: RunningJob) -> Html:
    """To a job of another manager."""
    title = Html(f"job {name(job.job)}{f' at {name(job.manager)}' if job.manager else ''}")
    linked = context.to("jobs", title, job.job, manager=job.manager or "another") if job.job else title
    return Html(f"{linked} of {name(job.user)}" if job.user else linked)


def _in_full(row: NodeRow, why: Why | None) -> Html:
    if why is None:
        return paragraph(Html(f"In full, on the head node: <code>clusterctl why {text(row.name, 60)}</code>"), "note")
    lines = joined(Html(f"<li>{prose(line)}</li>") for line in why.lines)
    summary = "In full, as <code>clusterctl why</code> says it"
    return Html(f"<details open><summary>{summary}</summary><ul>{lines}</ul></details>")
