"""The port of the kernels on a served node: over the control socket, in real time."""

from __future__ import annotations

import sys

import pytest

from calibration.kernels import emulated
from tests.twin.served_node import ServedNode, why_not_served
from twin.serve import namespace

pytestmark = pytest.mark.skipif(bool(why_not_served()), reason=why_not_served() or "served")

_SPEED = """
import sys, time
from calibration.kernels.emulated import EmulatedKernels, ServedHost
from calibration.kernels.port import FMA, running
host = ServedHost()
port = EmulatedKernels(host)
with running(port, FMA, host.cpus[:4]):
    before, at_s = port.units_done(), time.monotonic()
    time.sleep(1.0)
    print((port.units_done() - before) / (time.monotonic() - at_s))
"""

_LEAVE = """
from calibration.kernels.emulated import EmulatedKernels, ServedHost
from calibration.kernels.port import FMA
port = EmulatedKernels(ServedHost())
port.start(FMA, [0])
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""

_TWO = """
from calibration.kernels.emulated import EmulatedKernels, ServedHost
from calibration.kernels.port import FMA, STREAM, KernelError
first, second = EmulatedKernels(ServedHost()), EmulatedKernels(ServedHost())
first.start(FMA, [0])
try:
    second.start(STREAM, [1])
except KernelError as error:
    print(error)
second.stop()
print(first.units_done() >= 0)
"""


def test_calibration_knows_where_a_served_node_is_controlled() -> None:
    assert namespace.CONTROL == emulated.CONTROL


def test_a_served_node_executes_kernels_at_its_own_clock() -> None:
    with ServedNode("curie") as node:
        speed = float(node.python(_SPEED))
        node.output(
            "sh", "-c", "for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq; do echo 1350000 >$f; done"
        )
        slow = float(node.python(_SPEED))
    assert speed == pytest.approx(4 * 8 * 2.7e9, rel=0.1)  # 8 flops per cycle at 2.7 GHz
    assert slow / speed == pytest.approx(1300 / 2700, rel=0.1)  # 1300 MHz is the step below


def test_a_kernel_ends_with_the_process_that_started_it() -> None:
    with ServedNode("curie") as node:
        for _ in range(3):  # the one before is gone, else the next is refused
            assert node.run(sys.executable, "-c", _LEAVE).returncode == -9
        assert float(node.python(_SPEED)) > 0


def test_a_second_calibration_is_refused_and_does_not_stop_the_first() -> None:
    with ServedNode("curie") as node:
        assert node.python(_TWO).split("\n")[:2] == ["a kernel runs already: fma", "True"]
