"""Class ``hw`` in real time: cluster agent, node agent and controller are processes, and the node agent is killed."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from firmware_bridge.controlpulp.posix import PROGRAM
from firmware_bridge.errors import ScmiError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.protocols.power_capping import CapGet
from firmware_bridge.scmi.protocols.telemetry import LeaseLeft
from tests.fabric.cluster import Cluster, boottime_s
from tests.nodectl.test_scmi_delegation_process import LONG_TERM, Scene, environment, soon
from tests.scmi.patient import patient_client
from tests.waiting import PATIENCE_S

if not PROGRAM.exists():
    pytest.skip(f"{PROGRAM} is not built", allow_module_level=True)

LEASE_S = 2.0
"""Of ``tests.fabric.cluster``."""

SAFE_MW = 120_000
"""The 160 W of ``safe_w`` less 40 W of rest."""

WATCHDOG_S = 3 * PATIENCE_S
"""A node of class ``os`` would be counted in full for as long."""

BUSY_S = 10.0
"""Processes on a loaded machine: from the firmware's slot to what a test sees of it. The slot itself is judged in
virtual time (``test_scmi_lease``)."""


class LeasedNode(Scene):
    """One node under a cluster agent that gives it all of 260 W."""

    def join(self, cluster: Cluster) -> None:
        self.files.put(LONG_TERM, 400_000_000)  # the site limits the package to no less than the cluster may grant
        cluster.allow("n0")
        self.config.write_text(
            f'mode = "optimize"\n{self.config.read_text()}[cluster]\nurl = "{cluster.url}"\nname = "n0"\n'
            f'key = "{cluster.keys}/n0.key"\nserver_key = "{cluster.keys}/cluster.key"\n'
            "tdp_w = 400.0\nmop_w = 100.0\nsafe_w = 160.0\nboot_w = 150.0\n"
            f'settle_s = 0.2\nwatchdog_s = {WATCHDOG_S}\nlease_class = "hw"\n'
        )

    @contextmanager
    def metered(self) -> Iterator[None]:
        """The energy counter goes on, at 100 W, whatever else happens; a reader never finds the file empty."""
        file = os.open(self.tree / "sys/class/powercap/intel-rapl:0/energy_uj", os.O_WRONLY)
        over, began_s = threading.Event(), time.monotonic()

        def count() -> None:
            while not over.wait(0.02):
                os.pwrite(file, b"%020d" % round((time.monotonic() - began_s) * 100e6), 0)

        thread = threading.Thread(target=count)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            os.close(file)

    def start(self) -> subprocess.Popen[str]:
        arguments = ("run", "--mode", "optimize", "--config", str(self.config), "--state-dir", str(self.state))
        return subprocess.Popen(self.command(*arguments), stderr=subprocess.PIPE, text=True, env=environment())

    def lease(self) -> tuple[int, int]:
        """Of the agent's channel, which only one may have at a time."""
        client = patient_client(self.url)
        try:
            found = client.request(LeaseLeft())
            return found.left_ms, found.cap_mw
        finally:
            client.close()

    def cluster_lines(self) -> list[str]:
        said = self.nodectl("doctor", "--config", str(self.config)).stdout.splitlines()
        return [line.removeprefix("[cluster]: ") for line in said if line.startswith("[cluster]: ")]


@pytest.fixture
def scene(tmp_path) -> Iterator[LeasedNode]:
    made = LeasedNode(tmp_path)
    yield made
    made.controller.stop()


def cap_through(client: Client) -> int:
    try:
        return client.request(CapGet(0)).cap
    except ScmiError:
        return -1  # late; requested again


def test_a_killed_agents_cap_is_the_safe_one_when_its_lease_ends_and_its_ledger_knows_that(scene, tmp_path):
    with scene.metered(), Cluster(tmp_path, 260.0) as cluster:
        cluster.serve()
        scene.join(cluster)
        assert any("none is set now, the first grant sets one" in line for line in scene.cluster_lines())
        agent = scene.start()
        try:
            soon(lambda: scene.cap_mw() == 220_000)
            soon(lambda: (cluster.ask("nodes") or [{}])[0].get("counts_w") == 260.0)
            (row,) = cluster.ask("nodes")
            assert (row["state"], row["lease_class"]) == ("capped", "hw")
            watcher = patient_client(scene.controller.url(3))
            agent.send_signal(signal.SIGKILL)
            killed_s = boottime_s()
            agent.wait()
            asked_s = held_s = before_s = boottime_s()
            left_ms, agreed_mw = scene.lease()
            while (cap_mw := cap_through(watcher)) != SAFE_MW:
                held_s = before_s if cap_mw == 220_000 else held_s
                assert before_s < killed_s + PATIENCE_S, "nothing has ended the cap"
                time.sleep(0.002)
                before_s = boottime_s()
            fell_s = boottime_s()
            watcher.close()
        finally:
            agent.kill()
            agent.wait()
        assert agreed_mw == SAFE_MW and left_ms <= 1000 * LEASE_S
        assert fell_s >= asked_s + left_ms / 1000 - 0.001, "not before its lease has ended"
        assert held_s < killed_s + LEASE_S + BUSY_S, "and with it"
        assert scene.lease() == (0, SAFE_MW)
        assert any("its lease is over, then 120 W at most" in line for line in scene.cluster_lines())
        soon(lambda: cluster.ask("nodes")[0]["counts_w"] == 160.0)
        assert "held" in scene.nodectl("restore", "--state-dir", str(scene.state)).stdout
        assert scene.cap_mw() == SAFE_MW
        again = scene.start()
        try:
            soon(lambda: scene.cap_mw() == 220_000)
            assert cluster.ctl("budget", "set", "1000").returncode == 0
            soon(lambda: scene.cap_mw() > 300_000)
            again.send_signal(signal.SIGTERM)
            said = again.communicate(timeout=PATIENCE_S)[1]
        finally:
            again.kill()
            again.wait()
        assert again.returncode == 0, said
        assert (scene.cap_mw(), scene.lease()) == (0, (0, 0)), "all is as it was found"
        report = json.loads(scene.nodectl("doctor", "--config", str(scene.config), "--json").stdout)
        assert report["lease"].startswith("lease_class hw: yes")
