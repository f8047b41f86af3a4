"""``clusterctl elastic``: pods and Dask workers make room for jobs, from their prolog and epilog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cluster_agent.elastic.drained_nodes import NOOP, NodeDrain
from cluster_agent.elastic.elastic_settings import PATH, ElasticSettings, read_settings
from foundation.shell.names import expanded
from foundation.shell.plain_text import echo, echo_block, say
from foundation.shell.text_table import render

if TYPE_CHECKING:
    from cluster_agent.elastic.engines import Engine


@click.group()
def elastic() -> None:
    """Let pods of Kubernetes and workers of Dask use nodes that no job has (docs/elastic.md).

    A job's prolog drains its nodes, its epilog undoes what the prolog did and nothing else.
    """


settings_option = click.option("--settings", default=str(PATH), metavar="FILE", help=f"Default: {PATH}.")


@elastic.command()
@click.argument("job")
@click.argument("nodes", nargs=-1, required=True)
@click.option("--name", default="", help=f"The job's name: for one of {NOOP} nothing is done.")
@settings_option
def drain(job: str, nodes: tuple[str, ...], name: str, settings: str) -> int:
    """From a prolog: JOB is about to have NODES (names, or lists such as n[01-04]). Elastic work there gets its grace
    and ends within the limit; new work does not come. Exit status 1 if some is left."""
    if name == NOOP:
        return 0
    given = read_settings(Path(settings))
    return 0 if _drain(given).drain(job, _names(nodes)) else 1


@elastic.command()
@click.argument("job", required=False)
@click.argument("nodes", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Whatever was drained, for whichever job.")
@click.option("--name", expose_value=False, help="Not used: a job may be renamed while it runs.")
@settings_option
def undrain(job: str | None, nodes: tuple[str, ...], everything: bool, settings: str) -> int:
    """From an epilog: JOB has left its nodes, or these NODES. What was closed before the job's prolog stays closed."""
    if (job is None) != everything:
        raise click.UsageError("give a job, or --all")
    drained = _drain(read_settings(Path(settings)))
    return 0 if (drained.undrain_all() if job is None else drained.undrain(job, _names(nodes))) else 1


@elastic.command("list")
@settings_option
def list_drained(settings: str) -> None:
    """The nodes that are drained for jobs, and by which engines they were closed."""
    drained = NodeDrain(read_settings(Path(settings)), [], say)
    records = {node: drained.read(node) for node in drained.nodes()}
    rows = [(node, ",".join(one.jobs), ",".join(one.closed)) for node, one in records.items()]
    if rows:
        echo_block(render(("node", "jobs", "closed here for them"), rows))
    else:
        echo("no node is drained")


def _names(texts: tuple[str, ...]) -> list[str]:
    return [*dict.fromkeys(name for text in texts for name in expanded(text))]


def _drain(settings: ElasticSettings) -> NodeDrain:
    engines: list[Engine] = []
    if settings.kubernetes.kubeconfig:
        from cluster_agent.elastic.kubernetes_pods import KubernetesPods

        engines.append(KubernetesPods(settings.kubernetes))
    if settings.dask.scheduler:
        from cluster_agent.elastic.dask_workers import DaskWorkers

        engines.append(DaskWorkers(settings.dask))
    return NodeDrain(settings, engines, say)
