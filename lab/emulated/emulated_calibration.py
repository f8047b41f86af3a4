"""``nodectl calibrate run`` as a job of an emulated node: the same measurement, in a thread of the node's process.

The clocks are the agent's, as on a real node (``calibration.measure.through_agent``); the twin executes the kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from calibration.commands.calibrate_run import guest_session, kernel_named, measure, run
from calibration.commands.result_files import refuse_existing
from calibration.kernels.port import KERNELS, KernelPort
from calibration.table.adaptive_sweep import Aim
from calibration.table.table_exchange import windows_path
from foundation.shell.errors import NodectlError
from pmu.ports import Ports

COMMAND: Final = ["nodectl", "calibrate", "run"]


class EmulatedCalibration:
    """One calibration, from its start on. ``words``: the command line after ``COMMAND``; ``workdir``: where a relative
    path of it begins. ``NodectlError`` for a wrong command."""

    def __init__(self, ports: Ports, kernels: KernelPort, words: list[str], workdir: str) -> None:
        try:
            given = run.make_context("run", list(words)).params
        except click.ClickException as error:
            raise NodectlError(error.format_message()) from None
        if not given["is_guest"]:
            raise NodectlError("the node's agent runs: --through-agent is needed")
        self._ports, self._kernels = ports, kernels
        self._chosen = [kernel_named(name) for name in dict.fromkeys(given["names"])] or list(KERNELS)
        self._aim = Aim(given["precision"], given["budget_s"])
        self._output, self._again = Path(workdir) / given["out"], bool(given["again"])
        self._is_over = threading.Event()
        self.status: int | None = None
        """Its exit status; None while it runs."""
        self.lines: list[str] = []
        """What it has printed."""
        self._thread = threading.Thread(target=self._run, name="calibration", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it early: it keeps what it has measured."""
        self._is_over.set()

    def _run(self) -> None:
        try:
            refuse_existing(self._output, self._again, windows_path(self._output))
            with guest_session(
                self._ports, self._kernels, self._ports.clock.sleep_until_ns, self._is_over.is_set, self._say
            ) as session:
                status = measure(session, self._chosen, self._aim, self._output, self._say)
        except NodectlError as error:
            self._say(str(error))
            status = error.exit_status
        self.status = status

    @property
    def _say(self) -> Callable[[str], None]:
        return self.lines.append
