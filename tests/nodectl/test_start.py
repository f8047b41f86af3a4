"""Ctrl-C while a command is still being imported ends it as Ctrl-C does later: one line, status 130."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

INTERRUPTED_AT = """
import os, signal, sys

class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, AtImport())
sys.argv = [{program!r}, "--version"]
from {package} import {function}
sys.exit({function}())
"""


def interrupted(program: str, module: str) -> subprocess.CompletedProcess[str]:
    """The command as its entry point runs it, with Ctrl-C when it comes to import ``module``."""
    package, _, function = SCRIPTS[program].partition(":")
    code = INTERRUPTED_AT.format(module=module, program=program, package=package, function=function)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)


@pytest.mark.parametrize("module", ["click", "foundation.shell.command_line", "foundation.shell.errors"])
@pytest.mark.parametrize("program", ["nodectl", "clusterctl"])
def test_ctrl_c_while_a_command_is_imported_is_one_line_and_status_130(program: str, module: str) -> None:
    done = interrupted(program, module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{program}: stopped\n")


def test_without_ctrl_c_a_command_goes_on() -> None:
    assert interrupted("clusterctl", "no.such.module").returncode == 0


SAYS = [sys.executable, "-m", "nodectl.cli"]


def said(arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """The command as a shell runs it, with its redirections."""
    line = f"{' '.join(SAYS)} {arguments}"
    return subprocess.run(
        line, shell=True, executable="/bin/bash", capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, **more
    )  # type: ignore[call-overload,no-any-return]


def test_a_log_on_a_full_disk_does_not_end_a_run(tmp_path: Path) -> None:
    """The agent's lines are lost; the program that it runs around is not."""
    run = f"run --mode monitor --state-dir {tmp_path} -- echo it ran"
    done = said(f"{run} 2>/dev/full")
    assert (done.returncode, done.stdout) == (0, "it ran\n")


def test_a_log_without_a_reader_does_not_end_a_run(tmp_path: Path) -> None:
    reader, log = os.pipe()
    os.close(reader)
    command = [*SAYS, "run", "--mode", "monitor", "--state-dir", str(tmp_path), "--", "echo", "it ran"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, timeout=PATIENCE_S)
    os.close(log)
    assert (done.returncode, done.stdout) == (0, "it ran\n")


def test_streams_that_are_closed_are_no_error_and_their_numbers_stay_taken() -> None:
    assert said("policies >&-").returncode == 0
    done = said("--version <&- >&- 2>&-")
    assert done.returncode == 0
    shown = "from foundation.shell.start import prepare_streams; prepare_streams(); print(open('/dev/null').fileno())"
    done = subprocess.run(
        ["/bin/bash", "-c", f'{sys.executable} -c "{shown}" <&- 2>&-'], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "3\n"


def test_what_an_encoding_lacks_is_shown_as_its_escape() -> None:
    """A terminal in a locale without UTF-8, and a file that cron writes."""
    done = said("policies", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "REGALE D2.3 \\xa73.4" in done.stdout and not done.stderr


def test_a_reader_that_has_enough_is_no_failure_under_pipefail() -> None:
    assert said("policies | true; test ${PIPESTATUS[0]} = 0").returncode == 0
