"""``clusterctl campaign``: a grid of replays, by any number of workers that share its folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from cluster_agent.campaigns.campaign_folder import CampaignFolder, Part
from cluster_agent.campaigns.campaign_grid import found, grid, read_campaign
from cluster_agent.campaigns.campaign_table import write_table
from cluster_agent.campaigns.executors import Advance, run_here, run_on_dask, submit_to_slurm
from cluster_agent.campaigns.worker import no_folder, opened
from cluster_agent.errors import ClusterError, StoppedError, WrongUseError
from cluster_agent.replay import written_whole
from cluster_agent.scheduler.policies import registry
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import echo
from foundation.shell.progress_bar import progress

LEASE_S = 60.0
"""Ours: a shared folder may be away for so long."""
MOST_LEASE_S = 7 * 86_400.0
"""Ours: a cell whose worker is gone waits for so long at most."""
MOST_NAMED = 5
"""Ours: of cells that fail alike, so many are named."""


@click.command()
@click.argument("file", type=click.Path(), required=False)
@click.option("--out", metavar="DIR", help="Where to put a folder per replay, and campaign.csv.")
@click.option(
    "--trace", "traces", multiple=True, metavar="FILE", help="Use this in place of the file's traces; may be repeated."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="Use this in place of the file's policies; may be repeated.",
)
@click.option(
    "-j",
    "--workers",
    "--jobs",
    type=click.IntRange(0),
    help="Replays at the same time (default: 1); 0 leaves them to those who join.",
)
@click.option("--join", metavar="DIR", help="Help with the campaign in DIR, from any machine that shares it.")
@click.option("--slurm", type=click.IntRange(1), metavar="TASKS", help="Let so many tasks of a Slurm job array work.")
@click.option("--sbatch", "sbatch_options", multiple=True, metavar="OPTION", help="For sbatch; may be repeated.")
@click.option("--dask", metavar="ADDRESS", help="Let the workers of a Dask cluster work; its scheduler's address.")
@click.option(
    "--lease",
    "lease_s",
    type=FloatRange(0.1, MOST_LEASE_S),
    metavar="SECONDS",
    help="A worker that is silent for so long loses its replay to another (default: 60); the first command counts.",
)
def campaign(**given: Any) -> int:
    """Replay every combination that FILE (TOML, or the name of one that ships: sc15, overprovisioning) lists.

    Replays already done with the same files, policy and code are skipped. `clusterctl report DIR` compares.
    """
    _check(given)
    where = given["join"] or given["out"]
    try:
        if given["join"]:
            folder = opened(given["join"])
            names, todo = list(folder.planned), folder.issue(folder.planned)
        else:
            folder = CampaignFolder(given["out"])
            names = _start(folder, given)
            todo = folder.issue(names, again=True)
            echo(f"{len(names)} replays, {len(names) - todo} done before", to_stderr=True)
        if given["slurm"]:
            number = submit_to_slurm(folder, given["slurm"], given["sbatch_options"])
            echo(f"job {number} of Slurm works on {todo} replays; `clusterctl campaign --join {where}` waits for it")
            return 0
        if given["workers"] == 0:
            echo(f"{todo} replays wait; `clusterctl campaign --join {where}` on any machine that shares the folder")
            return 0
        with progress(todo) as advance:
            _run(folder, names, given, advance)
        rows = write_table(folder)
    except OSError as error:
        raise no_folder(where, error) from None
    echo(f"{Path(where) / 'campaign.csv'}: {rows} replays; compare them with `clusterctl report {where}`")
    failed = {name: why for name, why in folder.failures().items() if name in names}
    _say(failed, Path(where))
    return 1 if failed else 0


def _say(failed: dict[str, str], where: Path) -> None:
    """Name the cells that have failed, and why; of many that fail alike, the first ones."""
    alike: dict[str, list[str]] = {}
    for name, why in failed.items():
        alike.setdefault(why, []).append(name)
    for why, names in alike.items():
        for name in names[:MOST_NAMED]:
            echo(f"{where / name}: {why}", to_stderr=True)
        if len(names) > MOST_NAMED:
            echo(f"and {len(names) - MOST_NAMED} more replays, for the same reason", to_stderr=True)


def _check(given: dict[str, Any]) -> None:
    """Refuse options that do not go together."""
    if given["join"] is not None:
        alien = [name for name in ("file", "out", "slurm", "dask", "lease_s") if given[name]]
        alien += [name for name in ("traces", "policies", "sbatch_options") if given[name]]
        if alien:
            raise WrongUseError(f"--join {given['join']}: the folder has the campaign; give -j alone with it")
        if given["workers"] == 0:
            raise WrongUseError("-j 0: nobody would work; give 1 or more with --join")
    elif not given["file"] or not given["out"]:
        raise WrongUseError("give a FILE and --out DIR; or --join DIR to help with a campaign that was started")
    if sum(given[name] is not None for name in ("slurm", "dask", "workers")) > 1:
        raise WrongUseError("-j, --slurm and --dask each say who works; give one of them")
    if given["sbatch_options"] and not given["slurm"]:
        raise WrongUseError("--sbatch goes with --slurm TASKS; leave it out, or give both")


def _start(folder: CampaignFolder, given: dict[str, Any]) -> list[str]:
    """Put the campaign, or this part of it, into the folder; returns the names of its cells."""
    path, traces, policies = found(given["file"]), given["traces"], given["policies"]
    listed = read_campaign(path)
    listing = hashlib.sha256(msgspec.json.encode(listed)).hexdigest()
    if policies:
        listed = msgspec.structs.replace(listed, policies=policies)
        for one in policies:
            registry.choose(one)
    if not (traces or listed.traces):
        raise WrongUseError(f"{path}: traces: none are listed; give --trace FILE")
    cells = grid(listed, path.parent, traces)
    if (folder.root / "campaign.csv").exists() and not folder.is_there:
        raise ClusterError(
            f"--out {given['out']}: it has a campaign of an earlier version; choose another --out (`clusterctl report`"
            " reads both)"
        )
    folder.add(Part(str(path), listing, os.getcwd(), given["lease_s"] or LEASE_S, cells, listed.published))
    with written_whole.folder(given["out"]) as made:
        (made / "published.json").write_bytes(msgspec.json.encode(listed.published))
    return list(cells)


def _run(folder: CampaignFolder, names: list[str], given: dict[str, Any], advance: Advance) -> None:
    """Let workers run until nothing is left; ``StoppedError`` after Ctrl-C, with the table of what is recorded."""
    try:
        if given["dask"]:
            run_on_dask(folder, given["dask"], advance)
        else:
            run_here(folder, given["workers"] or 1, advance)
    except KeyboardInterrupt:
        write_table(folder)
        if given["dask"]:
            again = f"`clusterctl campaign --join {given['out']}` waits for them"
            raise StoppedError(f"stopped waiting; the workers of the Dask cluster go on: {again}") from None
        left = sum(not folder.is_recorded(folder.planned[name]) for name in names)
        raise StoppedError(f"stopped with {left} replays to do; the same command goes on with them") from None
