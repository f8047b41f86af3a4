"""Network namespaces and a cable that is pulled: real processes, real leases (``benchmarks/network_cut.py``)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import network_cut
from foundation.wire.link_options import HANDSHAKE_MS
from tests.waiting import PATIENCE_S

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
print(*(one.pid for one in Cable()._networks), flush=True)
time.sleep(60)
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        networks = [int(word) for word in made.stdout.readline().split()]
        assert len(networks) == 2
        assert len({os.readlink(f"/proc/{pid}/ns/net") for pid in (*networks, os.getpid())}) == 3
        made.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}/ns/net").exists() for pid in networks):
        assert time.monotonic() < deadline
        time.sleep(0.01)


SILENT_LISTENER = """
import socket, sys, time
door = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
one, _ = door.accept()
print("accepted", flush=True)
time.sleep(60)
"""
WAITING_LINK = """
import sys, time
from nodectl.member.cluster_link import ClusterLink
from tests.fabric.links import pair
link = ClusterLink(sys.argv[1], pair(), pair().public)
while link.why_down == "not connected yet":
    link.receive()
    time.sleep(0.01)
print("lost", flush=True)
"""


def test_a_peer_that_vanishes_during_the_handshake_is_given_up_long_before_the_handshakes_time_is_over():
    cable = network_cut.Cable()
    root = Path(__file__).parents[2]
    head = [*cable.head, sys.executable, "-c", SILENT_LISTENER, network_cut.HEAD, str(network_cut.PORT)]
    far = [*cable.far, sys.executable, "-c", WAITING_LINK, f"tcp://{network_cut.HEAD}:{network_cut.PORT}"]
    try:
        with subprocess.Popen(head, stdout=subprocess.PIPE) as listener:
            assert listener.stdout is not None and listener.stdout.readline() == b"listening\n"
            with subprocess.Popen(far, stdout=subprocess.PIPE, cwd=root) as link:
                assert link.stdout is not None and listener.stdout.readline() == b"accepted\n"
                time.sleep(0.5)
                cable.pull()
                begin_s = time.monotonic()
                assert link.stdout.readline() == b"lost\n"
                assert time.monotonic() - begin_s < HANDSHAKE_MS / 1000 / 2
                listener.kill()
    finally:
        cable.close()
