"""The hybrid's loop with real processes: the forecast's command makes the profile of a day, idle nodes go off by it,
and one boots before its step. Times are short: an hour of the profile begins in some seconds, and a boot takes six."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from cluster_agent.cap_steps import cores_of
from cluster_agent.prices.profit_days import DAY_S
from cluster_agent.serve.config import Settings, read_settings
from cluster_agent.serve.server import Server
from tests.fabric.cluster import Cluster
from tests.fabric.test_node_power import ran, site
from tests.waiting import PATIENCE_S

BOOT_S, IDLE_OFF_S, LEAD_S = 6, 1.0, 20
NAMES = ("n0", "n1", "n2")
MACHINE = f"""\
name = "short"
summary = "three emulated nodes"

[[nodes]]
count = 3
cores = 8
off_w = 5
idle_w = 50
frequency_mhz = [2000]
busy_w = [200]
boot_s = {BOOT_S}
boot_j = 300
"""


class Head:
    """A cluster agent in a thread, whose nodes go off sooner than settings may say."""

    def __init__(self, settings: Settings) -> None:
        assert settings.jobs is not None and settings.jobs.power is not None
        power = replace(settings.jobs.power, idle_off_s=IDLE_OFF_S)
        self.settings = replace(settings, jobs=replace(settings.jobs, power=power))
        self.said = list[str]()
        self.start()

    def start(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        server = Server(self.settings, self.said.append)
        try:
            while not self._is_over.is_set():
                server.step(0.05)
        finally:
            server.close()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)


def write_log(path: Path) -> None:
    """Two of three nodes are busy all of day 0; then a minute's job a day. Day 7 is expected to be as day 0."""
    jobs = [(0, DAY_S, 16), *((day * DAY_S, 60, 8) for day in range(1, 7))]
    rows = [f"{at} {submit_s} 0 {run_s} {width} -1 -1 {width} {run_s} -1 1 1 1 1 1 1 -1 -1"
            for at, (submit_s, run_s, width) in enumerate(jobs, 1)]  # fmt: skip
    path.write_text("; MaxProcs: 24\n" + "\n".join(rows) + "\n")


def forecast(cluster: Cluster, begin_s: int, out: Path) -> tuple[tuple[int, int], ...]:
    """The profile of day 7 by the command, where day 0 begins at this Unix second."""
    begin = datetime.datetime.fromtimestamp(begin_s, datetime.UTC).isoformat()
    done = cluster.plain(
        "nodes-ahead", str(cluster.at / "log.swf"), "--machine", str(cluster.at / "short.toml"), "--offset", "0",
        "--from-day", "7", "--begin", begin, "--out", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return cores_of(str(out), out.read_bytes())


def test_from_the_forecast_to_nodes_that_are_on_before_the_step(tmp_path: Path) -> None:
    profile = tmp_path / "nodes.csv"
    (tmp_path / "short.toml").write_text(MACHINE)
    write_log(tmp_path / "log.swf")
    with Cluster(tmp_path, 2000.0, jobs={"machine": str(tmp_path / "short.toml"), "down_after_s": 5.0}) as cluster:
        settings = {"keep_on": str(profile), "idle_off_s": 30.0, "off_within_s": 60.0, "boot_within_s": 60.0}
        lines = [f"{key} = {value!r}" for key, value in (settings | site(tmp_path)).items()]
        cluster.config.write_text(cluster.config.read_text() + "\n".join(["[jobs.power]", *lines, ""]))
        steps = forecast(cluster, 0, tmp_path / "log.csv")
        assert [cores for _, cores in steps] == [8, 16]  # a node, and two when the last 24 hours had more than one
        for name in NAMES:
            cluster.node(name)
        head = Head(read_settings(cluster.config))

        def states() -> dict[str, str]:
            return {row["name"]: str(row.get("jobs")) for row in cluster.ask("nodes") or []}

        def until(holds: Callable[[], object]) -> None:
            cluster.until(holds, is_kept=False)

        try:
            until(lambda: states() == dict.fromkeys(NAMES, "idle"))
            until(lambda: any("all nodes stay on" in line for line in head.said))  # there is no profile yet
            time.sleep(2 * IDLE_OFF_S)
            assert ran(tmp_path) == []
            step_s = int(time.time()) + LEAD_S
            shifted = forecast(cluster, step_s - steps[1][0], tmp_path / "new.csv")
            assert shifted[1] == (step_s, 16)
            (tmp_path / "new.csv").rename(profile)
            until(lambda: sorted(ran(tmp_path)) == ["off n1", "off n2"])
            for name in ("n1", "n2"):
                cluster.started[name].kill()
            until(lambda: [states()[name] for name in ("n1", "n2")] == ["off", "off"])
            head.stop()  # in mid-profile
            head.start()
            until(lambda: sum("say how many nodes stay on" in line for line in head.said) >= 2)
            profile.unlink()  # the next forecast is late
            until(lambda: len(ran(tmp_path)) == 3)
            assert step_s - BOOT_S <= time.time() < step_s  # ahead, and by the profile that is lost
            assert ran(tmp_path)[2:] == ["on n1"]
            cluster.node("n1", boot_id="boot-2")
            until(lambda: states()["n1"] == "idle")
            job = cluster.ctl("submit", "-D", str(tmp_path), "-N", "3", "--", "/bin/sh", "-c", "true")
            assert job.returncode == 0, job.stderr
            until(lambda: ran(tmp_path)[3:] == ["on n2"])  # the job cannot wait for the profile
            cluster.node("n2", boot_id="boot-2")
            until(lambda: any(row["state"] == "done" for row in cluster.ask("jobs", "--all") or []))
        finally:
            head.stop()
