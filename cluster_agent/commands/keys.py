"""``clusterctl keys``: who may connect to the cluster agent."""

from __future__ import annotations

from pathlib import Path

import click
import zmq

from cluster_agent.fabric.allowed import Allowed, Entry, checked_name, checked_role
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render
from foundation.wire.keys import KeyPair, read_public, write_pair

DEFAULT_DIR = "/etc/nodectl/keys"

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=DEFAULT_DIR,
    show_default=True,
    help="Directory of the keys.",
)
role_option = click.option("--role", metavar="ROLE", help="node, admin, notifier, viewer or submitter.")


@click.group()
def keys() -> None:
    """Make, allow and revoke the keys of nodes and people.

    A key pair is a file NAME.key that only its owner can read. The file "allowed" in the same directory lists who may
    connect to the cluster agent; a running agent follows its changes at once. Roles: a node speaks for itself, a viewer
    looks, an admin changes what administrators may, and a notifier says what another job manager runs, nothing else. A
    submitter sends jobs to nodes that dispatch without the cluster agent, and is nobody to that. Among such nodes an
    admin may cancel the job of any user, and nothing else.
    """


@keys.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@role_option
@directory_option
def new(names: tuple[str, ...], role: str | None, directory: Path) -> None:
    """Make a key pair for each NAME; with --role also allow it."""
    for name in names:
        checked_name(name)
    if role is not None:
        checked_role(role)
    for name in names:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        write_pair(directory / f"{name}.key", KeyPair(public, secret))
        if role is not None:
            Allowed(directory).allow(Entry(role, name, public))
        echo(f"{directory / f'{name}.key'}: public key {public}" + (f" allowed as {role}" if role else ""))


@keys.command()
@click.argument("name")
@click.option(
    "--role", default="node", show_default=True, metavar="ROLE", help="node, admin, notifier, viewer or submitter."
)
@click.option("--public", metavar="KEY|FILE", help="The public key, if NAME.key is not in the directory.")
@directory_option
def allow(name: str, role: str, public: str | None, directory: Path) -> None:
    """Allow NAME's key; another key of that name is replaced."""
    checked_role(role)
    key = read_public(
        public or str(directory / f"{checked_name(name)}.key"),
        f"`clusterctl keys new {name}` makes one, or give --public KEY",
    )
    Allowed(directory).allow(Entry(role, name, key))
    echo(f"{name} is allowed as {role}")


@keys.command()
@click.argument("name")
@directory_option
def revoke(name: str, directory: Path) -> None:
    """Take NAME's key off the list: its messages are dropped from now on, on open connections too."""
    Allowed(directory).revoke(name)
    echo(f"{name} is not allowed any more; delete its key file, if it is here, yourself")


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@directory_option
def list_keys(as_json: bool, directory: Path) -> None:
    """List who is allowed, and with which role."""
    entries = Allowed(directory).entries()
    if as_json:
        echo(json_text(entries))
    elif entries:
        echo_block(render(("role", "name", "public key"), [(e.role, e.name, e.public) for e in entries]))
    else:
        echo(f"nobody is allowed in {directory}: `clusterctl keys new NAME --role node` makes and allows a key")
