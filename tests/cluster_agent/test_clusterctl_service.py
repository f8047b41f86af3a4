"""The head node's units under a real systemd: they start as shipped, grant a cap, return after a kill, and stop."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main
from tests.sealed_systemd import ROOT, SealedSystemd, install, sealed_systemd

UNITS = ROOT / "systemd"
USER, UID = "clusterctl", 64990
SETTINGS = """
mode = "cap"
listen = "tcp://127.0.0.1:7410"
[budget]
w = 1000.0
[nodes]
tdp_w = 500.0
lease_s = 2.0
failing_together = 0
"""
QUIET = "[Service]\nEnvironment=PYTHONDONTWRITEBYTECODE=1\n"
NODE = Path(__file__).parents[1] / "fabric" / "scripted_node.py"


@pytest.fixture
def head(tmp_path: Path) -> SealedSystemd:
    """A head node as docs/operations.md makes it."""
    systemd = sealed_systemd(tmp_path)
    install(tmp_path)
    etc = tmp_path / "etc"
    for name, line in (("passwd", f"{USER}:x:{UID}:{UID}::/:/usr/sbin/nologin"), ("group", f"{USER}:x:{UID}:")):
        (etc / name).write_text(Path("/etc", name).read_text() + line + "\n")
    keys = etc / "nodectl" / "keys"
    assert main(["keys", "new", "cluster", "--dir", str(keys)]) == 0
    assert main(["keys", "new", "n0", "--role", "node", "--dir", str(keys)]) == 0
    shutil.copytree(keys, tmp_path / "node-keys")
    for path in (keys, *keys.rglob("*")):
        os.chown(path, UID, UID)
    (etc / "nodectl" / "cluster.toml").write_text(SETTINGS)
    systemd.add(UNITS / "clusterctl.service", QUIET + "WatchdogSec=2s\n")
    return systemd


PROGRAM = "/opt/nodectl/bin/clusterctl"
SERVE = f"{PROGRAM}\0serve"


def shown(head: SealedSystemd) -> Any:
    """What ``clusterctl budget show`` says of the agent in there; None while nobody answers."""
    return head.asked("budget", "show")


@contextlib.contextmanager
def node(head: SealedSystemd) -> Iterator[Path]:
    """A node agent in there, and the file that is its hardware: the cap in mW."""
    hardware = head.stage / "n0.cap"
    hardware.write_text("500000")
    arguments = ["n0", "tcp://127.0.0.1:7410", "/srv/node-keys", "/srv/n0.cap", "boot-1"]
    command = head.command("/opt/nodectl/bin/python", str(NODE), *arguments)
    with (head.stage / "node.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
    try:
        yield hardware
    finally:
        process.kill()
        process.wait()


def epoch(head: SealedSystemd) -> int:
    return max(int(found) for found in re.findall(r"epoch (\d+)", head.log))


def test_the_unit_as_shipped_grants_a_cap_returns_after_kill_and_hang_and_stops(head: SealedSystemd) -> None:
    with head:
        head.assert_comes(lambda: shown(head), "an answer")
        with node(head) as hardware:
            assert head.run(PROGRAM, "budget", "set", "300").returncode == 0
            head.assert_comes(lambda: int(hardware.read_text()) <= 300_000, "a cap within the budget")
            (killed,) = head.pids(SERVE)
            os.kill(killed, signal.SIGKILL)
            head.assert_comes(lambda: epoch(head) == 2 and shown(head), "the cluster agent after a kill")
            (hung,) = head.pids(SERVE)
            assert hung != killed
            os.kill(hung, signal.SIGSTOP)
            head.assert_comes(lambda: epoch(head) >= 3 and shown(head), "the cluster agent after a hang")
            assert int(hardware.read_text()) <= 300_000
        stopped = head.run("systemctl", "stop", "clusterctl")
        assert (stopped.returncode, head.pids(SERVE)) == (0, [])
        state = head.run("systemctl", "show", "clusterctl", "--property=Result,ActiveState").stdout
        assert set(state.split()) == {"Result=success", "ActiveState=inactive"}, head.log


def test_the_metrics_unit_as_shipped_answers_prometheus_through_kill_restart_and_stop(head: SealedSystemd) -> None:
    """And the run of models reaches the agent, writes what it may, and says so when the agent is stopped."""
    head.add(UNITS / "clusterctl-metrics.service", QUIET + "RestartSec=200ms\n")
    head.add(UNITS / "clusterctl-models.service", QUIET)

    def is_scraped(line: str = "clusterctl_budget_watts 1000.0") -> bool:
        return line in head.fetched(9741)

    with head:
        head.assert_comes(is_scraped, "the budget as Prometheus reads it")
        assert head.run("systemctl", "start", "clusterctl-models").returncode == 0, head.log
        assert "0 jobs have ended since the last run" in head.log
        for file, mode in (
            ("/var/lib/clusterctl/models/jobs.ring", "600"),
            ("/run/clusterctl-models/models.prom", "644"),
        ):
            assert head.run("stat", "-c", "%u %a", file).stdout.split() == [str(UID), mode]
        (killed,) = head.pids(f"{PROGRAM}\0metrics")
        os.kill(killed, signal.SIGKILL)
        head.assert_comes(is_scraped, "the metrics after a kill")
        assert head.run("systemctl", "stop", "clusterctl").returncode == 0
        assert is_scraped("clusterctl_up 0.0"), "it outlives the cluster agent"
        assert head.run("systemctl", "start", "clusterctl-models").returncode != 0
        assert "clusterctl models: /run/clusterctl/clusterctl.sock: " in head.log
        assert head.run("systemctl", "start", "clusterctl").returncode == 0
        assert head.run("systemctl", "restart", "clusterctl-metrics").returncode == 0
        head.assert_comes(is_scraped, "the metrics after a restart")
        assert head.run("systemctl", "stop", "clusterctl-metrics").returncode == 0
        state = head.run("systemctl", "show", "clusterctl-metrics", "--property=Result,ActiveState").stdout
        assert set(state.split()) == {"Result=success", "ActiveState=inactive"}, head.log


LOOK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect("/run/clusterctl-page/page.sock")
    peer.sendall(f"GET /api/{sys.argv[1]} HTTP/1.0\\r\\n\\r\\n".encode())
    print(b"".join(iter(lambda: peer.recv(65536), b"")).decode())
"""


def test_the_pages_unit_as_shipped_shows_the_budget_through_kill_and_loss_of_the_agent(head: SealedSystemd) -> None:
    head.add(UNITS / "clusterctl-page.service", QUIET + "RestartSec=200ms\n")

    def shows(what: str, words: str) -> bool:
        return words in head.run("/opt/nodectl/bin/python", "-c", LOOK, what).stdout

    with head:
        head.assert_comes(lambda: shows("budget", '"budget_w":1000.0'), "the budget on the page")
        mode = head.run("stat", "-c", "%a", "/run/clusterctl-page/page.sock").stdout
        assert mode.strip() == "660"
        (killed,) = head.pids(f"{PROGRAM}\0page")
        os.kill(killed, signal.SIGKILL)
        head.assert_comes(lambda: shows("budget", '"budget_w":1000.0'), "the page after a kill")
        assert head.run("systemctl", "stop", "clusterctl").returncode == 0
        head.assert_comes(lambda: shows("state", '"lost_why":"/'), "since when the cluster agent is gone")
        assert shows("budget", '"budget_w":1000.0'), "the last that it said"
        assert head.run("systemctl", "stop", "clusterctl-page").returncode == 0
        state = head.run("systemctl", "show", "clusterctl-page", "--property=Result,ActiveState").stdout
        assert set(state.split()) == {"Result=success", "ActiveState=inactive"}, head.log


def test_a_wrong_setting_is_one_line_and_no_endless_restart(head: SealedSystemd) -> None:
    settings = head.stage / "etc" / "nodectl" / "cluster.toml"
    settings.write_text(SETTINGS.replace("w = 1000.0", "w = -1.0"))
    with head:
        head.assert_comes(lambda: "cluster.toml" in head.log, "the complaint")
        failed = ["ActiveState=failed", "NRestarts=0", "Result=exit-code"]
        show = ["systemctl", "show", "clusterctl", "--property=ActiveState,NRestarts,Result"]
        head.assert_comes(lambda: sorted(head.run(*show).stdout.split()) == failed, "the end")
    assert len((head.stage / "log").read_text().splitlines()) == 1
