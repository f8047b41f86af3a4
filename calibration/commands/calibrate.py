"""``nodectl calibrate``: the table of its commands."""

from __future__ import annotations

from typing import Final

import click

from foundation.shell.command_line import LazyCommands

COMMANDS: Final = {
    "kernels": ("calibration.commands.calibrate_kernels", "kernels", "How fast this node's CPUs compute."),
    "limits": (
        "calibration.commands.calibrate_limits",
        "limits",
        "How low it can be capped; how soon knobs have an effect.",
    ),
    "run": ("calibration.commands.calibrate_run", "run", "Measure the P-state table: watts and speed at each clock."),
    "gpus": ("calibration.commands.calibrate_gpus", "gpus", "What a program costs at each clock of the GPUs."),
    "show": ("calibration.commands.calibrate_tables", "show", "Print a table."),
    "plot": ("calibration.commands.calibrate_plot", "plot", "Draw the curves of a table with their intervals."),
    "diff": ("calibration.commands.calibrate_tables", "diff", "Compare two tables."),
    "check": ("calibration.commands.calibrate_tables", "check", "Does a table apply to this node?"),
    "export": ("calibration.commands.calibrate_tables", "export", "A table as a machine file's part, or as CSV."),
    "import": ("calibration.commands.calibrate_tables", "import_", "A table from the CSV of an external sweep."),
}


@click.group(cls=LazyCommands, table=COMMANDS)
def calibrate() -> None:
    """Measure a node without load: kernels with a known amount of work, on one core, half of the cores and all.

    On a served emulated node (`nodectl twin run`) the node executes the kernels itself; what is printed is emulated.
    """
