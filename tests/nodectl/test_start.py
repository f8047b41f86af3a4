"""Ctrl-C while a command is still being imported ends it as Ctrl-C does later: one line, status 130."""

from __future__ import annotations

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
