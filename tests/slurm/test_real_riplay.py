"""A real Slurm replays some hours of a log on eight emulated nodes, ten times as fast. Takes some 25 s: a Slurm comes
up twice."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from cluster_agent.cap_steps import Cap
from cluster_agent.scheduler.power_cap import PowerCap
from lab.riplay import riplay_run
from lab.riplay.log_part import Hours
from tests.slurm.site import ROOT, why_no_slurm
from tests.slurm.test_riplay_hours import NODES, small_log
from tests.waiting import PATIENCE_S, within

if why_no_slurm():
    pytest.skip(why_no_slurm(), allow_module_level=True)

BEGIN_S, LASTS_S = 300, 100
OFF = Cap(BEGIN_S + 30, BEGIN_S + 90, 0.6 * NODES * 358)


def test_a_slurm_replays_a_log_as_the_engine_decides_with_nodes_off_for_a_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(riplay_run, "PROBES", 1)
    log, said = small_log(tmp_path / "small.swf", shorter=10), list[str]()
    hours = Hours(log, BEGIN_S, LASTS_S / 3600, NODES, "powercap:mode=shut", PowerCap.of([OFF]))
    found = riplay_run.riplay(hours, 10.0, said.append)
    part, metrics = found.part, found.metrics
    started = {job: one for job, one in found.ran.items() if job not in part.left_s}
    ended = {job: one for job, one in found.ran.items() if one.end_s is not None and one.start_s is not None}
    assert part.left_s and len(started) >= 4 and len(ended) > len(part.left_s), "some run before, some begin, some end"
    for job, one in ended.items():
        runs_s = part.left_s.get(job, part.jobs.run_s[job])
        assert runs_s <= one.end_s - one.start_s < runs_s + 10 * LATE_S
        assert len(one.nodes) == part.jobs.width[job]
    assert all(one.start_s is None or one.start_s > one.decided_s for one in started.values())
    began = [one for one in found.ran.values() if one.start_s is not None]
    spans = sorted((name, one.start_s, one.end_s or hours.to_s) for one in began for name in one.nodes)
    assert all(one[0] != next_one[0] or one[2] <= next_one[1] for one, next_one in pairwise(spans)), "one job a node"
    assert metrics.energy_j == pytest.approx(metrics.energy_by_table_j, rel=0.1), "dies are cold in the first minutes"
    inside = [one.watts for one in found.readings if OFF.from_s + 30 <= one.time_s < OFF.to_s - 10]
    assert inside and max(inside) < 4 * 358 + 4 * 20 < OFF.watts, "four nodes are off: four that idle draw 468 W"
    assert said[-1].startswith("Slurm starts a job ")
    found.write(str(tmp_path / "out"))
    with (tmp_path / "out" / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["job"]) - 1 for row in rows] == sorted({*part.left_s, *part.waiting})
    assert "replay of the same hours" in found.table()


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    log, folder = small_log(tmp_path / "small.swf", shorter=10), tmp_path / "temporary"
    folder.mkdir(mode=0o755)
    given = ["--from", str(BEGIN_S), "--hours", "1", "--nodes", str(NODES), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster_agent.cli", "riplay", log, *given],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert within(PATIENCE_S, lambda: any(folder.glob("slurm-*/pid")))
    inner = int(next(folder.glob("slurm-*/pid")).read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert process.stderr is not None and "stopped: nothing is written, and the Slurm is gone" in process.stderr.read()
    assert not Path(f"/proc/{inner}").exists() and not list(folder.iterdir()) and not (tmp_path / "out").exists()


def test_a_killed_riplay_takes_its_slurm_along(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ALONE], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        process.kill()
    assert within(PATIENCE_S, lambda: not folder.exists())


def test_a_riplay_that_is_killed_at_once_leaves_nothing_that_comes_up_later(tmp_path: Path) -> None:
    slow, pid, go, folder = (tmp_path / name for name in ("slow", "pid", "go", "temporary"))
    folder.mkdir()
    waits = f"[ $1 != up ] || {{ echo $$ >{pid}; until [ -e {go} ]; do sleep 0.05; done; }}"
    slow.write_text(f'#!/bin/sh\n{waits}\nexec {ROOT}/scripts/slurm.sh "$@"\n')
    slow.chmod(0o755)
    script = ALONE.replace("with Site", "Site._script = property(lambda _: SLOW, lambda *_: None)\nwith Site")
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", f"SLOW = {str(slow)!r}\n{script}"], cwd=ROOT, env=environment
    ) as process:
        assert within(PATIENCE_S, lambda: pid.exists() and bool(pid.read_text().strip()))
        process.kill()
    assert within(PATIENCE_S, lambda: not any(folder.iterdir()))
    go.touch()
    up = Path("/proc", pid.read_text().strip(), "cmdline")
    assert within(PATIENCE_S, lambda: not up.exists() or not up.read_bytes())
    assert not list(folder.iterdir())


ALONE = """
from lab.riplay.real_site import Site
with Site(1, accounting=False) as site:
    print(site.at, flush=True)
    site.run("sleep", "600")
"""

LATE_S = 1.0
"""Real seconds by which a job's own program may be late, on a machine on which many others run."""
