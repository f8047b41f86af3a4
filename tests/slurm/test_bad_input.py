"""Disks that are full and folders that are not as they should be: a line each, and every job starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.hook.build_hook import build
from cluster_agent.jobs.foreign_jobs import ForeignJob, ForeignJobs
from cluster_agent.slurm.follow import compare
from cluster_agent.slurm.job_joules import JobJoules
from tests.nodectl.test_site_jobs import Node, run_hook, site_scripts
from tests.slurm.test_joules import made
from tests.slurm.test_queue import job, known
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system without room, but for what is there already."""
    at = tmp_path / "disk"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def fill(at: Path) -> Path:
    filler = at / "filler"
    with open(filler, "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    return filler


@needs_root
def test_a_full_disk_refuses_a_notice_in_a_line_keeps_what_is_known_and_takes_it_later(full: Path) -> None:
    jobs, joules = ForeignJobs(full / "notices"), JobJoules(full / "joules")
    jobs.start(ForeignJob("1", ["n01"]), ["n01"])
    filler = fill(full)
    with pytest.raises(ClusterError, match=r"cannot store the notice: No space left on device$"):
        jobs.start(ForeignJob("2", ["n01"]), ["n01"])
    with pytest.raises(ClusterError, match=r"cannot store the notice: No space left on device$"):
        jobs.end("1")
    assert [one.job for one in jobs.all()] == ["1"], "as on the disk"
    joules.add(made(1))
    assert "No space left on device" in joules.trouble and len(joules.since(0.0, "", 9)) == 1
    filler.unlink()
    assert jobs.end("1") == "job 1 has ended" and jobs.all() == []
    joules.add(made(2))
    assert joules.trouble == "" and ForeignJobs(full / "notices").all() == []


def test_a_hook_whose_log_is_on_a_full_disk_starts_the_job(tmp_path: Path) -> None:
    hook = build(tmp_path / "nodectl-hook")
    with open("/dev/full", "w") as log:
        done = subprocess.run(
            [hook, "end", "--socket", tmp_path / "none"], check=False, stderr=log, timeout=30,
            env={"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n01"},
        )  # fmt: skip
    assert done.returncode == 0


def test_a_prolog_that_cannot_write_lets_the_job_start(tmp_path: Path) -> None:
    prolog, epilog = site_scripts(tmp_path)
    (tmp_path / "site-jobs").write_text("not a folder")
    run_hook(prolog, "17", "nodectl=off")  # raises if its status is not 0
    run_hook(epilog, "17", "")
    assert (tmp_path / "site-jobs").read_text() == "not a folder"


def test_a_page_that_cannot_be_written_is_one_line_and_the_agent_goes_on(tmp_path: Path) -> None:
    with InProcess(Twin(load_machine("curie"))) as inside:
        node = Node(inside, tmp_path, "monitor")
        (tmp_path / "job-joules").mkdir()
        with node.agent:
            node.begin("17", "")
            for _ in range(25):
                node.tick()
            assert [line for line in node.said if "not published" in line] == [
                f"the joules of jobs are not published: {tmp_path}/job-joules: Is a directory"
            ]
            (tmp_path / "job-joules").rmdir()
            for _ in range(12):
                node.tick()
        assert "17 alice" in (tmp_path / "job-joules").read_text()


def test_a_job_whose_node_is_renamed_in_slurm_is_ours_no_more(tmp_path: Path) -> None:
    stored = ForeignJobs(tmp_path / "notices")
    stored.start(known("1"), ["n01"])
    _, (start,) = compare(stored.all(), [job("1", nodes="m01")])
    line = stored.start(ForeignJob("1", [start.node_list], cluster="hpc", submitted_s=start.submitted_s), ["n01"])
    assert (line, stored.all()) == ("job 1@hpc runs on no node of this cluster agent", [])
