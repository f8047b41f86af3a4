"""The command ``clusterctl``: the power budget of a partition. It has no commands in this release."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

import click

NOTHING_YET = "this release has no cluster commands; nodes are run one by one with `nodectl`"


def version() -> str:
    """The installed version; a source tree that was never installed has none."""
    try:
        return importlib.metadata.version("nodectl")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed: run `make setup`)"


class NoCommands(click.Group):
    """A group that says why it is empty."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """No name is known."""
        raise click.UsageError(f"no command {cmd_name!r}: {NOTHING_YET}", ctx)


@click.group(cls=NoCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="clusterctl", message="%(prog)s %(version)s")
def clusterctl() -> None:
    """Shares a power budget among the nodes of a partition.

    No commands exist yet: this release has none for clusters; nodes are run one by one with `nodectl`.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        clusterctl.main(args=given or ["--help"], prog_name="clusterctl", standalone_mode=False)
    except click.UsageError as error:
        print(f"clusterctl: {error.format_message()}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
