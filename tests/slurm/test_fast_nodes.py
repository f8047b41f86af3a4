"""Emulated nodes of a riplay: their watts by workload, clock and switch, and the joules of the log's time."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from lab.riplay import fast_nodes
from lab.riplay.fast_nodes import FastNodes
from tests.waiting import PATIENCE_S
from twin.machine import load_machine

SPEED, OFF_W = 10.0, 14.0


def watts(nodes: FastNodes, seconds: float = 0.6) -> float:
    """The mean of all of them, in the log's time, from now on."""
    nodes.begin_meter()
    nodes.settle(time.time() + seconds)
    (began_s, before_j), (ended_s, after_j) = nodes.readings[0], nodes.readings[-1]
    return (after_j - before_j) / (ended_s - began_s) / SPEED


def test_nodes_draw_what_their_workload_clock_and_switch_make_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_nodes, "READ_S", 0.2)
    folder = tmp_path / "s"
    with FastNodes(["n01", "n02"], folder, SPEED, OFF_W, load_machine("curie")) as nodes:
        assert watts(nodes) == pytest.approx(2 * 117, rel=0.03)
        with socket.socket(socket.AF_UNIX) as job:
            job.settimeout(PATIENCE_S)
            job.connect(str(folder / "n01"))
            job.sendall(b"hpl\n")
            assert job.recv(200) == b"ok\n"
            assert watts(nodes) == pytest.approx(117 + 350, rel=0.05), "its dies are cold at first"
            nodes.set_clock(["n01"], 1200)
            assert watts(nodes, 1.2) == pytest.approx(117 + 193, rel=0.1), "a tick or two are at the clock before"
            nodes.set_off(["n02"], True)
            assert watts(nodes, 1.2) == pytest.approx(OFF_W + 193, rel=0.1)
        nodes.set_off(["n02"], False)
        nodes.settle(time.time() + 0.5)
        assert watts(nodes) == pytest.approx(2 * 117, rel=0.03), "the workload has left with its connection"
    assert not list(folder.iterdir())


def test_what_ends_the_nodes_is_raised(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(Exception, match="cannot listen there"):
        FastNodes(["n01"], tmp_path / "a file", SPEED, OFF_W, load_machine("curie")).__enter__()
