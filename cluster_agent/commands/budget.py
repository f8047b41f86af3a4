"""``clusterctl budget``: what the partition may draw, and who set it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from cluster_agent.budget.budget_line import MOST_W
from cluster_agent.budget.group_views import GroupView
from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.commands.replays.from_prices import from_carbon, from_price
from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.serve.live_budget.budget_schedule import read_schedule
from cluster_agent.serve.people_protocol import (
    Ahead,
    BudgetView,
    ListBudgetChanges,
    LowerBudget,
    SetBudget,
    SetSchedule,
    ShowBudget,
    SwitchRules,
)
from foundation.shell.command_line import FloatRange
from foundation.shell.duration import shown
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render

OF_GROUPS: Final = ("group", "limit W", "fixed", "nodes draw", "in force", "nodes count", "reserve", "free", "remark")

group_option = click.option(
    "--group", default="", metavar="NAME", help="Of this [[budget.group]]; without it: of the whole partition."
)


@click.group()
def budget() -> None:
    """Show and set the partition's budget, in DC watts of all nodes and the fixed power."""


budget.add_command(from_price)
budget.add_command(from_carbon)


@budget.command()
@json_option
@socket_option
def show(as_json: bool, socket: Place) -> None:
    """The budget, what counts against it, and what is announced."""
    view = ask(socket, ShowBudget())
    if as_json:
        echo(json_text(view))
        return
    rows = [
        ("budget", f"{view.budget_w:.1f}", f"{view.mode}, sharer {view.sharer}, epoch {view.epoch}"),
        ("fixed", f"{view.fixed_w:.1f}", "what nobody caps"),
        ("nodes count", f"{view.counts_w:.1f}", f"the most that {view.nodes} nodes may draw, {view.silent} silent"),
        ("reserve", f"{view.reserve_w:.1f}", "for nodes that may reboot at once"),
        ("free", f"{view.free_w:.1f}", "raises wait for older leases to end" if view.is_young else ""),
    ]
    if view.lowering_s is not None:
        rows.append(("to be confirmed", f"{view.over_w:.1f}", f"lowering: by {_in(view.lowering_s)} at the latest"))
    rows += [(f"in {at_s:.0f} s", f"{watts:.1f}", "announced") for at_s, watts in view.steps]
    rows += [(f"in {shown(one.in_s)}", f"{one.expected_w:.0f}", _ahead(one)) for one in view.ahead]
    echo_block(render(("what", "W", "remark"), rows))
    echo(*view.ahead_over)
    if view.groups:
        echo_block(render(OF_GROUPS, _groups(view)))
    if view.rules:
        echo_block(render(("rules", "now", "what they change"), _rules(view)))
    for alarm in view.alarms:
        echo(f"ALARM: {alarm}")


def _ahead(one: Ahead) -> str:
    band = "" if one.low_w is None or one.high_w is None else f", nine of ten {one.low_w:.0f} to {one.high_w:.0f}"
    return f"jobs are expected to draw{band}"


def _groups(view: BudgetView) -> list[tuple[str, ...]]:
    """A line for each group, indented below its parent."""
    depth, rows = {"": -1}, []
    for one in view.groups:
        depth[one.name] = depth[one.parent] + 1
    for one in _in_order(view.groups, ""):
        remark = [f"decides {one.binds} of {one.nodes} caps"] if one.binds else []
        remark += [f"{one.short_w:.1f} W less than MOPs need"] if one.short_w else []
        remark += [f"{one.over_w:.1f} W to be confirmed"] if one.over_w else []
        remark += [f"{watts:.1f} W in {at_s:.0f} s" for at_s, watts in one.steps[:1]]
        figures = (
            one.limit_w, one.fixed_w, one.draws_w, one.in_force_w, one.counts_w, one.reserve_w, one.free_w,
        )  # fmt: skip
        cells = ("-" if watts is None else f"{watts:.1f}" for watts in figures)
        rows.append(("  " * depth[one.name] + one.name, *cells, ", ".join(remark)))
    return rows


def _in_order(groups: list[GroupView], parent: str) -> Iterator[GroupView]:
    for one in groups:
        if one.parent == parent:
            yield one
            yield from _in_order(groups, one.name)


def _rules(view: BudgetView) -> list[tuple[str, ...]]:
    """A line for each set of rules."""
    rows: list[tuple[str, ...]] = []
    for one in view.rules:
        now = "in force" if one.is_in_force else "on" if one.is_on else "off"
        if one.until_s is not None:
            now += f" until {_in(one.until_s)}" if one.is_in_force else f", from {_in(one.until_s)}"
        rows.append((one.name, now, one.what))
    return rows


class WithWatts(click.Command):
    """A command whose first argument may look like an option, as -5 does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse a negative budget before it is taken for an option."""
        for word in args:
            if re.match(r"-[\d.]", word):
                watts(word)
        return super().parse_args(ctx, args)


def watts(text: str) -> float:
    """A budget as typed; the ``WrongUseError`` says the unit and gives an example."""
    try:
        given = float(text)
    except ValueError:
        given = math.nan
    if not 0 < given <= MOST_W:
        raise WrongUseError(f"{text!r} is not a budget: give watts, a number above 0 without a unit, e.g. 4000")
    return given


@budget.command("set", cls=WithWatts)
@click.argument("budget_w", metavar="WATTS")
@click.option("--dry-run", is_flag=True, help="Show what it would change; change nothing.")
@group_option
@socket_option
def set_budget(budget_w: str, dry_run: bool, group: str, socket: Place) -> None:
    """Set the budget to WATTS from now on; announced steps are cancelled."""
    echo(*ask(socket, SetBudget(watts(budget_w), dry_run, group)))


@budget.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@group_option
@socket_option
def schedule(path: Path, group: str, socket: Place) -> None:
    """Let the budget follow FILE, lines TIME,WATTS, or a profile in Unix seconds, from now on. A drop takes effect
    early enough to be kept in time."""
    steps = read_schedule(path)
    echo(*ask(socket, SetSchedule(steps, str(path), group)))


@budget.command()
@click.argument("name", metavar="NAME")
@click.option("--on/--off", "is_on", default=True, help="Whether its times count; one without times is in force.")
@socket_option
def rules(name: str, is_on: bool, socket: Place) -> None:
    """Switch the set of rules NAME of the settings on or off; `show` lists them."""
    echo(*ask(socket, SwitchRules(name, is_on)))


@budget.command()
@click.argument("hours", type=FloatRange(0, 24))
@click.option("--why", default="by hand", show_default=True, help="The reason, for the record.")
@socket_option
def lower(hours: float, why: str, socket: Place) -> None:
    """Lower the budget for HOURS from now on, ahead of a thermal hazard, as far and as long as [hazard] in the settings
    allows; 0 ends that. The budget itself stays what it is."""
    echo(*ask(socket, LowerBudget(hours, why)))


@budget.command("log")
@json_option
@socket_option
def log(as_json: bool, socket: Place) -> None:
    """Who changed the budget, when and to what; newest first."""
    changes = ask(socket, ListBudgetChanges())
    if as_json:
        echo(json_text(changes))
    elif changes:
        echo_block(render(("when", "who", "what"), [(_local(one.unix_s), one.who, one.what) for one in changes]))
    else:
        echo("the budget is the one of the settings; nobody has changed it")


def _in(seconds: float) -> str:
    """The time of day in so many seconds."""
    return datetime.fromtimestamp(time.time() + seconds).strftime("%H:%M:%S")


def _local(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(sep=" ", timespec="seconds")
