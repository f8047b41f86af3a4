"""``clusterctl store``: check, repair and back up what the cluster agent keeps on disk."""

from __future__ import annotations

from pathlib import Path

import click

from cluster_agent.serve.config import DEFAULT_CONFIG, read_settings
from foundation.shell.plain_text import echo


def _store(path: Path | None, config: Path) -> Path:
    return path if path is not None else Path(read_settings(config).store)


store_option = click.option("--store", "path", type=click.Path(path_type=Path), help="The store; default: as set.")
config_option = click.option(
    "--config", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, show_default=True, help="Settings."
)


@click.group()
def store() -> None:
    """Check, repair and back up the cluster agent's store.

    The agent examines its store at each start. If it is damaged, the agent mends it as `repair` does and says so.
    """


@store.command()
@store_option
@config_option
def check(path: Path | None, config: Path) -> int:
    """Compare every record with its checksum; the agent may run. A line for each finding, and exit status 1."""
    from cluster_agent.store.mending import examine

    place = _store(path, config)
    found = examine(place)
    for line in found.lines:
        echo(f"{place}: {line}")
    if found.lines:
        return 1
    rows = {table: len(rows.good) for table, rows in found.rows.items()}
    echo(f"{place}: in order: {rows.get('member', 0)} nodes, {rows.get('job', 0)} jobs")
    return 0


@store.command()
@click.option("--give-up-jobs", is_flag=True, help="All jobs were lost: start afresh. Nodes then end those that run.")
@store_option
@config_option
def repair(path: Path | None, config: Path, give_up_jobs: bool) -> None:
    """Set damaged records aside and keep all others. The agent must be stopped.

    A damaged count becomes its node's TDP, never less. The damaged store is kept next to the new one.
    """
    from cluster_agent.store.mending import repair as mend

    place = _store(path, config)
    done = mend(place, give_up_jobs)
    for line in done:
        echo(f"{place}: {line}")
    if not done:
        echo(f"{place}: in order: nothing to repair")


@store.command()
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path))
@store_option
@config_option
def backup(target: Path, path: Path | None, config: Path) -> int:
    """Copy the store to FILE, whole and at one instant; the agent may run. Exit status 1 if the copy is damaged."""
    from cluster_agent.store.mending import backup as back_up

    found = back_up(_store(path, config), target)
    for line in found.lines:
        echo(f"{target}: {line}")
    if not found.lines:
        echo(f"{target}: {target.stat().st_size / 1e6:.1f} MB")
    return 1 if found.lines else 0
