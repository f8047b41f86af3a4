"""A campaign as a job array of a real Slurm: tasks on several nodes share its folder, one is cancelled, and all is
recorded once. A Slurm has to come up for it, some 10 s."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.campaigns import POLICIES, SAMPLE, SLOW, cells_of, content, written
from cluster_agent.campaigns.worker import opened
from cluster_agent.cli import main
from tests.slurm.site import ROOT, Site, SiteError, why_no_slurm

if why_no_slurm():
    pytest.skip(why_no_slurm(), allow_module_level=True)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(3, accounting=False) as site:
        (site.at / "campaign").mkdir()  # all nodes share it
        yield site


def campaign(site: Site, *words: str) -> str:
    """Where Slurm is; as root, whose home may have the Python at hand."""
    program = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli", "campaign"]
    return site.run(*program, *words)


def test_two_hundred_cells_by_an_array_have_the_bytes_of_a_serial_run(site: Site, tmp_path: Path) -> None:
    at, out = site.at / "campaign", site.at / "campaign" / "out"
    file = written(at, POLICIES, range(32, 132, 2))
    said = campaign(site, str(file), "--out", str(out), "--slurm", "3", "--sbatch=--comment=a study")
    assert said.startswith("job ") and "of Slurm works on 200 replays" in said
    site.until(lambda: not site.run("squeue", "-h").strip())
    assert opened(str(out)).unfinished() == 0 and cells_of(out) == 200
    logs = [log.read_text() for log in (out / ".campaign").glob("slurm-*.log")]
    assert len(logs) == 3 and not any("Traceback" in log for log in logs)
    assert any("campaign.csv: 200 replays" in log for log in logs), "a task that finds nothing left writes the table"
    assert main(["campaign", str(file), "--out", str(tmp_path / "serial")]) == 0
    assert content(out) == content(tmp_path / "serial")


def test_a_task_that_is_cancelled_gives_its_cell_back(site: Site) -> None:
    at, out = site.at / "campaign", site.at / "campaign" / "cancelled"
    slow = at / "slow.py"
    slow.write_text(SLOW)
    file = written(at, (f"{slow}:ms=200",), range(32, 44), SAMPLE)
    said = campaign(site, str(file), "--out", str(out), "--slurm", "1")
    site.until(lambda: cells_of(out) >= 1)
    site.run("scancel", said.split()[1])
    site.until(lambda: not site.run("squeue", "-h").strip())
    folder = opened(str(out))
    assert folder.claims() == [] and folder.unfinished() == 12 - cells_of(out) > 0
    campaign(site, "--join", str(out))
    assert cells_of(out) == 12 and list((out / ".campaign" / "lost").iterdir()) == []


def test_what_sbatch_refuses_is_said_in_a_line_and_the_script_stays(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at, out = site.at / "campaign", site.at / "campaign" / "refused"
    file = written(at, ("easy",), (32,))
    with pytest.raises(SiteError, match=r"sbatch: .*; \S+/join.sbatch is what was to be submitted"):
        campaign(site, str(file), "--out", str(out), "--slurm", "1", "--sbatch=--partition=none")
    assert "--array=1-1" in (out / ".campaign" / "join.sbatch").read_text()
    assert main(["campaign", str(file), "--out", str(tmp_path / "out"), "--slurm", "1"]) == 1
    assert "sbatch: No such file or directory; submit " in capsys.readouterr().err, "no Slurm here"
