"""Debian's Prometheus on a live partition: docs/dashboards.md as a reader follows it, and every query there is.

The partition is emulated: a real cluster agent, three scripted nodes of which one falls silent, and a real node agent
on an emulated node with GPUs. Addresses and folders of the page are those of the test; scrapes are every half second.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

import prometheus_client
from prometheus_client.registry import CollectorRegistry

from docs.generator.monitoring.dashboards import DASHBOARDS
from docs.generator.monitoring.known import queries_of
from docs.generator.monitoring.rules import ALERTS, RECORDED
from lab.cluster_demo.emulated_partition import free_port
from nodectl.commands.metrics import PageCollector
from nodectl.config import build_config
from nodectl.loop.agent import Agent
from tests.fabric.cluster import Cluster
from tests.monitoring.prometheus import ROOT, answers, program
from tests.waiting import PATIENCE_S
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

PAGE = ROOT / "docs" / "dashboards.md"
FILES = ROOT / "docs" / "monitoring"
NODE = "localhost"
"""The cluster's node of that name: the page's rule makes it of the address of the node's target."""
WITHOUT_VALUE = {"tag", "tag_source"}
"""Labels of legends that a node without a job's tag has not."""


class Site:
    """The partition, and Prometheus as soon as the page's commands have started it."""

    def __init__(self, at: Path, cluster: Cluster) -> None:
        self.at, self.cluster = at, cluster
        self.ports = {"9741": free_port(), "9742": free_port(), "9090": free_port()}
        self.url = f"http://127.0.0.1:{self.ports['9090']}"
        self.step: Callable[[], None] = lambda: None
        self._prometheus: subprocess.Popen[bytes] | None = None
        for folder in ("prometheus", "grafana/provisioning/dashboards", "grafana/provisioning/datasources", "bin"):
            (at / folder).mkdir(parents=True)
        (at / "bin" / "systemctl").write_text(f'#!/bin/sh\necho "$@" >>{at}/restarted\n')
        (at / "bin" / "systemctl").chmod(0o755)

    def block(self, commands: str) -> str:
        """Run a block of the page; what it prints."""
        for port, own in self.ports.items():
            commands = re.sub(rf":{port}\b", f":{own}", commands)
        commands = commands.replace("/usr/share/clusterctl", str(FILES)).replace("/etc/", f"{self.at}/")
        commands = commands.replace('"n01:', f'"{NODE}:').replace("15s", "500ms")
        path = f"{self.at}/bin:{program('promtool').parent}:{os.environ['PATH']}"
        done = subprocess.run(["sh", "-euc", commands], env=os.environ | {"PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def restarted(self) -> list[str]:
        log = self.at / "restarted"
        return log.read_text().split("\n")[:-1] if log.exists() else []

    def start_prometheus(self) -> None:
        """With the configuration that the page has written."""
        command = [
            program("prometheus"), f"--config.file={self.at}/prometheus/prometheus.yml",
            f"--storage.tsdb.path={self.at}/tsdb", f"--web.listen-address=127.0.0.1:{self.ports['9090']}",
        ]  # fmt: skip
        with (self.at / "prometheus.log").open("wb") as log:
            self._prometheus = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, command)], stdout=log, stderr=log
            )

    def until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait, while the node agent goes on."""
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end_s, f"{what}\n{(self.at / 'prometheus.log').read_text()[-2000:]}"
            self.step()
            time.sleep(0.2)

    def lately(self, query: str) -> list[dict[str, Any]]:
        """The series that it has returned at any time of the last minutes."""
        now_s = time.time()
        window = {"start": f"{now_s - 300:.1f}", "end": f"{now_s:.1f}", "step": "0.5"}
        found: list[dict[str, Any]] = answers(self.url, "query_range", query=query, **window)["result"]
        return found

    def has(self, query: str) -> bool:
        """Whether it has returned data at any time: some states last for seconds."""
        try:
            return bool(self.lately(query))
        except OSError:  # it does not listen yet
            return False

    def silence(self, budget_w: float) -> None:
        """The node n2 waits for its next report, in answer to which it would get its part of this budget; then it is
        silent."""
        n2 = self.cluster.started["n2"]
        n2.send_signal(signal.SIGCONT)
        self.cluster.until(lambda: self.cluster.ask("nodes")[-1]["state"] == "capped")
        n2.send_signal(signal.SIGSTOP)
        done = self.cluster.ctl("budget", "set", str(budget_w))
        assert done.returncode == 0, done.stderr

    def end_job(self) -> None:
        """The job's processes and cgroups outlive the agents of its nodes."""
        if "n2" in self.cluster.started:
            self.cluster.started["n2"].send_signal(signal.SIGCONT)
        if self.cluster.ctl("cancel", "1").returncode == 0:
            self.cluster.until(lambda: self.cluster.ask("jobs", "1")["row"]["state"] == "cancelled", is_kept=False)

    def close(self) -> None:
        if self._prometheus:
            self._prometheus.terminate()
            self._prometheus.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """All of it, after the page's commands, with what they print in ``printed``."""
    program("prometheus")
    at = tmp_path_factory.mktemp("site")
    with Cluster(at, 1000.0, jobs={}) as cluster, _Node(at / "node") as (collector, step):
        made = Site(at, cluster)
        made.step = step
        registry = CollectorRegistry()
        registry.register(collector)
        server, thread = prometheus_client.start_http_server(made.ports["9742"], "127.0.0.1", registry)
        try:
            _partition(made)
            yield made
        finally:
            made.end_job()
            made.close()
            server.shutdown()
            server.server_close()
            thread.join()


def _partition(made: Site) -> None:
    cluster = made.cluster
    cluster.serve()
    for name in (NODE, "n1", "n2"):
        cluster.node(name, "boot-1", 150.0, "bound")
    cluster.until(lambda: sum(row["jobs"] == "idle" for row in cluster.ask("nodes") or []) == 3)
    listen = f"127.0.0.1:{made.ports['9741']}"
    cluster.start("-m", "cluster_agent.cli", "metrics", "--listen", listen, "--socket", str(cluster.socket),
                  log="metrics.log")  # fmt: skip
    done = cluster.ctl("submit", "-D", str(cluster.at), "-N", "3", "-J", "one", "--", "sleep", "600")
    assert done.returncode == 0, done.stderr
    cluster.until(lambda: cluster.ask("jobs", "1")["row"]["state"] == "running")
    cluster.until(lambda: "http://" in (cluster.at / "metrics.log").read_text())


@dataclasses.dataclass
class _Node:
    """A node agent in this process, whose page is new whenever it is stepped."""

    at: Path

    def __enter__(self) -> tuple[PageCollector, Callable[[], None]]:
        machine = load_machine("v100")
        self.node = InProcess(Twin(machine, load_workload("hpl", machine, seed=3), seed=3))
        self.node.__enter__()
        ports = dataclasses.replace(self.node.ports, lock_path=str(self.at / "run" / "lock"))
        wanted = {"mode": "optimize", "state_dir": str(self.at), "metrics": {"listen": "127.0.0.1:1"}}
        self.opened = Agent.open(ports, build_config(wanted, lambda key: ".".join(key)))
        agent = self.opened.__enter__()

        stepped_s = -math.inf

        def step() -> None:
            nonlocal stepped_s
            if time.monotonic() - stepped_s > 2.0:
                stepped_s = time.monotonic()
                agent.run(until_ns=self.node.twin.time_ns + 1_100_000_000)

        step()
        return PageCollector(str(self.at / "run" / "agent" / "metrics.prom")), step

    def __exit__(self, *error: Any) -> None:
        self.opened.__exit__(*error)
        self.node.__exit__(*error)


def _blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def followed(site: Site) -> list[str]:
    """What each block of the page prints."""
    printed = []
    for block in _blocks():
        printed.append(site.block(block))
        if site.restarted() == ["restart prometheus"]:
            site.start_prometheus()
            (site.at / "restarted").write_text("restart prometheus\nand it runs\n")
            site.until(lambda: site.has("partition:clusterctl_drawn_watts:sum"), "no data")
    return printed


def test_the_commands_of_the_page_lead_to_data_and_to_provisioned_dashboards(site: Site, followed: list[str]) -> None:
    seen, checked, found, _ = followed
    assert seen.startswith("clusterctl_budget_watts 1000")
    assert "SUCCESS: 2 rule files found" in checked
    assert re.search(r'\{partition="main"\} => \d', found) and found.count("=>") == 2
    assert site.restarted()[-1] == "restart grafana-server"
    provided = (site.at / "grafana/provisioning/dashboards/nodectl.yml").read_text()
    (folder,) = re.findall(r"path: (\S+)", provided)
    assert folder == "/usr/share/clusterctl/grafana" and len(list((FILES / "grafana").glob("*.json"))) == 4


def filled(query: str) -> str:
    """As Grafana sends it for this partition, this node and this job."""
    values = {"__range": "1h", "__rate_interval": "10s", "partition": "main", "node": NODE, "job": "1"}
    return re.sub(r"\$(\w+)", lambda named: values[named[1]], query)


def test_every_query_of_dashboards_and_rules_returns_data(site: Site, followed: list[str]) -> None:
    measured = [(f"alert {one.name}", one.measured) for one in ALERTS]
    missing = [*queries_of(DASHBOARDS, RECORDED, ()), *measured]
    assert len(missing) > 100
    budgets_w = itertools.cycle((900.0, 800.0))
    again_s = -math.inf

    def is_none_left() -> bool:
        nonlocal missing, again_s
        if time.monotonic() > again_s:  # a machine that is busy may miss the seconds between the two states
            again_s = time.monotonic() + 15.0
            site.silence(next(budgets_w))
        missing = [(where, query) for where, query in missing if not site.has(filled(query))]
        return not missing

    try:
        site.until(is_none_left, "some queries return no data")
    finally:
        site.cluster.started["n2"].send_signal(signal.SIGCONT)
        assert missing == []


def test_legends_and_variables_have_what_they_name(site: Site, followed: list[str]) -> None:
    wrong = []
    for one in DASHBOARDS:
        for variable in one.variables:
            found = answers(site.url, f"label/{variable.label}/values", **{"match[]": filled(variable.of)})
            wrong += [] if found else [f"{one.uid}: no values of {variable.label}"]
        for panel in one.panels:
            for target in panel.targets:
                wanted = set(re.findall(r"\{\{(\w+)\}\}", target.legend)) - WITHOUT_VALUE
                if panel.kind == "table":
                    wanted |= {column for column in panel.links if "by" in target.query}
                labels = {label for series in site.lately(filled(target.query)) for label in series["metric"]}
                wrong += [f"{one.uid}, {panel.title}: no label {label}" for label in sorted(wanted - labels)]
    assert wrong == []


def test_the_alert_of_a_silent_node_is_on_and_no_alert_is_without_cause(site: Site, followed: list[str]) -> None:
    """Pending counts: this partition has not the minutes that alerts wait for."""
    site.cluster.started["n2"].send_signal(signal.SIGSTOP)

    def on() -> set[str]:
        alerts = answers(site.url, "alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts}

    try:
        site.until(lambda: "NodectlNodeSilent" in on(), "no alert")
        loaded = [rule["name"] for group in answers(site.url, "rules")["groups"] for rule in group["rules"]]
        health = {rule["health"] for group in answers(site.url, "rules")["groups"] for rule in group["rules"]}
    finally:
        site.cluster.started["n2"].send_signal(signal.SIGCONT)
    assert sorted(loaded) == sorted([*(one.name for one in ALERTS), *(one.name for one in RECORDED)])
    assert health == {"ok"}
    assert not on() & {"NodectlClusterAgentGone", "NodectlNodeAgentGone", "NodectlStoreUnwritable"}
