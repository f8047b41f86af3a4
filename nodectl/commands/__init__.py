"""One file per ``nodectl`` command, imported when the command is called. Here is what several of them take."""

from __future__ import annotations

from pathlib import Path

import click

from nodectl.config import DEFAULT_PATH

config_option = click.option(
    "--config", "file", type=click.Path(path_type=Path), help=f"Settings (default: {DEFAULT_PATH}, if there)."
)
state_dir_option = click.option(
    "--state-dir", metavar="DIR", help="The agent's: /var/lib/nodectl/agent for the service without root."
)
