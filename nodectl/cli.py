"""The command ``nodectl``.

Commands are imported when they are called: ``nodectl run`` stays resident on compute nodes and must not have plotting
or an emulated node in its memory. Errors end as one line on stderr; exit status 0: success, 1: the run or a check
failed, 2: wrong use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

import foundation.shell.single_thread  # noqa: F401  (before anything that imports numpy)
from foundation import __version__
from foundation.shell.command_line import LazyCommands, call
from nodectl.knobs.api import KnobError
from pmu.readings import PmuError

COMMANDS: Final = {
    "doctor": ("nodectl.commands.doctor", "doctor", "What this node has, can and cannot do, and why."),
    "run": ("nodectl.commands.run", "run", "Read, decide and act, as a service or around a command."),
    "policies": ("nodectl.commands.policies", "policies", "The policies, their parameters and sources."),
    "why": ("nodectl.commands.last_reasons", "why", "What the policies requested last, and why."),
    "metrics": ("nodectl.commands.metrics", "metrics", "This node for Prometheus."),
    "mqtt": ("nodectl.commands.metrics", "mqtt", "This node for an MQTT broker."),
    "config": ("nodectl.commands.config", "config", "Check the settings."),
    "writer": ("nodectl.commands.writer_service", "writer", "Write knobs for an agent, and put them back after it."),
    "install-service": (
        "nodectl.commands.install_service",
        "install_service",
        "The systemd units of an installation by pip.",
    ),
    "phases": ("nodectl.commands.phases", "phases", "What is kept of programs on GPUs for their next runs."),
    "restore": ("nodectl.commands.restore", "restore", "Put back what a killed agent left moved."),
    "replay": ("nodectl.commands.replay", "replay", "Decide a recorded journal again and compare."),
    "calibrate": ("calibration.commands.calibrate", "calibrate", "Measure what this node can do, without load."),
    "demo": ("lab.commands.node_demo", "demo", "Measure what is saved, on an emulated node."),
    "twin": ("lab.commands.twin", "twin", "Serve an emulated node to any program."),
    "scmi": ("nodectl.commands.scmi", "scmi", "Talk to an on-chip controller: caps, levels, sensors."),
}


@click.group(cls=LazyCommands, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nodectl", message="%(prog)s %(version)s")
def commands() -> None:
    """Power runtime of a compute node: reads its instruments, lowers clocks where that costs little, and leaves every
    setting as it found it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; every expected error becomes one line on stderr."""
    return call(commands, "nodectl", arguments, (PmuError, KnobError))


if __name__ == "__main__":
    sys.exit(main())
