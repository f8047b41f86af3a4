"""The node's units: what an upgrade and a restart of the agent keep."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.installed_wheel import tree_before, wheel
from tests.nodectl.booted_node import (
    AGENT_UID,
    CLUSTERCTL,
    JOBS_UID,
    NODE,
    NODECTL,
    OLD_NODE,
    QUIET,
    UNITS,
    boot,
    comes,
    rights,
    scrape,
)
from tests.sealed_systemd import ROOT, install

pytestmark = pytest.mark.timeout(3600)  # wheels are built, once, which is long on a busy machine


AS_JOBS = ["setpriv", f"--reuid={JOBS_UID}", f"--regid={JOBS_UID}", "--clear-groups"]
HOSTILE = (
    "exec 2>/dev/null; kill -STOP $PPID; kill -KILL $PPID; echo -900 >/proc/self/oom_score_adj &&"
    " echo spared; for f in $(find /sys/fs/cgroup -name cgroup.procs); do echo $$ >$f && echo left; done;"
    " for f in /var/lib/nodectl/jobs/1.1/*; do echo x >$f && echo wrote $f; done;"
    " touch /var/lib/nodectl/jobs/1.1/ended.json && echo forged; env -i setsid sleep 4711 &"
)
"""What a job of another user tries in vain, without a word."""


def home_of_jobs(stage: Path) -> Path:
    """Where jobs may write, on this machine; /srv/w in there."""
    stage.chmod(0o711)
    place = stage / "w"
    place.mkdir()
    os.chown(place, JOBS_UID, JOBS_UID)
    return place


def test_a_job_goes_on_while_the_agent_that_started_it_is_killed_and_restarted(tmp_path: Path) -> None:
    def job() -> Any:
        return site.asked("jobs", "1") or {}

    with boot(tmp_path) as site:
        place = home_of_jobs(tmp_path)
        comes(site, lambda: (site.node() or {}).get("jobs") == "idle", "a node for jobs")
        script = f"{HOSTILE} echo begun; while [ ! -e /srv/go ]; do sleep 0.1; done; echo ended"
        done = site.run(
            *AS_JOBS, CLUSTERCTL, "submit", "--workdir", "/srv/w", "-t", "10min", "--", "/bin/sh", "-c", script
        )
        assert done.returncode == 0, done.stderr
        comes(site, lambda: site.pids("/srv/go") or job().get("row", {}).get("state") == "failed", "the job")
        assert job()["row"]["state"] != "failed", job()
        before = site.job("/srv/go")
        assert rights(before) == (JOBS_UID, 0)
        comes(site, lambda: "begun" in (place / "job-1.out").read_text(), "what it tried")
        (cgroup,) = [line for line in Path(f"/proc/{before}/cgroup").read_text().splitlines() if line.startswith("0::")]
        assert cgroup.endswith("/1.1") and "nodectl-agent.service/nodectl-jobs-" in cgroup
        assert "jobs run as jobs, each in a cgroup (version 2)" in site.log
        os.kill(site.agent(), signal.SIGKILL)
        comes(site, lambda: site.shown("nodectl-agent", "NRestarts") == {"NRestarts": "1"}, "the restart")
        assert site.run("systemctl", "restart", "nodectl-agent").returncode == 0
        assert site.job("/srv/go") == before
        (tmp_path / "go").touch()
        comes(site, lambda: job().get("row", {}).get("state") == "done", "its end")
        assert (place / "job-1.out").read_text() == "begun\nended\n"
        comes(site, lambda: not site.pids("sleep\x004711"), "the end of what it left behind")


def test_an_upgrade_from_the_version_before_keeps_cap_and_job(tmp_path: Path) -> None:
    before = tree_before(tmp_path / "before")
    old = wheel(before)
    assert old != wheel(ROOT)
    site = boot(tmp_path, OLD_NODE, before / "systemd", old)
    metrics = {"nodectl-metrics": (9742, "nodectl_up 1.0"), "clusterctl-metrics": (9741, "clusterctl_up 1.0")}
    for name in metrics:
        site.add(before / "systemd" / f"{name}.service", QUIET + "RestartSec=200ms\n")
    install(tmp_path, place="new")
    for file in [*UNITS.glob("*.service"), *UNITS.glob("*.socket"), UNITS / "jobs.conf"]:
        shutil.copy(file, tmp_path / "new" / file.name)
    (tmp_path / "etc/systemd/system/nodectl-agent.service.d/jobs.conf").write_text(
        (before / "systemd/jobs.conf").read_text()
    )
    with site:
        comes(site, lambda: site.is_capped_to(500.0), "the first grant by the version before")
        assert site.run(CLUSTERCTL, "budget", "set", "300").returncode == 0
        comes(site, lambda: site.is_capped_to(300.0), "a cap within the budget")
        submit = ["submit", "--workdir", "/srv", "-t", "00:10:00", "--", "/bin/sleep", "3600"]
        assert site.run(CLUSTERCTL, *submit).returncode == 0
        comes(site, lambda: site.pids("/bin/sleep\x003600"), "the job")
        (job,) = site.pids("/bin/sleep\x003600")
        for unit in ("nodectl-agent", "clusterctl", *metrics):
            assert site.run("systemctl", "stop", unit).returncode == 0
        site.upgrade()
        for unit in ("clusterctl", "nodectl-agent", *metrics):
            assert site.run("systemctl", "start", unit).returncode == 0, site.log
        comes(site, lambda: site.is_capped_to(300.0), "the cap under the new version")
        comes(site, lambda: "[jobs] user is not set" in (site.node() or {}).get("jobs_why", ""), "why it starts no job")
        (tmp_path / "etc/nodectl/nodectl.toml").write_text(NODE)
        assert site.run("systemctl", "restart", "nodectl-agent").returncode == 0, site.log
        assert site.run(NODECTL, "writer", "--help").returncode == 0, "a command that the version before has not"
        assert site.pids("/bin/sleep\x003600") == [job]
        comes(site, lambda: (site.node() or {}).get("jobs") == "allocated", "its job")
        for unit, (port, line) in metrics.items():
            comes(site, lambda port=port, line=line: line in scrape(site, port), unit)  # type: ignore[misc]
        assert max(int(found) for found in re.findall(r"epoch (\d+)", site.log)) == 2


def test_an_upgrade_of_a_node_whose_agent_was_root_keeps_the_cap_with_an_agent_that_is_none(tmp_path: Path) -> None:
    before = tree_before(tmp_path / "before")
    settings = OLD_NODE.replace("jobs = true\n", "").partition("[metrics]")[0]
    site = boot(tmp_path, settings, before / "systemd", wheel(before), jobs=False)
    key = tmp_path / "etc/nodectl/node"
    for path in (key, key / "n0.key"):
        os.chown(path, 0, 0)
    install(tmp_path, place="new")
    for unit in [*UNITS.glob("*.service"), *UNITS.glob("*.socket"), UNITS / "jobs.conf"]:
        shutil.copy(unit, tmp_path / "new" / unit.name)
    with site:
        comes(site, lambda: site.is_capped_to(500.0), "the first grant by the version before")
        assert rights(site.agent())[0] == 0
        assert site.run("systemctl", "stop", "nodectl-agent").returncode == 0
        site.upgrade()
        site.run("rm", "/etc/systemd/system/nodectl-agent.service.d/jobs.conf")
        assert site.run("systemctl", "daemon-reload").returncode == 0
        checked = site.run(NODECTL, "config", "check")
        assert (checked.returncode, "chown nodectl:" in checked.stderr) == (2, True), checked.stderr
        assert site.run("chown", "-R", "nodectl:", "/etc/nodectl/node").returncode == 0
        assert site.run(NODECTL, "config", "check").returncode == 0
        assert site.run("systemctl", "start", "nodectl-agent").returncode == 0, site.log
        comes(site, lambda: site.is_capped_to(500.0), "a grant under the new version")
        assert rights(site.agent())[0] == AGENT_UID
        assert "nodectl-writer moves knobs for it, and opens 1 sensor file" in site.run(NODECTL, "doctor").stdout
