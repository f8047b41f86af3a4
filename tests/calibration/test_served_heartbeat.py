"""The heartbeat of a served node, over its control socket, and the writes that hang with the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.twin.served_node import ServedNode, why_not_served
from twin.machine import load_machine

pytestmark = pytest.mark.skipif(bool(why_not_served()), reason=why_not_served() or "served")

_BEAT = """
import time
from calibration.limits.heartbeat import served_heartbeat
LIMITS = ["/sys/class/powercap/intel-rapl:%d/constraint_0_power_limit_uw" % package for package in (0, 1)]
def cap(watts):
    before = time.monotonic()
    for path in LIMITS:
        open(path, "w").write(str(int(watts * 5e5)))
    return time.monotonic() - before
heartbeat = served_heartbeat()
heartbeat.start()
time.sleep(1.0)
print(sorted(heartbeat.beats().late_s)[-2])
cap(150)
time.sleep(0.4)
late = heartbeat.beats()
print(max([late.overdue_s, *late.late_s]))
print(cap(300))
time.sleep(0.1)
heartbeat.beats()
time.sleep(0.5)
print(sorted(heartbeat.beats().late_s)[-2])
"""


def test_a_served_node_hangs_below_its_hidden_cap_and_comes_back(tmp_path: Path) -> None:
    text = Path(load_machine("skylake-6146").path).read_text()
    file = tmp_path / "hangs.toml"
    file.write_text(text.replace("rest_w = 70.0", "rest_w = 70.0\nresponsive_above_w = 200.0"))
    with ServedNode(str(file)) as node:
        before_s, hung_s, answer_s, after_s = map(float, node.python(_BEAT).split())
    assert before_s < 0.005 and after_s < 0.005
    assert hung_s > 0.1
    assert answer_s >= 0.8
