"""The node's units: a granted cap is kept through whatever ends an agent or its writer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.nodectl.booted_node import (
    AGENT_UID,
    CLUSTERCTL,
    DRAWS_W,
    FOUND_UW,
    NODE,
    NODECTL,
    REST_W,
    SAFE_W,
    boot,
    comes,
    rights,
)

pytestmark = pytest.mark.timeout(3600)  # wheels are built, once, which is long on a busy machine


def test_the_node_units_keep_a_granted_cap_through_hang_kill_restart_and_stop_with_an_agent_that_is_no_root(
    tmp_path: Path,
) -> None:
    settings = NODE.replace("jobs = true\n", "").partition("[metrics]")[0]
    with boot(tmp_path, settings, jobs=False) as site:
        site.assert_unit("nodectl-agent", ActiveState="active", SubState="running")  # Type=notify: it has said READY
        site.assert_unit("nodectl-writer", ActiveState="active", SubState="running")
        comes(site, lambda: site.is_capped_to(500.0), "the first grant")
        assert rights(site.agent()) == (AGENT_UID, 1 << 38)  # CAP_PERFMON
        assert rights(site.writer()) == (0, 1 << 21)  # CAP_SYS_ADMIN, for GPUs
        assert site.run(CLUSTERCTL, "budget", "set", "300").returncode == 0
        comes(site, lambda: site.is_capped_to(300.0), "a cap within the budget")
        status = f"cap 300 W by the cluster, power {DRAWS_W + REST_W:.0f} W, healthy"
        comes(site, lambda: status in site.run("systemctl", "status", "nodectl-agent").stdout, status)
        status = "budget 300 W, granted 300 W to 1 nodes; no alarm"
        comes(site, lambda: status in site.run("systemctl", "status", "clusterctl").stdout, status)
        status = f"writes for an agent of uid {AGENT_UID}"
        assert status in site.run("systemctl", "status", "nodectl-writer").stdout

        agent, granted_w = site.agent(), site.limit_w
        assert granted_w > SAFE_W - REST_W
        for number, what in ((signal.SIGKILL, "a killed writer"), (signal.SIGSTOP, "a hung writer")):
            before = site.writer()
            os.kill(before, number)
            comes(site, lambda before=before: site.writer() != before, f"another one after {what}")  # type: ignore[misc]
            comes(site, lambda: site.limit_w == granted_w, f"the cap after {what}, not only the safe one")
        assert site.agent() == agent, f"it has waited for the writer: {site.log}"
        restarts = [site.shown(unit, "NRestarts")["NRestarts"] for unit in ("nodectl-agent", "nodectl-writer")]
        assert restarts == ["0", "2"], site.log

        os.kill(agent, signal.SIGSTOP)
        comes(site, lambda: agent not in site.pids(f"{NODECTL}\0run"), "the watchdog")
        comes(site, lambda: site.is_capped_to(300.0), "the cap after a hang")
        os.kill(site.agent(), signal.SIGKILL)
        comes(site, lambda: site.shown("nodectl-agent", "NRestarts") == {"NRestarts": "2"}, "the second restart")
        comes(site, lambda: site.is_capped_to(300.0), "the cap after a kill")
        assert site.run("systemctl", "restart", "nodectl-agent").returncode == 0
        comes(site, lambda: site.is_capped_to(300.0), "the cap after a restart")
        assert site.run(CLUSTERCTL, "budget", "set", "1000").returncode == 0
        comes(site, lambda: (site.node() or {}).get("in_force_w", 0) > 300.0, "a raise")
        assert site.run("systemctl", "stop", "nodectl-agent").returncode == 0
        for unit in ("nodectl-agent", "nodectl-writer"):
            site.assert_unit(unit, ActiveState="inactive", Result="success")
        assert site.limit_w == FOUND_UW / 1e6, "its cluster has let it go: the register is as it was found"
