"""What the commands ``nodectl`` and ``clusterctl`` share: a table of commands, and how every error ends.

Commands are imported when they are called. Errors end as one line on stderr; exit status 0: success, 1: the run or a
check failed, 2: wrong use.
"""

from __future__ import annotations

import errno
import gc
import importlib
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from foundation.collector import paused
from foundation.shell.errors import NodectlError, nearest
from foundation.shell.log import complain
from foundation.shell.start import prepare_streams

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Table: TypeAlias = Mapping[str, tuple[str, str, str]]
"""By the name of a command: its module, the name of its function there, and its summary."""

EXTRAS: Final = {
    "distributed": "dask", "gymnasium": "gym", "kubernetes": "kubernetes", "matplotlib": "plots", "mfusepy": "twin",
    "paho": "mqtt", "pandas": "notebook", "prometheus_client": "cluster", "pyarrow": "export", "pynvml": "nvidia",
    "pyRAPL": "compare", "rich": "cli", "serial": "serial", "textual": "cli", "zmq": "cluster",
}  # fmt: skip
"""Modules that come with an extra of this package (pyproject.toml), and which."""

EMULATED: Final = ("lab", "twin")
PAGE: Final = "cluster_agent.page"
"""Packages that an installation for production leaves out (debian/README.md)."""

REPLAYS_ALONE: Final = "nodectl-replay"
"""The distribution for those who only replay (scripts/replay_wheel.py),"""
LEFT_OUT: Final = ("calibration", "firmware_bridge", "lab", "nodectl", "pmu", "twin")
"""the packages that it does not have,"""
REPLAY_EXTRAS: Final = ("cli", "dask", "export", "gym", "notebook", "plots")
"""and the extras that it has."""

_ONE_SECTION: Final[Mapping[str, str]] = {}

_HELP_INSTEAD: Final[Any] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What click (since 8.2) raises when a group is called without a command; its message is the help text."""


class FloatRange(click.FloatRange):
    """A finite number within bounds: click's own takes nan for one within any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A usage error for any other."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a number", param, ctx)
        return found


class LazyCommands(click.Group):
    """A group that knows its commands' names and summaries without importing them. ``sections``: headings of the list
    in ``--help``, by the command that each is above."""

    def __init__(
        self, *arguments: Any, table: Table, sections: Mapping[str, str] = _ONE_SECTION, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.table, self.sections = table, sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, which is the order of first need."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; a usage error with the nearest name for an unknown one."""
        if cmd_name not in self.table:
            raise click.UsageError(f"no command {cmd_name!r}{nearest(cmd_name, self.table)}", ctx)
        module, attribute, _ = self.table[cmd_name]
        command = getattr(_imported(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``."""
        names = list(self.table)
        begins = [at for at, name in enumerate(names) if not at or name in self.sections]
        for begin, end in zip(begins, [*begins[1:], len(names)], strict=True):
            with formatter.section(self.sections.get(names[begin], "Commands")):
                formatter.write_dl([(name, self.table[name][2]) for name in names[begin:end]])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names from the table, without importing the commands; then the options of the group itself."""
        from click.shell_completion import CompletionItem  # only a shell asks for it

        names = [
            CompletionItem(name, help=text) for name, (_, _, text) in self.table.items() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


def _imported(module: str) -> ModuleType:
    """Import a module without garbage collection, and exempt its objects from later ones: they live as long as the
    process, and looking through them takes a tenth of the time of a short command."""
    is_new = module not in sys.modules
    with paused() as is_ours:
        found = importlib.import_module(module)
        if is_new and is_ours:
            gc.freeze()
    return found


def call(
    commands: LazyCommands, program: str, arguments: Sequence[str] | None, expected: tuple[type[Exception], ...] = ()
) -> int:
    """Run a command line (None: this process's own) and return its exit status.

    ``NodectlError`` and what else is ``expected`` become one line on stderr, as do wrong use, a lack of memory and an
    extra that is not installed. A command finds in ``click.Context.obj`` whether the process is all its own.
    """
    if arguments is None:
        prepare_streams()
    given, stdout = list(sys.argv[1:] if arguments is None else arguments), sys.stdout
    caught: tuple[type[Exception], ...] = (MemoryError, *expected)
    who = f"{program} {given[0]}" if given and given[0] in commands.table else program
    try:
        status = commands.main(
            args=given or ["--help"], prog_name=program, standalone_mode=False, obj=arguments is None
        )
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
    except ModuleNotFoundError as error:
        reason = _missing(error.name or "")
        if reason is None:
            raise
        return _complain(who, reason, 1)
    except caught as error:
        return _complain(who, str(error) or "not enough memory: give it less to do at once, or more memory", 1)
    except BrokenPipeError:
        return _without_reader()
    except SystemExit:
        if sys.stdout is stdout:  # else click has met a broken pipe, put another stdout there and given status 1
            raise
        return _without_reader()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        _close_stdout()
        return _complain(who, f"cannot write: {error.strerror}", 1)
    except (KeyboardInterrupt, click.Abort):
        return _complain(who, "stopped", 130)


def needs_extras(modules: Iterable[str]) -> str:
    """What to install for these modules of ``EXTRAS``, in words."""
    names = [module.partition(".")[0] for module in modules]
    extras, installed = [EXTRAS[name] for name in names], distribution()
    if installed == REPLAYS_ALONE and not {*extras} <= {*REPLAY_EXTRAS}:
        return f"needs {' and '.join(names)} and the rest of nodectl: {_INSTEAD}"
    return f"needs {' and '.join(names)}: pip install '{installed}[{','.join(extras)}]'"


def distribution() -> str:
    """What is installed: ``nodectl``, or ``nodectl-replay``, which has no agent."""
    return "nodectl" if find_spec("nodectl") is not None else REPLAYS_ALONE


_INSTEAD: Final = f"install nodectl in place of {REPLAYS_ALONE}"


def _missing(name: str) -> str | None:
    """What to install for a module that is not there, in words; None: it is nothing that one installs."""
    module = name.partition(".")[0]
    if module in LEFT_OUT and distribution() == REPLAYS_ALONE:
        return f"needs {module}, which {REPLAYS_ALONE} leaves out: {_INSTEAD}"
    if module in EMULATED:
        return "needs the emulated node, which is not installed: install the package nodectl-twin"
    if name.startswith(PAGE):
        return "needs the page, which is not installed: install the package clusterctl-page"
    return needs_extras([name]) if module in EXTRAS else None


def _without_reader() -> int:
    """The reader (`| head`) has what it wanted, and has gone."""
    _close_stdout()
    return 0


def _close_stdout() -> None:
    """Point stdout to /dev/null, so that the interpreter does not complain at exit that it cannot flush it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(who: str, what: str, status: int) -> int:
    complain(who, what)
    return status
