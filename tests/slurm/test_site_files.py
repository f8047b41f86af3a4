"""`clusterctl slurm install` and `remove`: the diff first, and afterwards every byte as it was."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cluster_agent.cli import main
from cluster_agent.slurm.site_files import HOOK, Deferred, deferred, setting

CONFS = {
    "plain": b"ClusterName=hpc\nSlurmctldLogFile=/var/log/slurm/ctld.log\nNodeName=n[1-4] CPUs=4\n",
    "no newline at its end": b"ClusterName=hpc\nNodeName=n[1-4]",
    "empty": b"",
    "Windows": b"ClusterName=hpc\r\n# PrologSlurmctld=/no\r\n",
    "no UTF-8": b"ClusterName=hpc\n# caf\xe9\n",
}


def site(at: Path, conf: bytes) -> Path:
    folder = at / "slurm"
    folder.mkdir()
    (folder / "slurm.conf").write_bytes(conf)
    (folder / "slurm.conf").chmod(0o640)
    (folder / "cgroup.conf").write_text("# of the site\n")
    return folder / "slurm.conf"


def seen(conf: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path.relative_to(conf.parent)): (path.read_bytes(), path.stat().st_mode)
            for path in sorted(conf.parent.rglob("*")) if path.is_file()} | {
        str(path.relative_to(conf.parent)): (b"", 0) for path in conf.parent.rglob("*") if path.is_dir()}  # fmt: skip


@pytest.mark.parametrize("name", CONFS)
@pytest.mark.parametrize("options", [[], ["--tags"], ["--nodes", "--tags"], ["--schedule", "all", "--tags"]])
def test_remove_leaves_every_byte_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, options: list[str]
) -> None:
    conf = site(tmp_path, CONFS[name])
    before = seen(conf)
    at = ["--conf", str(conf), "--yes"]
    assert main(["slurm", "install", *at, *options]) == 0
    shown = capsys.readouterr().out
    folder = conf.parent / "nodectl"
    assert f"+PrologSlurmctld={folder}/prolog-slurmctld" in shown and "+++" in shown
    assert setting(conf.read_bytes().decode(errors="replace"), "PrologSlurmctld") is None, "ours is not the site's"
    assert f"PrologSlurmctld={folder}/prolog-slurmctld\n".encode() in conf.read_bytes()
    assert (f"\nProlog={folder}/prolog-node\n".encode() in conf.read_bytes()) == ("--nodes" in options)
    after = seen(conf)
    assert after["slurm.conf"][1] == before["slurm.conf"][1]
    assert main(["slurm", "install", *at, *options]) == 0, "once more"
    assert seen(conf) == after and "nothing to change" in capsys.readouterr().out
    assert main(["slurm", "install", *at, *options, "--wait", "2"]) == 0, "with another choice"
    assert "--wait 2 " in (folder / "prolog-slurmctld").read_text()
    assert main(["slurm", "remove", *at]) == 0
    assert seen(conf) == before


def test_nothing_is_written_before_the_diff_was_seen_and_agreed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = site(tmp_path, CONFS["plain"])
    before = seen(conf)
    monkeypatch.setattr("click.confirm", lambda text: False)
    assert main(["slurm", "install", "--conf", str(conf)]) == 1
    assert seen(conf) == before
    assert main(["slurm", "install", "--conf", str(tmp_path / "none")]) == 2


def test_what_the_site_has_stays_the_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = b"PrologSlurmctld = /site/prolog # ours\nprologslurmctld=/site/prolog2\nJobSubmitPlugins=lua\n"
    conf = site(tmp_path, own)
    (conf.parent / "job_submit.lua").write_text("-- of the site\n")
    assert main(["slurm", "install", "--conf", str(conf), "--yes"]) == 0
    assert "PrologSlurmctld is /site/prolog2 already" in capsys.readouterr().out
    text = conf.read_text()
    assert text.startswith(own.decode()) and text.count("PrologSlurmctld=") == 0 and "EpilogSlurmctld=" in text
    assert main(["slurm", "install", "--conf", str(conf), "--yes", "--tags"]) == 2
    assert main(["slurm", "remove", "--conf", str(conf), "--yes"]) == 0
    assert conf.read_bytes() == own and (conf.parent / "job_submit.lua").read_text() == "-- of the site\n"


def test_a_script_whose_program_is_gone_starts_the_job(tmp_path: Path) -> None:
    """The package was removed and the scripts were not: a status other than 0 would requeue every job for ever."""
    conf = site(tmp_path, b"SlurmctldLogFile=" + bytes(tmp_path / "none" / "ctld.log") + b"\n")
    program = tmp_path / "a program"
    main(["slurm", "install", "--conf", str(conf), "--yes", "--hook", str(program), "--socket", str(tmp_path / "a b")])
    for script in ("prolog-slurmctld", "epilog-slurmctld"):
        command = [conf.parent / "nodectl" / script]
        assert os.access(command[0], os.X_OK)
        assert subprocess.run(command, check=False).returncode == 0
        program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
        program.chmod(0o755)
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        assert f"--socket|{tmp_path / 'a b'}|" in ran.stdout, "and a log that cannot be written does not matter"
        program.unlink()


def test_check_says_in_a_line_each_what_is_lacking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = site(tmp_path, CONFS["plain"])
    words = [
        "slurm",
        "check",
        "--conf",
        str(conf),
        "--socket",
        str(tmp_path / "none"),
        "--hook",
        str(tmp_path / "none"),
    ]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    for part in (
        "PrologSlurmctld is not set",
        "is no program",
        "AccountingStorageType is not slurmdbd",
        "no cluster agent",
    ):
        assert sum(part in line for line in lines) == 1, part
    main(["slurm", "install", "--conf", str(conf), "--yes"])
    capsys.readouterr()
    main(words)
    assert "is not set: `clusterctl slurm install`" not in capsys.readouterr().out
    assert HOOK == "/usr/lib/nodectl/nodectl-hook", "as scripts/deb.sh places it"


def scheduled(at: Path, more: bytes) -> Path:
    conf = site(at, CONFS["plain"] + b"SlurmUser=root\nPartitionName=all Nodes=n[1-4] OverSubscribe=EXCLUSIVE\n" + more)
    assert main(["slurm", "install", "--conf", str(conf), "--yes", "--schedule", "all", "--defer", "300"]) == 0
    return conf


def lacks(conf: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Of what a schedule needs."""
    capsys.readouterr()
    none = str(conf.parent / "none")
    assert main(["slurm", "check", "--conf", str(conf), "--socket", none, "--hook", none]) == 1
    words = ("JobSubmitPlugins", "SchedulerParameters", "partition")
    return [line for line in capsys.readouterr().out.splitlines() if any(word in line for word in words)]


def test_a_schedule_has_its_settings_and_the_check_says_what_they_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = scheduled(tmp_path, b"")
    assert deferred(conf) == Deferred("all", 300)
    text = conf.read_text()
    assert "\nJobSubmitPlugins=lua\nSchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=5," in text
    epilog = (conf.parent / "nodectl" / "epilog-slurmctld").read_text()
    assert "partition=all\n" in epilog and "starttime=now+300 " in epilog
    assert lacks(conf, capsys) == []
    conf.write_text(text.replace(" OverSubscribe=EXCLUSIVE", ""))
    assert [line[:30] for line in lacks(conf, capsys)] == ["partition all is not OverSubsc"]
    conf.write_text(text.replace("PartitionName=all", "PartitionName=batch"))
    assert [line[:30] for line in lacks(conf, capsys)] == ["there is no partition all, who"]


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ("SchedulerParameters=bf_interval=30,sched_min_interval=0", "add sched_interval=2,bf_interval=5,"),
        ("SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=2,batch_sched_delay=0,defer", ""),
        ("JobSubmitPlugins=job_submit/require_timelimit", "JobSubmitPlugins has no lua"),
    ],
)  # fmt: skip
def test_what_a_site_has_set_itself_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own: str, line: str
) -> None:
    found = lacks(scheduled(tmp_path, f"{own}\n".encode()), capsys)
    assert len(found) == bool(line) and line in "".join(found)


def test_a_partition_that_would_be_a_script_and_an_unknown_slurm_user_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = site(tmp_path, CONFS["plain"] + b"SlurmUser=nobody-here\n")
    at = ["slurm", "install", "--conf", str(conf), "--yes", "--schedule"]
    assert main([*at, 'a"; os.exit()']) == 2
    assert "is no name of a partition" in capsys.readouterr().err
    assert main([*at, "all"]) == 2
    assert "SlurmUser is nobody-here, whom this machine does not know" in capsys.readouterr().err
    assert deferred(conf) is None and not conf.with_name("job_submit.lua").exists()
