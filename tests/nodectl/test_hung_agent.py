"""An agent that writes by itself, since it has a controller, and hangs: its restorer ends it and puts knobs back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from firmware_bridge.controlpulp.posix import PROGRAM, PosixController
from firmware_bridge.scmi.protocols.power_capping import CapGet
from tests.scmi.patient import patient_client
from tests.twin.served_node import ServedNode, why_not_served
from twin.pulp.shared_plant import LIBRARY, SharedPlant

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

if not PROGRAM.exists():
    pytest.skip(f"{PROGRAM} is not built", allow_module_level=True)

HANGS = """
import time

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request


class Params(msgspec.Struct, frozen=True):
    pass


class State(msgspec.Struct, frozen=True):
    decided: int = 0


def decide(params, layout, state, sample):
    if state.decided == 5:
        time.sleep(120)
    n, free = len(layout.cpus), Request.free(len(layout.cpus))
    return State(state.decided + 1), Request(np.full(n, 1_200_000, np.int64), free.reason, free.loss, free.saved_w)


POLICY = Policy("hangs", "cpu", "hangs", "a test", ("free",), Params, lambda params, layout: State(), decide)
"""

MOST_KHZ = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"


def test_an_agent_with_a_controller_that_hangs_is_ended_and_leaves_every_knob_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    controller = PosixController(
        tmp_path / "scmi", "--fifo", "try", plant=(LIBRARY, SharedPlant(tmp_path / "plant").path)
    )
    (tmp_path / "nodectl.toml").write_text(
        f'[scmi]\nurl = "{controller.url(2)}"\nknobs = {{"node/cap_mw" = "package"}}\n'
    )
    try:
        with ServedNode("curie", "--workload", "hpl") as node:
            found = node.read(MOST_KHZ)
            done = node.run(
                sys.executable, "-m", "nodectl.cli", "run", "--mode", "optimize", "--cap-w", "200",
                "--gpu-policy", "none", "--cpu-policy", str(tmp_path / "hangs.py"),
                "--config", str(tmp_path / "nodectl.toml"), "--state-dir", str(tmp_path / "state"), "--duration", "60s",
            )  # fmt: skip
            assert node.read(MOST_KHZ) == found
        assert done.returncode == 137, done.stderr
        assert "has not renewed its lease: it is killed, then its knobs are put back" in done.stderr
        assert " knobs restored" in done.stderr
        client = patient_client(controller.url(3))
        assert client.request(CapGet(0)).cap == 0
        client.close()
    finally:
        controller.stop()
