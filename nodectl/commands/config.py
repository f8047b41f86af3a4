"""``nodectl config``: check the settings before a service starts with them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from foundation.shell.command_line import needs_extras
from foundation.shell.plain_text import echo
from foundation.shell.settings import ConfigError, line_of, read_toml
from foundation.wire.keys import KeyFileError, read_pair, read_public
from nodectl.commands import config_option
from nodectl.commands.run import configure, summary_of
from nodectl.commands.service_account import problems, service_user
from nodectl.config import DEFAULT_PATH, Config


@click.group()
def config() -> None:
    """Check the settings of the node agent."""


@config.command()
@config_option
def check(file: Path | None) -> None:
    """Read the settings and the files they name, and say what the agent would do.

    Exit status 0: the agent can start with them. Exit status 2: one line says what is wrong, and where. What this
    node's hardware allows is another question: `nodectl doctor`.
    """
    found = configure(file, {})
    path = file or (Path(DEFAULT_PATH) if Path(DEFAULT_PATH).exists() else None)
    _check_cluster(found, path)
    _check_service(found, path)
    place = str(path) if path else f"{DEFAULT_PATH} is not there, so the defaults apply"
    parts = [summary_of(found)]
    if found.cluster.url:
        parts.append(f"capped by {found.cluster.url}" + (", runs its jobs" if found.cluster.jobs else ""))
    if found.metrics.listen:
        parts.append(f"metrics at http://{found.metrics.listen}/metrics")
    if found.mqtt.broker:
        parts.append(f"figures for {found.mqtt.broker}")
    echo(f"{place}: ok: {'; '.join(parts)}")


def _check_cluster(found: Config, path: Path | None) -> None:
    """``ConfigError`` for a key that cannot be read, or a module that the link needs and is not installed."""
    cluster = found.cluster
    if not cluster.url or path is None:
        return
    text, _ = read_toml(path)
    if importlib.util.find_spec("zmq") is None:
        raise ConfigError(f"{path}:{line_of(text, ('cluster', 'url'))}: cluster.url: {needs_extras(['zmq'])}")
    if cluster.insecure and not cluster.key:
        return
    for key, read in (
        ("key", lambda: read_pair(Path(cluster.key))),
        ("server_key", lambda: read_public(cluster.server_key)),
    ):
        try:
            read()
        except KeyFileError as error:
            raise ConfigError(f"{path}:{line_of(text, ('cluster', key))}: cluster.{key}: {error}") from None


def _check_service(found: Config, path: Path | None) -> None:
    """``ConfigError`` for what the user of the installed service cannot do."""
    user = service_user()
    if not user or path is None:
        return
    text, _ = read_toml(path)
    for key, problem in problems(found, user, path):
        where = f"{path}:{line_of(text, key)}: {'.'.join(key)}" if key else str(path)
        raise ConfigError(f"{where}: {problem}")
