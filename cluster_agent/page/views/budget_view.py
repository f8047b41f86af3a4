"""The budget: are we within it, where its watts are, who changed it when, and what is announced."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from cluster_agent.budget.kept_counts import Change
from cluster_agent.page.power_ring import draws_now_w
from cluster_agent.page.snapshot import OTHERS
from cluster_agent.page.views.causes import bounding, cause
from cluster_agent.page.views.context import Content, Context, for_all_viewers
from cluster_agent.page.views.markup import Html, badge, bar, name, paragraph, table, text
from cluster_agent.page.views.quantities import NONE, clock, count, long, moment, shown_w, watts
from cluster_agent.serve.people_protocol import BudgetView, NodeRow

MOST: Final = 100
"""Ours: transitions, and announced steps, that are shown."""

_SET: Final = re.compile(r"(?:set )?([\d.]+(?:e\+?\d+)?) W\b")


class Sums(NamedTuple):
    """Over all nodes. ``unknown``: how many have no reading of power."""

    draws_w: float
    unknown: int
    states: dict[str, int]
    bounding: list[tuple[str, int]]


@for_all_viewers
def sums(rows: tuple[NodeRow, ...]) -> Sums:
    """In one pass for all viewers."""
    known = [value for row in rows if (value := draws_now_w(row)) is not None]
    unknown = sum(draws_now_w(row) is None and row.state not in ("off", "left") for row in rows)
    states = Counter(row.state for row in rows)
    return Sums(sum(known), unknown, dict(states.most_common()), bounding(rows))


def drawn_w(context: Context) -> float | None:
    """What all nodes and the fixed power draw, as far as it is known."""
    budget, found = context.snapshot.budget, sums(context.snapshot.nodes)
    is_known = budget is not None and (found.unknown < len(context.snapshot.nodes) or not context.snapshot.nodes)
    return budget.fixed_w + found.draws_w if budget is not None and is_known else None


def sentence(context: Context) -> Html:
    """The answer: how much of how much, and bound by what."""
    budget, found = context.snapshot.budget, sums(context.snapshot.nodes)
    if budget is None:
        return paragraph(text("Nothing is known yet: the cluster agent has not answered."), "said")
    now_w = drawn_w(context)
    words = f"{watts(now_w)} of {watts(budget.budget_w)}"
    if now_w is not None and budget.budget_w > 0:
        words += f" ({100 * now_w / budget.budget_w:.0f} %)"
    bound, by, most = sum(number for _, number in found.bounding), "bound by nothing", Html("")
    if bound:
        by = f"caps bind {bound:,} of {count(len(context.snapshot.nodes), 'node')}"
        bound_by, number = found.bounding[0]
        most = paragraph(text(f"What decided the cap of {number:,} of them: {cause(bound_by)}.", 400))
    return Html(paragraph(Html(f"{_verdict(context, budget, now_w)} {text(f'{words}; {by}.')}"), "said") + most)


def _verdict(context: Context, budget: BudgetView, now_w: float | None) -> Html:
    if now_w is None:
        return badge("wait", "Power not known:")
    if now_w > budget.budget_w:
        return badge("bad", f"Over the budget by {watts(now_w - budget.budget_w)}:")
    if budget.over_w > 0:
        return badge("wait", "Within the budget now:")
    return badge("ok", "Within the budget:")


def parts_of_budget(context: Context, budget: BudgetView) -> Html:
    """Where the budget's watts are: drawn, counted and not drawn, in reserve, free."""
    now_w, whole_w = drawn_w(context) or budget.fixed_w, max(budget.budget_w, 1.0)
    unused_w = max(budget.fixed_w + budget.counts_w - now_w, 0.0)
    parts = [("fixed", budget.fixed_w), ("drawn", now_w - budget.fixed_w), ("counted", unused_w),
             ("reserve", budget.reserve_w)]  # fmt: skip
    label = f"{watts(now_w)} drawn, {watts(unused_w)} more counted, {watts(budget.reserve_w)} in reserve"
    picture = bar(f"{label}, of {watts(budget.budget_w)}", [(kind, value / whole_w) for kind, value in parts])
    rows = [
        (_key("fixed", "fixed"), shown_w(budget.fixed_w), text("what nobody caps")),
        (_key("drawn", "drawn by nodes"), shown_w(now_w - budget.fixed_w), text("by their last reports")),
        (_key("counted", "counted, not drawn"), shown_w(unused_w), text("nodes may draw it at any time")),
        (_key("reserve", "reserve"), shown_w(budget.reserve_w), text("for nodes that may reboot together")),
        (_key("free", "free"), shown_w(max(budget.free_w, 0.0)), text("could be granted")),
        (text("budget"), shown_w(budget.budget_w), text(f"sharer {budget.sharer}, mode {budget.mode}")),
    ]
    return Html(picture + table("Where the watts of the budget are", ("part", "watts", "what it is"), rows, (2,)))


def _key(kind: str, word: str) -> Html:
    """The colour of a part of the bar, next to its name."""
    return Html(f'<svg class=key aria-hidden=true><rect class={kind} width="12" height="12"/></svg> {text(word)}')


def bound_table(found: Sequence[tuple[str, int]]) -> Html:
    """Who bound how many nodes."""
    if not found:
        return paragraph(text("No cap bounds a node: each draws less than it may."))
    rows = [(text(bound_by, 80), text(cause(bound_by)), text(f"{number:,}")) for bound_by, number in found]
    return table("What bounds nodes now, by their last reports", ("in short", "why", "nodes"), rows, (1,))


def set_to_w(change: Change) -> float | None:
    """The budget that a transition put in force, by its words; None: a schedule, or a node that was forgotten."""
    found = _SET.match(change.what)
    try:
        return float(found[1]) if found else None
    except ValueError:  # 1.2.3
        return None


def change_table(context: Context) -> Html:
    """The newest first. ``from`` is what the transition before had set, ``until`` when the next one came."""
    changes = context.snapshot.changes
    if not changes:
        return paragraph(text("The budget is the one of the settings: nobody has changed it."))
    set_w = [set_to_w(change) for change in changes]
    rows, until = [], text("now")
    for at, change in enumerate(changes[:MOST]):
        to_w, from_w = set_w[at], _before_w(set_w, at)
        rows.append(
            (
                moment(change.unix_s, context.now_s),
                _who(change),
                NONE if from_w is None else shown_w(from_w),
                NONE if to_w is None else shown_w(to_w),
                until if to_w is not None else NONE,
                text(change.what, 300),
            )
        )
        if to_w is not None:
            until = clock(change.unix_s, context.now_s)
    titles = ("when", "who", "from", "to", "until", "in words")
    more = f". The newest {MOST} of {len(changes)}" if len(changes) > MOST else ""
    return table(f"Transitions, the newest first{more}", titles, rows, (1, 4, 5))


def last_change(context: Context) -> Html:
    """Who set the budget that is in force, as a sentence."""
    changes = context.snapshot.changes
    set_w = [set_to_w(change) for change in changes]
    for at, (change, to_w) in enumerate(zip(changes, set_w, strict=True)):
        if to_w is None:
            continue
        from_w = _before_w(set_w, at)
        verb = "set" if from_w is None else "lowered" if to_w < from_w else "raised" if to_w > from_w else "kept"
        way = f"to {watts(to_w)}" if from_w is None else f"from {watts(from_w)} to {watts(to_w)}"
        by = Html("The feed") if change.who == "feed" else _who(change)
        return paragraph(Html(f"{by} {verb} the budget {text(way)} at {moment(change.unix_s, context.now_s)}."))
    return Html("")


def _before_w(set_w: list[float | None], at: int) -> float | None:
    """What was set before; None where this transition sets nothing."""
    return None if set_w[at] is None else next((one for one in set_w[at + 1 :] if one is not None), None)


def _who(change: Change) -> Html:
    return Html("<i>Somebody</i>") if change.who == OTHERS else name(change.who)


def budget_view(context: Context) -> Content:
    """``/budget``."""
    budget = context.snapshot.budget
    parts = {"answer": Html(f"<h1>The budget</h1>{sentence(context)}")}
    if budget is None:
        return Content("Budget", parts)
    parts["shares"] = Html(parts_of_budget(context, budget) + bound_table(sums(context.snapshot.nodes).bounding))
    if budget.groups or budget.rules:
        parts["groups"] = _groups(budget)
    parts["announced"] = Html(f"<h2>Announced</h2>{_announced(context, budget)}")
    parts["changes"] = Html(f"<h2>Who changed it</h2>{last_change(context)}{change_table(context)}")
    return Content("Budget", parts)


def _groups(budget: BudgetView) -> Html:
    """Rooms, racks and the like that have limits of their own, and the rules in force."""
    made = Html("")
    if budget.groups:
        rows = [
            (
                text(one.name),
                text(one.parent or "the budget"),
                shown_w(one.limit_w),
                shown_w(None if one.draws_w is None else one.fixed_w + one.draws_w),
                shown_w(one.fixed_w + one.counts_w),
                shown_w(one.reserve_w),
                shown_w(max(one.free_w, 0.0)),
                text(f"{one.binds:,} of {count(one.nodes, 'node')}" if one.binds else "none"),
            )
            for one in budget.groups[:MOST]
        ]
        titles = ("group", "in", "limit", "drawn", "counted", "reserve", "free", "caps that it decides")
        more = f". The first {MOST} of {len(budget.groups)}" if len(budget.groups) > MOST else ""
        made = Html(made + table(f"Limits of groups of nodes{more}", titles, rows, (0, 1, 7)))
    if budget.rules:
        rules = [
            (text(one.name), text("in force" if one.is_in_force else "on" if one.is_on else "off"), text(one.what, 200))
            for one in budget.rules
        ]
        made = Html(made + table("Sets of rules", ("rules", "now", "what they change"), rules, (0, 1, 2)))
    return made


def _announced(context: Context, budget: BudgetView) -> Html:
    if not budget.steps:
        return paragraph(text("No change is announced."))
    steps = budget.steps
    before_w = [budget.budget_w, *(budget_w for _, budget_w in steps)]
    rows = [
        (
            Html(f"{clock(context.now_s + after_s, context.now_s)} <span class=soft>(in {text(long(after_s))})</span>"),
            shown_w(before_w[at]),
            shown_w(budget_w),
            clock(context.now_s + steps[at + 1][0], context.now_s) if at + 1 < len(steps) else text("the next change"),
        )
        for at, (after_s, budget_w) in enumerate(steps[:MOST])
    ]
    return table("Steps to come", ("when", "from", "to", "until"), rows, (3,))
