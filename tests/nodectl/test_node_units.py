"""The node's other units, settings with which no unit starts, and the units that pip users install."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.nodectl.booted_node import (
    FOUND_UW,
    IN_A_CLUSTER,
    NODE,
    NODECTL,
    QUIET,
    REST_W,
    UNITS,
    Site,
    boot,
    comes,
    scrape,
)
from tests.sealed_systemd import install, sealed_systemd

pytestmark = pytest.mark.timeout(3600)  # wheels are built, once, which is long on a busy machine


def test_the_metrics_unit_answers_through_kill_and_stop_of_an_agent_without_network_and_the_boot_unit_restores(
    tmp_path: Path,
) -> None:
    alone = 'mode = "optimize"\n[caps]\nnode_w = 200.0\nrest_w = 60.0\n[metrics]\nlisten = "127.0.0.1:9742"\n'
    alone += '[cpu_policy]\nname = "none"\n[gpu_policy]\nname = "none"\n'
    site = boot(tmp_path, alone, jobs=False)
    shipped = tmp_path / "etc/systemd/system/nodectl-agent.service.d/test.conf"
    shipped.write_text(shipped.read_text().replace(IN_A_CLUSTER, ""))
    site.add(UNITS / "nodectl-metrics.service", QUIET + "RestartSec=200ms\n")

    by_hand = tmp_path / "by-hand.service"
    by_hand.write_text(f"[Service]\nExecStart={NODECTL} run\n")
    site.add(by_hand, QUIET, is_wanted=False)
    site.add(UNITS / "nodectl-restore.service", is_wanted=False)

    def scraped() -> str:
        return scrape(site, 9742)

    with site:
        comes(site, lambda: "nodectl_cap_watts 200.0" in scraped(), "the cap as Prometheus reads it")
        assert "nodectl_up 1.0" in scraped() and "nodectl_energy" in scraped()
        (killed,) = site.pids(f"{NODECTL}\0metrics")
        os.kill(killed, signal.SIGKILL)
        comes(site, lambda: "nodectl_up 1.0" in scraped(), "the metrics after a kill")
        assert site.run("systemctl", "restart", "nodectl-metrics").returncode == 0
        comes(site, lambda: "nodectl_up 1.0" in scraped(), "the metrics after a restart")
        monitor = "sed -i 's/optimize/monitor/; /_w =/d' /etc/nodectl/nodectl.toml && systemctl restart nodectl-agent"
        assert site.run("sh", "-ec", monitor).returncode == 0
        read = re.compile(r'joules_total{instrument="package-0",quality="measured",side="cpu"} [1-9]')
        comes(site, lambda: 'mode="monitor"' in scraped() and read.search(scraped()), "joules that only root may read")
        assert site.run("sh", "-ec", f"cat > /etc/nodectl/nodectl.toml <<'TOML'\n{alone}TOML").returncode == 0
        assert site.run("systemctl", "restart", "nodectl-agent").returncode == 0

        assert site.run("systemctl", "stop", "nodectl-agent").returncode == 0
        assert "nodectl_up 0.0" in scraped() and "nodectl_cap_watts" not in scraped()

        assert site.run("systemctl", "start", "by-hand").returncode == 0
        comes(site, lambda: site.limit_w == 200.0 - REST_W, "the cap of a run by hand")
        # all its processes at once: signals go out one by one, so the restorer could act before its turn to be killed
        for signal_name in ("STOP", "KILL"):
            assert site.run("systemctl", "kill", f"--signal={signal_name}", "by-hand").returncode == 0
        site.assert_unit("by-hand", ActiveState="failed")
        # it may have been killed while it wrote: then a plain file, unlike sysfs, is empty, which reads as 0
        assert site.limit_w <= 200.0 - REST_W, "nobody is left to put it back"
        assert site.run("systemctl", "start", "nodectl-restore").returncode == 0, site.log
        assert site.limit_w == FOUND_UW / 1e6
        assert site.run("systemctl", "start", "nodectl-restore").returncode == 0, "with nothing to do"

        assert site.run("systemctl", "stop", "nodectl-metrics").returncode == 0
        assert site.shown("nodectl-metrics", "ActiveState", "Result") == {
            "ActiveState": "inactive",
            "Result": "success",
        }


FAILS = """
import msgspec
from nodectl.policies.api import Policy
class Params(msgspec.Struct, frozen=True):
    pass
def initial(params, layout):
    return layout.nothing
def decide(params, layout, state, sample):
    return state, None
POLICY = Policy("site-epp", "epp", Params, initial, decide, ("set",))
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('mode = "optimize"', 'mode = "optimise"', "nodectl.toml:2: no mode is called 'optimise' (nearest: optimize)"),
        ("node/n0.key", "node/gone.key", "/etc/nodectl/node/gone.key: cannot read the key"),
        ('cpu_policy = { name = "none" }', 'cpu_policy = { name = "/etc/nodectl/mine.py" }', "/etc/nodectl/mine.py"),
    ],
)
def test_settings_that_cannot_work_are_one_line_and_the_node_unit_is_not_started_again(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in NODE
    (tmp_path / "etc/nodectl").mkdir(parents=True)
    site = boot(tmp_path, NODE.replace(old, new))
    (tmp_path / "etc/nodectl/mine.py").write_text(FAILS)
    with site:
        site.assert_unit("nodectl-agent", ActiveState="failed", Result="exit-code", NRestarts="0", ExecMainStatus="2")
        assert sum(said in line for line in site.log.splitlines()) == 1, site.log
        assert site.limit_w == FOUND_UW / 1e6


def test_install_service_writes_units_that_run_and_remove_takes_back_just_these(tmp_path: Path) -> None:
    site = sealed_systemd(tmp_path, Site)
    install(tmp_path)
    target = tmp_path / "etc/systemd/system/nodectl-test.target"
    target.write_text("[Unit]\nDefaultDependencies=no\n")

    def units() -> set[str]:
        listed = site.run("sh", "-c", "cd /etc/systemd/system && find . -type f -o -type l").stdout.split()
        return {name for name in listed if re.search("nodectl-(agent|metrics|writer)", name)}

    with site:
        comes(site, lambda: site.run("systemctl", "list-units").returncode == 0, "systemd")
        before = units()
        for written in ("wrote", "unchanged"):
            done = site.run(NODECTL, "install-service", "--jobs")
            assert done.returncode == 0, done.stderr
            assert f"{written} /etc/systemd/system/nodectl-agent.service\n" in done.stdout
        assert site.run("systemctl", "enable", "nodectl-agent").returncode == 0
        new = {f"./nodectl-{name}" for name in ("agent.service", "agent.service.d/jobs.conf", "writer.socket")}
        assert units() - before >= new
        text = site.run("systemctl", "cat", "nodectl-agent").stdout
        assert "ExecStart=/opt/nodectl/bin/nodectl run" in text and "KillMode=process" in text
        done = site.run(NODECTL, "install-service", "--remove")
        assert done.returncode == 0, done.stderr
        assert units() == before
        assert "LoadState=not-found" in site.run("systemctl", "show", "nodectl-agent").stdout
        assert "nothing was installed" in site.run(NODECTL, "install-service", "--remove").stdout
        site.run("sh", "-c", "echo '# mine' > /etc/systemd/system/nodectl-agent.service")
        done = site.run(NODECTL, "install-service")
        assert done.returncode == 2 and "was not written by this command" in done.stderr
