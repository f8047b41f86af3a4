"""Network namespaces and a cable that is pulled: real processes, real leases (``benchmarks/network_cut.py``)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import network_cut

WHY_NOT = network_cut.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def test_half_of_the_nodes_are_cut_off_and_come_back_without_a_watt_above_the_budget(tmp_path):
    row = network_cut.run(tmp_path, n=4, cut_s=3.0)
    assert row["highest_cut_w"] <= row["budget_w"]
    assert row["highest_back_w"] <= row["budget_w"]
    assert row["cut_w"] == pytest.approx(row["budget_w"], abs=1.0), "those that were left had the others' watts"


def test_a_network_of_its_own_ends_with_whoever_made_it_even_when_that_is_killed():
    script = """
import time
from benchmarks.network_cut import Cable
print(*(one.pid for one in Cable()._holders), flush=True)
time.sleep(60)
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        holders = [int(word) for word in made.stdout.readline().split()]
        assert len(holders) == 2
        assert len({os.readlink(f"/proc/{pid}/ns/net") for pid in (*holders, os.getpid())}) == 3
        made.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/ns/net").exists() for pid in holders):
        assert time.monotonic() < deadline
        time.sleep(0.01)
