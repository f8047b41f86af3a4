"""``clusterctl serve``: the cluster agent of a partition."""

from __future__ import annotations

from pathlib import Path

import click

from cluster_agent.serve.config import DEFAULT_CONFIG, read_settings


@click.command()
@click.option(
    "--config", "path", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, show_default=True, help="Settings."
)
@click.option("--observe", is_flag=True, help="Decide and show, but grant nothing; overrides the settings.")
def serve(path: Path, observe: bool) -> None:
    """Keep a partition's budget until SIGTERM.

    While the agent is down, nodes keep their caps until their leases end; then they fall to their safe caps.
    """
    import msgspec

    from cluster_agent.serve.server import Server
    from foundation.shell.errors import UsageError
    from foundation.shell.log import logger
    from foundation.wire.keys import KeyFileError

    say = logger("clusterctl serve")
    settings = read_settings(path)
    if observe:
        settings = msgspec.structs.replace(settings, mode="observe")
    try:
        server = Server(settings, say)
    except KeyFileError as error:  # it would not be there at the next start either
        raise UsageError(str(error)) from error
    try:
        server.run()
    finally:
        server.close()
