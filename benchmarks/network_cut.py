"""Half of the nodes behind a cable that is pulled: the budget while they are away, and when they come back.

Real processes: ``clusterctl serve`` and node agents with real leases (2 s) and CURVE links, in two network namespaces
with a veth pair between them. Each node keeps a history of its cap, so the sum of what all nodes could draw is known at
every instant and not only when it is looked at. Namespaces here have no names: they belong to the processes in them,
which the kernel kills when this one ends, however it does. Needs root, and util-linux and iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.experiment import save
from tests.fabric.cluster import KILLED_WITH_US, Cluster

HEAD, FAR = "10.213.77.1", "10.213.77.2"
PORT = 7410
MIN_W, EACH_W, SAFE_W = 150.0, 300.0, 200.0


def why_not() -> str:
    """Why this cannot run here; empty if it can."""
    missing = [f"{command} ({package})" for command, package in
               (("ip", "iproute2"), ("nsenter", "util-linux"), ("setpriv", "util-linux"))
               if shutil.which(command) is None]  # fmt: skip
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "network namespaces are for root"
    made = subprocess.run(["unshare", "--net", "ip", "link", "add", "cut0", "type", "veth"], capture_output=True)
    return f"no veth pair can be made: {made.stderr.decode().strip()}" if made.returncode else ""


class Cable:
    """Two network namespaces and the cable between them, for as long as this process lives."""

    def __init__(self) -> None:
        self._networks = [self._network() for _ in range(2)]
        self.head, self.far = ([*KILLED_WITH_US, "nsenter", f"--net=/proc/{one.pid}/ns/net"] for one in self._networks)
        far = self._networks[1].pid
        self._ip(self.head, f"link add cable0 type veth peer name cable1 netns {far}")
        for where, end, address in ((self.head, "cable0", HEAD), (self.far, "cable1", FAR)):
            self._ip(where, "link set lo up")
            self._ip(where, f"address add {address}/24 dev {end}")
            self._ip(where, f"link set {end} up")

    def pull(self) -> None:
        """At the far end: what is sent here is lost without a word."""
        self._ip(self.far, "link set cable1 down")

    def plug(self) -> None:
        """As before."""
        self._ip(self.far, "link set cable1 up")

    def close(self) -> None:
        for one in self._networks:
            one.kill()
            one.wait()

    def _network(self) -> subprocess.Popen[bytes]:
        """A process in a network of its own, once it is there."""
        made = subprocess.Popen([*KILLED_WITH_US, "unshare", "--net", "sh", "-c", "echo; exec sleep infinity"],
                                stdout=subprocess.PIPE)  # fmt: skip
        assert made.stdout is not None
        made.stdout.readline()
        return made

    def _ip(self, where: list[str], what: str) -> None:
        subprocess.run([*where, "ip", *what.split()], check=True)


class CutCluster(Cluster):
    """The cluster agent and half of its nodes at one end of a cable, the others at the far end."""

    def __init__(self, at: Path, n: int, more_w: float = 0.0, **settings: Any) -> None:
        """``more_w`` of budget for others than these ``n``."""
        self.cable = Cable()
        self.nodes = [f"n{i}" for i in range(n)]
        self.far_ones, self.near_ones = self.nodes[: n // 2], self.nodes[n // 2 :]
        url = f"tcp://{HEAD}:{PORT}"
        super().__init__(at, n * EACH_W + more_w, listen=url, **settings)
        self.url = url

    def start(self, *command: str, log: str, within: list[str] | None = None) -> subprocess.Popen[bytes]:
        is_far = Path(log).stem in self.far_ones
        return super().start(*command, log=log, within=within or (self.cable.far if is_far else self.cable.head))

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.cable.close()

    def are_at(self, names: list[str], watts: float) -> bool:
        return all(abs(self.cap_w(name) - watts) < 1.0 for name in names)


def run(at: Path, n: int, cut_s: float) -> dict[str, Any]:
    """Cap ``n`` nodes, cut half of them off for so long, and let them come back."""
    with CutCluster(at, n) as cluster:
        cluster.serve()
        for name in cluster.nodes:
            cluster.node(name, cap_w=MIN_W)
        cluster.until(lambda: cluster.are_at(cluster.nodes, EACH_W), is_kept=False)
        begin_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        cluster.cable.pull()
        cluster.until(lambda: cluster.are_at(cluster.far_ones, SAFE_W), is_kept=False)
        gained_w = 2 * EACH_W - SAFE_W  # what those that were cut off may no longer draw
        cluster.until(lambda: cluster.are_at(cluster.near_ones, gained_w), is_kept=False)
        time.sleep(max(begin_s + cut_s - time.clock_gettime(time.CLOCK_BOOTTIME), 0.0))
        end_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        cut_w = cluster.highest_w(end_s, end_s)
        cluster.cable.plug()
        cluster.until(lambda: cluster.are_at(cluster.nodes, EACH_W), is_kept=False)
        back_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        time.sleep(1.0)
        return {
            "nodes": n, "cut_s": end_s - begin_s, "back_s": back_s - end_s, "budget_w": cluster.budget_w,
            "cut_w": cut_w, "highest_cut_w": cluster.highest_w(begin_s, end_s),
            "highest_back_w": cluster.highest_w(end_s, back_s + 1.0),
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="six nodes and 5 s instead of sixteen and 30 s")
    is_quick = parser.parse_args(arguments).quick
    why = why_not()
    if why:
        print(f"not measured: {why}")
        return 0
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):  # with the keys
        row = run(Path(directory), *((6, 5.0) if is_quick else (16, 30.0)))
    print(f"{row['nodes']} real node agents, half of them cut off for {row['cut_s']:.1f} s, {row['budget_w']:.0f} W")
    print("the most that could be drawn: {highest_cut_w:.0f} W while they were away ({cut_w:.0f} W at the end), "
          "{highest_back_w:.0f} W after; all capped alike again after {back_s:.1f} s".format(**row))  # fmt: skip
    save("network_cut", row)
    return 0 if max(row["highest_cut_w"], row["highest_back_w"]) <= row["budget_w"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
