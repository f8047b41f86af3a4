"""The controller as a process, in real time: the firmware's ``posix`` board.

Agents connect to ``url(agent)``. The chip is a plant in a shared library, given at the start; without one the sensors
cannot be read. ``firmware_bridge/build_posix.py`` builds the program.
"""

from __future__ import annotations

import select
import signal
import subprocess
from pathlib import Path

from firmware_bridge.errors import LinkError

AGENTS = {1: "ospm", 2: "runtime", 3: "bmc"}
"""Agents by number; each is known by the socket that it connects to."""

PROGRAM = Path(__file__).parent / "boards/posix/controlpulp-posix"

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0


class PosixController:
    """A running controller. ``folder`` has its sockets; another controller may use it later."""

    def __init__(
        self, folder: Path, *options: str, plant: tuple[Path, Path] | None = None, program: Path = PROGRAM
    ) -> None:
        """``plant``: its library and its state. Raises ``LinkError`` when the controller does not start."""
        self.folder = folder
        if not program.exists():
            raise LinkError(f"{program} is not built: run `make setup`")
        folder.mkdir(mode=0o700, exist_ok=True)
        chip = ["--plant", str(plant[0]), "--state", str(plant[1])] if plant else []
        self.process = subprocess.Popen(
            [str(program), "--with-parent", *chip, *options, str(folder)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            process_group=0,  # Ctrl-C goes to the starting process, which then ends this one
        )  # fmt: skip
        self._await_start()

    def _await_start(self) -> None:
        assert self.process.stdout and self.process.stderr
        is_ready = select.select([self.process.stdout], [], [], START_TIMEOUT_S)[0]
        if is_ready and self.process.stdout.readline():
            return
        self.process.kill()
        output = self.process.stderr.read().strip().splitlines()
        self._reap()
        raise LinkError(output[-1] if output else f"controlpulp-posix did not start within {START_TIMEOUT_S:g} s")

    def url(self, agent: int) -> str:
        """The URL that an agent connects to."""
        return f"scmi+shm:{self.folder / AGENTS[agent]}.sock"

    def kill(self) -> None:
        """Kill it; its sockets stay, as after any crash."""
        self.process.kill()
        self._reap()

    def stop(self) -> str:
        """End it by SIGTERM and return its last message. A second call does nothing."""
        if self.process.returncode is not None:
            return ""
        self.process.send_signal(signal.SIGTERM)
        try:
            output = self.process.communicate(timeout=STOP_TIMEOUT_S)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            output = f"controlpulp-posix did not end within {STOP_TIMEOUT_S:g} s of SIGTERM and was killed"
        self._reap()
        return output.strip()

    def _reap(self) -> None:
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
