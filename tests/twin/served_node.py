"""A served twin for tests: its command takes commands from the test and runs them, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]

_OBEY = """
import json, subprocess, sys
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    done = subprocess.run(json.loads(line), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""


def why_not_served() -> str:
    """Empty if twins can be served here, else the reason to skip."""
    if os.geteuid() != 0:
        return "serving a twin needs root"
    if not os.path.exists("/dev/fuse"):
        return "serving a twin needs /dev/fuse"
    return ""


def twin_command(*arguments: str) -> list[str]:
    """``nodectl twin ...`` as a command line."""
    return [sys.executable, "-m", "twin.cli", *arguments]


def environment() -> dict[str, str]:
    """The tests' environment, with this checkout importable from everywhere."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C"}


class ServedNode:
    """``with ServedNode("curie", "--workload", "hpl") as node: node.run("perf", "stat", ...)``. A workload lasts
    as long as any test, however slow the machine is that runs it."""

    def __init__(self, machine: str, *options: str) -> None:
        if "--workload" in options and "--duration" not in options:
            options += ("--duration", "10h")
        self._process = subprocess.Popen(
            twin_command("run", "--machine", machine, *options, "--", sys.executable, "-c", _OBEY),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )
        assert self._process.stdout and self._process.stdin
        self._answers, self._orders = self._process.stdout, self._process.stdin
        assert self._answers.readline() == '"ready"\n', "the twin did not start"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program on the served twin; standard output and error are captured."""
        self._orders.write(json.dumps(command) + "\n")
        self._orders.flush()
        status, output, error = json.loads(self._answers.readline())
        return subprocess.CompletedProcess(command, status, output, error)

    def output(self, *command: str) -> str:
        """Standard output of a program that must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, code: str, *arguments: str) -> str:
        """Standard output of a Python program that must succeed."""
        return self.output(sys.executable, "-c", code, *arguments)

    def read(self, path: str) -> str:
        """A file of the served twin."""
        return self.output("cat", path).strip()

    def twin(self, *arguments: str) -> str:
        """Standard output of ``nodectl twin ...`` queried from inside."""
        return self.output(*twin_command(*arguments))

    def close(self) -> int:
        """End the run; its exit status."""
        self._orders.close()
        return self._process.wait(timeout=PATIENCE_S)

    def __enter__(self) -> ServedNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
