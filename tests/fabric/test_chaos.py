"""Kills, stops, partitions, full disks, clock jumps, damaged stores, and nodes that lie, all at once, for a while: in
CI for a minute and a half."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import chaos
from benchmarks.network_cut import why_not
from tests.fabric.cluster import ROOT

WHY_NOT = why_not()


@pytest.mark.timeout(3600)
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_whatever_goes_wrong_the_budget_holds_and_no_job_is_lost_run_twice_or_wrongly_recorded():
    seconds, nodes = (90, 16) if os.environ.get("CI") else (20, 6)
    command = [sys.executable, "-m", "benchmarks.chaos", "--seconds", str(seconds), "--nodes", str(nodes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["worst_w"] <= found["budget_w"]
    assert [found[name] for name in ("lost", "twice", "left", "wrong", "tracebacks")] == [0] * 5, found
    assert found["jobs"] > 0 and found["counted"] and done.returncode == 0


def test_a_traceback_in_a_log_is_found_with_all_its_lines(tmp_path):
    for name in ("n0.log", "front.log"):
        (tmp_path / name).write_text(
            "began\nTraceback (most recent call last):\n  File a, line 1\n    a()\nKeyError: 'x'\nwent on\n"
            "Traceback (most recent call last):\n  File b, line 1"
        )
    found = chaos.tracebacks(tmp_path)
    assert found[:2] == ["front.log:\n  File a, line 1\n    a()\nKeyError: 'x'", "front.log:\n  File b, line 1"]
    assert [text.partition(":")[0] for text in found] == ["front.log"] * 2 + ["n0.log"] * 2


def test_a_finding_of_any_kind_is_a_failure():
    good = {"worst_w": 1.0, "budget_w": 1.0, "jobs": 1, "lost": 0, "twice": 0, "left": 0, "wrong": 0, "tracebacks": 0}
    good |= {"counted": {"agent's exit -9": 3}}
    assert chaos.is_sound(good)
    for found in (
        {"worst_w": 1.1},
        {"jobs": 0},
        {"lost": 1},
        {"twice": 1},
        {"left": 1},
        {"wrong": 1},
        {"tracebacks": 1},
        {"counted": {"agent's exit 2": 1}},
    ):
        assert not chaos.is_sound(good | found)
