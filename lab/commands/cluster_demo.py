"""``clusterctl demo``: sixteen emulated nodes under a budget, run once with each sharer, then with each policy of the
scheduler that owns the watts."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec

from cluster_agent.errors import WrongUseError
from foundation.shell.command_line import FloatRange

SHARERS: Final = ("fspc", "aapc", "minimal-slowdown:machine=curie")
POLICIES: Final = ("powercap:mode=dvfs", "eco:queue=easy")
"""The second act: no sharer; the scheduler knows the drop, and owns the watts."""

MACHINE: Final = "curie"
HEADINGS: Final = (
    "owner of watts", "throughput", "slower: compute", "mixed", "memory", "jobs ended", "kJ", "over budget W·s",
    "most W", "nodes over W·s",
)  # fmt: skip

CAPTION: Final = """
throughput: seconds of work at the highest clock, done per node and second. slower: extra time of that work, by the
jobs' tag. over budget: true power above the budget, both as means over {window:.0f} s, the window of the nodes' own
limits; nodes over: the same of every node above the highest cap that may be in force there. All by the twins' truth,
which no agent sees."""


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out"), show_default=True, help="Where results go."
)
@click.option("--nodes", type=click.IntRange(2, 64), default=16, show_default=True, help="Emulated nodes.")
@click.option("--seconds", type=FloatRange(15.0), default=110.0, show_default=True, help="For each, in real time.")
@click.option("--sharer", "sharers", multiple=True, help=f"NAME[:key=value,...]; default: {', '.join(SHARERS)}.")
@click.option("--policy", "policies", multiple=True, help=f"Owns the watts, no sharer; default: {', '.join(POLICIES)}.")
@click.option("--quick", is_flag=True, help="Four nodes, the last sharer, 20 s; only what is given, if anything is.")
@click.option("--dardis", is_flag=True, help="Nodes that dispatch jobs themselves, and a head that is killed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def demo(
    out: Path, nodes: int, seconds: float, sharers: tuple[str, ...], policies: tuple[str, ...], quick: bool,
    dardis: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run a partition of emulated nodes, in real time, under 75 % of its TDP, with an announced drop.

    For each sharer, and each policy that owns the watts: keys, `clusterctl serve`, the nodes, and the same backlog of
    COMPUTE, MIXED and MEMORY jobs. Writes a plot and JSON to --out, and leaves nothing else; it removes what a killed
    demo has left. Exit status 1 if the budget was exceeded or a job failed. All results are emulated: a model's, not a
    machine's.

    With --dardis the nodes dispatch jobs among themselves (docs/dardis.md): with the head, without it, and when it is
    back. Exit status 1 too if a job was lost, ran twice, or was not counted.
    """
    if dardis:
        return _dardis(out, 3 if quick else nodes, as_json, [*sharers, *policies])
    try:
        from lab.cluster_demo import cluster_figures, course
        from lab.cluster_demo.folder import own_folder
        from lab.emulated.watts import watts_of
    except ImportError as error:
        raise WrongUseError(f"the demo needs the extras `cluster`, `twin` and `plots` ({error})") from None
    if quick:
        nodes, seconds = 4, 20.0
    sharers, policies = _owners(sharers, policies, quick)
    watts, window_s = watts_of(MACHINE)
    scene = course.Scene(MACHINE, nodes, seconds, watts.tdp_w, watts.mop_w, window_s)
    runs = [(owner, number >= len(sharers)) for number, owner in enumerate([*sharers, *policies])]
    with own_folder() as folder:
        for number, (owner, is_policy) in enumerate(runs):
            course.check(scene, owner, folder / str(number), owner if is_policy else "")
    _make(out)

    def say(line: str) -> None:
        if not as_json:
            click.echo(line)

    started_s = time.monotonic()
    say("EMULATED: the agents, the links and the ledger are the real ones, each node is a model of the machine.\n")
    say(
        f"{nodes} nodes {MACHINE}, TDP {watts.tdp_w:g} W, MOP {watts.mop_w:g} W each; budget {scene.budget_w:.0f} W, "
        f"from {course.DROP_FROM * seconds:.0f} s to {course.DROP_UNTIL * seconds:.0f} s {scene.dropped_w:.0f} W"
    )
    courses: list[course.Course] = []
    with _stopped_in_order(), own_folder() as folder:
        for number, (owner, is_policy) in enumerate(runs):
            say(f"{number + 1}. {owner}: {seconds:.0f} s ...")
            courses.append(course.run(scene, owner, folder / str(number), policy=owner if is_policy else ""))
    cluster_figures.draw(scene, courses, out / "demo-cluster.png")
    content = {"emulated": True, "machine": MACHINE, "nodes": nodes, "budget_w": scene.budget_w, "courses": courses}
    (out / "demo-cluster.json").write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
    _print_results(scene, courses, out, time.monotonic() - started_s, as_json)
    is_kept = all(one.over.ws == 0 and not one.failed for one in courses)
    return 0 if is_kept else 1


def _dardis(out: Path, nodes: int, as_json: bool, owners: list[str]) -> int:
    if owners:
        raise WrongUseError("--dardis compares no owners of the watts: leave --sharer and --policy out")
    try:
        from lab.cluster_demo import without_head
        from lab.cluster_demo.folder import own_folder
    except ImportError as error:
        raise WrongUseError(f"the demo needs the extras `cluster`, `twin` and `plots` ({error})") from None
    _make(out)

    def say(line: str) -> None:
        if not as_json:
            click.echo(line)

    say("EMULATED: agents, node managers, task managers and links are the real ones, each node is a model.\n")
    started_s = time.monotonic()
    with _stopped_in_order(), own_folder() as folder:
        found = without_head.HeadGone(folder / "0", MACHINE, nodes, say).run()
    (out / "demo-dardis.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    if as_json:
        click.echo((out / "demo-dardis.json").read_text())
    else:
        for line in [
            *without_head.table(found),
            f"EMULATED. {time.monotonic() - started_s:.0f} s. {out}/demo-dardis.json",
        ]:
            click.echo(line)
    return 0 if found.is_kept else 1


@contextlib.contextmanager
def _stopped_in_order() -> Iterator[None]:
    """A stop signal counts as Ctrl-C in here."""
    before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


def _owners(
    sharers: tuple[str, ...], policies: tuple[str, ...], quick: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those given, or the default ones; ``WrongUseError`` for one that does not exist."""
    from cluster_agent.budget.sharers.registry import choose
    from cluster_agent.scheduler.owner import NO_SHARER, check_owner
    from foundation.shell.extension import below

    if not sharers and not policies:
        sharers, policies = (SHARERS[-1:], ()) if quick else (SHARERS, POLICIES)
    sharers = tuple(below(Path.cwd(), sharer) for sharer in sharers)  # whose settings are elsewhere
    for sharer in sharers:
        choose(sharer)
    for policy in policies:
        check_owner(policy, NO_SHARER)
    return sharers, policies


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WrongUseError(f"--out {out}: {error.strerror}") from None


def _print_results(scene: Any, courses: list[Any], out: Path, took_s: float, as_json: bool) -> None:
    from foundation.shell.text_table import render

    if as_json:
        click.echo((out / "demo-cluster.json").read_text())
        return
    click.echo("")
    click.echo(render(HEADINGS, [_cells(one) for one in courses]))
    click.echo(CAPTION.format(window=scene.window_s))
    last = courses[-1]
    click.echo(f"\n`clusterctl why {scene.names[0]}` during the drop, {last.sharer}:")
    for line in last.why:
        click.echo(f"   {line}")
    late = [one for one in courses if one.timing.is_late]
    worst = max(courses, key=lambda one: one.timing.missed)
    click.echo(
        f"\nThis machine: {100 * worst.timing.missed:.1f} % of the agents' ticks missed at worst, lateness p99 "
        f"{worst.timing.p99_ms:.0f} ms" + ("" if late else ": the nodes ran in real time.")
    )
    if late:
        names = ", ".join(one.sharer for one in late)
        click.echo(
            f"LATE: it was too busy or too slow for {scene.nodes} nodes ({names}): agents acted later than on nodes."
        )
    for one in courses:
        if one.failed:
            click.echo(f"{one.sharer}: {one.failed} jobs FAILED")
    over = [one.sharer for one in courses if one.over.ws > 0]
    click.echo(f"The budget was EXCEEDED under {', '.join(over)}." if over else "The budget was never exceeded.")
    click.echo(f"EMULATED. {took_s:.0f} s. In {out}/: demo-cluster.png, demo-cluster.json")


def _cells(one: Any) -> tuple[str, ...]:
    def slower(tag: str) -> str:
        value = one.slowdown.get(tag)
        return "-" if value is None else f"{100 * value:.1f} %"

    return (
        one.sharer, f"{one.throughput:.3f}", slower("compute"), slower("mixed"), slower("memory"), str(one.ended),
        f"{one.energy_j / 1000:.0f}", f"{one.over.ws:.1f}", f"{one.over.most_w:.1f}", f"{one.over_limits.ws:.1f}",
    )  # fmt: skip


def _stop(number: int, frame: Any) -> NoReturn:
    """As Ctrl-C: everything is ended properly on the way out."""
    print("clusterctl demo: stopping; ending the nodes", file=sys.stderr)
    raise KeyboardInterrupt
