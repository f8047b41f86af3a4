"""``clusterctl config``: check the settings before the service starts with them."""

from __future__ import annotations

from pathlib import Path

import click

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.allowed import Allowed
from cluster_agent.serve.config import DEFAULT_CONFIG, Settings, read_settings
from cluster_agent.serve.live_budget.budget_schedule import read_schedule
from cluster_agent.serve.server import OWN_KEY
from foundation.shell.plain_text import echo
from foundation.shell.settings import ConfigError, line_of, read_toml
from foundation.wire.keys import KeyFileError, read_pair


@click.group()
def config() -> None:
    """Check the settings of the cluster agent."""


@config.command()
@click.option(
    "--config", "path", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, show_default=True, help="Settings."
)
def check(path: Path) -> None:
    """Read the settings and the files they name, and say what the cluster agent would do.

    Run it as the user that the service runs as: it then also finds files which that user may not read. Exit status 0:
    the service can start. Exit status 2: one line says what is wrong, and where.
    """
    settings = read_settings(path)
    text, _ = read_toml(path)

    def wrong(key: str, error: Exception) -> ConfigError:
        return ConfigError(f"{path}:{line_of(text, tuple(key.split('.')))}: {key}: {error}")

    directory = Path(settings.keys)
    try:
        nodes = [entry for entry in Allowed(directory).entries() if entry.role == "node"]
        if not settings.insecure:
            read_pair(directory / OWN_KEY)
    except (ClusterError, KeyFileError) as error:
        raise wrong("keys", error) from None
    if nodes and settings.jobs and (unknown := settings.jobs.switches.unknown_nodes({one.name for one in nodes})):
        raise wrong("jobs.queues", ClusterError(f"{unknown}: correct the names, or allow the keys"))
    if settings.budget.schedule:
        try:
            read_schedule(Path(settings.budget.schedule))
        except ClusterError as error:
            raise wrong("budget.schedule", error) from None
    echo(f"{path}: ok: {_summary(settings, len(nodes))}")


def _summary(settings: Settings, n_nodes: int) -> str:
    budget = settings.budget
    source = budget.schedule or budget.feed
    first = f"{budget.w:g} W" + (f", then {source}" if source else "") if budget.w else source
    grants = "caps nodes" if settings.mode == "cap" else "observes and grants nothing"
    jobs = f"jobs by {settings.jobs.policy}" if settings.jobs else "no jobs"
    return f"{grants}; budget {first} at the first start; {n_nodes} nodes may connect to {settings.listen}; {jobs}"
