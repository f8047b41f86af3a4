"""``clusterctl top``: the partition as it changes. It changes nothing itself."""

from __future__ import annotations

from typing import ClassVar, Final

import click
from rich.markup import escape
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static
from textual.worker import get_current_worker

from cluster_agent.budget.group_views import GroupView
from cluster_agent.commands import jobs, nodes
from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.serve.people_protocol import (
    BudgetView,
    ExplainCap,
    JobRow,
    ListJobs,
    ListNodes,
    NodeRow,
    ShowBudget,
)
from cluster_agent.serve.why import Why
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import plain

BAR: Final = 40
MOST_GROUPS: Final = 4
"""Ours: groups of the budget above the tables."""


class Top(App[None]):
    """Two tables and the budget above them, read every ``every_s`` seconds."""

    TITLE = "clusterctl top"
    CSS = """
    #budget { height: auto; padding: 0 1; }
    DataTable { height: 1fr; }
    Reason { align: center middle; }
    Reason VerticalScroll { width: 90%; height: auto; max-height: 80%; border: round $accent; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("tab", "app.focus_next", "nodes / jobs"),
    ]

    def __init__(self, socket: Place, every_s: float) -> None:
        super().__init__()
        self._socket, self._every_s = socket, every_s
        # kept here: what a request returns is also shown below another screen, and after the end of this one
        self._headline = Static("…", id="budget", markup=False)
        self._node_table: DataTable[str] = DataTable(id="nodes", cursor_type="row", zebra_stripes=True)
        self._job_table: DataTable[str] = DataTable(id="jobs", cursor_type="row", zebra_stripes=True)

    def compose(self) -> ComposeResult:
        """The three parts."""
        yield self._headline
        yield self._node_table
        yield self._job_table
        yield Footer()

    def on_mount(self) -> None:
        """Set the headings, and update for the first time."""
        self._node_table.add_columns(*nodes.HEADINGS)
        self._job_table.add_columns(*jobs.HEADINGS)
        self.look()
        self.set_interval(self._every_s, self.look)

    @work(thread=True, exclusive=True)
    def look(self) -> None:
        """Send requests from a thread, so that an agent that is slow to answer does not block the keys."""
        worker = get_current_worker()
        try:
            budget = ask(self._socket, ShowBudget())
            rows = ask(self._socket, ListNodes())
        except ClusterError as error:
            if not worker.is_cancelled:
                self.call_from_thread(self._say, f"{plain(str(error))}\n(the tables are from before)")
            return
        try:
            queue = ask(self._socket, ListJobs())
        except ClusterError:
            queue = []  # it runs no jobs
        if not worker.is_cancelled:
            self.call_from_thread(self._show, budget, rows, queue)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter on a node shows why it has its cap."""
        if event.data_table.id == "nodes" and event.row_key.value is not None:
            try:
                why = ask(self._socket, ExplainCap(event.row_key.value))
            except ClusterError as error:
                self._say(plain(str(error)))
                return
            self.push_screen(Reason(why))

    def _say(self, text: str) -> None:
        self._headline.update(text)

    def _show(self, budget: BudgetView, rows: list[NodeRow], queue: list[JobRow]) -> None:
        self._say(summary(budget, rows))
        _fill(self._node_table, {row.name: _safe(nodes.cells(row)) for row in rows})
        _fill(self._job_table, {str(row.job): _safe(jobs.cells(row)) for row in queue})


class Reason(ModalScreen[None]):
    """Why a node has its cap; Enter, q or Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "back")]

    def __init__(self, why: Why) -> None:
        super().__init__()
        self._why = why

    def compose(self) -> ComposeResult:
        """The sentences."""
        with VerticalScroll():
            yield Static("\n".join(map(plain, [self._why.node, *self._why.lines])), markup=False)


def summary(budget: BudgetView, rows: list[NodeRow]) -> str:
    """The lines above the tables: where the budget's watts are, and what is wrong."""
    draws_w = sum(row.draws_w for row in rows if row.draws_w is not None)
    unheard = sum(row.draws_w is None for row in rows)
    scale = BAR / budget.budget_w if budget.budget_w > 0 else 0.0
    fixed, drawn = (max(min(round(part * scale), BAR), 0) for part in (budget.fixed_w, budget.fixed_w + draws_w))
    counted = max(min(round((budget.fixed_w + budget.counts_w) * scale), BAR), drawn)
    bar = "#" * fixed + "=" * (drawn - fixed) + "-" * (counted - drawn) + "." * (BAR - counted)
    lines = [
        f"[{bar}] of {budget.budget_w:g} W: # fixed {budget.fixed_w:g}, = drawn {draws_w:.0f}, - counted up to"
        f" {budget.counts_w:.0f}, free {budget.free_w:.0f}, reserve {budget.reserve_w:g}",
        f"{budget.mode}, {budget.sharer}, epoch {budget.epoch}; {budget.nodes} nodes, {budget.silent} silent"
        + (f", {unheard} without a reading of power" if unheard else ""),
    ]
    if budget.lowering_s is not None:
        lines.append(f"lowering: {budget.over_w:g} W to be confirmed within {budget.lowering_s:.0f} s")
    lines += [f"in {at_s:.0f} s: {watts:g} W" for at_s, watts in budget.steps[:1]]
    lines += _groups(budget.groups)
    return "\n".join(map(plain, lines + [f"ALARM: {alarm}" for alarm in budget.alarms]))


def _groups(groups: list[GroupView]) -> list[str]:
    """A line for each of those that have least free, by their limits alone."""
    lines = []
    for one in sorted(groups, key=lambda one: one.free_w)[:MOST_GROUPS]:
        drawn = "" if one.draws_w is None else f" drawn {one.fixed_w + one.draws_w:.0f},"
        within = f" in {one.parent}" if one.parent else ""
        figures = f"of {one.limit_w:g} W:{drawn} counted {one.fixed_w + one.counts_w:.0f}, free {one.free_w:.0f}"
        lines.append(f"{one.name}{within} {figures}")
    if len(groups) > MOST_GROUPS:
        lines.append(f"{len(groups) - MOST_GROUPS} more groups have more free: clusterctl budget show")
    return lines


def _safe(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Cells for a ``DataTable``, which takes text in brackets as markup."""
    return tuple(escape(plain(cell)) for cell in cells)


def _fill(table: DataTable[str], rows: dict[str, tuple[str, ...]]) -> None:
    """Make the table show these rows; cursor and scroll position stay."""
    if [key.value for key in table.rows] != list(rows):
        at = table.cursor_row
        table.clear()
        for name, cells in rows.items():
            table.add_row(*cells, key=name)
        table.move_cursor(row=min(at, max(len(rows) - 1, 0)))
        return
    for name, cells in rows.items():
        for column, cell in zip(table.ordered_columns, cells, strict=True):
            if table.get_cell(name, column.key) != cell:
                table.update_cell(name, column.key, cell)


@click.command()
@click.option("--every", "every_s", type=FloatRange(0.2, 60.0), default=1.0, show_default=True, help="Seconds.")
@socket_option
def top(every_s: float, socket: Place) -> None:
    """Budget, nodes and jobs, as they change. Enter on a node says why it has its cap; q ends it."""
    import sys

    ask(socket, ShowBudget())  # without an agent this is an error of one line, before the screen opens
    if not sys.stdout.isatty():
        raise ClusterError("top needs a terminal; `clusterctl nodes` and `clusterctl budget show` print")
    Top(socket, every_s).run()
