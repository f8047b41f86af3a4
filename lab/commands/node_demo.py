"""``nodectl demo``: the agent on emulated nodes, what it saves and at what cost in time."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from foundation.shell.command_line import FloatRange, needs_extras
from foundation.shell.errors import NodectlError, UsageError

if TYPE_CHECKING:
    from lab.node_demo.served import LiveRun

CAPTION = """
Means over {runs} runs on as many nodes of each type, with other counter errors and other jitter each time; every policy
has the same nodes and runs. ±: the mean's 95 % interval by what differs so (Student's t), not by what the model gets
wrong. saved: headline energy against the highest clock, % (GPU jobs: boards; CPU jobs: the whole node). vs fw: the
same against the card's own firmware. node: whole node. slower: time over the highest clock, %. share: of the saving of
the oracle, which keeps the bound with one clock per phase (CPU jobs: on the same nodes; GPU jobs: on one as in the
machine file). bdpo-gpu lowers clocks below 10 % SM occupancy, which only Hopper shows (genoa-h100); elsewhere it sees
utilisation, which is near 100 %, and does nothing."""

ONE_RUN = "\nOne run on one node, without intervals."

COUNTER_ERROR = """
The counters' error against the truth (random, hidden from the policies) is in demo.json, by run and phase."""

JOURNAL, TRUTH = "demo-journal", "demo-truth.json"
"""Ours, since the journal of an earlier demo is removed: a running agent's journal may be below --out as well."""


_Item = TypeVar("_Item")


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out"), show_default=True, help="Where results go."
)
@click.option("--seconds", type=FloatRange(5.0), default=60.0, show_default=True, help="Length of the real-time run.")
@click.option(
    "--runs", type=click.IntRange(1, 10), default=5, show_default=True, help="Runs of each workload and policy."
)
@click.option("--virtual", is_flag=True, help="No real-time run: everything in virtual time.")
@click.option("--quick", is_flag=True, help="Two workloads only.")
@click.option("--scmi", "delegated", is_flag=True, help="Show instead a cap through SCMI to the controller's firmware.")
@click.option(
    "--calibration", "calibrates", is_flag=True, help="Show instead a calibration, and what policies gain by it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def demo(
    out: Path, seconds: float, runs: int, virtual: bool, quick: bool, delegated: bool, calibrates: bool, as_json: bool
) -> int:
    """Run the real agent on emulated nodes; print what was saved and what it cost; leave plots and JSON in --out.

    First the daemon in real time on a served node, then workloads times policies in virtual time. With --scmi: caps in
    watts through the agent and SCMI to the controller's firmware, whose chip follows them; the controller is killed on
    the way and returns. Exit status 1 if a cap was not followed within two control periods. With --calibration: a node
    is measured by `nodectl calibrate`, and the same policies run before and after. All results are emulated: a model's,
    not a machine's.
    """
    needed = ["matplotlib"] if delegated or calibrates else ["pynvml", "matplotlib"]
    if missing := [name for name in needed if find_spec(name) is None]:
        raise NodectlError(needs_extras(missing))  # now, not after a minute, when it is first used
    from lab.node_demo import comparison, node_figures, served

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
    if delegated:
        return _delegated(out, as_json)
    if calibrates:
        return _calibrated(out, seconds, virtual, as_json)
    started = time.monotonic()
    shutil.rmtree(out / JOURNAL, ignore_errors=True)

    def say(line: str) -> None:
        if not as_json:
            click.echo(line)

    live_case = comparison.Case("xh2415", "easywave", "gpu", seconds)
    say("EMULATED: every figure below comes from a model of the machine it names, not from that machine.\n")
    say(f"1. The daemon on {live_case.machine} running {live_case.workload} for about {seconds:.0f} s ...")
    live = served.live_run(live_case, out / JOURNAL, out / TRUTH, virtual)
    for line in _live_lines(live):
        say(line)
    node_figures.over_time(out / JOURNAL, f"{live_case.workload} on {live_case.machine}", out / "demo-over-time.png")

    cases = comparison.CASES[::6] if quick else comparison.CASES
    say(f"2. {len(cases)} workloads, every policy, {runs} runs, virtual time (bound {comparison.BOUND:.0%}) ...")
    compared = list(_with_progress(comparison.compare(cases, runs, len(os.sched_getaffinity(0))), len(cases)))
    node_figures.energy_against_time(compared, out / "demo-energy-time.png")
    (out / "demo.json").write_bytes(
        msgspec.json.format(msgspec.json.encode({"emulated": True, "live": live, "comparison": compared}), indent=1)
    )
    if as_json:
        click.echo((out / "demo.json").read_text())
        return 0
    say("")
    for line in comparison.table(compared):
        say(line)
    say(CAPTION.format(runs=runs) if runs > 1 else ONE_RUN)
    say(COUNTER_ERROR)
    took_s = time.monotonic() - started
    files = f"demo-over-time.png, demo-energy-time.png, demo.json, {JOURNAL}/" + (f", {TRUTH}" if live.served else "")
    say(f"\nEMULATED. {took_s:.0f} s. In {out}/: {files}")
    return 0


def _live_lines(live: LiveRun) -> list[str]:
    """What the real-time run came to, for people."""
    summary = live.summary
    return [
        "   served, real time" if live.served else f"   virtual time, not served: {live.why_virtual}",
        f"   the agent's own account: {summary.line()}",
        f"   the model's truth, against the highest clock: GPU boards {live.gpu_saving:+.1%} saved, whole node "
        f"{live.node_saving:+.1%} saved, {live.slowdown:+.1%} time",
        "   (the agent charges itself with a margin and guesses what it saved: its account is the more pessimistic "
        "one)",
        f"   period {summary.period_ms:g} ms, lateness p50 {summary.lateness.p50_ms or 0:.2f} ms, sweep p50 "
        f"{summary.sweep.p50_ms or 0:.2f} ms, own code p50 {summary.own_code.p50_ms or 0:.2f} ms, "
        f"{summary.missed_periods} of {summary.ticks} periods missed\n",
    ]


def _delegated(out: Path, as_json: bool) -> int:
    from lab.node_demo import controller_demo

    started = time.monotonic()
    result, traces = controller_demo.run()
    controller_demo.plot(result, traces, out / "demo-scmi.png")
    (out / "demo-scmi.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    if as_json:
        click.echo((out / "demo-scmi.json").read_text())
        return 0 if result.is_as_promised else 1
    click.echo("EMULATED: the agent and the firmware are the real ones, the chip is a model, time is virtual.\n")
    click.echo(
        f"Caps on the node (less {controller_demo.REST_W:g} W for the rest) over SCMI to the firmware; "
        "the package follows:"
    )
    for line in controller_demo.lines(result):
        click.echo(line)
    click.echo("\nThe agent's log:")
    for at_s, line in result.said:
        click.echo(f"   {at_s:6.3f} s  {line}")
    verdict = (
        "Every cap was followed within two control periods (1 ms)." if result.is_as_promised else "NOT AS PROMISED."
    )
    took_s = time.monotonic() - started
    click.echo(f"\n{verdict} EMULATED. {took_s:.0f} s. In {out}/: demo-scmi.png, demo-scmi.json")
    return 0 if result.is_as_promised else 1


def _calibrated(out: Path, seconds: float, virtual: bool, as_json: bool) -> int:
    from lab.node_demo import calibration_demo

    def say(line: str) -> None:
        if not as_json:
            click.echo(line)

    status = calibration_demo.demo_of_calibration(out, seconds, virtual, say)
    if as_json:
        click.echo((out / "calibration.json").read_text())
    return status


def _with_progress(items: Iterable[_Item], total: int) -> Iterable[_Item]:
    """A progress bar with the time left, on a terminal and with the extra `cli`; nothing in a pipe."""
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return items
    if not sys.stderr.isatty():
        return items
    return track(items, "   running", total=total, console=Console(stderr=True), transient=True)
