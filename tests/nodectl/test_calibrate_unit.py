"""The unit that calibrates a node on demand, under a real systemd: what it may do, and what a kill leaves."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from nodectl.build_restorer import build
from nodectl.calibrated.node_calibration import TABLE
from nodectl.config import Config
from tests.nodectl.test_systemd import LIMIT, RESTORER, SETTINGS, Node
from tests.sealed_systemd import sealed_systemd

UNIT = Path(__file__).parents[2] / "systemd" / "nodectl-calibrate.service"

PROGRAM = """
import os, sys, time
from pathlib import Path
from calibration.commands.result_files import STANDARD, TABLE
from calibration.measure.node_session import SessionError
from foundation.sealed_file import sealed, write_whole
from nodectl.knobs import open_knob
from nodectl.write.lock import NodeLock
from nodectl.write.places import save_places
from nodectl.write.saves import node_id
from nodectl.write.writer import Writer
from pmu.system import system_ports

print("called with", *sys.argv[1:], flush=True)
ports = system_ports()
lock = NodeLock("/var/lib/nodectl", ports.lock_path)
lock.acquire()
places = save_places("/var/lib/nodectl", ports.lock_path)
writer = Writer([open_knob(ports, "cpu/policy0/max_khz")], places, node_id(ports.lock_path), ports.clock)
writer.start()
try:
    open("/etc/forbidden", "w")
except OSError as error:
    print("elsewhere:", error.strerror, flush=True)
print(next(line for line in open("/proc/self/status") if line.startswith("CapBnd")), flush=True)
writer.apply({"cpu/policy0/max_khz": 1_200_000})
write_whole(STANDARD / TABLE, sealed("a table"))
print("mode", oct((STANDARD / TABLE).stat().st_mode & 0o777), oct(STANDARD.stat().st_mode & 0o777), flush=True)
try:
    while not os.path.exists("/srv/finish"):
        time.sleep(0.05)
finally:
    writer.restore_all()
    writer.close()
"""


@pytest.fixture
def systemd(tmp_path: Path) -> Node:
    node = sealed_systemd(tmp_path, Node)
    (tmp_path / "sys" / LIMIT).parent.mkdir(parents=True)
    (tmp_path / "sys" / LIMIT).write_text("3200000\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    build(tmp_path / "nodectl-restorer")
    program = tmp_path / "opt/nodectl/bin/nodectl"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} /srv/program.py "$@"\n')
    program.chmod(0o755)
    node.add(UNIT, SETTINGS, {RESTORER: "/srv/nodectl-restorer"})
    return node


def test_the_unit_can_move_clocks_and_leave_a_table_where_the_agent_looks_and_nothing_else(systemd: Node) -> None:
    with systemd:
        systemd.assert_comes(lambda: "mode 0o644" in systemd.log, "the table")
        assert systemd.limit == 1_200_000
        assert "called with calibrate run --again" in systemd.log
        assert "elsewhere: Read-only file system" in systemd.log
        mask = int(re.search(r"CapBnd:\s*([0-9a-f]+)", systemd.log)[1], 16)  # type: ignore[index]
        assert mask == 1 << 38  # CAP_PERFMON: linux/capability.h
        at = f"{Config().calibration}/{TABLE}"
        reads = systemd.run("setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "cat", at)
        assert reads.stdout.startswith("a table"), "as the agent's user would"
        (systemd.stage / "finish").touch()
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, "the captured limit")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_after_a_kill_or_a_stop_every_clock_is_back(systemd: Node, number: signal.Signals) -> None:
    with systemd:
        systemd.assert_comes(lambda: systemd.limit == 1_200_000 and systemd.pids("/srv/program.py"), "a lowered limit")
        os.kill(systemd.pids("/srv/program.py")[0], number)
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, "the captured limit")
