"""The command ``nodectl``.

Commands are imported when they are called: ``nodectl run`` stays resident on compute nodes and must not carry plotting
or an emulated node in its memory. Errors end as one line on stderr; exit status 0 success, 1 the run failed or a check
did not hold, 2 wrong use.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

import nodectl.single_thread  # noqa: F401  (before anything that imports numpy)
from nodectl import __version__
from nodectl.errors import NodectlError, nearest
from nodectl.knobs.api import KnobError
from pmu.readings import PmuError

COMMANDS: Final = {
    "doctor": ("nodectl.commands.doctor", "doctor", "What this node has, can and cannot do, and why."),
    "run": ("nodectl.commands.run", "run", "Read, decide and act, as a service or around a command."),
    "policies": ("nodectl.commands.policies", "policies", "The policies, their parameters and sources."),
    "restore": ("nodectl.commands.restore", "restore", "Put back what a killed agent left moved."),
    "replay": ("nodectl.commands.replay", "replay", "Decide a recorded journal again and compare."),
    "demo": ("nodectl.commands.demo", "demo", "Measure what is saved, on an emulated node."),
    "twin": ("nodectl.commands.twin", "twin", "Serve an emulated node to any program."),
    "scmi": ("nodectl.commands.scmi", "scmi", "Talk to an on-chip controller: caps, levels, sensors."),
}


_HELP_INSTEAD: Final[Any] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""How click (since 8.2) says that a group was called without a command; its message is the help text."""


class LazyCommands(click.Group):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, which is the order of first need."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; a usage error with the nearest name for an unknown one."""
        if cmd_name not in COMMANDS:
            raise click.UsageError(f"no command {cmd_name!r}{nearest(cmd_name, COMMANDS)}", ctx)
        module, attribute, _ = COMMANDS[cmd_name]
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise NodectlError(f"needs {error.name}, which is not installed; `make setup` installs all parts") from None
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nodectl", message="%(prog)s %(version)s")
def commands() -> None:
    """Power runtime of a compute node: reads its instruments, lowers clocks where that costs little, and leaves every
    setting as it found it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; every expected error becomes one line on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    who = f"nodectl {given[0]}" if given and given[0] in COMMANDS else "nodectl"
    try:
        status = commands.main(args=given or ["--help"], prog_name="nodectl", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except _HELP_INSTEAD as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else who
        return _complain(path, f"{error.format_message()} (see `{path} --help`)", 2)
    except click.ClickException as error:
        return _complain(who, error.format_message(), error.exit_code)
    except NodectlError as error:
        return _complain(who, str(error), error.exit_status)
    except (PmuError, KnobError) as error:
        return _complain(who, str(error), 1)
    except BrokenPipeError:
        _close_stdout()  # the reader (`| head`) has gone
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        _close_stdout()
        return _complain(who, f"cannot write: {error.strerror}", 1)
    except (KeyboardInterrupt, click.Abort):
        return 130


def _close_stdout() -> None:
    """Point stdout elsewhere, so that the interpreter does not complain at its end of what it cannot flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(who: str, what: str, status: int) -> int:
    print(f"{who}: {' '.join(what.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
