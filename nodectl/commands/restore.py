"""``nodectl restore``: put back what a killed agent left moved. systemd calls it in ``ExecStopPost=``."""

from __future__ import annotations

import contextlib

import click

from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render
from nodectl.config import Config
from nodectl.knobs import KnobFinder
from nodectl.write.lock import LEAVING_S, NodeLock
from nodectl.write.places import SavePlaces, save_places
from nodectl.write.restore import Restoration, restore_node
from nodectl.write.saves import is_there, node_id
from pmu.ports import Ports
from pmu.system import system_ports


@click.command()
@click.option(
    "--state-dir", metavar="DIR", default=Config().state_dir, show_default=True, help="Look for a save here too."
)
@click.option(
    "--leave-cluster",
    is_flag=True,
    help="Restore knobs under a cluster's grant too: only if its ledger counts this node at TDP.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restore(state_dir: str, leave_cluster: bool, dry_run: bool, as_json: bool) -> int:
    """Put every knob back to the value captured before an agent first moved it.

    Use it after an agent was killed: one that is stopped does this itself. It does nothing where there is nothing to
    restore. A knob that somebody else has set since is left alone. Exit status 1 if a knob could not be put back yet;
    its captured value is kept for the next attempt. A cap under a cluster's grant is never raised: it becomes the lower
    of itself and the node's safe cap until the cluster has let the node go.
    """
    ports = system_ports()
    places = save_places(state_dir, ports.lock_path)
    there = [path for path, _ in places.with_boots("") if is_there(path)]
    result = _restore(ports, state_dir, places, dry_run, leave_cluster) if there else Restoration()
    if as_json:
        report = {
            "outcomes": result.outcomes,
            "remarks": result.remarks,
            "complete": result.is_complete,
            "dry_run": dry_run,
        }
        echo(json_text(report))
        return 0 if result.is_complete else 1
    for remark in result.remarks:
        echo(remark)
    if result.outcomes:
        cells = [(outcome.knob, outcome.status, outcome.detail) for outcome in result.outcomes]
        echo_block(render(("knob", "would be" if dry_run else "status", "what"), cells))
    elif not result.remarks:
        echo(f"nothing to restore: no save in {' or '.join(path for path, _ in places.with_boots(''))}")
    return 0 if result.is_complete else 1


def _restore(ports: Ports, state_dir: str, places: SavePlaces, dry_run: bool, leave_cluster: bool) -> Restoration:
    with contextlib.ExitStack() as stack:
        find = stack.enter_context(KnobFinder(ports))
        if not dry_run:
            # a running agent restores by itself; the writer of one that was just killed is about to
            stack.enter_context(NodeLock(state_dir, ports.lock_path, LEAVING_S))
        return restore_node(places, node_id(ports.lock_path), find, dry_run, leave_cluster)
